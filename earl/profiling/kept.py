"""Profiles on disk, one file per key, so that those of another model, machine or version are never read.

$XDG_CACHE_HOME/earl/profiles/0123456789abcdef.json     key, timings, seconds of switches
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from earl.config import Config
from earl.documents import parse_json_object
from earl.engine.samplers import engine_of
from earl.errors import EarlError
from earl.parallel.layout import Choice
from earl.parallel.memory import ModelShape
from earl.parallel.profile import Point, Timing
from earl.placement.ray.inventory import here, inventory
from earl.runs.storage import storage, write_text

LIBRARIES = ("earl", "torch", "vllm", "ray")
READ = {
    "placement": ("kind", "gpus", "memory_gib", "checksums"),
    "sampler": ("compiled", "memory_share", "kv_cache_gib"),
    "learner": ("minibatches", "epochs", "micro_batch_tokens", "dtype", "offload", "lora_rank"),
    "algorithm": ("name", "correction"),
    "rollout": ("group_size",),
}
"""Settings that change a stage's time, besides those that are varied."""


def key_of(config: Config, shape: ModelShape) -> dict[str, Any]:
    """Everything that measurements depend on: model, hardware, versions and placement of a recipe.
    Raises EarlError when the recipe's cluster does not answer."""
    place, settings = config.placement, config.model_dump()
    found = inventory(place.address) if place.address else here(0)
    kind = found.device.kind if found.device else None
    devices = {"gpu": kind, "gpus": found.gpus, "hosts": found.hosts, "cores": found.cpus, "processor": _processor()}
    return {
        "model": asdict(shape),
        "hardware": devices,
        "versions": {name: _version(name) for name in LIBRARIES},
        **{section: {name: settings[section][name] for name in names} for section, names in READ.items()},
        "engine": engine_of(config),
        "learner_devices": place.ranks,
        "sampler_devices": place.samplers * config.sampler.tp,
        "reference": config.algorithm.reference or config.algorithm.kl > 0,
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return platform.machine()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(name)
    return None


_TIMING, _CHOICE = TypeAdapter(Timing), TypeAdapter(Choice)


@dataclass(slots=True)
class Profile:
    key: Mapping[str, Any]
    timings: dict[Point, Timing] = field(default_factory=dict)
    switches: dict[Choice, float] = field(default_factory=dict)  # seconds of the last switch to a choice

    @property
    def measured_at(self) -> str:
        """Time of the latest measurement; empty: none."""
        return max((timing.measured_at for timing in self.timings.values()), default="")

    def as_object(self) -> dict[str, Any]:
        switches = [{"choice": asdict(choice), "seconds": own} for choice, own in self.switches.items()]
        return {"key": self.key, "cells": [own.as_object() for own in self.timings.values()], "switches": switches}


def path_of(key: Mapping[str, Any]) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return Path(home) / "earl" / "profiles" / f"{digest[:16]}.json"


def read(key: Mapping[str, Any]) -> Profile:
    """The stored profile of a key; empty if there is none. Raises EarlError for a file that earl did not write."""
    file = path_of(key)
    if not file.is_file():
        return Profile(key)
    try:
        kept = parse_json_object(file.read_bytes())
        if kept["key"] != json.loads(json.dumps(key)):
            return Profile(key)
        timings = [_TIMING.validate_python({**fields, "point": fields}) for fields in kept["cells"]]
        switches = {_CHOICE.validate_python(own["choice"]): float(own["seconds"]) for own in kept["switches"]}
    except (ValueError, TypeError, KeyError) as error:
        raise EarlError(f"{file} is not what earl wrote ({error}); remove it, then measure again") from error
    return Profile(key, {timing.point: timing for timing in timings}, switches)


def write(profile: Profile) -> Path:
    file = path_of(profile.key)
    with storage(file.parent, then="measure again"):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(profile.as_object(), indent=1))
    return file
