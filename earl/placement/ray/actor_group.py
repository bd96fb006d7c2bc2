"""Supervision of actors: every call ends, and a dead or hanging process is named within seconds.

Two threads may make calls at a time, but none while members are replaced.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from earl.config import Config
from earl.errors import OutOfMemory
from earl.placement.peers import WorkerLost
from earl.placement.ray.memory_budget import of_memory
from earl.placement.ray.reshard import Given

# Heartbeats.


@dataclass(slots=True)
class Heartbeat:
    """The heartbeat of a member, as seen by one caller."""

    heard: float = field(default_factory=time.monotonic)  # when it last answered, or was pinged
    ping: Any = None  # the unanswered ping


@dataclass(slots=True)
class Member:
    name: str
    actor: Any
    process: int = 0
    node: str = ""
    pulse: Heartbeat = field(default_factory=Heartbeat)  # for `watch`; every call has its own heartbeats


def silent_of(members: Sequence[Member], pulses: Mapping[int, Heartbeat], patience: float) -> dict[int, str]:
    """Ping members; returns those that are dead or silent for more than `patience` seconds, and why."""
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


LEFT = "has lost its connection to another"
SHORT = "has no memory left"


@dataclass(frozen=True, slots=True)
class CallResults:
    """Results of one call to several members, by member number."""

    results: Mapping[int, Any]
    lost: Mapping[int, str]  # why members gave no result


def take(
    reference: Any, number: int, name: str, results: dict[int, Any], lost: dict[int, str], short: list[OutOfMemory]
) -> None:
    """Record a member's result, or why there is none."""
    try:
        results[number] = ray.get(reference)
    except (
        RayTaskError
    ) as error:  # first: an error raised by the member's own code is an instance of its cause's class too
        if isinstance(error.cause, OutOfMemory) or of_memory(error.cause):
            short.append(_short(error.cause, name))
            lost[number] = SHORT
            return
        if isinstance(error.cause, ObjectLostError | RayActorError):
            raise WorkerLost("what one process held for another is gone with it") from error
        if not isinstance(error.cause, ConnectionError | WorkerLost):
            raise error.cause from None
        lost[number] = LEFT
    except RayActorError:
        lost[number] = "has died"
    except ObjectLostError as error:
        raise WorkerLost("what one process held for another is gone with it") from error


def _short(error: BaseException, name: str) -> OutOfMemory:
    """The process that ran out of memory: the member, or another one whose error it passes on."""
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.stage, error.who or name, error.said)
    return OutOfMemory("", name, str(error))


START_SECONDS = 180
"""The longest that an actor may take to be scheduled and to answer for the first time."""


class ActorRoster:
    """Members by number. make: starts actor number i; patience: seconds that killing one may take."""

    def __init__(self, name: str, size: int, make: Callable[[int], Any], patience: float) -> None:
        self._name, self._make, self._patience = name, make, patience
        self._parked: dict[int, list[Member]] = {}
        self.members = [self._start(number) for number in range(size)]

    def __len__(self) -> int:
        return len(self.members)

    def replace(self, number: int) -> None:
        """Kill a member's process, even if it hangs, and start a new one."""
        self.end(self.members[number])
        self.members[number] = self._start(number)

    def replace_all(self) -> None:
        self.end_all()
        self.members = [self._start(number) for number in range(len(self.members))]

    def resize(self, size: int, park: bool) -> bool:
        """Change to `size` members; returns whether they are parked ones. park: keep the present members until their
        number is wanted again; otherwise they end."""
        if park:
            self._parked[len(self.members)] = self.members
        else:
            self.end_all()
        waited = self._parked.pop(size, None)
        self.members = waited or [self._start(number) for number in range(size)]
        return waited is not None

    def end_all(self) -> None:
        for member in (*self.members, *(member for waiting in self._parked.values() for member in waiting)):
            self.end(member)
        self._parked = {}

    def end(self, member: Member) -> None:
        """End a member, even one that is stopped and receives nothing."""
        ray.kill(member.actor, no_restart=True)
        if member.process:
            strategy = NodeAffinitySchedulingStrategy(node_id=member.node, soft=False)
            killed = _kill_process.options(scheduling_strategy=strategy).remote(member.process)
            ray.wait([killed], timeout=self._patience)  # its node may be gone too

    def _start(self, number: int) -> Member:
        return Member(f"{self._name} {number}", self._make(number))

    def introduce(self) -> Mapping[int, str]:
        """Wait until every new member answers; returns those that do not, and why."""
        new = [number for number, member in enumerate(self.members) if not member.process]
        questions = {self.members[number].actor.whereabouts.remote(): number for number in new}
        lost: dict[int, str] = {}
        if not questions:
            return lost
        done, late = ray.wait([*questions], num_returns=len(questions), timeout=START_SECONDS)
        for question in done:
            results: dict[int, Any] = {}
            number = questions[question]
            take(question, number, self.members[number].name, results, lost, [])
            if number in results:
                self.members[number].process, self.members[number].node = results[number]
        return lost | {questions[q]: f"could not be started within {START_SECONDS} s" for q in late}


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def _kill_process(process: int) -> None:
    """Kill a Ray worker process on this node; a stopped process does not receive Ray's own request."""
    try:
        if b"ray::" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)
    except OSError:
        pass  # it has ended by itself


POLL_SECONDS = 0.5
Call = Callable[[Any, int], Any]
Asked = Callable[[str, Sequence[Member]], None]


