"""The devices of a run: placement groups, the actors on them, and engines that split a copy by themselves."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from earl.config import Config
from earl.engine.samplers import processes_of
from earl.errors import EarlError
from earl.placement.ray.actor_group import ActorGroup, ActorOwner
from earl.placement.ray.learner_actor import LearnerActor
from earl.placement.ray.placement_spec import PlacementSpec, Slots
from earl.placement.ray.rollout_actor import ContinuousActor, EnvironmentActor, RolloutActor, SamplerActor
from earl.placement.ray.rollout_workers import RolloutWorkers, Setup

START_SECONDS = 120  # the longest that reserving devices may take


def reserved(bundles: Sequence[int], gpus: bool) -> PlacementGroup:
    """Reserve devices for each bundle, close to each other if possible. Raises EarlError when there are too few."""
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
    """Starts actors on the reserved bundles. gpus: whether the bundles are of GPUs; otherwise of CPU cores. `split`:
    initial processes of one sampler copy."""

    def __init__(self, config: Config, policy: PlacementSpec, slots: Slots, group: PlacementGroup, gpus: bool) -> None:
        self._policy, self._slots, self._group, self.gpus = policy, slots, group, gpus
        kind = ContinuousActor if config.placement.max_staleness else RolloutActor
        self._kind = SamplerActor if policy.environments else kind
        self.split = processes_of(config)
        self._engine_tp = policy.rollout.devices // self.split  # devices of one process, now

    def resplit(self, copies: int, tp: int) -> None:
        """Start engines over `tp` devices from now on. Raises EarlError unless they use all devices of the run."""
        rollout = self._policy.rollout
        if copies * tp != rollout.actors * rollout.devices or (self.gpus and tp > rollout.devices):
            raise EarlError(
                f"{copies} copies of the sampler x sampler.tp {tp}: the run began with {rollout.actors} x "
                f"{rollout.devices}; choose a split of as many devices, on GPUs of at most {rollout.devices}"
            )
        self._engine_tp = tp

    def rank(self, number: int) -> Any:
        return self._start(LearnerActor, self._slots.ranks[number], 1)

    def worker(self, number: int) -> Any:
        """Start a process of a sampler, with a rollout fragment unless environments are separate."""
        devices = 0 if self._policy.turns else min(self._engine_tp, self._policy.rollout.devices)
        return self._start(self._kind, self._bundle(number)[0], devices)

    def environment(self, _: int) -> Any:
        return _actor(EnvironmentActor, num_cpus=1)  # Ray prefers nodes without GPUs by itself

    def shared(self, worker: int, shown: Sequence[Sequence[str]]) -> list[str]:
        """The GPUs that a rollout worker shares with learner ranks; empty if they do not take turns. shown: the GPUs
        that each rank sees."""
        bundle, first = self._bundle(worker)
        neighbours = zip(self._slots.ranks, shown, strict=True) if self._policy.turns else ()
        devices = [device for own, seen in neighbours if own == bundle for device in seen]
        return devices[first : first + self._engine_tp]

    def _bundle(self, worker: int) -> tuple[int, int]:
        """The bundle of a rollout worker, and the index of its first device there."""
        copy, first = divmod(worker * self._engine_tp, self._policy.rollout.devices)
        return self._slots.workers[copy], first

    def _start(self, kind: type, bundle: int, devices: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        cpus, gpus = (0, devices) if self.gpus else (devices, 0)
        return _actor(kind, num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy)


def _actor(kind: type, **options: Any) -> Any:
    return ray.remote(concurrency_groups={"health": 1, "saving": 1})(kind).options(max_restarts=0, **options).remote()


# Engines that split a copy by themselves, as vLLM does: another split needs another engine. 4 engines x tp 1 sleep or
# end, then 2 engines x tp 2 start, load weights, and are probed.


class EngineWorkers(RolloutWorkers):
    """Rollout fragments, each with an engine that holds a copy of the model.

    Args:
        change: called with copies and devices per copy before their actors start. Raises EarlError where impossible.
        pooled: unused engines of another split sleep instead of ending. Possible only where they release their memory
            and it is not budgeted: on GPUs that they share in turns. Untested on GPUs.
    """

    def __init__(
        self, crew: ActorGroup, setup: Setup, keeper: ActorOwner, change: Callable[[int, int], None], pooled: bool
    ) -> None:
        self._change, self._pooled = change, pooled
        super().__init__(crew, setup, keeper)

    def relayout(self, copies: int, tp: int) -> float:
        """Change to `copies` engines, each over `tp` devices; see `Team.relayout`."""
        began = time.perf_counter()
        self._learned()
        self._change(copies, tp)
        self._told.pop("weights", None)
        self._keeper.turn(self._crew)
        if copies == len(self._crew):
            return time.perf_counter() - began
        if self._pooled:
            self._replace("rest", self._crew.ask("rest", _rest, range(len(self._crew))).lost)
        if self._crew.resize(copies, self._pooled):
            self._replace("wake", self._crew.ask("wake", _wake, range(copies)).lost)
            for stage, call in self._told.items():
                self._all(stage, call)
        else:
            self._ready(range(copies))
        return time.perf_counter() - began


def _rest(actor: Any, _: int) -> Any:
    return actor.rest.remote()


def _wake(actor: Any, _: int) -> Any:
    return actor.wake.remote()
