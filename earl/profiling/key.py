"""For what a profile is good: everything that what it measured depends on, in one JSON object."""

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from earl.config import Config
from earl.engine.samplers import engine_of
from earl.parallel.memory import ModelShape
from earl.placement.cluster.inventory import here, inventory

LIBRARIES = ("earl", "torch", "vllm", "ray")
READ = {
    "placement": ("kind", "gpus", "memory_gib", "transport", "checksums"),
    "sampler": ("compiled", "memory_share", "kv_cache_gib"),
    "learner": ("minibatches", "epochs", "micro_batch_tokens", "dtype", "offload", "lora_rank"),
    "algorithm": ("name", "correction"),
    "rollout": ("group_size",),
}
"""Settings that change what a stage takes, besides those that are tried."""


def key_of(config: Config, shape: ModelShape) -> dict[str, Any]:
    """Model, hardware, versions and placement of a recipe.

    Raises:
        EarlError: when the cluster that it names does not answer.
    """
    place = config.placement
    known = config.model_dump()
    recipe = {section: {name: known[section][name] for name in names} for section, names in READ.items()}
    counted = {
        "engine": engine_of(config, shape),
        "learner_devices": place.dp * place.tp * place.cp,
        "sampler_devices": place.samplers * config.sampler.tp,
        "reference": config.algorithm.kl > 0,
    }
    return {"model": asdict(shape), "hardware": _hardware(place.address), "versions": _versions(), **recipe, **counted}


def _hardware(address: str | None) -> dict[str, Any]:
    found = inventory(address) if address else here(0)
    kind = found.device.kind if found.device else None
    return {"gpu": kind, "gpus": found.gpus, "hosts": found.hosts, "cores": found.cpus, "processor": _processor()}


def _processor() -> str:
    """What this machine computes with, as it calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
