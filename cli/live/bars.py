"""A number or a course in one line of characters."""

import math
from collections.abc import Sequence
from statistics import fmean

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=+*#@"


def sparkline(
    values: Sequence[float], width: int, ascii_only: bool = False, bounds: tuple[float, float] | None = None
) -> str:
    """The course of some values, from their least to their largest or within bounds, in at most `width` characters.

    A value that is not finite is a blank; many values in one place are drawn by their mean.

    Example:
        >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
        '▁▂▃▄▅▆▇█'
    """
    places = _means(values, width)
    finite = [value for value in places if math.isfinite(value)]
    if not finite:
        return ""
    signs = _PLAIN if ascii_only else _BLOCKS
    low, high = bounds or (min(finite), max(finite))
    spread = high - low
    if spread <= 1e-12 * max(1.0, abs(low)):
        return "".join(signs[0] if math.isfinite(value) else " " for value in places)
    return "".join(
        signs[min(7, max(0, int((value - low) / spread * 8)))] if math.isfinite(value) else " " for value in places
    )


def _means(values: Sequence[float], width: int) -> list[float]:
    count = min(len(values), max(0, width))
    parts = [values[len(values) * place // count : len(values) * (place + 1) // count] for place in range(count)]
    finite = [[value for value in part if math.isfinite(value)] for part in parts]
    return [fmean(part) if part else math.nan for part in finite]


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """A share of 1 as a bar of `width` characters.

    Example:
        >>> bar(0.5, 4)
        '██░░'
    """
    full, rest = ("#", ".") if ascii_only else ("█", "░")
    done = round(min(max(share, 0.0), 1.0) * width) if math.isfinite(share) else 0
    return full * done + rest * (width - done)
