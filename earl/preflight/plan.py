"""The preflight of a run: runs all checks on a recipe and returns its plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from earl import trackers
from earl.config import Config, ModelConfig
from earl.documents import parse_toml
from earl.engine import model
from earl.engine.model import character_tokenizer
from earl.engine.source import fetching, folder_of, is_here, known_shape
from earl.errors import EarlError, setting
from earl.parallel.cost_model import policies_differ
from earl.preflight import placement
from earl.preflight.placement import Placed, Site
from earl.preflight.prompts import check_batches, check_environment, check_prompts, check_tools

# No option is silently ignored: options.toml lists every setting that only some runs read. If it differs from its
# default and the run does not read it, it is refused.

OPTIONS: Mapping[str, Mapping[str, str]] = {
    key: option
    for option in parse_toml(files(__package__).joinpath("options.toml").read_bytes())["option"]
    for key in option["keys"]
}


def _readers(config: Config, site: Site) -> set[str]:
    """The conditions of options.toml that a run fulfils."""
    place, vllm, on_ray = config.placement, site.engine == "vllm", site.kind != "embedded"
    turns = on_ray and not place.environments and not place.max_staleness
    known = {
        "on Ray": on_ray,
        "apart": site.kind == "disaggregated",
        "in turns": turns,
        "a teacher": config.warm_start.distill > 0,
        "known groups": not place.max_staleness,
        "in turns on CPUs": turns and not site.gpus and not vllm,
        "a selector": config.selector.kind == "auto",
        "vLLM": vllm,
        "vLLM or on Ray": vllm or on_ray,
        "vLLM on GPUs": vllm and site.cluster.gpus > 0,
        "samplers on CPUs": not vllm or not site.cluster.gpus,
        "GPUs": site.gpus,
        "adapters": config.learner.lora_rank > 0,
        "another policy": policies_differ(config, vllm, config.learner.dtype),
        "a KL divergence": config.algorithm.kl > 0,
        "a correction": config.algorithm.correction != "none",
    }
    return {name for name, holds in known.items() if holds}


def check_options(config: Config, site: Site) -> None:
    """Raises EarlError for the first setting that differs from its default and is not read."""
    readers = _readers(config, site)
    for key, option in OPTIONS.items():
        section, name = key.split(".")
        table = getattr(config, section)
        value, default = getattr(table, name), type(table).model_fields[name].default
        if value != default and option["by"] not in readers:
            raise EarlError(f"{key} = {value!r} {option['rule']}")


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
        for one in config.each_env():
            check_environment(one)
        site = placement.survey(config, dry)
        with setting("track"):
            trackers.check(config.track.to, config.track.prometheus_port)
        check_options(config, site)
        shape = model.shape(config.model)
        config = placement.fill_open_settings(config, shape, site)
        check_tools(config)
        check_batches(config, site.kind == "embedded")
        placed = placement.check_placement(config, shape, site)
        size = placement.checkpoint_bytes(config, shape)
        if not site.on_paper:
            placement.check_disk(root, size)
        if config.context.automatic:
            config = config.changed(context={"ceiling": placement.ceiling_of(config, shape, site)})
        speaker = _speaker(config, site, dry)
        _check_reference(config, speaker, dry)
        found = [check_prompts(one, speaker, shape) for one in config.each_env()]
        first = max((tokens for tokens in found if tokens is not None), default=None)
    return RunPlan(config, shape.parameters, first, size, placed)


def _speaker(config: Config, site: Site, dry: bool) -> model.Policy | None:
    """The loaded model in an embedded run; else only its tokenizer; None if that is not here."""
    path = config.model.path
    if path is None:
        return model.Policy(None, character_tokenizer(config.model.alphabet, config.model.cells))
    if dry and known_shape(path) is not None and not is_here(path):
        return None
    if site.kind == "embedded" and not (dry and not Path(path).exists()):  # a dry run does not fetch weights
        return model.load(path)  # read the weights, since they may be missing or broken
    return model.Policy(None, model.tokenizer_of(config.model))


def _check_reference(config: Config, policy: model.Policy | None, dry: bool) -> None:
    """Raises EarlError for a reference that cannot score the policy's tokens. `policy` as in `check_prompts`; dry: a
    well-known reference need not be here."""
    path, renewed = config.algorithm.reference, config.algorithm.reset_reference
    if path is None:
        return
    if renewed:
        raise EarlError(
            f"algorithm.reference = {path!r} stays the reference, and algorithm.reset_reference = {renewed} replaces "
            "it; leave one of the two out"
        )
    if policy is None or (dry and known_shape(path) is not None and not is_here(path)):
        return
    with setting("algorithm.reference"):
        if model.read_tokenizer(path, folder_of(path)).get_vocab() != policy.tokenizer.get_vocab():
            raise EarlError(
                f"{path!r} has other tokens than the policy, so it cannot say how likely the policy's replies are; "
                "name a model of the same family, or one that earl made with the same [model] alphabet and cells"
            )
        longest = model.shape(ModelConfig(path=path)).max_positions
        limit = config.context.ceiling or config.context.first_limit
        if limit > longest:
            raise EarlError(f"{path!r} was made for {longest} tokens, and context.limit is {limit}; lower it")


def check_player(config: Config, policy: model.Policy) -> None:
    """Check that a loaded model can play by a recipe's rules: the preflight without training.
    Raises EarlError for the first rule that the recipe breaks."""
    check_environment(config)
    check_prompts(config, policy, model.shape_of(policy.model))
