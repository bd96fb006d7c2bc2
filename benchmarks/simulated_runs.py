"""Simulated runs for layout selection: growing contexts, layouts whose times cross, limited memory.

A shape of growth ─▶ lengths of each step's episodes ─▶ mean and longest

A layout's time has a share that grows with tensor parallelism, and one quadratic in the context that falls with it
(KV-cache room). So layouts cross at randomly drawn contexts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.benchmarks.forecast import KNOWN, NEW, Random, Shape
from earl.parallel.layout import Choice, Layout, Stage
from earl.parallel.memory import Load
from earl.seeds import derive

Floats = NDArray[np.float64]

STEPS, DEVICES, LIMIT = 300, 8, 32_768
"""Of a run: steps, devices, and tokens of the longest context."""
SPLITS = (1, 2, 4, 8)


def _drop(t: Floats, random: Random) -> Floats:
    """Growth, with a drop to short contexts at some step."""
    fall = random.integers(60, 240)
    return np.where(t < fall, np.exp(0.01 * t), random.uniform(0.3, 0.8) * np.exp(0.01 * (t - fall)))


def _sawtooth(t: Floats, random: Random) -> Floats:
    """Growth that restarts periodically, as under a curriculum."""
    period = random.uniform(40, 150)
    return np.asarray(1 + random.uniform(0.5, 3) * (t % period) / period)


SHAPES: dict[str, Shape] = {**KNOWN, **NEW, "drop": _drop, "sawtooth": _sawtooth}


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run with C choices and T steps."""

    family: str
    choices: tuple[Choice, ...]
    loads: tuple[Load, ...]  # [T]
    noise: Floats  # [T]: factor on the time of a step under any choice
    slopes: Floats  # [C]: seconds per token
    squares: Floats  # [C]: seconds per squared token
    rooms: Floats  # [C]: longest context that fits
    error: Floats  # [2, C]: logarithm of predicted over true, and its change per doubling of the context
    switch_seconds: float
    taken_for: float
    """The assumed cost of a switch before one is measured."""
    seed: int

    @property
    def stage(self) -> Stage:
        return self.choices[0].stage

    def true(self, number: int, tokens: float) -> float:
        return float(self.slopes[number] * tokens + self.squares[number] * tokens**2)

    def seconds(self, choice: Choice, tokens: float, sequences: int) -> float:  # noqa: ARG002 (drawn for one number)
        number = self.choices.index(choice)
        doublings = np.log2(tokens / self.loads[0].mean_tokens)
        error = self.error[0, number] + self.error[1, number] * doublings
        return self.true(number, tokens) * float(np.exp(error))

    def obstacle(self, choice: Choice, load: Load) -> str:
        room = self.rooms[self.choices.index(choice)]
        return "" if load.longest_tokens <= room else f"{load.longest_tokens} tokens of {room:.0f}"


def world(number: int, seed: int) -> SimulatedRun:
    names = list(SHAPES)
    family = names[number % len(names)]
    own = derive("selector", seed, number)
    random: Random = np.random.default_rng(own)
    curve = random.choice([500, 1000, 2000]) * SHAPES[family](np.arange(STEPS, dtype=np.float64), random)
    loads = lengths(np.clip(curve, 50, LIMIT / 2), random)
    return timed(family, loads, random, own)


def lengths(curve: Floats, random: Random) -> tuple[Load, ...]:
    """The loads of sampled episodes around a curve of mean contexts."""
    spread, count = random.choice([0.05, 0.15, 0.3]), int(random.choice([64, 128, 256]))
    sizes = np.minimum(curve[:, None] * np.exp(spread * random.standard_normal((len(curve), count))), LIMIT)
    return tuple(Load(count, float(own.mean()), int(own.max()), LIMIT) for own in sizes)


def timed(family: str, loads: tuple[Load, ...], random: Random, seed: int) -> SimulatedRun:
    stage: Stage = "rollout" if random.random() < 0.5 else "update"
    choices = tuple(
        Choice(stage, Layout(dp=DEVICES // tp, tp=tp), None, again) for again in (False, True) for tp in SPLITS
    )
    means, longest = (np.array([getattr(load, name) for load in loads]) for name in ("mean_tokens", "longest_tokens"))
    shares = np.cumsum(random.uniform(0.05, 0.4, len(SPLITS)))
    crossings = np.sort(np.exp(random.uniform(np.log(means.min()), np.log(means.max()), len(SPLITS) - 1)))
    between = np.diff(shares) / crossings
    squares = np.append(np.cumsum(between[::-1])[::-1], 0.0) + random.uniform(0, 0.2) / means.max()
    rooms = np.sort(np.exp(random.uniform(np.log(1.2 * longest[:5].max()), np.log(2 * LIMIT), len(SPLITS))))
    rooms[-1] = LIMIT
    scale = 10.0 / means[0]  # about ten seconds at first
    again = random.uniform(1.1, 1.35)  # recomputed activations: slower, and much less memory
    step = float(scale * means.mean())
    switch = step * float(np.exp(random.uniform(np.log(0.1), np.log(5))))
    return SimulatedRun(
        family,
        choices,
        loads,
        noise=np.exp(random.choice([0.01, 0.03, 0.08]) * random.standard_normal(len(loads))),
        slopes=scale * np.concatenate([1 + shares, again * (1 + shares)]),
        squares=scale * np.concatenate([squares, again * squares]),
        rooms=np.minimum(np.concatenate([rooms, 2.5 * rooms]), LIMIT),
        error=random.normal(0, [[0.06], [0.02]], (2, len(choices))),
        switch_seconds=switch,
        taken_for=switch * float(np.exp(random.uniform(-0.7, 0.7))),
        seed=seed,
    )
