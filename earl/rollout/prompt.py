"""The types that pass between an episode and a sampler."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    session: int  # names the episode, so that a sampler can keep its KV cache between turns
    tokens: Sequence[int]  # the whole context, exactly as given and sampled so far
    seed: int  # of the sampling: the same seed and context give the same tokens
    max_tokens: int
    greedy: bool = False  # take the most likely token each time


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampler's answer. `logprobs` are those of the distribution that was sampled from."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]  # weight version per token; they rise if weights were loaded in between
    finished: bool  # whether the last token is a stop token; if not, `max_tokens` cut the reply
    error: str | None = None  # why the sampler has no reply; ends the episode
