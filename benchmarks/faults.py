"""A campaign of faults: processes of a running job are killed and stopped, in every role and stage.

one run undisturbed ─▶ the same run, struck again and again ─▶ the same numbers at its end? ─▶ time to recover
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from earl.benchmarks.rollout import spread
from earl.config import Config
from earl.errors import EarlError
from earl.placement.peers import Peers
from earl.placement.place import on_cluster
from earl.recipe import build, dump, override
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import Store
from earl.train import StopRequest, train

if TYPE_CHECKING:
    from earl.placement.cluster.crew import Member

RECIPE: dict[str, Any] = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0, "perfect": 1.0}},
    "model": {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "intermediate": 24},
    "warm_start": {"steps": 2, "teacher": "expert", "episodes": 16, "minibatches": 1},
    "rollout": {"episodes": 32, "group_size": 4},
    "algorithm": {"name": "ppo", "kl": 0.01},
    "evaluate": {"every": 2, "opponents": ["random"], "episodes": 4, "final_episodes": 4},
    "run": {"steps": 6, "processes": 1, "checkpoint_every": 2, "keep_trajectories_every": 4},
    "placement": {"kind": "disaggregated", "dp": 2, "samplers": 2, "heartbeat_seconds": 3.0},
}
LEARNER = ("update", "scoring", "values", "weights", "saving")
ROLLOUT = ("demonstrations", "rollout", "evaluation", "weights", "limit")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LONGEST_DELAY = 0.2
"""Seconds between a call and the blow, at most."""
BLOWS_PER_RUN = 5


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


@dataclass(slots=True)
class Saboteur:
    """Strikes where a plan says, told of every call."""

    plan: list[Blow]
    struck: list[Blow] = field(default_factory=list)
    _calls: dict[tuple[str, str], int] = field(default_factory=dict)

    def asked(self, stage: str, members: Sequence["Member"]) -> None:
        """A call was made."""
        role = members[0].name.rpartition(" ")[0]
        count = self._calls[role, stage] = self._calls.get((role, stage), 0) + 1
        due = [blow for blow in self.plan if (blow.role, blow.stage) == (role, stage) and blow.call <= count]
        for blow in due[:1]:
            victim = members[blow.member % len(members)]
            time.sleep(blow.delay)
            self.plan.remove(blow)
            with suppress(ProcessLookupError):
                os.kill(victim.process, SIGNALS[blow.how])
                self.struck.append(blow)


def plan(seed: int, rounds: int) -> list[list[Blow]]:
    """Every role, stage and signal, `rounds` times over, dealt to runs."""
    random = Random(seed)
    cells = [("learner rank", stage) for stage in LEARNER] + [("rollout worker", stage) for stage in ROLLOUT]
    blows = [
        Blow(role, stage, how, random.randrange(2), random.randint(1, 2), random.uniform(0, LONGEST_DELAY))
        for _ in range(rounds)
        for role, stage in cells
        for how in SIGNALS
    ]
    random.shuffle(blows)
    return [blows[start : start + BLOWS_PER_RUN] for start in range(0, len(blows), BLOWS_PER_RUN)]


def run(root: Path, seed: int = 0, rounds: int = 2, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Carry the campaign out.

    Args:
        root: where the runs lie; new names are taken.

    Returns:
        `blows`: how many were struck, by role and by signal; `runs`: how many, and how many of them ended with the
        same numbers and matches as the undisturbed one; `episodes`: learned in each; `seconds_to_recover`.
    """
    config = build(override(RECIPE, [f"run.seed={seed}", *assignments]))
    calm = _run(root, f"calm-{seed}", config, Saboteur([]))
    expected = numbers(calm)
    struck: list[Blow] = []
    same = 0
    episodes: list[int] = []
    seconds: list[float] = []
    for number, blows in enumerate(planned := plan(seed, rounds)):
        saboteur = Saboteur([*blows])
        folder = _run(root, f"struck-{seed}-{number}", config, saboteur)
        struck += saboteur.struck
        same += numbers(folder) == expected
        episodes.append(_episodes(folder))
        seconds += recoveries(folder)
    return {
        "seed": seed,
        "blows": {"all": len(struck), **_count(struck)},
        "runs": {"all": len(planned), "same": same},
        "episodes": {"undisturbed": _episodes(calm), "struck": sorted(set(episodes))},
        "seconds_to_recover": spread(seconds),
    }


def _run(root: Path, name: str, config: Config, saboteur: Saboteur) -> RunFolder:
    """One run to its end."""
    folder = create(root, name, dump(config))
    with lock(folder), on_cluster(config, saboteur.asked) as place:
        progress = train(folder, config, place, Peers(), StopRequest(), None)
    if not progress.finished:
        raise EarlError(f"run {name!r} stopped at step {progress.step} of {config.total_steps}")
    return folder


def numbers(folder: RunFolder) -> tuple[Any, ...]:
    """All that a run wrote down of its steps, but times."""
    with Store(folder.database, read_only=True) as store:
        return store.metrics(), [match.result for match in store.matches()]


def recoveries(folder: RunFolder) -> Iterator[float]:
    """Seconds from each loss that was noticed to where the run went on."""
    with Store(folder.database, read_only=True) as store:
        for event in store.events():
            if event.kind == "recovered":
                yield float(event.message.rsplit(" in ", 1)[1].removesuffix(" s"))


def _episodes(folder: RunFolder) -> int:
    """Episodes that were learned from."""
    with Store(folder.database, read_only=True) as store:
        return int(sum(value for _, value in store.metrics(["episodes"])["episodes"]))


def _count(blows: Sequence[Blow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for blow in blows:
        for what in (blow.role, blow.how):
            counts[what] = counts.get(what, 0) + 1
    return counts
