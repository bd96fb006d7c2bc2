"""The expected log-prob and draw of every sampled token of a step.

They come from the weights if these are stored. Else they come from the step's other episodes, which the same weights
sampled: after the same context a token has the same log-prob, and larger draws give larger token ids.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from earl.engine.score import review
from earl.rollout.pack import contexts, pack
from earl.seeds import derive, uniforms
from earl.trajectory import Trajectory

TOLERANCE = 1e-4
"""Allowed difference of a log-prob between the sampler, which decodes with a cache, and one pass over the episode,
relative to 1 + its size. Measured: up to 8e-6.
"""
DRAWN = 1e-4
"""Allowed distance between a draw and its token's interval."""
Floats = NDArray[np.float64]
Episodes = Sequence[tuple[int, Trajectory]]
"""Episodes with their indices in the file."""


class TokenPosition(NamedTuple):
    episode: int  # index in the file
    turn: int
    token: int  # index in the episode


@dataclass(frozen=True, slots=True)
class Sampled:
    """All sampled tokens of some episodes, [M] each."""

    places: list[TokenPosition]
    tokens: NDArray[np.int64]
    logprobs: Floats
    draws: Floats  # the uniform numbers that follow from the episodes' seeds
    contexts: list[bytes]  # digest of the context before the token, and of its version
    versions: NDArray[np.int64]  # as stored for the token


@dataclass(frozen=True, slots=True)
class Evidence:
    """Expected values of the tokens, [M] each; NaN if unknown. Draws from `low` to `high` give the token."""

    logprobs: Floats
    low: Floats
    high: Floats

    def where(self, chosen: NDArray[np.bool_]) -> "Evidence":
        return Evidence(*(np.where(chosen, values, np.nan) for values in (self.logprobs, self.low, self.high)))

    def off(self, sampled: Sampled) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            near = np.abs(sampled.logprobs - self.logprobs) <= TOLERANCE * (1 + np.abs(self.logprobs))
        wrong: NDArray[np.bool_] = ~near & ~np.isnan(self.logprobs)
        return wrong

    def misdrawn(self, sampled: Sampled) -> NDArray[np.bool_]:
        return (sampled.draws < self.low - DRAWN) | (sampled.draws > self.high + DRAWN)


def gather(episodes: Episodes, drawn: bool = True) -> Sampled:
    """The sampled tokens of episodes; without draws where these do not follow from the seeds."""
    places, tokens, logprobs, draws, seen, versions = [], [], [], [], [], []
    for index, trajectory in episodes:
        for number, turn in enumerate(trajectory.turns):
            seed = np.array([derive(trajectory.seed, turn.action_start)], np.uint64)
            prefix = blake2b(trajectory.tokens[turn.context_start : turn.action_start].tobytes(), digest_size=16)
            for place in range(turn.action_start, turn.end):
                places.append(TokenPosition(index, number, place))
                tokens.append(int(trajectory.tokens[place]))
                logprobs.append(float(trajectory.logprobs[place]))
                draws.append(float(uniforms(seed, place - turn.action_start)[0]) if drawn else np.nan)
                versions.append(int(trajectory.versions[place]))
                seen.append(prefix.digest() + b"%d" % versions[-1])
                prefix.update(trajectory.tokens[place : place + 1].tobytes())
    numbers = np.array(versions, np.int64)
    return Sampled(places, np.array(tokens, np.int64), np.array(logprobs), np.array(draws), seen, numbers)


def by_weights(model: Any, episodes: Episodes, temperature: float) -> Evidence:
    """Evidence from a model about the tokens of `gather`."""
    trajectories = [trajectory for _, trajectory in episodes]
    rows = pack(trajectories)
    scored, below = review(model, rows, temperature)
    order = np.array(list(_row_places(trajectories, rows.offsets)), np.int64)
    logprobs = scored[order].astype(np.float64)
    return Evidence(logprobs, below[order], below[order] + np.exp(logprobs))


def _row_places(trajectories: Sequence[Trajectory], offsets: NDArray[np.int64]) -> Iterator[int]:
    """The index of each sampled token in the packed rows, in the order of `gather`."""
    rows = (turns for trajectory in trajectories for turns in contexts(trajectory))
    for offset, turns in zip(offsets.tolist(), rows, strict=False):
        start = turns[0][1].context_start
        for _, turn in turns:
            yield from range(offset + turn.action_start - start, offset + turn.end - start)


def by_siblings(sampled: Sampled) -> Evidence:
    """Evidence from other episodes with the same context: the median of their log-probs, and their tokens."""
    evidence = Evidence(*np.full((3, len(sampled.places)), np.nan))
    together: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, context in enumerate(sampled.contexts):
        together[context].append(number)
    for numbers in together.values():
        members = np.array(numbers)
        tokens, chances = sampled.tokens[members], dict[int, float]()
        places = {token: members[tokens == token] for token in np.unique(tokens).tolist()}
        for token, same in places.items():
            if len(same) > 2:  # with two different values it is unknown which is right
                evidence.logprobs[same] = middle = float(np.median(sampled.logprobs[same]))
                chances[token] = float(np.exp(middle))
        for token, same in places.items():
            evidence.low[same] = sum(chance for other, chance in chances.items() if other < token)
            evidence.high[same] = 1 - sum(chance for other, chance in chances.items() if other > token)
    return evidence
