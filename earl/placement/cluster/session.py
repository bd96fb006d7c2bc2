"""A run's hold on a Ray cluster: devices, actors, and what is done when one of these fails.

cluster() ─▶ ray.init ─▶ placement group ─▶ crews of actors ─▶ Stages        and all of it gone at the end
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from earl.config import Config
from earl.dispatch.balance import work_of
from earl.engine.model import shape, tokenizer_of
from earl.engine.samplers import engine_of, processes_of
from earl.engine.sharding.band import Meeting
from earl.errors import EarlError
from earl.placement.cluster.ahead import AheadWorkers
from earl.placement.cluster.carry import Given
from earl.placement.cluster.crew import Asked, Crew
from earl.placement.cluster.dispatcher import Dispatcher
from earl.placement.cluster.engines import EngineWorkers
from earl.placement.cluster.environments import EnvironmentActor, SamplerActor
from earl.placement.cluster.learner import Ranks, ask_all, layout_of
from earl.placement.cluster.players import Environments, Workers
from earl.placement.cluster.policies import Policy, Slots, policy_of, slots_of
from earl.placement.cluster.ranks import RankActor
from earl.placement.cluster.team import Team
from earl.placement.cluster.workers import ContinuousActor, WorkerActor
from earl.placement.peers import Lost
from earl.placement.stages import Stages
from earl.placement.world import world_of
from earl.runs import checkpoint

PROMPT = {"free_objects_batch_size": 1}
"""Ray deletes what nobody refers to at once, instead of once a second: weights pass through its store (stock.py)."""
START_SECONDS = 120


class Cluster:
    """The actors of a run: a place to run it in, and to mend it."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        slots: Slots,
        devices: PlacementGroup,
        gpus: bool,
        asked: Asked | None = None,
    ) -> None:
        self._config, self._policy, self._slots = config, policy, slots
        self._devices, self._gpus = devices, gpus
        self._recipe = config.model_dump()
        self._saved: Path | None = None
        self._failures = self._lives = 0
        self._awake: Crew | None = None
        self._shown: list[list[str]] = []
        self._notes: list[tuple[str, str]] = []
        self._team: Workers | None = None
        bounds = (config.placement.heartbeat_seconds, config.placement.stage_seconds)
        self._ranks = Crew("learner rank", len(slots.ranks), self._rank, *bounds, len(slots.ranks), asked)
        name = "sampler" if policy.environments else "rollout worker"
        self._split = processes_of(config, shape(config.model))  # processes of a copy, as the run begins
        self._engine_tp = policy.rollout.devices // self._split  # devices of one process, now
        self._workers = Crew(name, len(slots.workers) * self._split, self._worker, *bounds, asked=asked)
        self._workers.meanwhile = self._see_to_ranks
        self._environments = Crew("environment", policy.processors, self._environment, *bounds, asked=asked)

    def open(self, saved: Path | None) -> Stages:
        """The stages of the run over these actors.

        Args:
            saved: a checkpoint whose model is taken in place of the recipe's.
        """
        self._saved = saved.resolve() if saved else None
        model = self._config.model
        if self._source:
            model = model.model_copy(update={"path": self._source})
        self._start_ranks()
        workers, policy = self._players(), shape(model)
        self._team = workers
        world = world_of(self._config, tokenizer_of(model))
        settings = self._config.placement
        dispatcher = Dispatcher(workers, self._ranks, layout_of(self._config), work_of(policy), settings, self)
        return Stages(self._config, world, policy, Ranks(self._ranks, self, dispatcher), workers)

    def _players(self) -> Workers:
        if self._config.placement.max_staleness:
            return AheadWorkers(self._workers, self._set_up_worker, self, self._config)
        if self._policy.environments:
            samplers = Team(self._workers, self._set_up_worker, self)
            return Environments(self._environments, self._set_up_environment, self, samplers)
        if engine_of(self._config, shape(self._config.model)) == "vllm":
            pooled = self._gpus and self._policy.turns
            return EngineWorkers(self._workers, self._set_up_worker, self, self._change_engines, pooled)
        return Workers(self._workers, self._set_up_worker, self, self._split)

    def _change_engines(self, copies: int, tp: int) -> None:
        """Start engines over `tp` devices from now on, as many as the run has devices for. See `EngineWorkers`."""
        rollout = self._policy.rollout
        if copies * tp != rollout.actors * rollout.devices or (self._gpus and tp > rollout.devices):
            raise EarlError(
                f"{copies} copies of the sampler x sampler.tp {tp}: the run began with {rollout.actors} x "
                f"{rollout.devices}; choose a split of as many devices, on GPUs of at most {rollout.devices}"
            )
        self._engine_tp = tp
        self._recipe["sampler"] = {**self._recipe["sampler"], "tp": tp}

    @property
    def _source(self) -> str | None:
        """The model of the run's latest checkpoint, where it went on from one: older ones are removed on the way."""
        return str(checkpoint.latest(self._saved.parent)) if self._saved else None

    def mend(self, lost: Lost) -> None:
        """Replace all ranks of the learner after one was lost; their state has to be restored.

        Raises:
            EarlError: when there were too many failures.
        """
        began = time.perf_counter()
        self.failed(str(lost))
        if self._team:
            self._team.forget()
        self._ranks.replace_all()
        self._start_ranks()
        self.mended(f"{lost}: all ranks replaced in {time.perf_counter() - began:.1f} s")

    def notes(self) -> list[tuple[str, str]]:
        """What was mended since this was last asked: kinds of events and messages."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """End every actor."""
        self._environments.end_all()
        self._workers.end_all()
        self._ranks.end_all()

    def rejoin(self, config: Config, given: Sequence[Given]) -> None:
        """Let the ranks, who have left each other, meet under another layout, and go on from what they gave.

        Raises:
            Lost: when a rank is gone, and with it what it gave.
        """
        self.keep(config)
        if lost := self._join(given):
            raise Lost(lost)

    def keep(self, config: Config) -> None:
        """Have whoever is started from now on follow this recipe."""
        self._config, self._recipe = config, config.model_dump()

    def _start_ranks(self) -> None:
        while lost := self._join():
            self.failed(lost)
            self._ranks.replace_all()

    def _join(self, given: Sequence[Given] | None = None) -> str:
        """Let the ranks meet and make their learner, or go on with it. Returns what went wrong, else nothing."""
        if lost := self._ranks.introduce():
            return "; ".join(lost.values())
        try:
            meeting = ask_all(self._ranks, "start", lambda actor, _: actor.address.remote())[0]
            ask_all(
                self._ranks,
                "start",
                lambda actor, rank: actor.setup.remote(self._recipe, self._source, rank, meeting, given),
            )
            self._shown = ask_all(self._ranks, "start", lambda actor, _: actor.devices.remote())
        except Lost as error:
            return str(error)
        return ""

    def _see_to_ranks(self) -> None:
        """Whoever draws weights from a rank that hangs would do so without end."""
        if lost := self._ranks.watch():
            raise Lost(f"{'; '.join(lost.values())} while others worked")

    def turn(self, crew: Crew) -> None:
        """Give shared devices to a crew: the other one rests first. Environments need those of their samplers."""
        crew = self._workers if crew is self._environments else crew
        if not self._policy.turns or self._awake is crew:
            return
        if self._awake is not None:
            self._awake.ask("rest", lambda actor, _: actor.rest.remote(), range(len(self._awake)))
            crew.ask("wake", lambda actor, _: actor.wake.remote(), range(len(crew)))
        self._awake = crew

    def _set_up_worker(self, actor: Any, number: int, meeting: Meeting | None) -> Any:
        bundle, first = self._bundle(number)
        neighbours = zip(self._slots.ranks, self._shown, strict=True) if self._policy.turns else ()
        devices = [device for own, shown in neighbours if own == bundle for device in shown]
        devices = devices[first : first + self._engine_tp]
        return actor.setup.remote(self._recipe, self._source, devices, meeting)

    def _set_up_environment(self, actor: Any, number: int, _: Meeting | None) -> Any:
        self._lives += 1
        samplers = [member.actor for member in self._workers.members]
        return actor.setup.remote(self._recipe, self._source, samplers, number, self._lives)

    def mended(self, message: str) -> None:
        """Note what was replaced; see `Keeper`."""
        self._notes.append(("recovered", message))

    def note(self, kind: str, message: str) -> None:
        """Note an event; see `Keeper`."""
        self._notes.append((kind, message))

    def failed(self, message: str) -> None:
        """Count a loss; see `Keeper`."""
        self._failures += 1
        most = self._config.placement.max_recoveries
        if self._failures > most:
            raise EarlError(
                f"{message}; this is failure {self._failures} of this run and placement.max_recoveries is {most}: "
                "see to the machines, then continue with --resume"
            )

    def _rank(self, number: int) -> Any:
        return self._on_devices(RankActor, self._slots.ranks[number], 1)

    def _worker(self, number: int) -> Any:
        devices = 0 if self._policy.turns else min(self._engine_tp, self._policy.rollout.devices)
        kind = ContinuousActor if self._config.placement.max_staleness else WorkerActor
        return self._on_devices(SamplerActor if self._policy.environments else kind, self._bundle(number)[0], devices)

    def _bundle(self, worker: int) -> tuple[int, int]:
        """The bundle of a rollout worker, and which of its devices is the worker's first."""
        copy, first = divmod(worker * self._engine_tp, self._policy.rollout.devices)
        return self._slots.workers[copy], first

    def _environment(self, _: int) -> Any:
        return _actor(EnvironmentActor, num_cpus=1)  # left to itself, Ray takes nodes without GPUs first

    def _on_devices(self, kind: type, bundle: int, devices: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._devices, placement_group_bundle_index=bundle)
        cpus, gpus = (0, devices) if self._gpus else (devices, 0)
        return _actor(kind, num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy)


