"""A run on a Ray cluster: connects to it, reserves devices, starts actors, and handles their failures."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import worker as ray_worker
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from earl.config import Config
from earl.dispatch.rows import work_of
from earl.engine.local import Meeting
from earl.engine.model import shape, tokenizer_of
from earl.engine.samplers import engine_of, processes_of
from earl.errors import LONGEST_MESSAGE, EarlError
from earl.placement.fragment import episode_factory
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.placement.ray.actor_group import ActorGroup, Asked, GroupOwner, ask_all, method
from earl.placement.ray.actor_setup import model_of
from earl.placement.ray.learner import LearnerActor, LearnerGroup, RankState
from earl.placement.ray.placement_spec import slots_of, spec_of
from earl.placement.ray.rollout_actor import ContinuousActor, EnvironmentActor, RolloutActor, SamplerActor
from earl.placement.ray.rollout_workers import AheadWorkers, EngineWorkers, Environments, RolloutWorkers, SamplerGroup
from earl.placement.ray.weight_sync import WeightSender
from earl.rehearsal.owner import session_folder
from earl.runs import checkpoint

PROMPT = {"free_objects_batch_size": 1}
"""Ray frees unreferenced objects at once, not once a second: weights pass through its store (`weight_sync.py`)."""
PERIOD_SECONDS = 2.0  # interval of the check that Ray's own processes are alive


@contextmanager
def connect_ray(address: str | None, cpus: int) -> Iterator[None]:
    """Be a driver of the Ray cluster at `address`, or of a new one that ends with this process. Raises EarlError when
    Ray does not start, or does not accept this process."""
    # Ray prints failures of its processes on standard output, which is for results; the actor group reports them.
    ray_worker.print_to_stdstream = lambda *_, **__: None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    # Told that there are no other machines, Ray listens on loopback only. The flag's name comes from macOS.
    ray_constants.ENABLE_RAY_CLUSTER = address is not None
    ours = signal.getsignal(signal.SIGTERM)  # Ray's own handler would end this process in the middle of a step
    with ExitStack() as ended:
        if address is None:
            folder = ended.enter_context(session_folder("earl-ray-"))
            # As many slots as wanted: on one machine the user decides how many processes share the cores.
            slots = max(cpus, os.cpu_count() or 1)
            quiet |= {"include_dashboard": False, "_system_config": PROMPT, "_temp_dir": str(folder / "ray")}
            _init_ray("Ray did not start on this machine", num_cpus=slots, **quiet)
        else:
            _init_ray(f"Ray at {address} did not let this process in", address=address, **quiet)
        ended.callback(ray.shutdown)
        if address is None:
            over = threading.Event()
            ended.callback(over.set)
            threading.Thread(target=_end_with_node, args=(over,), daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
        yield


def _end_with_node(over: threading.Event) -> None:
    """End this process when its own Ray's raylet or GCS dies, which Ray would wait for forever; see stopping.py."""
    vital = {ray_constants.PROCESS_TYPE_RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER}
    while not over.wait(PERIOD_SECONDS):
        if dead := vital & {kind for kind, _ in ray_worker._global_node.dead_processes()}:
            print(f"error: Ray's {min(dead)} has died, and the run with it; continue with --resume", file=sys.stderr)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                over.wait(PERIOD_SECONDS)
            return


def _init_ray(failure: str, **arguments: Any) -> None:
    try:
        ray.init(**arguments)
    except Exception as error:  # Ray raises many kinds, Exception itself among them
        reason = " ".join(str(error).split())[:LONGEST_MESSAGE]
        raise EarlError(f"{failure} ({reason}): free processors and memory there, then start again") from error


START_SECONDS = 120  # the longest that reserving devices may take


def reserve_devices(bundles: Sequence[int], gpus: bool) -> PlacementGroup:
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


def _actor(kind: type, **options: Any) -> Any:
    return ray.remote(concurrency_groups={"health": 1, "saving": 1})(kind).options(max_restarts=0, **options).remote()


