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
class PlannedFault:
    """A planned fault."""

    role: str
    stage: str
    how: str
    member: int
    call: int
    """The number of the stage's call at which it happens."""
    delay: float


Inject = Callable[[PlannedFault, "Member"], bool]
"""Injects the fault into a member; returns whether there was a target."""


@dataclass(slots=True)
class FaultInjector:
    """Injects the faults of a plan; `asked` is called at every call of an actor group."""

    plan: list[PlannedFault]
    inject: Inject
    injected: list[PlannedFault] = field(default_factory=list)
    _calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def asked(self, stage: str, members: Sequence["Member"]) -> None:
        role = members[0].name.rpartition(" ")[0]
        self._calls[role, stage] += 1
        count = self._calls[role, stage]
        due = [fault for fault in self.plan if (fault.role, fault.stage) == (role, stage) and fault.call <= count]
        for fault in due[:1]:
            sleep(fault.delay)
            self.plan.remove(fault)
            if self.inject(fault, members[fault.member % len(members)]):
                self.injected.append(fault)


def campaign(root: Path, config: Config, plans: Sequence[Sequence[PlannedFault]], inject: Inject) -> dict[str, Any]:
    """Run once without faults, and once for each plan. For the result see `earl bench faults --help`."""
    undisturbed = finished(root, "calm", config, FaultInjector([], inject))
    injectors = [FaultInjector([*faults], inject) for faults in plans]
    folders = [finished(root, f"struck-{number}", config, own) for number, own in enumerate(injectors)]
    injected = [fault for injector in injectors for fault in injector.injected]
    events = [event for folder in folders for event in read_numbers(folder.database).events]
    messages = [event.message for event in events if event.kind == "recovered"]
    seconds = [float(message.rsplit(" in ", 1)[1].removesuffix(" s")) for message in messages]
    return {
        "blows": {"all": len(injected), **Counter(what for fault in injected for what in (fault.role, fault.how))},
        "runs": {"all": len(folders), "same": sum(numbers(folder) == numbers(undisturbed) for folder in folders)},
        "episodes": {"left_alone": episodes(undisturbed), "struck": sorted({episodes(folder) for folder in folders})},
        "recoveries": len(seconds),
        "seconds_to_recover": interval(seconds),
    }


def finished(root: Path, name: str, config: Config, injector: FaultInjector) -> RunFolder:
    folder = create(root, name, dump(config))
    with lock(folder), on_cluster(config, injector.asked) as place:
        progress = train(folder, config, place, Peers(), StopRequest(), None)
    if not progress.finished:
        raise EarlError(f"run {name!r} stopped at step {progress.step} of {config.total_steps}")
    return folder


def numbers(folder: RunFolder) -> tuple[Any, ...]:
    """A run's metrics and matches, without what depends on timing or memory."""
    matches = [match.result for match in read_numbers(folder.database).matches]
    return placements.numbers(folder, ("memory/peak_bytes",)), matches


def episodes(folder: RunFolder) -> int:
    return int(sum(value for _, value in read_numbers(folder.database).metrics["episodes"]))


RECIPE = load_toml(Path(__file__).with_suffix(".toml"))
LEARNER = ("dispatch", "values", "preparation", "update", "weights", "snapshot", "saving")
ROLLOUT = ("demonstrations", "rollout", "rows", "dispatch", "evaluation", "weights", "limit")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LONGEST_DELAY = 0.2
FAULTS_PER_RUN = 5

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
    faults = [_fault(random, role, stage, how) for _ in range(rounds) for role, stage in cells for how in SIGNALS]
    random.shuffle(faults)
    plans = [faults[start : start + FAULTS_PER_RUN] for start in range(0, len(faults), FAULTS_PER_RUN)]
    return campaign(root, build(override(RECIPE, settings)), plans, _signal)


def hosts(
    root: Path, seed: int = 0, number: int = 4, rate: str = "500mbit", settings: Sequence[str] = ()
) -> dict[str, Any]:
    """Fail hosts of a rehearsed cluster, each for a while; see `campaign`. Raises EarlError if not permitted."""
    random = Random(seed)
    roles = (("learner rank", "update"), ("rollout worker", "rollout"))
    plans = [[_fault(random, role, stage, how)] for how in HOST_FAULTS for role, stage in roles]
    plans.append([_fault(random, "rollout worker", "rollout", FULL)])
    with rehearsed(NAME, number, rate, cpus=2, memory_mib=128) as cluster, ExitStack() as undo:
        config = build(override(RECIPE, [f'placement.address="{cluster.address}"', *settings]))
        return campaign(root, config, plans, partial(_inject, cluster, undo))


def _fault(random: Random, role: str, stage: str, how: str) -> PlannedFault:
    return PlannedFault(role, stage, how, random.randrange(2), random.randint(1, 2), random.uniform(0, LONGEST_DELAY))


def _signal(fault: PlannedFault, member: "Member") -> bool:
    with suppress(ProcessLookupError):
        os.kill(member.process, SIGNALS[fault.how])
        return True
    return False


def _inject(cluster: RehearsedCluster, undo: ExitStack, fault: PlannedFault, member: "Member") -> bool:
    """Fail the member's host for a while; or fill the driver's object store with objects that stay referenced."""
    import numpy as np
    import ray

    if fault.how == FULL:
        mib = 16
        filled = [ray.put(np.zeros(mib << 20, np.uint8)) for _ in range(2 * cluster.memory_mib // mib)]
        undo.callback(filled.clear)
        return True
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    host = next(host for host in cluster.workers if cluster.ip(host) == addresses[member.node])
    fail(cluster, host, HOST_FAULTS[fault.how])
    timer = Timer(HEALS_AFTER, heal, (cluster, host))
    timer.start()
    undo.callback(timer.join)
    return True
