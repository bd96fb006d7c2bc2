"""The local sampler against `transformers.generate`: same model, same games, in alternating repeats.

warm start (so that games last) ─▶ repeat: local, generate ─▶ ratio ─▶ time of the local sampler's parts
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from transformers import GenerationConfig

from earl.benchmarks.repeats import in_turns, interval
from earl.benchmarks.training import recipe
from earl.config import Config, SamplerConfig
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, make, shape_of
from earl.engine.samplers import choose, longest_context
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import Peers
from earl.placement.pipeline import StepPipeline
from earl.rollout.drivers import BatchSampler, Playable, play
from earl.rollout.episode import Episode
from earl.rollout.tasks import draw_tasks, group_episodes, opponents
from earl.runs.journal import Clock
from earl.seeds import derive
from earl.trajectory import Completion, Prompt, Trajectory


class GenerateSampler:
    """The baseline: one `generate` call per turn, on whole contexts, padded on the left, with nothing kept in between.
    It returns no log-probs, which would cost `generate` more time."""

    def __init__(self, policy: Policy, temperature: float) -> None:
        self._model: Any = policy.model.eval()
        self._stop, self._pad = policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id
        self._temperature = temperature

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        width = max(len(prompt.tokens) for prompt in prompts)
        lengths = torch.tensor([len(prompt.tokens) for prompt in prompts])
        padded = torch.tensor([[self._pad] * (width - len(p.tokens)) + list(p.tokens) for p in prompts])
        settings = GenerationConfig(
            do_sample=True,
            temperature=self._temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(prompt.max_tokens for prompt in prompts),
            eos_token_id=self._stop,
            pad_token_id=self._pad,
        )
        with torch.inference_mode():
            whole = self._model.generate(
                padded, attention_mask=torch.arange(width) >= (width - lengths)[:, None], generation_config=settings
            )
        replies = whole[:, width:].tolist()
        return [self._completion(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]

    def _completion(self, reply: list[int], prompt: Prompt) -> Completion:
        ended = self._stop in reply[: prompt.max_tokens]
        tokens = reply[: reply.index(self._stop) + 1] if ended else reply[: prompt.max_tokens]
        return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), ended)

    def release(self, sessions: Sequence[int]) -> None:
        """Keep nothing between calls, so there is nothing to release."""


WARM_STEPS = 20
FEWEST = 24
"""Episodes of one pass; with fewer at once, several waves run in sequence."""


PARTS = ("setup", "sampler", "environment", "chat")


def run(
    env: str = "tictactoe", episodes: int = 256, repeats: int = 5, assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure both samplers. For the result see `earl bench rollout --help`."""
    config = recipe(env, assignments)
    policy = make(config.model, config.run.seed)
    pipeline = warmed(config, policy)
    samplers = ours(config, policy)
    passes = passes_of(pipeline, samplers, episodes, repeats)
    return {
        "env": env,
        "episodes": episodes,
        "repeats": repeats,
        "parameters": sum(parameter.numel() for parameter in policy.model.parameters()),
        "threads": torch.get_num_threads(),
        "turns_per_episode": median(own["turns"] for own in passes["local"]),
        **{name: rates(own) for name, own in passes.items()},
        "ratio": interval([a["episodes"] / b["episodes"] for a, b in zip(*passes.values(), strict=True)]),
        "seconds": _parts(pipeline, samplers["local"], episodes),
    }


def ours(config: Config, policy: Policy) -> dict[str, BatchSampler]:
    temperature = config.rollout.temperature
    return {"local": LocalSampler(policy, temperature), "generate": GenerateSampler(policy, temperature)}


def warmed(config: Config, policy: Policy) -> StepPipeline:
    """A pipeline whose policy has had a warm start, so that games last."""
    pipeline = embedded_pipeline(config, Peers(), policy)
    for step in range(1, WARM_STEPS + 1):
        rows = pipeline.demonstrations(step)
        pipeline.imitate(pipeline.dispatch_taught(rows, step), rows.num_turns, step)
    return pipeline


