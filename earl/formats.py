"""Numbers as people read them, alike in the terminal, in reports and in plans."""

import math

UNKNOWN = "-"


def short(value: float) -> str:
    """A number in three digits, such as 0.25, 72, 1.5K, 2M, 1.5e+16."""
    if not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 999.5e12:
        return f"{value:.3g}"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= 0.9995 * limit:  # what would be rounded to it
            return f"{three_digits(value / limit)}{unit}"
    return f"{value:.3g}"


def three_digits(value: float) -> str:
    """Such as 12.3, or 1,234 without a fraction."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def size(count: float) -> str:
    """Bytes with a unit: 1536 gives '1.5 KiB'."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count, units = count / 1024, units[1:]
    return f"{count:.0f} {units[0]}" if units[0] == "bytes" else f"{count:.1f} {units[0]}"


def duration(seconds: float) -> str:
    """A time in its natural units, such as 17.3 µs, 4.2 ms, 593 s, 12 min 34 s, 2 h 1 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return UNKNOWN
    if not seconds:
        return "0 s"
    for unit, length, limit in (("µs", 1e-6, 999.5e-6), ("ms", 1e-3, 0.9995), ("s", 1.0, 599.5)):
        if seconds < limit:
            return f"{three_digits(seconds / length)} {unit}"
    whole = round(seconds)
    for limit, large, unit, small, part in ((6000, 60, "min", 1, "s"), (86400, 3600, "h", 60, "min")):
        if whole < limit:
            return f"{whole // large} {unit} {whole % large // small} {part}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def percent(fraction: float) -> str:
    """A fraction in per cent, such as '<0.01 %' or '88.8 %'. Only exact 0 and 1 are shown as 0 and 100."""
    return f"{percent_digits(fraction)} %" if math.isfinite(fraction) else UNKNOWN


def percent_digits(fraction: float) -> str:
    rest = 1 - fraction
    if abs(fraction) < 1e-9 or abs(rest) < 1e-9:  # sums of exact probabilities miss 0 and 1 by rounding
        return "0" if rest > 0.5 else "100"
    if fraction < 5e-5:
        return "<0.01"
    if rest < 5e-5:
        return ">99.99"
    return f"{100 * fraction:.1f}" if 0.01 <= fraction <= 0.99 else f"{100 * fraction:.2f}"
