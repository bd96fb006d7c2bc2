"""What goes between an episode and a sampler."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an episode wants completed.

    Example:
        Prompt(session=4, tokens=[…31 ids…], seed=99, max_tokens=4)
    """

    session: int
    """Names the episode, so that a sampler can keep its KV cache between turns."""
    tokens: Sequence[int]
    """The whole context, exactly as it was given and sampled so far."""
    seed: int
    """Seeds the sampling: the same seed and context give the same tokens."""
    max_tokens: int
    greedy: bool = False
    """Take the most likely token each time instead of drawing one."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a sampler answers. `logprobs` are those of the distribution that was sampled from."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    """Weight version that sampled each token; they rise where weights were loaded in between."""
    finished: bool
    """Whether the last token is a stop token; if not, `max_tokens` cut the reply."""
    error: str | None = None
    """Why the sampler has no reply to this prompt; its episode ends."""
