"""The head of the view: which run, what it does, how far it is, and what to worry about."""

import math

from earl.cli.live.bars import bar
from earl.cli.live.now import RunNow, pace, phase, seconds_left, silence, warnings
from earl.cli.live.spans import BAD, DIM, GOOD, WARN, Line, safe, wrapped
from earl.cli.live.units import duration, percent

STYLES = {
    "training": GOOD,
    "warm start": GOOD,
    "last evaluation": GOOD,
    "finished": GOOD,
    "stopped": WARN,
    "not started": WARN,
}


def header(run: RunNow, width: int, ascii_only: bool) -> list[Line]:
    """Name, state and progress; below them what to worry about, if there is something."""
    env = f"  {safe(run.config.env.name)}" if run.config else ""
    doing = phase(run)
    ago = f"last change {duration(max(1, int(run.time - run.changed)))} ago"
    first: Line = [
        (safe(run.name), "bold"),
        (env, ""),
        (f"  {_told(run, doing)}", STYLES.get(doing, "")),
        ("" if run.state == "finished" else f"  {ago}", DIM),
    ]
    return [first, _progress(run, width, ascii_only), *_alerts(run, width)]


def _told(run: RunNow, doing: str) -> str:
    """The state in the words of the event that brought it about."""
    if run.state == "finished":
        return next((safe(event.message) for event in reversed(run.numbers.events) if event.kind == "finish"), doing)
    return f"{doing}; earl train --resume goes on" if doing == "stopped" else doing


def _progress(run: RunNow, width: int, ascii_only: bool) -> Line:
    if run.steps is None:
        return [(f"step {run.step}", "")]
    done = run.step / run.steps if run.steps else 1.0
    told = f"step {run.step}/{run.steps} "
    left = seconds_left(run)
    after = f" {percent(done)}"
    after += f", {duration(pace(run))} per step" if not math.isnan(pace(run)) else ""
    after += f", about {duration(left)} left" if left > 0 else ""
    wide = min(40, width - len(told) - len(after))
    return [(told, ""), (bar(done, wide, ascii_only) if wide > 3 else "", GOOD), (after, "")]


def _alerts(run: RunNow, width: int) -> list[Line]:
    """The latest warning about the limit, a run that has gone quiet, files that cannot be read."""
    alerts: list[Line] = []
    if silence(run):
        alerts.append([(f"nothing was written for {duration(silence(run))}: the run is slow or stuck", BAD)])
    alerts += [[(f"problem: {safe(problem)}", BAD)] for problem in run.problems[:1]]
    for event in warnings(run)[:1]:
        told = f"{event.kind} at step {event.step}: {safe(event.message)}"
        alerts += [[(part, WARN)] for part in wrapped(told, width, 2)]
    return alerts
