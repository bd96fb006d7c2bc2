"""Assigns fragments to the devices of a Ray cluster, reserves these, and starts actors on them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from earl.config import Config
from earl.engine.model import shape
from earl.engine.samplers import processes_of
from earl.errors import EarlError
from earl.placement.ray.actor_group import ActorGroup, ActorOwner
from earl.placement.ray.learner_actor import LearnerActor
from earl.placement.ray.rollout_actor import ContinuousActor, EnvironmentActor, RolloutActor, SamplerActor
from earl.placement.ray.rollout_workers import RolloutWorkers, Setup

# Placement policies as data, after the fragmented dataflow graphs of MSRL (arXiv 2210.00882): which fragment of a step
# runs where, in how many copies, and how its actors are connected.

Join = Literal["collectives", "objects"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of the step and its copies."""

    name: Literal["learner", "rollout", "sampler", "environments"]
    actors: int
    devices: int  # per actor: GPUs, or CPU cores where there are none
    pool: str  # fragments with the same pool share its devices and take turns
    join: Join
    """How its actors exchange data: tensors by collectives, or results by Ray objects."""
    processors: bool = False
    """Whether it computes on CPU cores even where there are GPUs."""


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    kind: str
    learner: Fragment
    rollout: Fragment
    """Samplers and their episodes; only samplers if environments are separate."""
    environments: Fragment | None = None
    """Episodes on exclusive CPU cores, on any node, separate from their samplers."""

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return (self.learner, self.rollout, *([self.environments] if self.environments else []))

    @property
    def processors(self) -> int:
        return self.environments.actors if self.environments else 0

    @property
    def turns(self) -> bool:
        """Whether the fragments take turns on the devices, the idle one offloaded."""
        return self.learner.pool == self.rollout.pool


@dataclass(frozen=True, slots=True)
class Slots:
    """The devices that a policy asks for.

    Example:
        4 ranks and 2 samplers of 2 devices, colocated -> bundles (2, 2), ranks (0, 0, 1, 1), workers (0, 1)
        the same, disaggregated -> bundles (1, 1, 1, 1, 2, 2), ranks (0, 1, 2, 3), workers (4, 5)
    """

    bundles: tuple[int, ...]  # devices of each bundle; a bundle lies on one host
    ranks: tuple[int, ...]  # the bundle of each learner rank
    workers: tuple[int, ...]  # the bundle of each rollout worker


def policy_of(config: Config) -> PlacementSpec:
    placement = config.placement
    colocated = placement.kind == "colocated"
    ranks, apart = placement.dp * placement.tp * placement.cp, placement.environments
    pool = "shared" if colocated else "rollout"
    return PlacementSpec(
        placement.kind,
        Fragment("learner", ranks, 1, "shared" if colocated else "learner", "collectives"),
        Fragment("sampler" if apart else "rollout", placement.samplers, config.sampler.tp, pool, "objects"),
        Fragment("environments", apart, 1, "environments", "objects", processors=True) if apart else None,
    )


def slots_of(policy: PlacementSpec) -> Slots:
    ranks, workers, width = policy.learner.actors, policy.rollout.actors, policy.rollout.devices
    if policy.turns:
        bundles = max(-(-ranks // width), workers)
        return Slots((width,) * bundles, tuple(rank // width for rank in range(ranks)), tuple(range(workers)))
    return Slots((1,) * ranks + (width,) * workers, tuple(range(ranks)), tuple(range(ranks, ranks + workers)))


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
        self.split = processes_of(config, shape(config.model))
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
