"""Runs that are struck at planned moments, and what is compared of them afterwards."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from earl.benchmarks.rollout import spread
from earl.config import Config
from earl.errors import EarlError
from earl.placement.peers import Peers
from earl.placement.place import on_cluster
from earl.recipe import dump
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import Store
from earl.stopping import StopRequest
from earl.train import train

if TYPE_CHECKING:
    from earl.placement.cluster.pulse import Member


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault to come.

    Example:
        Blow("learner rank", "update", "stop", member=1, call=3, delay=0.05)
    """

    role: str
    stage: str
    how: str
    member: int
    call: int
    """At which call of that stage it falls."""
    delay: float
    """Seconds after the call."""


Strike = Callable[[Blow, "Member"], bool]
"""Does it to a member; whether there was anything to strike."""


@dataclass(slots=True)
class Saboteur:
    """Strikes where a plan says, told of every call."""

    plan: list[Blow]
    strike: Strike
    struck: list[Blow] = field(default_factory=list)
    _calls: dict[tuple[str, str], int] = field(default_factory=dict)

    def asked(self, stage: str, members: Sequence["Member"]) -> None:
        """A call was made."""
        role = members[0].name.rpartition(" ")[0]
        count = self._calls[role, stage] = self._calls.get((role, stage), 0) + 1
        due = [blow for blow in self.plan if (blow.role, blow.stage) == (role, stage) and blow.call <= count]
        for blow in due[:1]:
            sleep(blow.delay)
            self.plan.remove(blow)
            if self.strike(blow, members[blow.member % len(members)]):
                self.struck.append(blow)


def campaign(root: Path, config: Config, plans: Sequence[Sequence[Blow]], strike: Strike) -> dict[str, Any]:
    """One run left alone, and one struck for each plan.

    Returns:
        `blows`: how many were struck, by role and by kind; `runs`: how many, and how many of them ended with the same
        numbers and matches as the one left alone; `episodes`: learned in each; `seconds_to_recover`.
    """
    calm = finished(root, "calm", config, Saboteur([], strike))
    struck: list[Blow] = []
    folders = []
    for number, blows in enumerate(plans):
        saboteur = Saboteur([*blows], strike)
        folders.append(finished(root, f"struck-{number}", config, saboteur))
        struck += saboteur.struck
    seconds = [second for folder in folders for second in recoveries(folder)]
    return {
        "blows": {"all": len(struck), **_count(struck)},
        "runs": {"all": len(folders), "same": sum(numbers(folder) == numbers(calm) for folder in folders)},
        "episodes": {"left_alone": episodes(calm), "struck": sorted({episodes(folder) for folder in folders})},
        "recoveries": len(seconds),
        "seconds_to_recover": spread(seconds),
    }


def finished(root: Path, name: str, config: Config, saboteur: Saboteur) -> RunFolder:
    """One run to its end."""
    folder = create(root, name, dump(config))
    with lock(folder), on_cluster(config, saboteur.asked) as place:
        progress = train(folder, config, place, Peers(), StopRequest(), None)
    if not progress.finished:
        raise EarlError(f"run {name!r} stopped at step {progress.step} of {config.total_steps}")
    return folder


def numbers(folder: RunFolder) -> tuple[Any, ...]:
    """All that a run wrote down of its steps, but times, and the way that rows went, which follows from times."""
    with Store(folder.database, read_only=True) as store:
        taken = ("dispatch/peers", "memory/peak_bytes")
        metrics = {name: points for name, points in store.metrics().items() if not name.startswith(taken)}
        return metrics, [match.result for match in store.matches()]


def recoveries(folder: RunFolder) -> Iterator[float]:
    """Seconds from each loss that was noticed to where the run went on."""
    with Store(folder.database, read_only=True) as store:
        for event in store.events():
            if event.kind == "recovered":
                yield float(event.message.rsplit(" in ", 1)[1].removesuffix(" s"))


def episodes(folder: RunFolder) -> int:
    """Episodes that were learned from."""
    with Store(folder.database, read_only=True) as store:
        return int(sum(value for _, value in store.metrics(["episodes"])["episodes"]))


def _count(blows: Sequence[Blow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for blow in blows:
        for what in (blow.role, blow.how):
            counts[what] = counts.get(what, 0) + 1
    return counts
