"""Functions compiled by numba, which caches the machine code on disk. Importing this takes half a second."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
LOOSE = {"reassoc", "contract"}
"""Sums in any order and fused products, so that loops are vectorised; NaN and infinity stay what they are."""


def compiled(function: Function, signature: str | None = None) -> Function:
    """`signature`, such as "uint64(uint64, int64)": compiled for it at once; else for what it is called with."""
    try:
        return cast(Function, njit(signature, cache=True, fastmath=LOOSE)(function))
    except RuntimeError:  # no folder that it could be cached in can be written to
        return cast(Function, njit(signature, fastmath=LOOSE)(function))