class ActorGroup(ActorRoster):
    """The actors of one fragment.

    Args:
        patience: seconds without a heartbeat after which a process is considered dead.
        longest: seconds that a call may take.
        group: group size: consecutive members work on a call together; if one fails, the group's call fails. May be
            changed between two calls.
        asked: called after every call was made, with stage and members.

    Attributes:
        meanwhile: called repeatedly while members work, to watch over others that they depend on.
    """

    def __init__(
        self,
        name: str,
        size: int,
        make: Callable[[int], Any],
        patience: float,
        longest: float,
        group: int = 1,
        asked: Asked | None = None,
    ) -> None:
        super().__init__(name, size, make, patience)
        self.group, self._asked, self._longest = group, asked, longest
        self.meanwhile: Callable[[], None] = lambda: None

    def ask(self, stage: str, call: Call, numbers: Iterable[int], bound: bool = False) -> CallResults:
        """Call members; wait until each has answered or is lost.

        Args:
            stage: what the call is for; named in errors.
            call: makes the remote call, given an actor and its number.
            bound: all called members wait for each other in this call, whatever `group` is.

        Raises:
            OutOfMemory: when a member has no memory left, after the others have answered or failed.
            Exception: raised by a member's own code, unless it reports the loss of another one.
        """
        short: list[OutOfMemory] = []
        waiting = {call(self.members[number].actor, number): number for number in numbers}
        results: dict[int, Any] = {}
        lost: dict[int, str] = {}
        ends = time.monotonic() + self._longest
        pulses = {number: Heartbeat() for number in waiting.values()}
        if self._asked and waiting:
            self._asked(stage, [self.members[number] for number in waiting.values()])
        while waiting and not lost:
            done, _ = ray.wait([*waiting], num_returns=len(waiting), timeout=POLL_SECONDS)
            for reference in done:
                self._take(reference, waiting.pop(reference), results, lost, short)
            lost |= self._silent({number: pulses[number] for number in waiting.values()})
            self.meanwhile()
            if waiting and time.monotonic() > ends:
                late = min(waiting.values())
                lost.setdefault(late, f"has not finished {stage} within {self._longest:.0f} s")
        if lost:
            stuck = self._collect(waiting, pulses, results, lost, len(self) if bound else self.group, short)
            if short:
                raise OutOfMemory(stage, short[0].who, short[0].said, stuck)
        if set(lost.values()) > {LEFT}:  # members that only lost a connection to another are not the cause
            lost = {number: why for number, why in lost.items() if why != LEFT}
        return CallResults(results, self._named(lost))

    def mates(self, number: int, group: int | None = None) -> range:
        """The group of a member, itself included; `group` replaces the default size."""
        size = group or self.group
        first = number - number % size
        return range(first, first + size)

    def watch(self) -> Mapping[int, str]:
        """Members that are dead or silent, and why; only pings."""
        return self._named(self._silent({number: member.pulse for number, member in enumerate(self.members)}))

    def _named(self, lost: Mapping[int, str]) -> dict[int, str]:
        return {number: f"{self.members[number].name} {why}" for number, why in lost.items()}

    def _collect(
        self,
        waiting: Mapping[Any, int],
        pulses: Mapping[int, Heartbeat],
        results: dict[int, Any],
        lost: dict[int, str],
        group: int,
        short: list[OutOfMemory],
    ) -> bool:
        """Let members finish that can, so that only lost work is repeated. Returns whether others still wait. Members
        that wait for a lost one get a moment to report it, which shows which one failed first."""
        rest = {reference: number for reference, number in waiting.items() if number not in lost}
        stuck = False
        bounds = (POLL_SECONDS * 4, self._patience, self._longest)
        soon, patient, ends = (time.monotonic() + seconds for seconds in bounds)
        while rest and time.monotonic() < ends:
            done, _ = ray.wait([*rest], num_returns=len(rest), timeout=POLL_SECONDS)
            for reference in done:
                self._take(reference, rest.pop(reference), results, lost, short)
            lost |= self._silent({number: pulses[number] for number in rest.values() if number not in lost})
            self.meanwhile()
            late = time.monotonic() > (patient if short else soon)
            struck = {mate for number in lost for mate in self.mates(number, group)} if late else lost
            stuck |= bool({*rest.values()} & {*struck} - lost.keys())
            rest = {reference: number for reference, number in rest.items() if number not in struck}
        return stuck or bool(rest)

    def _take(
        self, reference: Any, number: int, results: dict[int, Any], lost: dict[int, str], short: list[OutOfMemory]
    ) -> None:
        take(reference, number, self.members[number].name, results, lost, short)

    def _silent(self, pulses: Mapping[int, Heartbeat]) -> dict[int, str]:
        return silent_of(self.members, pulses, self._patience)


class ActorOwner(Protocol):
    """The owner of a run's actor groups, as these see it."""

    def turn(self, crew: ActorGroup) -> None:
        """An actor group is about to be called: if it shares devices, free them for it."""

    def keep(self, config: Config) -> None:
        """Actors that are started later follow this recipe."""

    def rejoin(self, config: Config, given: Sequence[Given]) -> None:
        """Ranks that have left each other join under another layout. Raises WorkerLost when one is gone."""

    def failed(self, message: str) -> None:
        """A process was lost. Raises EarlError when there were too many losses."""

    def mended(self, message: str) -> None:
        """A lost process was replaced."""

    def note(self, kind: str, message: str) -> None:
        """Record an event of the run."""
