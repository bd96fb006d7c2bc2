"""All samplers compared: models of two sizes, few and many concurrent episodes, in alternating repeats.

for each model: warm start (so that games last) ─▶ all samplers ─▶ for each number of episodes: repeats in turns
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from earl.benchmarks import rollout
from earl.benchmarks.repeats import interval
from earl.benchmarks.rollout import ours, passes_of, rates
from earl.benchmarks.training import recipe
from earl.config import Config, SamplerConfig
from earl.engine.model import Policy, make, shape_of
from earl.engine.samplers import choose, longest_context
from earl.rollout.drivers import Completes

CONCURRENT = (1, 16, 64, 128)
MODELS = {
    "1M": ("model.hidden=128", "model.layers=4", "model.heads=4", "model.intermediate=512"),
    "5M": ("model.hidden=256", "model.layers=6", "model.heads=8", "model.intermediate=768"),
}
WARM = ("warm_start.episodes=128", "warm_start.minibatches=8")
CHOICES = {"local": "local", "vllm": "vllm_eager"}
"""The names used here for the engines that `auto` chooses from."""


def run(
    env: str = "tictactoe", repeats: int = 5, assignments: Sequence[str] = (), concurrent: Sequence[int] = CONCURRENT
) -> dict[str, Any]:
    """Measure all samplers. For the result see `earl bench sampler --help`."""
    return {
        "env": env,
        "repeats": repeats,
        "models": {
            name: _model(recipe(env, (*WARM, *shape, *assignments)), repeats, concurrent)
            for name, shape in MODELS.items()
        },
    }


def _model(config: Config, repeats: int, concurrent: Sequence[int]) -> dict[str, Any]:
    policy = make(config.model, config.run.seed)
    placement = rollout.warmed(config, policy)
    parameters = shape_of(policy.model).parameters
    with ExitStack() as engines:
        samplers = _samplers(config, policy, engines.callback)
        measured = {count: passes_of(placement, samplers, count, repeats) for count in concurrent}
    return {
        "parameters": parameters,
        "turns_per_episode": median(own["turns"] for own in measured[concurrent[0]]["local"]),
        "concurrent": {str(count): _told(passes) for count, passes in measured.items()},
    }


def _samplers(config: Config, policy: Policy, at_end: Callable[[Callable[[], None]], Any]) -> dict[str, Completes]:
    from earl.engine.vllm.sampler import VllmSampler

    temperature, samplers = config.rollout.temperature, ours(config, policy)
    for name, compiled in (("vllm_eager", False), ("vllm_compiled", True)):
        settings = SamplerConfig(engine="vllm", compiled=compiled, kv_cache_gib=0.25)
        engine = VllmSampler(policy, settings, temperature, longest_context(config, shape_of(policy.model)))
        at_end(engine.close)
        samplers[name] = engine
    return samplers


def _standing(rates: dict[str, list[float]]) -> list[str]:
    """The samplers, the fastest first, by the median ratio to each round's fastest, which cancels slow rounds."""
    rounds = [max(of_round) for of_round in zip(*rates.values(), strict=True)]
    shares = {name: median(own / top for own, top in zip(ours, rounds, strict=True)) for name, ours in rates.items()}
    return sorted(shares, key=lambda name: -shares[name])


def _told(passes: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    standing = _standing({name: [own["episodes"] for own in ours] for name, ours in passes.items()})
    auto = CHOICES[choose()]
    best = next(name for name in standing if name != auto)
    ratios = [ours["episodes"] / theirs["episodes"] for ours, theirs in zip(passes[auto], passes[best], strict=True)]
    return {
        **{name: rates(own) for name, own in passes.items()},
        "fastest": standing[0],
        "auto": auto,
        "best": best,
        "auto_over_best": interval(ratios),
    }
