"""The preflight of a run: runs all checks on a recipe and returns its plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from earl import trackers
from earl.config import Config
from earl.engine import model
from earl.engine.source import fetching, is_here, known_shape
from earl.engine.tokenizer import character_tokenizer
from earl.errors import EarlError
from earl.preflight.cluster import Site, survey
from earl.preflight.environment import check_batches, check_world, setting
from earl.preflight.hardware import ceiling_of, check_disk, check_memory, checkpoint_bytes
from earl.preflight.placement import Placed, check_placement, context_room, decided
from earl.preflight.prompts import check_speech

# No option is silently ignored: OPTIONS lists every setting that only some runs read. If it differs from its default
# and the run does not read it, it is refused. `run.processes`, which only embedded runs read, is reported instead,
# so that a recipe for a laptop runs on a cluster unchanged.


@dataclass(frozen=True, slots=True)
class Read:
    """Which runs read a setting."""

    by: Callable[[Config, Site], bool]
    rule: str  # follows "KEY = VALUE" in the error


def _on_ray(_: Config, site: Site) -> bool:
    return site.kind != "embedded"


def _by_vllm(_: Config, site: Site) -> bool:
    return site.engine == "vllm"


ON_RAY = Read(
    _on_ray, "is read by the placements on Ray alone: leave it out, or set placement.kind to colocated or disaggregated"
)
OF_VLLM = Read(_by_vllm, "is read by vLLM alone: leave it out, or set sampler.engine to vllm")


def _lockstep(config: Config, site: Site) -> bool:
    """Whether rollout and update alternate, in processes that the driver knows."""
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
    """Raises EarlError for the first setting that differs from its default and is not read."""
    for key, read in OPTIONS.items():
        section, name = key.split(".")
        table = getattr(config, section)
        value, default = getattr(table, name), type(table).model_fields[name].default
        if value != default and not read.by(config, site):
            raise EarlError(f"{key} = {value!r} {read.rule}")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run that passed preflight."""

    config: Config  # with everything decided that the recipe leaves open
    parameters: int
    first_prompt_tokens: int | None
    """The longest first prompt; None: the tokenizer is not here, so prompts were not checked."""
    checkpoint_bytes: int
    placed: Placed


def preflight(config: Config, root: Path, dry: bool = False) -> RunPlan:
    """Check a recipe before its run is created in the folder `root`. Writes nothing but copies of hub models.

    A `dry` run is only planned: GPUs that the recipe names may be elsewhere, a well-known model's prompts are
    checked only if its tokenizer is here, and neither a cluster nor the hub is contacted. Raises EarlError for the
    first rule that the recipe breaks.
    """
    with fetching(not dry):
        return _checked(config, root, dry)


def _checked(config: Config, root: Path, dry: bool) -> RunPlan:
    check_world(config)
    site = survey(config, dry)
    check_batches(config, site.kind == "embedded")
    with setting("track"):
        trackers.check(config.track.to, config.track.prometheus_port)
    check_options(config, site)
    shape = model.shape(config.model)
    config = decided(config, shape, site)
    placed = check_placement(config, shape, site)
    if site.kind == "embedded":
        check_memory(config, shape)
    size = checkpoint_bytes(config, shape)
    if not site.on_paper:
        check_disk(root, size)
    if config.context.automatic:
        config = config.changed(context={"ceiling": ceiling_of(config, shape, context_room(config, shape, placed))})
    first = check_speech(config, _speaker(config, site, dry), shape)
    return RunPlan(config, shape.parameters, first, size, placed)


def _speaker(config: Config, site: Site, dry: bool) -> model.Policy | None:
    """The loaded model in an embedded run; else only its tokenizer; None if that is not here."""
    path = config.model.path
    if path is None:
        return model.Policy(None, character_tokenizer())
    if dry and known_shape(path) is not None and not is_here(path):
        return None
    if site.kind == "embedded" and not (dry and not Path(path).exists()):  # a dry run does not fetch weights
        return model.load(path)  # read the weights, since they may be missing or broken
    return model.Policy(None, model.tokenizer_of(config.model))


def check_player(config: Config, policy: model.Policy) -> None:
    """Check that a loaded model can play by a recipe's rules: the preflight without training.
    Raises EarlError for the first rule that the recipe breaks."""
    check_world(config)
    check_speech(config, policy, model.shape_of(policy.model))
