"""A load that follows the selector: short contexts while it runs what is fast for long ones, and the reverse."""

from dataclasses import replace
from typing import Any

import numpy as np

from earl.benchmarks.courses import BACK_STEPS, most_within
from earl.benchmarks.worlds import LIMIT, STEPS, World, world
from earl.parallel.load import Load
from earl.parallel.selector.selector import Selector


def adversary(number: int, seed: int) -> dict[str, Any]:
    """One run: its loss against the best choice held throughout, with hindsight, and how often it switched."""
    own = replace(world(number, seed), rooms=np.full(8, LIMIT))  # no memory forces anything
    selector = Selector({own.stage: own.choices}, own, {own.stage: own.taken_for}, steps=STEPS)
    random = np.random.default_rng(own.seed + 3)
    short, long = _ends(own)
    rested = int(random.integers(1, 40))  # the load follows so many steps after a switch
    tokens, total, switches, since = short, 0.0, [], 0
    held, current = np.zeros(len(own.choices)), None
    left: list[tuple[int, Any]] = []
    backs = []
    selector.saw(-1, _load(tokens))
    for step in range(STEPS):
        choice = selector.decide(own.stage, step).choice
        if current not in (None, choice):
            total += own.switch_seconds
            selector.switched(choice, own.switch_seconds)
            backs += [step] if any(one == choice and step - when < BACK_STEPS for when, one in left) else []
            left.append((step, current))
            switches.append(step)
            since = step
        current = choice
        if step - since >= rested:
            tokens = _worse(own, choice, short, long)
        seconds = own.true(own.choices.index(choice), tokens) * float(own.noise[step])
        held += [own.true(n, tokens) * float(own.noise[step]) for n in range(len(own.choices))]
        total += seconds
        selector.measured(choice, _load(tokens), seconds)
        selector.saw(step, _load(tokens))
    return {
        "loss": total / float(held.min()) - 1,
        "switches": len(switches),
        "backs": most_within(backs),
        "unforced_backs": most_within(backs),
        "out_of_memory": 0,
    }


def _load(tokens: float) -> Load:
    return Load(64, tokens, int(2 * tokens), LIMIT)


def _ends(own: World) -> tuple[float, float]:
    """Contexts at which different choices are the fastest, as far apart as the run's."""
    means = [load.mean_tokens for load in own.loads]
    return min(means) / 2, min(2 * max(means), LIMIT / 2)


def _worse(own: World, choice: Any, short: float, long: float) -> float:
    """The end at which the choice loses the more."""
    number = own.choices.index(choice)

    def loss(tokens: float) -> float:
        return own.true(number, tokens) / min(own.true(n, tokens) for n in range(len(own.choices)))

    return max((short, long), key=loss)
