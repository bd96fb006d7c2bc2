"""Which cases of a long sweep every `make test` tries; `make test-exhaustive` tries the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int = 0, always: Iterable[Any] = ()) -> list[Any]:
    """The cases as parameters: the first and each `every`-th after it stay, or those of `always`; others are marked.

    A case that is a tuple has a value for each of several parameters.
    """
    kept, marked = [*always], []
    for number, case in enumerate(cases):
        tried = case in kept or (every > 0 and number % every == 0)
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if tried else pytest.mark.exhaustive))
    return marked