class Coordinator(GroupOwner):
    """The actors of a run: a `Backend`, and the owner of their groups."""

    def __init__(self, config: Config, group: PlacementGroup, gpus: bool, asked: Asked | None = None) -> None:
        self._notes: list[tuple[str, str]] = []
        self._failures = 0
        self.config, self._group, self._gpus = config, group, gpus  # actors that are started later follow this recipe
        self._spec = spec = spec_of(config)
        self._slots = slots_of(spec)
        self._saved: Path | None = None
        self._lives = 0
        self._awake: ActorGroup | None = None
        self._rollout: RolloutWorkers | None = None
        kind = ContinuousActor if config.placement.max_staleness else RolloutActor
        self._kind = SamplerActor if spec.environments else kind
        self._split = processes_of(config)  # initial processes of one sampler copy
        self._engine_tp = spec.rollout.devices // self._split  # devices of one process, now
        bounds = (config.placement.heartbeat_seconds, config.placement.stage_seconds)
        ranks, workers = spec.learner.actors, spec.rollout.actors * self._split
        self._ranks = ActorGroup("learner rank", ranks, self._new_rank, *bounds, ranks, asked)
        name = "sampler" if spec.environments else "rollout worker"
        self._workers = ActorGroup(name, workers, self._new_worker, *bounds, asked=asked)
        self._workers.meanwhile = self._see_to_ranks
        on_cpu = partial(_actor, EnvironmentActor, num_cpus=1)  # Ray prefers nodes without GPUs by itself
        self._environments = ActorGroup("environment", spec.processors, lambda _: on_cpu(), *bounds, asked=asked)

    def _new_rank(self, number: int) -> Any:
        return self._start(LearnerActor, self._slots.ranks[number], 1)

    def _new_worker(self, number: int) -> Any:
        """A process of a sampler, with a rollout fragment unless environments are separate."""
        devices = 0 if self._spec.turns else min(self._engine_tp, self._spec.rollout.devices)
        return self._start(self._kind, self._bundle(number)[0], devices)

    def _bundle(self, worker: int) -> tuple[int, int]:
        """The bundle of a rollout worker, and the index of its first device there."""
        copy, first = divmod(worker * self._engine_tp, self._spec.rollout.devices)
        return self._slots.workers[copy], first

    def _start(self, kind: type, bundle: int, devices: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        cpus, gpus = (0, devices) if self._gpus else (devices, 0)
        return _actor(kind, num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy)

    def notes(self) -> list[tuple[str, str]]:
        notes, self._notes = self._notes, []
        return notes

    def note(self, kind: str, message: str) -> None:
        self._notes.append((kind, message))

    def failed(self, message: str) -> None:
        """A process was lost. Raises EarlError when there were too many losses."""
        self._failures += 1
        if self._failures > (most := self.config.placement.max_recoveries):
            raise EarlError(
                f"{message}; this is failure {self._failures} of this run and placement.max_recoveries is "
                f"{most}: see to the machines, then continue with --resume"
            )

    def open(self, saved: Path | None) -> StepPipeline:
        """The stages of the run over these actors. saved: a checkpoint whose model replaces the recipe's."""
        self._saved = saved.resolve() if saved else None
        model = model_of(self.config, self._source)
        self._start_ranks()
        workers, model_shape = self._players(), shape(model)
        self._rollout = workers
        world = episode_factory(self.config, tokenizer_of(model))
        learner = LearnerGroup(self._ranks, self, workers, work_of(model_shape))
        return StepPipeline(self.config, world, model_shape, learner, workers)

    def _players(self) -> RolloutWorkers:
        if self.config.placement.max_staleness:
            return AheadWorkers(self._workers, self._set_up_worker, self, self.config)
        if self._spec.environments:
            samplers = SamplerGroup(self._workers, self._set_up_worker, self)
            return Environments(self._environments, self._set_up_environment, self, samplers)
        if engine_of(self.config) == "vllm":
            return EngineWorkers(self._workers, self._set_up_worker, self, self._change_engines, self._sender())
        return RolloutWorkers(self._workers, self._set_up_worker, self, self._split)

    def _sender(self) -> WeightSender | None:
        """The sender of weights to engines; None unless every process has its own GPU and messages need no checksum."""
        place = self.config.placement
        if not self._gpus or self._spec.turns or place.checksums:
            return None
        return WeightSender(self._ranks, self._engine_tp, place.heartbeat_seconds)

    def _change_engines(self, copies: int, tp: int) -> None:
        """Start engines over `tp` devices from now on; see `EngineWorkers`. Raises EarlError unless they use all
        devices of the run."""
        rollout = self._spec.rollout
        if copies * tp != rollout.actors * rollout.devices or (self._gpus and tp > rollout.devices):
            raise EarlError(
                f"{copies} copies of the sampler x sampler.tp {tp}: the run began with {rollout.actors} x "
                f"{rollout.devices}; choose a split of as many devices, on GPUs of at most {rollout.devices}"
            )
        self._engine_tp = tp
        self.config = self.config.changed(sampler={"tp": tp})

    @property
    def _source(self) -> str | None:
        """The model of the latest checkpoint, if the run was resumed: older ones are removed during the run."""
        return str(checkpoint.latest(self._saved.parent)) if self._saved else None

    def mend(self, lost: WorkerLost) -> None:
        """Replace all learner ranks after one was lost; their state has to be restored. Raises EarlError when there
        were too many failures."""
        began = time.perf_counter()
        self.failed(str(lost))
        if self._rollout:
            self._rollout.forget()
        self._ranks.replace_all()
        self._start_ranks()
        self.note("recovered", f"{lost}: all ranks replaced in {time.perf_counter() - began:.1f} s")

    def close(self) -> None:
        self._environments.end_all()
        self._workers.end_all()
        self._ranks.end_all()

    def _start_ranks(self) -> None:
        while True:
            try:
                return self.join_ranks()
            except WorkerLost as lost:
                self.failed(str(lost))
                self._ranks.replace_all()

    def join_ranks(self, given: Sequence[RankState] | None = None) -> None:
        """Connect the ranks and make their learner, or continue it with the state that they gave. Raises WorkerLost
        when a rank is gone, and its state with it."""
        if lost := self._ranks.introduce():
            raise WorkerLost("; ".join(lost.values()))
        recipe = self.config.model_dump()
        [meeting] = ask_all(self._ranks, "start", method("address"), [0])
        settings = (recipe, self._source)
        ask_all(self._ranks, "start", lambda actor, rank: actor.setup.remote(*settings, rank, meeting, given))

    def _see_to_ranks(self) -> None:
        """A sampler that draws weights from a hanging rank would wait forever."""
        if lost := self._ranks.watch():
            raise WorkerLost(f"{'; '.join(lost.values())} while others worked")

    def turn(self, group: ActorGroup) -> None:
        """Free shared devices for an actor group: the other group offloads first. Environments need their samplers'."""
        group = self._workers if group is self._environments else group
        if not self._spec.turns or self._awake is group:
            return
        if self._awake is not None:
            self._awake.ask("rest", method("rest"), range(len(self._awake)))
            group.ask("wake", method("wake"), range(len(group)))
        self._awake = group

    def _set_up_worker(self, actor: Any, number: int, meeting: Meeting | None) -> Any:
        """Set up a rollout worker on the GPUs that it shares with learner ranks; none if they do not take turns."""
        bundle, first = self._bundle(number)
        neighbours = zip(self._slots.ranks, self._ranks.members, strict=True) if self._spec.turns else ()
        shared = [device for own, rank in neighbours if own == bundle for device in rank.devices]
        devices = shared[first : first + self._engine_tp]
        arguments = (devices, meeting, self._workers.neighbours(number))
        return actor.setup.remote(self.config.model_dump(), self._source, *arguments)

    def _set_up_environment(self, actor: Any, number: int, _: Meeting | None) -> Any:
        self._lives += 1
        samplers = [member.actor for member in self._workers.members]
        arguments = (samplers, number, self._lives, self._environments.neighbours(number))
        return actor.setup.remote(self.config.model_dump(), self._source, *arguments)


@contextmanager
def cluster(config: Config, asked: Asked | None = None) -> Iterator[Coordinator]:
    """Hold the devices that a recipe's placement asks for; end everything that was started on them. asked: called after
    every call to actors. Raises EarlError when the cluster is missing or has too few devices."""
    spec = spec_of(config)
    bundles = slots_of(spec).bundles
    with connect_ray(config.placement.address, sum(bundles) + spec.processors):
        gpus = ray.cluster_resources().get("GPU", 0) >= sum(bundles)
        group = reserve_devices(bundles, gpus)
        held = Coordinator(config, group, gpus, asked)
        try:
            yield held
        finally:
            held.close()
            remove_placement_group(group)
