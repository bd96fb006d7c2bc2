"""How long contexts may become: what layouts have to hold soon, and what they are weighed with further ahead.

longest contexts of the steps so far ─▶ forecast ─▶ its upper end soon, and several futures from there on

The upper end far ahead is what hardly any run comes to. Who stays away from a layout because of it gives away what the
layout saves in all the others; so each future counts as much as it is likely, and the layout is left when it must be.
"""

from collections.abc import Sequence

import numpy as np

from earl.context.forecast import outlook
from earl.parallel.selector.inputs import AHEAD
from earl.parallel.selector.outlook import Floats
from earl.parallel.selector.settings import Settings

FUTURES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Quantiles of the forecast, each the middle of a fifth of all that may come; the longer the contexts, the later."""


def room(history: Sequence[tuple[int, float]], ahead: Sequence[int], settings: Settings) -> Floats:
    """Tokens of the longest context, by look-ahead: those to be prepared for, and in each of FUTURES. [1 + F, P]

    For `guard_steps` all are the same. After that a future has the distance between what is prepared for and the
    median as it is then: a layout has to be left when the one reaches its end, not the other.

    Args:
        history: (step, longest context) in order of step.
        ahead: steps after the last of these, for each of AHEAD. [P]
    """
    median, upper, *futures = outlook(history, ahead, (0.5, settings.longest_quantile, *FUTURES)).T
    upper = upper * np.where(np.array(ahead) > 0, settings.longest_margin, 1.0)
    soon = guarded(settings)
    spread = upper[soon - 1] / max(1.0, median[soon - 1])
    rows = [upper, *(np.where(np.arange(len(AHEAD)) < soon, upper, spread * own) for own in futures)]
    return np.maximum.accumulate(rows, axis=1)


def guarded(settings: Settings) -> int:
    """Of AHEAD how many are looked at where a choice has to fit all that may come."""
    return sum(steps <= settings.guard_steps for steps in AHEAD)
