"""No option is silently ignored: every setting that only some runs read, and which runs these are.

A setting that differs from its default where nobody reads it is refused. One is told of instead, so that a recipe for a
laptop runs on a cluster as it is: `run.processes`, which the embedded placement alone reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from earl.config import Config
from earl.errors import EarlError
from earl.preflight.site import Site


@dataclass(frozen=True, slots=True)
class Read:
    """Which runs read a setting."""

    by: Callable[[Config, Site], bool]
    rule: str
    """Said after "KEY = VALUE"."""


def _on_ray(_: Config, site: Site) -> bool:
    return site.kind != "embedded"


def _by_vllm(_: Config, site: Site) -> bool:
    return site.engine == "vllm"


ON_RAY = Read(
    _on_ray, "is read by the placements on Ray alone: leave it out, or set placement.kind to colocated or disaggregated"
)
OF_VLLM = Read(_by_vllm, "is read by vLLM alone: leave it out, or set sampler.engine to vllm")


def _lockstep(config: Config, site: Site) -> bool:
    """Whether nobody plays while the learner learns, in processes that the driver knows."""
    place = config.placement
    return site.kind != "embedded" and not place.environments and not place.max_staleness


OPTIONS: Mapping[str, Read] = {
    "placement.address": ON_RAY,
    "placement.gpus": ON_RAY,
    "placement.dp": ON_RAY,
    "placement.tp": ON_RAY,
    "placement.cp": ON_RAY,
    "placement.samplers": ON_RAY,
    "placement.environments": ON_RAY,
    "placement.transport": ON_RAY,
    "placement.checksums": ON_RAY,
    "placement.heartbeat_seconds": ON_RAY,
    "placement.stage_seconds": ON_RAY,
    "placement.max_recoveries": ON_RAY,
    "placement.max_staleness": Read(
        lambda _, site: site.kind == "disaggregated",
        "needs rollout and learner apart: leave it out, or set placement.kind to disaggregated",
    ),
    "placement.memory_gib": Read(
        lambda config, site: _lockstep(config, site) and not site.gpus and site.engine == "local",
        "is kept where learner and earl's own samplers are processes of their own, on CPUs, and take turns: leave it "
        "out, or set placement.kind to colocated and sampler.engine to local, without placement.environments and "
        "placement.max_staleness",
    ),
    "selector.kind": Read(
        _lockstep,
        "changes layouts between steps, where learner and samplers are processes of their own and take turns: leave it "
        "out, or set placement.kind to colocated, without placement.environments and placement.max_staleness",
    ),
    "selector.profile": Read(
        lambda config, _: config.selector.kind == "auto",
        "measures what a selector chooses from: leave it out, or set selector.kind to auto",
    ),
    "sampler.tp": Read(
        lambda _, site: site.engine == "vllm" or site.kind != "embedded",
        "splits earl's own sampler over processes of a placement on Ray: leave it out, or set placement.kind to "
        "colocated or disaggregated, or sampler.engine to vllm",
    ),
    "sampler.compiled": OF_VLLM,
    "sampler.memory_share": Read(
        lambda _, site: site.engine == "vllm" and site.cluster.gpus > 0, "is read by vLLM on GPUs alone: leave it out"
    ),
    "sampler.kv_cache_gib": Read(
        lambda _, site: site.engine == "local" or not site.cluster.gpus,
        "is read by samplers on CPUs alone: leave it out, or set sampler.memory_share",
    ),
    "learner.dtype": ON_RAY,
    "learner.offload": Read(
        lambda _, site: site.gpus, "moves tensors between GPUs and host memory, and here are no GPUs: leave it out"
    ),
    "learner.lora_alpha": Read(
        lambda config, _: config.learner.lora_rank > 0, "scales adapters: leave it out, or set learner.lora_rank too"
    ),
    "algorithm.correction": Read(
        lambda config, site: (
            config.placement.max_staleness > 0 or site.engine == "vllm" or config.learner.dtype != "float32"
        ),
        "weighs what sampler and learner see differently, and here they compute alike and take turns: leave it out",
    ),
    "algorithm.correction_cap": Read(
        lambda config, _: config.algorithm.correction != "none",
        "caps the weights of a correction: leave it out, or set algorithm.correction to token or sequence",
    ),
}


def check_options(config: Config, site: Site) -> None:
    """Refuse what nobody would read.

    Raises:
        EarlError: for the first setting that differs from its default and has no reader.
    """
    for key, read in OPTIONS.items():
        section, name = key.split(".")
        table = getattr(config, section)
        value, default = getattr(table, name), type(table).model_fields[name].default
        if value != default and not read.by(config, site):
            raise EarlError(f"{key} = {value!r} {read.rule}")
