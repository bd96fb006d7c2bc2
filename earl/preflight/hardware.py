"""Checks of memory and disk by lower bounds, so that only runs that cannot fit are refused."""

import os
import shutil
from pathlib import Path

from earl.config import Config
from earl.engine.source import folder_of, is_here, known_shape
from earl.errors import EarlError
from earl.parallel.memory import ModelShape, kv_bytes

FLOAT_BYTES = 4
COPIES = 7
"""Copies of every parameter per process: weights, gradients, two moments, two samplers, one message."""
EPISODE_BYTES = 4096  # approximate size of an episode's Python objects
KEPT = 4  # checkpoints on disk: the last two, the best, and the one being written
SMALL_TOKENIZER_BYTES = 1 << 16
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_memory(config: Config, shape: ModelShape) -> None:
    """Raises EarlError when the weights or the episodes of one step alone exceed the machine's memory."""
    copies = COPIES + (config.algorithm.kl > 0)
    weights, room = shape.parameters * FLOAT_BYTES * copies * config.run.processes, memory_bytes()
    if weights > room:
        raise EarlError(
            f"a model of {shape.parameters:,} parameters needs {size(weights)} to be trained by "
            f"{config.run.processes} processes, this machine has {size(room)}; "
            "choose a smaller model or fewer run.processes"
        )
    largest = max(config.rollout.episodes, config.warm_start.episodes if config.warm_start.steps else 0)
    episodes = largest * EPISODE_BYTES + config.rollout.episodes * kv_bytes(shape)
    if weights + episodes > room:
        raise EarlError(
            f"{largest:,} episodes per step need more than {size(episodes)}, this machine has "
            f"{size(room)}; set rollout.episodes and warm_start.episodes lower"
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


def size(count: float) -> str:
    """Bytes with a unit: 1536 gives '1.5 KiB'."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.0f} {units[0]}" if units[0] == "bytes" else f"{count:.1f} {units[0]}"
