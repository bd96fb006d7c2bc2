"""Synthetic episodes of any length, shaped like real ones, to measure time and memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages
from earl.batch import Rows, offsets_of
from earl.rollout.drivers import BatchSampler
from earl.seeds import derive
from earl.trajectory import Played, Prompt


@dataclass(frozen=True, slots=True)
class SyntheticEpisodes:
    """Shape of a synthetic episode: 100 tokens in 4 turns, 0.2 sampled, are 4 times 20 given and 5 sampled tokens."""

    tokens: int
    turns: int
    sampled: float  # share of sampled tokens
    vocab: int  # token ids are below

    def ends(self) -> list[tuple[int, int]]:
        """Start and end of each turn's reply. Every turn has at least one given and one sampled token."""
        turns = max(1, min(self.turns, self.tokens // 2))
        bounds = [round(number * self.tokens / turns) for number in range(turns + 1)]
        replies = [min(max(1, round((b - a) * self.sampled)), b - a - 1) for a, b in pairwise(bounds)]
        return [(end - reply, end) for end, reply in zip(bounds[1:], replies, strict=True)]


def synthetic_like(episodes: Sequence[Played], tokens: int, vocab: int) -> SyntheticEpisodes:
    """Shape of an episode of `tokens` tokens with the mean turns and sampled share of `episodes`."""
    turns = round(sum(len(one.turns) for one in episodes) / len(episodes))
    sampled = sum(one.num_sampled for one in episodes) / sum(one.num_tokens for one in episodes)
    return SyntheticEpisodes(tokens, max(1, turns), sampled, vocab)


def advantages_of(rows: Any, by_token: bool, seed: int) -> Advantages:
    """Random numbers for rows, or for counts of those that stay with the workers; by token, alike in every turn."""
    count = int(rows.lengths.max(initial=1)) if by_token else rows.num_turns
    draws = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    return Advantages(draws, draws, np.zeros(rows.num_turns, np.int64) if by_token else None)


def rows_of(shape: SyntheticEpisodes, numbers: Sequence[int], seed: int) -> Rows:
    """One row per number, all different; the replies are in the loss."""
    ends, length, count = shape.ends(), shape.tokens, len(numbers)
    mask, value_mask, turns = np.zeros(length, bool), np.zeros(length, bool), np.full(length, -1, np.int32)
    for turn, (start, end) in enumerate(ends):
        mask[start:end], value_mask[start - 1], turns[start - 1 : end] = True, True, turn
    tokens = np.concatenate([_tokens(shape, seed, number) for number in numbers] or [np.zeros(0, np.int32)])
    numbered = np.repeat(np.arange(count, dtype=np.int32) * len(ends), length)
    every = np.tile(turns, count)
    return Rows(
        offsets=offsets_of([length] * count),
        tokens=tokens,
        mask=np.tile(mask, count),
        targets=tokens,
        logprobs=np.full(count * length, -np.log(shape.vocab), np.float32),
        turns=np.where(every >= 0, every + numbered, -1).astype(np.int32),
        value_mask=np.tile(value_mask, count),
    )


def sample(shape: SyntheticEpisodes, sampler: BatchSampler, numbers: Sequence[int], group_size: int, seed: int) -> None:
    """Sample the replies of one episode per number, turn by turn; members of a group have the same given tokens.
    A reply that ends early is continued to its full length."""
    held = {number: list[int]() for number in numbers}
    read = {number: _tokens(shape, seed, number // group_size).tolist() for number in numbers}
    for turn, (start, end) in enumerate(shape.ends()):
        for number, tokens in held.items():
            tokens.extend(read[number][len(tokens) : start])
        while waiting := [number for number, tokens in held.items() if len(tokens) < end]:
            prompts = [
                Prompt(number, tuple(held[number]), derive(seed, "reply", number, turn), end - len(held[number]))
                for number in waiting
            ]
            for number, completion in zip(waiting, sampler.generate(prompts), strict=True):
                held[number].extend(completion.tokens)
    sampler.release(list(numbers))


def _tokens(shape: SyntheticEpisodes, seed: int, number: int) -> NDArray[np.int32]:
    random = np.random.default_rng(derive(seed, "tokens", number))
    return random.integers(0, shape.vocab, shape.tokens).astype(np.int32)
