"""Every setting of [placement], [sampler] and [learner] is read in a run, or refused in it: all keys are walked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from earl.config import Config
from earl.engine.model import make
from earl.errors import EarlError
from earl.parallel.hardware import ClusterSpec, of_gpus
from earl.preflight.placement import Site
from earl.preflight.plan import OPTIONS, check_options, preflight
from earl.recipe import build

LAPTOP = ClusterSpec("this machine", 1, 2, 8 << 30)
SITES = {
    "embedded": Site("embedded", "local", LAPTOP, on_paper=False),
    "embedded vllm": Site("embedded", "vllm", LAPTOP, on_paper=False),
    "colocated": Site("colocated", "local", LAPTOP, on_paper=False),
    "colocated vllm": Site("colocated", "vllm", LAPTOP, on_paper=False),
    "colocated gpus": Site("colocated", "vllm", of_gpus("8xH100"), on_paper=True),
    "disaggregated": Site("disaggregated", "local", LAPTOP, on_paper=False),
    "disaggregated gpus": Site("disaggregated", "vllm", of_gpus("8xH100"), on_paper=True),
}
ALL = set(SITES)
ON_RAY = {name for name in SITES if not name.startswith("embedded")}
OF_VLLM = {"embedded vllm", "colocated vllm", "colocated gpus", "disaggregated gpus"}
ON_GPUS = {"colocated gpus", "disaggregated gpus"}

# Of every key: a value that is not its default, and where it is read.
READERS = {
    "placement.kind": ("colocated", ALL),
    "placement.address": ("10.0.0.1:6379", ON_RAY),
    "placement.gpus": ("8xH100", ON_RAY),
    "placement.dp": (2, ON_RAY),
    "placement.tp": (2, ON_RAY),
    "placement.cp": (2, ON_RAY),
    "placement.ep": (2, ON_RAY),
    "placement.replicas": (2, ON_RAY),
    "placement.samplers": (2, ON_RAY),
    "placement.environments": (2, ON_RAY),
    "placement.max_staleness": (1, {"disaggregated", "disaggregated gpus"}),
    "placement.checksums": (True, ON_RAY),
    "placement.heartbeat_seconds": (3.0, ON_RAY),
    "placement.stage_seconds": (3.0, ON_RAY),
    "placement.max_recoveries": (3, ON_RAY),
    "placement.memory_gib": (2.0, {"colocated", "disaggregated"}),
    "selector.kind": ("auto", ON_RAY),
    "selector.profile": (True, set()),  # alone: with selector.kind it is read, see below
    "sampler.engine": ("vllm", ALL),
    "sampler.tp": (2, OF_VLLM | ON_RAY),
    "sampler.compiled": (True, OF_VLLM),
    "sampler.memory_share": (0.5, ON_GPUS),
    "sampler.kv_cache_gib": (2.0, ALL - ON_GPUS),
    "learner.dtype": ("bfloat16", ON_RAY),
    "learner.offload": (True, ON_GPUS),
    "learner.recompute": (True, ALL),
    "learner.lora_rank": (4, ALL),
    "learner.lora_alpha": (4.0, set()),  # with a rank: everywhere, see below
    "algorithm.correction": ("token", OF_VLLM),
    "algorithm.correction_cap": (3.0, set()),
    "algorithm.correction_excess": ("drop", set()),
    "algorithm.kl_estimator": ("k2", set()),  # with a weight: everywhere, see below
    "algorithm.kl_in": ("reward", set()),
    "algorithm.reference": ("Qwen2.5-7B", set()),
    "algorithm.reset_reference": (50, set()),
    "env.delay_seconds": (0.1, ALL),
    "rollout.resample": (2, ALL),  # not where rollout runs ahead, see below
    "warm_start.distill": (0.5, ALL),
    "warm_start.distill_steps": (3, set()),  # with a weight: everywhere, see below
}
# What every learner reads.
OF_ADAMW = {
    "learning_rate", "final_learning_rate", "schedule", "decay_from", "warmup_steps", "minibatches", "epochs",
    "micro_batch_tokens", "clip_grad_norm", "weight_decay", "beta1", "beta2", "ema",
}  # fmt: skip


def recipe(**tables: dict) -> Config:
    return build({"env": {"name": "tictactoe", **tables.pop("env", {})}, **tables})


def test_every_key_is_listed() -> None:
    for section in ("placement", "sampler", "selector", "learner"):
        keys = {f"{section}.{key}" for key in Config.model_fields[section].annotation.model_fields}
        assert keys == {key for key in READERS if key.startswith(section)} | {
            f"learner.{key}" for key in OF_ADAMW if section == "learner"
        }
    assert set(OPTIONS) <= set(READERS)


@pytest.mark.parametrize("name", SITES)
def test_defaults_are_read_everywhere(name: str) -> None:
    check_options(recipe(), SITES[name])


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("key", READERS)
def test_a_setting_is_read_or_refused(key: str, name: str) -> None:
    value, readers = READERS[key]
    section, field = key.split(".")
    config = recipe(**{section: {field: value}})
    if name in readers:
        check_options(config, SITES[name])
        return
    with pytest.raises(EarlError) as refusal:
        check_options(config, SITES[name])
    assert str(refusal.value).startswith(f"{key} = {value!r} ")
    assert "leave it out" in str(refusal.value)


@pytest.mark.parametrize("name", SITES)
def test_settings_that_another_setting_brings_into_use(name: str) -> None:
    check_options(recipe(learner={"lora_rank": 4, "lora_alpha": 4.0}), SITES[name])
    check_options(recipe(warm_start={"distill": 0.5, "distill_steps": 3}), SITES[name])
    check_options(
        recipe(algorithm={"kl": 0.1, "kl_estimator": "k2", "kl_in": "reward", "reset_reference": 5}), SITES[name]
    )
    if name in OF_VLLM:
        check_options(recipe(algorithm={"correction": "sequence", "correction_cap": 3.0}), SITES[name])
    if name in ON_RAY:
        check_options(recipe(selector={"kind": "auto", "profile": True}), SITES[name])


def test_a_correction_is_of_use_where_rollout_runs_ahead_or_arithmetic_differs() -> None:
    correction = {"correction": "token"}
    check_options(recipe(algorithm=correction, placement={"max_staleness": 1}), SITES["disaggregated"])
    check_options(recipe(algorithm=correction, learner={"dtype": "bfloat16"}), SITES["colocated"])
    for own in ({"rollout": {"resample": 2}}, {"warm_start": {"distill": 0.5}}):
        with pytest.raises(EarlError, match=r"or set placement.max_staleness to 0$"):
            check_options(recipe(**own, placement={"max_staleness": 1}), SITES["disaggregated"])
    with pytest.raises(EarlError, match=r"algorithm.correction = 'token' weighs"):
        check_options(recipe(algorithm=correction), SITES["disaggregated"])


@pytest.mark.parametrize(
    ("model", "algorithm", "fault"),
    [
        ({"alphabet": "unicode"}, {}, "algorithm.reference: .* has other tokens than the policy"),
        ({"max_positions": 30}, {}, "algorithm.reference: .* was made for 30 tokens, and context.limit is"),
        ({}, {"reset_reference": 5}, "algorithm.reset_reference = 5 replaces it; leave one of the two out"),
    ],
)
def test_a_reference_has_to_score_the_replies_of_the_policy(
    tiny: Callable, tmp_path: Path, model: dict, algorithm: dict, fault: str
) -> None:
    make(tiny(model=model).model, seed=1).save(tmp_path / "other")
    config = tiny(algorithm={"kl": 0.1, "reference": str(tmp_path / "other"), **algorithm})
    with pytest.raises(EarlError, match=fault):
        preflight(config, tmp_path)
