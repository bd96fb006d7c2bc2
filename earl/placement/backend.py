"""Where a run's stages are: in this process and its peers, or on a cluster."""

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from earl.config import Config
from earl.engine.model import load
from earl.placement.embedded import embedded
from earl.placement.peers import Peers, WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.rehearsal.state import attach

if TYPE_CHECKING:
    from earl.placement.ray.actor_group import Asked


class Backend(Protocol):
    """Where the stages are, and what can be done when a part of them is lost."""

    def open(self, saved: Path | None) -> StepPipeline:
        """The stages; the model is that of a checkpoint, where there is one."""

    def mend(self, lost: WorkerLost) -> None:
        """Replace what was lost, so that the run can go on from its last checkpoint. Raises what it cannot mend."""

    def notes(self) -> Iterable[tuple[str, str]]:
        """What was mended since this was last asked: kinds of events and messages."""


@dataclass(frozen=True, slots=True)
class EmbeddedBackend:
    """This process and its peers."""

    config: Config
    peers: Peers

    def open(self, saved: Path | None) -> StepPipeline:
        """The embedded placement."""
        return embedded(self.config, self.peers, load(saved) if saved else None)

    def mend(self, lost: WorkerLost) -> None:
        """Nothing can be: the other processes wait for the one that is lost."""
        raise lost

    def notes(self) -> Iterable[tuple[str, str]]:
        """None."""
        return ()


@contextmanager
def on_cluster(config: Config, asked: "Asked | None" = None) -> Iterator[Backend]:
    """The Ray cluster that a recipe's placement asks for; what is started there ends with the context.

    Args:
        asked: is told of every call to an actor.

    Raises:
        EarlError: when there is no such cluster, or it has too few devices.
    """
    with _in_environment(_opening(config.placement.address)):
        from earl.placement.ray.coordinator import cluster  # Ray reads the environment when it is imported

        with cluster(config, asked) as place:
            yield place


def _opening(address: str | None) -> Mapping[str, str]:
    """The environment in which Ray opens: of a rehearsed cluster its own, of a new one a token for this user alone."""
    if address:
        return attach(address)
    return {} if "RAY_AUTH_MODE" in os.environ else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}


@cache
def _token() -> str:
    """One for all clusters that this process opens, one after the other: Ray reads it once."""
    return secrets.token_hex(32)


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """With these environment variables, for this process and those that it starts meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
