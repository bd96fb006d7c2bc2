"""Who the members of a crew are: they are started, replaced, let wait, and ended."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from earl.placement.cluster.answers import take
from earl.placement.cluster.pulse import Member

START_SECONDS = 180
"""The longest that an actor may take to be scheduled and to answer for the first time."""


class Roster:
    """The members of a crew, by number.

    Args:
        make: starts actor number i.
        patience: seconds that one may take to be ended.
    """

    def __init__(self, name: str, size: int, make: Callable[[int], Any], patience: float) -> None:
        self._name, self._make, self._patience = name, make, patience
        self._parked: dict[int, list[Member]] = {}
        self.members = [self._start(number) for number in range(size)]

    def __len__(self) -> int:
        return len(self.members)

    def replace(self, number: int) -> None:
        """End a member's process, however it hangs, and start a new one in its place."""
        self.end(self.members[number])
        self.members[number] = self._start(number)

    def replace_all(self) -> None:
        """Replace every member."""
        self.end_all()
        self.members = [self._start(number) for number in range(len(self.members))]

    def resize(self, size: int, park: bool) -> bool:
        """Be other members, `size` of them.

        Args:
            park: whether those that there are wait until there shall be as many as they are again; else they end.

        Returns:
            whether they are ones that have waited.
        """
        if park:
            self._parked[len(self.members)] = self.members
        else:
            self.end_all()
        waited = self._parked.pop(size, None)
        self.members = waited or [self._start(number) for number in range(size)]
        return waited is not None

    def end_all(self) -> None:
        """End every member, also those that wait."""
        for member in (*self.members, *(member for waiting in self._parked.values() for member in waiting)):
            self.end(member)
        self._parked = {}

    def end(self, member: Member) -> None:
        """End a member, also one that is stopped and hears nothing."""
        ray.kill(member.actor, no_restart=True)
        if member.process:
            strategy = NodeAffinitySchedulingStrategy(node_id=member.node, soft=False)
            killed = _kill_process.options(scheduling_strategy=strategy).remote(member.process)
            ray.wait([killed], timeout=self._patience)  # its node may be gone with it

    def _start(self, number: int) -> Member:
        return Member(f"{self._name} {number}", self._make(number))

    def introduce(self) -> Mapping[int, str]:
        """Wait until every new member answers; those that do not, and why."""
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
    """Kill a worker process of Ray's on this node; a stopped one does not hear Ray's own request."""
    try:
        if b"ray::" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)
    except OSError:
        pass  # it has ended by itself
