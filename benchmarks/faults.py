"""A campaign of faults: processes are killed and stopped, hosts lost, links cut, in every role and stage of a run.

one run left alone ─▶ the same run, struck again and again ─▶ the same numbers at its end? ─▶ time to recover
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Timer
from typing import TYPE_CHECKING, Any

from earl.benchmarks.sabotage import Blow, campaign
from earl.recipe import build, override
from earl.rehearsal.cluster import rehearsed
from earl.rehearsal.faults import fail, heal
from earl.rehearsal.plan import Cluster

if TYPE_CHECKING:
    from earl.placement.cluster.pulse import Member

RECIPE: dict[str, Any] = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0, "perfect": 1.0}},
    "model": {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "intermediate": 24},
    "warm_start": {"steps": 2, "teacher": "expert", "episodes": 16, "minibatches": 1},
    "rollout": {"episodes": 32, "group_size": 4},
    "algorithm": {"name": "ppo", "kl": 0.01},
    "evaluate": {"every": 2, "opponents": ["random"], "episodes": 4, "final_episodes": 4},
    "run": {"steps": 6, "processes": 1, "checkpoint_every": 2, "keep_trajectories_every": 4},
    "placement": {"kind": "disaggregated", "dp": 2, "samplers": 2, "heartbeat_seconds": 5.0},
}
LEARNER = ("dispatch", "values", "preparation", "update", "weights", "snapshot", "saving")
ROLLOUT = ("demonstrations", "rollout", "rows", "dispatch", "evaluation", "weights", "limit")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
LONGEST_DELAY = 0.2
"""Seconds between a call and the blow, at most."""
BLOWS_PER_RUN = 5

NAME = "faults"
"""Of the rehearsed cluster."""
HOST_FAULTS = {"host lost": "kill", "link cut": "link-down", "host frozen": "freeze"}
FULL = "object store full"
HEALS_AFTER = 10.0
"""Seconds after which a struck host comes back."""


def processes(root: Path, seed: int = 0, rounds: int = 2, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Processes of runs on this machine; see `campaign`.

    Args:
        root: where the runs lie; new names are taken.
        rounds: in each, every role is killed and stopped once in every stage.
    """
    random = Random(seed)
    cells = [("learner rank", stage) for stage in LEARNER] + [("rollout worker", stage) for stage in ROLLOUT]
    blows = [_blow(random, role, stage, how) for _ in range(rounds) for role, stage in cells for how in SIGNALS]
    random.shuffle(blows)
    plans = [blows[start : start + BLOWS_PER_RUN] for start in range(0, len(blows), BLOWS_PER_RUN)]
    return campaign(root, build(override(RECIPE, [f"run.seed={seed}", *assignments])), plans, _signal)


def hosts(
    root: Path, seed: int = 0, number: int = 4, rate: str = "500mbit", assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Hosts of a cluster rehearsed in network namespaces; see `campaign`. Each comes back after a while.

    Raises:
        EarlError: where such a rehearsal is not permitted.
    """
    random = Random(seed)
    roles = (("learner rank", "update"), ("rollout worker", "rollout"))
    plans = [[_blow(random, role, stage, how)] for how in HOST_FAULTS for role, stage in roles]
    plans.append([_blow(random, "rollout worker", "rollout", FULL)])
    with rehearsed(NAME, number, rate, cpus=2, memory_mib=128) as cluster:
        address = f'placement.address="{cluster.address}"'
        config = build(override(RECIPE, [f"run.seed={seed}", address, *assignments]))
        healer = Healer(cluster)
        try:
            return campaign(root, config, plans, healer.strike)
        finally:
            healer.finish()


def _blow(random: Random, role: str, stage: str, how: str) -> Blow:
    return Blow(role, stage, how, random.randrange(2), random.randint(1, 2), random.uniform(0, LONGEST_DELAY))


def _signal(blow: Blow, member: "Member") -> bool:
    with suppress(ProcessLookupError):
        os.kill(member.process, SIGNALS[blow.how])
        return True
    return False


@dataclass(slots=True)
class Healer:
    """Strikes the hosts that members are on, and has them come back."""

    cluster: Cluster
    _timers: list[Timer] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)

    def strike(self, blow: Blow, member: "Member") -> bool:
        """Do it; the driver's own object store is filled with objects that stay referenced."""
        if blow.how == FULL:
            self._fill()
            return True
        host = self._host(member)
        fail(self.cluster, host, HOST_FAULTS[blow.how])
        self._timers.append(Timer(HEALS_AFTER, heal, (self.cluster, host)))
        self._timers[-1].start()
        return True

    def finish(self) -> None:
        """Wait until every host is back."""
        self._kept.clear()
        for timer in self._timers:
            timer.join()

    def _host(self, member: "Member") -> int:
        import ray

        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return next(host for host in self.cluster.workers if self.cluster.ip(host) == addresses[member.node])

    def _fill(self) -> None:
        import numpy as np
        import ray

        mib = 16
        self._kept += [ray.put(np.zeros(mib << 20, np.uint8)) for _ in range(2 * self.cluster.memory_mib // mib)]
