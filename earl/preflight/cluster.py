"""The site of a run: kind of placement, processors and GPUs, and the sampler's engine.

Settings that a recipe leaves open are decided here once and written into it.
"""

import os
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from earl.config import Config
from earl.engine.source import folder_of, is_here, known_shape
from earl.errors import EarlError, setting
from earl.formats import size
from earl.parallel.hardware import ClusterSpec, of_gpus
from earl.parallel.memory import ModelShape, kv_bytes
from earl.placement.ray.inventory import here, installed, inventory, on_this_machine

FLOAT_BYTES = 4
COPIES = 7
"""Copies of every parameter per process: weights, gradients, two moments, two samplers, one message."""
EPISODE_BYTES = 4096  # approximate size of an episode's Python objects
KEPT = 4  # checkpoints on disk: the last two, the best, and the one being written
SMALL_TOKENIZER_BYTES = 1 << 16
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_memory(config: Config, shape: ModelShape) -> None:
    """Raises EarlError when the weights and the episodes of one step alone exceed the machine's memory."""
    copies = COPIES + (config.algorithm.kl > 0)
    weights, room = shape.parameters * FLOAT_BYTES * copies * config.run.processes, memory_bytes()
    largest = max(config.rollout.episodes, config.warm_start.episodes if config.warm_start.steps else 0)
    episodes = largest * EPISODE_BYTES + config.rollout.episodes * kv_bytes(shape)
    if weights + episodes > room:
        raise EarlError(
            f"a model of {shape.parameters:,} parameters needs {size(weights)} to be trained by "
            f"{config.run.processes} processes, {largest:,} episodes per step need more than {size(episodes)}, and "
            f"this machine has {size(room)}; choose a smaller model, or lower run.processes, rollout.episodes or "
            "warm_start.episodes"
        )


def ceiling_of(config: Config, shape: ModelShape, room: int) -> int:
    """Ceiling of `context.limit = "auto"`, in tokens, from positions, micro-batch and memory (`room`).
    Raises EarlError when the recipe's first limit or its ceiling is above that."""
    bounds = {
        "the model's length": shape.max_positions,
        "learner.micro_batch_tokens": config.learner.micro_batch_tokens,
        "memory": room,
    }
    narrowest = min(bounds, key=lambda name: bounds[name])
    for name, value in (("ceiling", config.context.ceiling), ("initial", config.context.first_limit)):
        if value is not None and value > bounds[narrowest]:
            raise EarlError(
                f"context.{name} = {value} is above the {bounds[narrowest]} tokens that {narrowest} allows; "
                f"set context.{name} to at most {bounds[narrowest]}"
            )
    return config.context.ceiling or bounds[narrowest]


def checkpoint_bytes(config: Config, shape: ModelShape) -> int:
    """Approximate size of a checkpoint: weights, two moments, the reference, the tokenizer."""
    copies = 3 + (config.algorithm.kl > 0)
    path, beside = config.model.path, SMALL_TOKENIZER_BYTES
    if path is not None and (known_shape(path) is None or is_here(path)):
        files = folder_of(path, weights=False).glob("*token*")
        beside = sum(file.stat().st_size for file in files if file.is_file())
    return shape.parameters * FLOAT_BYTES * copies + beside


def check_disk(root: Path, checkpoint: int) -> None:
    """Raises EarlError when the disk of `root` has no room for the checkpoints that a run keeps."""
    place = root.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < KEPT * checkpoint:
        raise EarlError(
            f"no space left at {root}: {size(free)} are free, and a run keeps up to {KEPT} checkpoints of "
            f"{size(checkpoint)}; free space or choose another folder with --runs"
        )


def memory_bytes() -> int:
    """The machine's memory, or the container's limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return min(physical, int(limit)) if limit.isdigit() else physical


CURES = {
    "ray": "pip install 'earl[ray]', or leave the run embedded",
    "vllm": "pip install 'earl[vllm]' on a machine with GPUs, or set sampler.engine to local",
    "peft": "pip install 'earl[lora]', or set learner.lora_rank to 0",
}
"""Cure by library, when a setting needs one that is not installed."""


@dataclass(frozen=True, slots=True)
class Site:
    kind: str  # embedded, colocated or disaggregated
    engine: str  # local or vllm
    cluster: ClusterSpec
    on_paper: bool  # whether the cluster is only described, to plan a run elsewhere

    @property
    def gpus(self) -> bool:
        return self.kind != "embedded" and self.cluster.gpus > 0


def survey(config: Config, dry: bool) -> Site:
    """Determine the site of a recipe. Raises EarlError when something that it needs is missing or does not answer.
    In a `dry` run, GPUs that --gpus names need not exist, and no cluster is contacted."""
    place, engine = config.placement, config.sampler.engine
    with setting("placement.gpus"):
        asked = of_gpus(place.gpus) if place.gpus else None
    kind: str = place.kind
    if kind == "auto":
        named = place.address is not None or asked is not None
        kind = "colocated" if named or (here(0).gpus and installed("ray")) else "embedded"
    on_paper = dry and (asked is not None or place.address is not None)
    needs = {
        "ray": (kind != "embedded", f"placement.kind = {kind!r}"),
        "vllm": (engine == "vllm", "sampler.engine = 'vllm'"),
        "peft": (config.learner.lora_rank > 0, f"learner.lora_rank = {config.learner.lora_rank}"),
    }
    for library, (needed, what) in needs.items():
        if needed and not on_paper and not installed(library):
            raise EarlError(f"{what} needs {library}, which is not installed; {CURES[library]}")
    if on_paper:
        cluster = asked or ClusterSpec("", 1, None, None)
        if place.address:
            cluster = replace(cluster, where=f"the Ray cluster at {place.address}, which was not asked what it has")
    elif kind == "embedded" or not place.address:
        cluster = here(memory_bytes())
    else:
        cluster = inventory(place.address)
    if asked and kind != "embedded" and not on_paper:
        cluster = _allowed(cluster, asked)
    if engine == "auto":
        engine = "vllm" if kind != "embedded" and cluster.gpus and (on_paper or installed("vllm")) else "local"
    return Site(kind, engine, cluster, on_paper)


def check_address(config: Config, given: bool) -> None:
    """Raises EarlError for a remote address that was not `given` on this command line.
    So a recipe from someone else, or a run's own, cannot make earl contact a host."""
    address = config.placement.address
    if address is not None and not given and not on_this_machine(address):
        raise EarlError(
            f"placement.address = {address!r} is in the recipe alone: earl would contact that host; "
            f"permit that with --address {shlex.quote(address)}, or name another"
        )


def _allowed(found: ClusterSpec, asked: ClusterSpec) -> ClusterSpec:
    """The part of a cluster that `--gpus` allows. Raises EarlError when there is less, or another kind."""
    if asked.gpus > found.gpus or asked.gpus_per_host > found.gpus_per_host:
        raise EarlError(
            f"placement.gpus asks for {asked.hosts} x {asked.gpus_per_host} = {asked.gpus} GPUs, {found.where} has "
            f"{found.holds}; name what there is, or another cluster with --address; --dry-run alone plans for GPUs "
            "that are elsewhere"
        )
    if found.device and asked.device and found.device.kind != asked.device.kind:
        raise EarlError(
            f"placement.gpus asks for {asked.device.kind}, the GPUs of {found.where} are {found.device.kind}; "
            f"set it to {asked.hosts}x{asked.gpus_per_host}x{found.device.kind}"
        )
    device = found.device or asked.device
    return replace(found, hosts=asked.hosts, gpus=asked.gpus, gpus_per_host=asked.gpus_per_host, device=device)
