"""Supervision of actors: every call ends, and a dead or hanging process is named within seconds.

Two threads may make calls at a time, but none while members are replaced.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from earl.config import Config
from earl.errors import OutOfMemory
from earl.placement.peers import WorkerLost
from earl.placement.ray.memory_budget import of_memory

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
    devices: Sequence[str] = ()  # the GPUs that Ray assigned
    heartbeat: Heartbeat = field(default_factory=Heartbeat)  # for `watch`; every call has its own heartbeats


LEFT = "has lost its connection to another"
SHORT = "has no memory left"


@dataclass(slots=True)
class CallResults:
    """Results of one call to several members, by member number."""

    results: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)  # why members gave no result
    short: list[tuple[str, str]] = field(default_factory=list)  # processes that ran out of memory, and their errors

    def take(self, reference: Any, number: int, name: str) -> None:
        """Record a member's result, or why there is none."""
        try:
            self.results[number] = ray.get(reference)
        except RayTaskError as error:  # first: it is an instance of its cause's class too
            if isinstance(error.cause, OutOfMemory) or of_memory(error.cause):
                known = isinstance(error.cause, OutOfMemory)  # perhaps of another one, which the member passes on
                self.short.append((error.cause.who or name, error.cause.said) if known else (name, str(error.cause)))
                self.lost[number] = SHORT
                return
            if isinstance(error.cause, ObjectLostError | RayActorError):
                raise WorkerLost("what one process held for another is gone with it") from error
            if not isinstance(error.cause, ConnectionError | WorkerLost):
                raise error.cause from None
            self.lost[number] = LEFT
        except RayActorError:
            self.lost[number] = "has died"
        except ObjectLostError as error:
            raise WorkerLost("what one process held for another is gone with it") from error


START_SECONDS = 180
"""The longest that an actor may take to be scheduled and to answer for the first time."""


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


def method(name: str, *arguments: Any) -> Call:
    """A call of a method with the same arguments for every actor."""
    return lambda actor, _: getattr(actor, name).remote(*arguments)


