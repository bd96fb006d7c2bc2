"""The panels about the run itself: the time of its stages, and what happened."""

from datetime import datetime
from itertools import groupby, islice

from earl.cli.live.bars import bar, sparkline
from earl.cli.live.now import WARNINGS, RunNow, pace, stage_table, step_seconds
from earl.cli.live.spans import BAD, DIM, PALETTE, WARN, Line, column, safe, wrapped
from earl.cli.live.units import duration, percent, short

HEAD = 18
"""Columns for when an event happened."""
COURSE = 200
"""Steps whose time is drawn."""
WRAPPED = 3
"""Lines that a warning may take."""


def stages(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    """Seconds of each stage: when last done, per step of late, and its part of them."""
    table = stage_table(run)
    if not table:
        return [[("nothing recorded yet", DIM)]]
    whole = sum(mean for _, _, mean in table) or 1.0
    wide = max(4, width - 50)
    lines: list[Line] = [[(f"{column('stage', 16)}{'last':>10}{'per step':>10}{'part':>9}", DIM)]]
    for number, (stage, last, mean) in enumerate(table[: max(1, height - 2)]):
        color = PALETTE[number % len(PALETTE)]
        cells = f"{duration(last):>10}{duration(mean):>10}{percent(mean / whole):>9}  "
        lines.append([(column(safe(stage), 16), color), (cells, ""), (bar(mean / whole, wide, ascii_only), color)])
    return [*lines, _step_line(run, width, ascii_only)][:height]


def _step_line(run: RunNow, width: int, ascii_only: bool) -> Line:
    """Time per step, with its course, and tokens per second."""
    seconds = dict(step_seconds(run, COURSE))
    tokens = [(value, seconds[step]) for step, value in run.series("tokens")[-10:] if seconds.get(step)]
    rate = f", {short(sum(n for n, _ in tokens) / sum(s for _, s in tokens))} tokens/s" if tokens else ""
    told = f"{duration(pace(run))} per step{rate}  "
    return [(told, ""), (sparkline([s for _, s in seconds.items()], width - len(told), ascii_only), PALETTE[0])]


def events(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    """What could not be read, then what happened, the latest first; what repeats is told once."""
    del ascii_only
    lines: list[Line] = [[(column(f"problem: {safe(problem)}", width), BAD)] for problem in run.problems]
    alike = groupby(reversed(run.numbers.events), key=lambda event: (event.kind, event.message))
    for (kind, message), same in islice(alike, height):
        event, *others = same
        style = WARN if kind in WARNINGS else ""
        times = f" x{len(others) + 1}" if others else ""
        head = f"{_clock(event.time, run.time)} step {event.step}"
        told = f"{safe(kind)}{times}: {safe(message)}"
        most = WRAPPED if kind in WARNINGS else 1
        for number, part in enumerate(wrapped(told, width - HEAD, most)):
            lines.append([(column("" if number else head, HEAD), DIM), (part, style)])
    return lines[:height] or [[("nothing has happened yet", DIM)]]


def _clock(time: float, now: float) -> str:
    """The local time of day; the date where that was not of late."""
    return datetime.fromtimestamp(time).strftime("%H:%M" if now - time < 12 * 3600 else "%d %b")