def _actor(kind: type, **options: Any) -> Any:
    return ray.remote(concurrency_groups={"health": 1, "saving": 1})(kind).options(max_restarts=0, **options).remote()


@contextmanager
def cluster(config: Config, asked: Asked | None = None) -> Iterator[Cluster]:
    """Hold the devices that a recipe's placement asks for, and end everything that was started on them.

    Args:
        asked: is told of every call to an actor.

    Raises:
        EarlError: when there is no such cluster, or it has too few devices.
    """
    policy = policy_of(config)
    slots = slots_of(policy)
    with connected(config.placement.address, sum(slots.bundles) + policy.processors):
        gpus = ray.cluster_resources().get("GPU", 0) >= sum(slots.bundles)
        devices = _reserved(slots.bundles, gpus)
        held = Cluster(config, policy, slots, devices, gpus, asked)
        try:
            yield held
        finally:
            held.close()
            remove_placement_group(devices)


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Be a driver of the Ray cluster at `address`, or of one of this process alone that ends with it."""
    # Ray prints what befalls its processes on standard output, which is for results; the crew says it in one line.
    ray_worker.print_to_stdstream = lambda *_, **__: None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        # As many slots as are asked for: on one machine its owner says how many processes share the cores.
        ray.init(num_cpus=max(cpus, os.cpu_count() or 1), include_dashboard=False, _system_config=PROMPT, **quiet)
    else:
        ray.init(address=address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _reserved(bundles: Sequence[int], gpus: bool) -> PlacementGroup:
    """Devices for each bundle, near each other where that can be."""
    device = "GPU" if gpus else "CPU"
    group = placement_group([{device: float(size)} for size in bundles], strategy="PACK")
    if not group.wait(START_SECONDS):
        have = ray.cluster_resources().get(device, 0)
        remove_placement_group(group)
        raise EarlError(
            f"the placement needs {sum(bundles)} {device}s in bundles of {max(bundles)}, the Ray cluster has "
            f"{have:.0f} and they are not free together; lower placement.dp, placement.tp or "
            "placement.samplers, or add nodes"
        )
    return group
