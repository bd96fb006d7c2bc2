"""Functions compiled by numba, which caches the machine code on disk. Importing this takes half a second."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
LOOSE = {"reassoc", "contract"}
"""Sums in any order and fused products, so that loops are vectorised; NaN and infinity stay what they are."""


def compiled(function: Function) -> Function:
    try:
        return cast(Function, njit(cache=True, fastmath=LOOSE)(function))
    except RuntimeError:  # no folder that it could be cached in can be written to
        return cast(Function, njit(fastmath=LOOSE)(function))