def episodes_of(pipeline: StepPipeline, count: int, number: int) -> list[Playable]:
    """New games; `number` selects their seed."""
    seed = derive("benchmark", number)
    tasks = draw_tasks(opponents(pipeline.config), count, seed)
    return group_episodes(pipeline.world, dict(enumerate(tasks)), 1, seed)


def passes_of(
    pipeline: StepPipeline, samplers: Mapping[str, BatchSampler], count: int, repeats: int
) -> dict[str, list[dict[str, float]]]:
    """What every sampler's passes took; a first round warms up."""
    return in_turns({name: partial(_pass, pipeline, own, count) for name, own in samplers.items()}, repeats, warm=1)


def _pass(pipeline: StepPipeline, sampler: BatchSampler, count: int, number: int) -> dict[str, float]:
    """`count` episodes at once, from making the environments to the last trajectory; again until there are FEWEST."""
    played: list[Trajectory] = []
    began = time.perf_counter()
    while len(played) < max(count, FEWEST):
        played += play(episodes_of(pipeline, count, 1000 * number + len(played)), sampler)
    seconds = time.perf_counter() - began
    return {
        "episodes": len(played) / seconds,
        "tokens": sum(trajectory.num_sampled for trajectory in played) / seconds,
        "turns": sum(len(trajectory.turns) for trajectory in played) / len(played),
    }


def rates(passes: list[dict[str, float]]) -> dict[str, Any]:
    return {f"{what}_per_second": interval([own[what] for own in passes]) for what in ("episodes", "tokens")}


def _parts(pipeline: StepPipeline, sampler: BatchSampler, count: int) -> dict[str, float]:
    """Seconds of the parts of a local pass; a separate pass, since timing has a cost."""
    clock = Clock()
    clock.seconds = dict.fromkeys(PARTS, 0.0)
    began = time.perf_counter()
    with clock("setup"):
        episodes = episodes_of(pipeline, count, number=-1)
    with ExitStack() as patched:
        timed: list[tuple[str, object, str]] = [("sampler", sampler, "generate")]
        timed += [("chat", pipeline.world.chat, name) for name in ("opening", "reply", "decode")]
        environments = [episode.env for episode in episodes if isinstance(episode, Episode)]
        timed += [("environment", env, name) for env in environments for name in ("rule", "step")]
        for part, owner, name in timed:
            patched.enter_context(patch.object(owner, name, clock(part)(getattr(owner, name))))
        play(episodes, sampler)
    whole = time.perf_counter() - began
    return {**clock.seconds, "python": whole - sum(clock.seconds.values())}


# All samplers compared: models of two sizes, few and many concurrent episodes, in alternating repeats.

CONCURRENT = (1, 16, 64, 128)
MODELS = {
    "1M": ("model.hidden=128", "model.layers=4", "model.heads=4", "model.intermediate=512"),
    "5M": ("model.hidden=256", "model.layers=6", "model.heads=8", "model.intermediate=768"),
}
WARM = ("warm_start.episodes=128", "warm_start.minibatches=8")
CHOICES = {"local": "local", "vllm": "vllm_eager"}
"""The names used here for the engines that `auto` chooses from."""


def samplers(
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
    pipeline = warmed(config, policy)
    parameters = shape_of(policy.model).parameters
    with ExitStack() as engines:
        samplers = _samplers(config, policy, engines.callback)
        measured = {count: passes_of(pipeline, samplers, count, repeats) for count in concurrent}
    return {
        "parameters": parameters,
        "turns_per_episode": median(own["turns"] for own in measured[concurrent[0]]["local"]),
        "concurrent": {str(count): _summary(passes) for count, passes in measured.items()},
    }


def _samplers(config: Config, policy: Policy, at_end: Callable[[Callable[[], None]], Any]) -> dict[str, BatchSampler]:
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


def _summary(passes: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
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
