"""What a plan is told in: tables of words, and numbers as people read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: lines of words, the first column names each."""

    title: str
    names: tuple[str, ...]
    """Of the columns; some in two lines."""
    rows: tuple[tuple[str, ...], ...]
    """Of as many values, or fewer where the rest is empty."""


def short(tokens: int) -> str:
    """Tokens in a few letters.

    Example:
        >>> short(422342), short(1291715), short(512)
        ('422K', '1.29M', '512')
    """
    for unit, size in (("M", 1e6), ("K", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}" if tokens < 100 * size else f"{tokens / size:.0f}{unit}"
    return str(tokens)


def significant(value: float) -> str:
    """Three digits, thousands with commas.

    Example:
        >>> significant(1234.5), significant(12.345)
        ('1,234', '12.3')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """With its unit.

    Example:
        >>> duration(0.00173), duration(41.84), duration(37250.0)
        ('1.73 ms', '41.8 s', '10.3 h')
    """
    for unit, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{significant(seconds / size)} {unit}"
    return "< 1 ms"
