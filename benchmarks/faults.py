"""A fault campaign: processes are killed and stopped, hosts lost, links cut, in every role and stage of a run.

one run without faults ─▶ the same run with faults ─▶ the same numbers at its end? ─▶ time to recover
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import Timer
from time import sleep
from typing import TYPE_CHECKING, Any

from earl.benchmarks import placements
from earl.benchmarks.repeats import interval
from earl.config import Config
from earl.errors import EarlError
from earl.placement.backend import on_cluster
from earl.placement.peers import Peers
from earl.recipe import build, dump, load_toml, override
from earl.rehearsal.cluster import fail, heal, rehearsed
from earl.rehearsal.plan import RehearsedCluster
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import read_numbers
from earl.stopping import StopRequest
from earl.trainer import train

if TYPE_CHECKING:
    from earl.placement.ray.actor_group import Member


@dataclass(frozen=True, slots=True)
class Blow:
    """A planned fault."""

    role: str
    stage: str
    how: str
    member: int
    call: int
    """The number of the stage's call at which it happens."""
    delay: float


Strike = Callable[[Blow, "Member"], bool]
"""Injects the fault into a member; returns whether there was a target."""


@dataclass(slots=True)
class Saboteur:
    """Injects the faults of a plan; `asked` is called at every call of an actor group."""

    plan: list[Blow]
    strike: Strike
    struck: list[Blow] = field(default_factory=list)
    _calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def asked(self, stage: str, members: Sequence["Member"]) -> None:
        role = members[0].name.rpartition(" ")[0]
        self._calls[role, stage] += 1
        count = self._calls[role, stage]
        due = [blow for blow in self.plan if (blow.role, blow.stage) == (role, stage) and blow.call <= count]
        for blow in due[:1]:
            sleep(blow.delay)
            self.plan.remove(blow)
            if self.strike(blow, members[blow.member % len(members)]):
                self.struck.append(blow)


def campaign(root: Path, config: Config, plans: Sequence[Sequence[Blow]], strike: Strike) -> dict[str, Any]:
    """Run once without faults, and once for each plan. For the result see `earl bench faults --help`."""
    calm = finished(root, "calm", config, Saboteur([], strike))
    saboteurs = [Saboteur([*blows], strike) for blows in plans]
    folders = [finished(root, f"struck-{number}", config, own) for number, own in enumerate(saboteurs)]
    struck = [blow for saboteur in saboteurs for blow in saboteur.struck]
    events = [event for folder in folders for event in read_numbers(folder.database).events]
    told = [event.message for event in events if event.kind == "recovered"]
    seconds = [float(message.rsplit(" in ", 1)[1].removesuffix(" s")) for message in told]
    return {
        "blows": {"all": len(struck), **Counter(what for blow in struck for what in (blow.role, blow.how))},
        "runs": {"all": len(folders), "same": sum(numbers(folder) == numbers(calm) for folder in folders)},
        "episodes": {"left_alone": episodes(calm), "struck": sorted({episodes(folder) for folder in folders})},
        "recoveries": len(seconds),
        "seconds_to_recover": interval(seconds),
    }


def finished(root: Path, name: str, config: Config, saboteur: Saboteur) -> RunFolder:
    folder = create(root, name, dump(config))
    with lock(folder), on_cluster(config, saboteur.asked) as place:
        progress = train(folder, config, place, Peers(), StopRequest(), None)
    if not progress.finished:
        raise EarlError(f"run {name!r} stopped at step {progress.step} of {config.total_steps}")
    return folder


def numbers(folder: RunFolder) -> tuple[Any, ...]:
    """A run's metrics and matches, without what depends on timing or memory."""
    matches = [match.result for match in read_numbers(folder.database).matches]
    return placements.numbers(folder, ("dispatch/peers", "memory/peak_bytes")), matches


def episodes(folder: RunFolder) -> int:
    return int(sum(value for _, value in read_numbers(folder.database).metrics["episodes"]))


RECIPE = load_toml(Path(__file__).with_suffix(".toml"))
LEARNER = ("dispatch", "values", "preparation", "update", "weights", "snapshot", "saving")
ROLLOUT = ("demonstrations", "rollout", "rows", "dispatch", "evaluation", "weights", "limit")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LONGEST_DELAY = 0.2
BLOWS_PER_RUN = 5

NAME = "faults"
HOST_FAULTS = {"host lost": "kill", "link cut": "link-down", "host frozen": "freeze"}
FULL = "object store full"
HEALS_AFTER = 10.0


def run(
    rounds: int, num_hosts: int | None, rate: str, seed: int, root: Path, assignments: Sequence[str]
) -> dict[str, Any]:
    """Kill and stop processes of runs, in each round once in every role and stage; or fail hosts. See `campaign` and
    `earl bench faults --help`. Run names must be new.
    """
    random, settings = Random(seed), [f"run.seed={seed}", *assignments]
    if num_hosts:
        return hosts(root, seed, num_hosts, rate, settings)
    cells = [("learner rank", stage) for stage in LEARNER] + [("rollout worker", stage) for stage in ROLLOUT]
    blows = [_blow(random, role, stage, how) for _ in range(rounds) for role, stage in cells for how in SIGNALS]
    random.shuffle(blows)
    plans = [blows[start : start + BLOWS_PER_RUN] for start in range(0, len(blows), BLOWS_PER_RUN)]
    return campaign(root, build(override(RECIPE, settings)), plans, _signal)


def hosts(
    root: Path, seed: int = 0, number: int = 4, rate: str = "500mbit", settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Fail hosts of a rehearsed cluster, each for a while; see `campaign`. Raises EarlError if not permitted."""
    random = Random(seed)
    roles = (("learner rank", "update"), ("rollout worker", "rollout"))
    plans = [[_blow(random, role, stage, how)] for how in HOST_FAULTS for role, stage in roles]
    plans.append([_blow(random, "rollout worker", "rollout", FULL)])
    with rehearsed(NAME, number, rate, cpus=2, memory_mib=128) as cluster, ExitStack() as undo:
        config = build(override(RECIPE, [f'placement.address="{cluster.address}"', *settings]))
        return campaign(root, config, plans, partial(_strike, cluster, undo))


def _blow(random: Random, role: str, stage: str, how: str) -> Blow:
    return Blow(role, stage, how, random.randrange(2), random.randint(1, 2), random.uniform(0, LONGEST_DELAY))


def _signal(blow: Blow, member: "Member") -> bool:
    with suppress(ProcessLookupError):
        os.kill(member.process, SIGNALS[blow.how])
        return True
    return False


def _strike(cluster: RehearsedCluster, undo: ExitStack, blow: Blow, member: "Member") -> bool:
    """Fail the member's host for a while; or fill the driver's object store with objects that stay referenced."""
    import numpy as np
    import ray

    if blow.how == FULL:
        mib = 16
        filled = [ray.put(np.zeros(mib << 20, np.uint8)) for _ in range(2 * cluster.memory_mib // mib)]
        undo.callback(filled.clear)
        return True
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    host = next(host for host in cluster.workers if cluster.ip(host) == addresses[member.node])
    fail(cluster, host, HOST_FAULTS[blow.how])
    timer = Timer(HEALS_AFTER, heal, (cluster, host))
    timer.start()
    undo.callback(timer.join)
    return True
