"""How long one copy of an engine takes for responses of unlike lengths: it is full while some wait, then it empties."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from earl.parallel.throughput.coefficients import Values, fitted
from earl.parallel.throughput.rollout import Workload, running
from earl.parallel.throughput.room import Engine
from earl.parallel.throughput.step import Batch, step_seconds

SEGMENTS = 32
"""In which an engine empties: in each as many responses end."""


def rollout_seconds(engine: Engine, lengths: Sequence[int] | NDArray[np.int64], prompt_share: float = 0.0) -> float:
    """Of the responses that one copy is given at once, all of whose tokens it writes but for the share of prompts.

    Those that find no room wait: until they are begun, a copy is as full as the mean length allows. The last ones end
    one by one, the longest alone, and a step with few sequences takes nearly as long as one with many.
    """
    known, ordered = fitted().values, np.sort(np.asarray(lengths, np.float64))
    mean = float(ordered.mean())
    prompt = prompt_share * mean
    slots = max(1.0, running(engine, Workload(prompt, mean - prompt, len(ordered)), known))
    waiting = max(0.0, len(ordered) - slots)
    full = step_seconds(engine, _batch(slots, mean / 2, prompt_share), known).total
    written = waiting * mean * (1 - prompt_share)
    return written / slots * full + _emptying(engine, ordered, slots, known, prompt_share)


def _emptying(engine: Engine, ordered: NDArray[np.float64], slots: float, known: Values, prompt_share: float) -> float:
    """Of the responses that begin together, of all lengths, until the longest ends."""
    ends = np.concatenate([[0.0], np.quantile(ordered, np.linspace(0, 1, min(SEGMENTS, len(ordered)) + 1)[1:])])
    seconds = 0.0
    for place, (before, after) in enumerate(pairwise(ends.tolist())):
        alive = max(1.0, slots * (1 - place / (len(ends) - 1)))
        steps = (after - before) * (1 - prompt_share)
        seconds += steps * step_seconds(engine, _batch(alive, (before + after) / 2, prompt_share), known).total
    return seconds


def _batch(sequences: float, context: float, prompt_share: float) -> Batch:
    prompts = sequences * prompt_share / (1 - prompt_share)
    return Batch(sequences, context, prompts, context / 2)