class ActorGroup:
    """The actors of one fragment.

    Args:
        patience: seconds without a heartbeat after which a process is considered dead.
        longest: seconds that a call may take.
        group_size: consecutive members work on a call together; if one fails, the group's call fails. May be
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
        group_size: int = 1,
        asked: Asked | None = None,
    ) -> None:
        self._name, self._make, self._patience = name, make, patience
        self.group_size, self._asked, self._longest = group_size, asked, longest
        self.meanwhile: Callable[[], None] = lambda: None
        self.members = [self._start(number) for number in range(size)]

    def __len__(self) -> int:
        return len(self.members)

    def replace(self, number: int) -> None:
        """Kill a member's process, even if it hangs, and start a new one."""
        self.end(self.members[number])
        self.members[number] = self._start(number)

    def replace_all(self, size: int | None = None) -> None:
        """Replace all members, by `size` others if given."""
        self.end_all()
        self.members = [self._start(number) for number in range(len(self) if size is None else size)]

    def end_all(self) -> None:
        for member in self.members:
            self.end(member)

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
        if not questions:
            return {}
        answers = CallResults()
        done, late = ray.wait([*questions], num_returns=len(questions), timeout=START_SECONDS)
        for question in done:
            answers.take(question, questions[question], self._name)
        for number, found in answers.results.items():
            member = self.members[number]
            member.process, member.node, member.devices = found
        return answers.lost | {questions[q]: f"could not be started within {START_SECONDS} s" for q in late}

    def ask(self, stage: str, call: Call, numbers: Iterable[int]) -> CallResults:
        """Call members; wait until each has answered or is lost.

        Args:
            stage: what the call is for; named in errors.
            call: makes the remote call, given an actor and its number.

        Raises:
            OutOfMemory: when a member has no memory left, after the others have answered or failed.
            Exception: raised by a member's own code, unless it reports the loss of another one.
        """
        waiting = {call(self.members[number].actor, number): number for number in numbers}
        answers = CallResults()
        lost = answers.lost
        ends = time.monotonic() + self._longest
        heartbeats = {number: Heartbeat() for number in waiting.values()}
        if self._asked and waiting:
            called = [self.members[number] for number in waiting.values()]
            for _, alike in groupby(called, lambda member: member.name.rpartition(" ")[0]):
                self._asked(stage, [*alike])
        while waiting and not lost:
            self._wait(waiting, heartbeats, answers)
            if waiting and time.monotonic() > ends:
                late = min(waiting.values())
                lost.setdefault(late, f"has not finished {stage} within {self._longest:.0f} s")
        if lost:
            stuck = self._collect(waiting, heartbeats, answers)
            if short := answers.short:
                raise OutOfMemory(stage, *short[0], stuck)
        if set(lost.values()) > {LEFT}:  # members that only lost a connection to another are not the cause
            lost = {number: why for number, why in lost.items() if why != LEFT}
        return CallResults(answers.results, self._named(lost))

    def _wait(self, waiting: dict[Any, int], heartbeats: Mapping[int, Heartbeat], answers: CallResults) -> None:
        """Take what has come, and note who is silent."""
        done, _ = ray.wait([*waiting], num_returns=len(waiting), timeout=POLL_SECONDS)
        for reference in done:
            number = waiting.pop(reference)
            answers.take(reference, number, self.members[number].name)
        left = {number: heartbeats[number] for number in waiting.values() if number not in answers.lost}
        answers.lost |= self._silent(left)
        self.meanwhile()

    def mates(self, number: int) -> range:
        """The group of a member, itself included."""
        first = number - number % self.group_size
        return range(first, first + self.group_size)

    def neighbours(self, number: int) -> tuple[int, int]:
        """A member's number among those on its node, and how many these are."""
        node = self.members[number].node
        return sum(one.node == node for one in self.members[:number]), sum(one.node == node for one in self.members)

    def joined(self, others: Sequence[Member]) -> "ActorGroup":
        """These members and others, as one group that works together, for the next call."""
        both = copy(self)
        both.members = [*self.members, *others]
        both.group_size = len(both)
        return both

    def watch(self) -> Mapping[int, str]:
        """Members that are dead or silent, and why; only pings."""
        return self._named(self._silent({number: member.heartbeat for number, member in enumerate(self.members)}))

    def _named(self, lost: Mapping[int, str]) -> dict[int, str]:
        return {number: f"{self.members[number].name} {why}" for number, why in lost.items()}

    def _collect(self, waiting: Mapping[Any, int], heartbeats: Mapping[int, Heartbeat], answers: CallResults) -> bool:
        """Let members finish that can, so that only lost work is repeated. Returns whether others still wait. Members
        that wait for a lost one get a moment to report it, which shows which one failed first."""
        lost = answers.lost
        rest = {reference: number for reference, number in waiting.items() if number not in lost}
        stuck = False
        bounds = (POLL_SECONDS * 4, self._patience, self._longest)
        soon, patient, ends = (time.monotonic() + seconds for seconds in bounds)
        while rest and time.monotonic() < ends:
            self._wait(rest, heartbeats, answers)
            late = time.monotonic() > (patient if answers.short else soon)
            struck = {mate for number in lost for mate in self.mates(number)} if late else lost
            stuck |= bool({*rest.values()} & {*struck} - lost.keys())
            rest = {reference: number for reference, number in rest.items() if number not in struck}
        return stuck or bool(rest)

    def _silent(self, heartbeats: Mapping[int, Heartbeat]) -> dict[int, str]:
        """Ping members; returns those that are dead or silent for too long, and why."""
        now, silent = time.monotonic(), {}
        for number, heartbeat in heartbeats.items():
            if heartbeat.ping is not None and ray.wait([heartbeat.ping], timeout=0)[0]:
                try:
                    ray.get(heartbeat.ping)
                    heartbeat.heard = now
                except (RayActorError, GetTimeoutError):
                    silent[number] = "has died"
                heartbeat.ping = None
            if heartbeat.ping is None and number not in silent:
                heartbeat.ping, heartbeat.heard = self.members[number].actor.ping.remote(), now
            if now - heartbeat.heard > self._patience:
                silent[number] = f"has given no sign of life for {self._patience:.0f} s"
        return silent


def ask_all(group: ActorGroup, stage: str, call: Call, members: Sequence[int] | None = None) -> list[Any]:
    """The result of every member, or of some. Raises WorkerLost when one gives none."""
    numbers = range(len(group)) if members is None else members
    answers = group.ask(stage, call, numbers)
    if answers.lost:
        raise WorkerLost(f"{'; '.join(answers.lost.values())} during {stage}")
    return [answers.results[number] for number in numbers]


class GroupOwner(Protocol):
    """What actor groups know of the coordinator, which owns them: they report to it, and get shared devices from it."""

    config: Config

    def turn(self, group: ActorGroup) -> None:
        """Free shared devices for a group."""

    def join_ranks(self, given: Sequence[Any] | None = None) -> None:
        """Connect the learner's ranks, which continue with the state that they gave."""

    def note(self, kind: str, message: str) -> None:
        """Record an event of the run."""

    def failed(self, message: str) -> None:
        """Record a lost process. Raises EarlError when there were too many."""
