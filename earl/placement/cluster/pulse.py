"""Signs of life: who has died, or says nothing any more, is known within seconds."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError


@dataclass(slots=True)
class Pulse:
    """What is heard of a member by one of those who wait for it."""

    heard: float = field(default_factory=time.monotonic)
    """When it last answered, or was asked."""
    ping: Any = None
    """The question that it has not answered yet."""


@dataclass(slots=True)
class Member:
    """An actor, and what is known of its process."""

    name: str
    actor: Any
    process: int = 0
    node: str = ""
    pulse: Pulse = field(default_factory=Pulse)
    """As `watch` hears it; every call has its own."""


def silent_of(members: Sequence[Member], pulses: Mapping[int, Pulse], patience: float) -> dict[int, str]:
    """Ask members for a sign of life; those that have given none for too long."""
    now, silent = time.monotonic(), {}
    for number, pulse in pulses.items():
        if pulse.ping is not None and ray.wait([pulse.ping], timeout=0)[0]:
            try:
                ray.get(pulse.ping)
                pulse.heard = now
            except (RayActorError, GetTimeoutError):
                silent[number] = "has died"
            pulse.ping = None
        if pulse.ping is None and number not in silent:
            pulse.ping, pulse.heard = members[number].actor.ping.remote(), now
        if now - pulse.heard > patience:
            silent[number] = f"has given no sign of life for {patience:.0f} s"
    return silent
