"""The devices that a run holds of a Ray cluster, and its actors, each started on those that are its own."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from earl.config import Config
from earl.engine.model import shape
from earl.engine.samplers import processes_of
from earl.errors import EarlError
from earl.placement.cluster.environments import EnvironmentActor, SamplerActor
from earl.placement.cluster.policies import Policy, Slots
from earl.placement.cluster.ranks import RankActor
from earl.placement.cluster.workers import ContinuousActor, WorkerActor

START_SECONDS = 120
"""The longest that reserving devices may take."""


def reserved(bundles: Sequence[int], gpus: bool) -> PlacementGroup:
    """Devices for each bundle, near each other where that can be.

    Raises:
        EarlError: when there are too few.
    """
    device = "GPU" if gpus else "CPU"
    group = placement_group([{device: float(size)} for size in bundles], strategy="PACK")
    if not group.wait(START_SECONDS):
        have = ray.cluster_resources().get(device, 0)
        remove_placement_group(group)
        raise EarlError(
            f"the placement needs {sum(bundles)} {device}s in bundles of {max(bundles)}, the Ray cluster has "
            f"{have:.0f} and they are not free together; lower placement.dp, placement.tp, "
            "placement.cp or placement.samplers, or add nodes"
        )
    return group


class Devices:
    """Who computes on which of the devices.

    Args:
        slots: the bundles that the policy asks for.
        group: these bundles, reserved.
        gpus: whether they are of GPUs; else of CPU cores.

    Attributes:
        split: processes of one copy of the sampler, as the run begins.
    """

    def __init__(self, config: Config, policy: Policy, slots: Slots, group: PlacementGroup, gpus: bool) -> None:
        self._policy, self._slots, self._group, self.gpus = policy, slots, group, gpus
        kind = ContinuousActor if config.placement.max_staleness else WorkerActor
        self._kind = SamplerActor if policy.environments else kind
        self.split = processes_of(config, shape(config.model))
        self._engine_tp = policy.rollout.devices // self.split  # devices of one process, now

    def resplit(self, copies: int, tp: int) -> None:
        """Have engines started over `tp` devices from now on, as many as the run has devices for.

        Raises:
            EarlError: where they have not as many devices as the run.
        """
        rollout = self._policy.rollout
        if copies * tp != rollout.actors * rollout.devices or (self.gpus and tp > rollout.devices):
            raise EarlError(
                f"{copies} copies of the sampler x sampler.tp {tp}: the run began with {rollout.actors} x "
                f"{rollout.devices}; choose a split of as many devices, on GPUs of at most {rollout.devices}"
            )
        self._engine_tp = tp

    def rank(self, number: int) -> Any:
        """Start a rank of the learner."""
        return self._start(RankActor, self._slots.ranks[number], 1)

    def worker(self, number: int) -> Any:
        """Start a process of a sampler, with a rollout fragment where environments are not apart."""
        devices = 0 if self._policy.turns else min(self._engine_tp, self._policy.rollout.devices)
        return self._start(self._kind, self._bundle(number)[0], devices)

    def environment(self, _: int) -> Any:
        """Start a rollout fragment without a sampler."""
        return _actor(EnvironmentActor, num_cpus=1)  # left to itself, Ray takes nodes without GPUs first

    def shared(self, worker: int, shown: Sequence[Sequence[str]]) -> list[str]:
        """The GPUs that a rollout worker takes turns on with ranks of the learner; none where they do not.

        Args:
            shown: the GPUs that each rank sees.
        """
        bundle, first = self._bundle(worker)
        neighbours = zip(self._slots.ranks, shown, strict=True) if self._policy.turns else ()
        devices = [device for own, seen in neighbours if own == bundle for device in seen]
        return devices[first : first + self._engine_tp]

    def _bundle(self, worker: int) -> tuple[int, int]:
        """The bundle of a rollout worker, and which of its devices is the worker's first."""
        copy, first = divmod(worker * self._engine_tp, self._policy.rollout.devices)
        return self._slots.workers[copy], first

    def _start(self, kind: type, bundle: int, devices: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        cpus, gpus = (0, devices) if self.gpus else (devices, 0)
        return _actor(kind, num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy)


def _actor(kind: type, **options: Any) -> Any:
    return ray.remote(concurrency_groups={"health": 1, "saving": 1})(kind).options(max_restarts=0, **options).remote()
