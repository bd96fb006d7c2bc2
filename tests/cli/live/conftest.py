"""Runs for the live view, made by hand."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from earl.cli.live.now import RunNow
from earl.matches import MatchResult
from earl.recipe import build
from earl.runs.store import Event, Numbers, RecordedMatch, Series

NOW = 1_760_000_000.0


def result(opponent: str, win: float, draw: float = 0.0, seat: int = 0, exact: bool = False) -> MatchResult:
    return MatchResult("tictactoe", opponent, seat, exact, 100, win, draw, 1 - win - draw, 0.0, 0.0)


def make_run(
    metrics: Mapping[str, Sequence[float]] | None = None,
    *,
    timings: Mapping[str, Sequence[float]] | None = None,
    matches: Sequence[RecordedMatch] = (),
    events: Sequence[Event] = (),
    state: str = "running",
    steps: int = 40,
    quiet: float = 2.0,
    limit: int = 120,
    problems: tuple[str, ...] = (),
) -> RunNow:
    """A run whose metrics and timings have one value for each step, from step 1 on."""

    def series(values: Mapping[str, Sequence[float]] | None) -> Series:
        return {name: list(enumerate(row, start=1)) for name, row in (values or {}).items() if row}

    recorded, timed = series(metrics), series(timings)
    last = max((points[-1][0] for points in [*recorded.values(), *timed.values()]), default=None)
    config = build({"env": {"name": "tictactoe"}, "context": {"limit": limit}, "run": {"steps": steps}})
    numbers = Numbers(recorded, timed, list(matches), list(events), last)
    return RunNow("demo", config, numbers, state, NOW - quiet, NOW, problems)


@pytest.fixture(name="make_run")
def make_run_fixture() -> Callable[..., RunNow]:
    return make_run


@pytest.fixture
def full_run() -> RunNow:
    """A run in the middle of its steps that has recorded everything."""
    steps = range(1, 21)
    metrics = {
        "reward": [step / 40 for step in steps],
        "tokens": [2000.0] * 20,
        "illegal_replies": [0.5 / s for s in steps],
    }
    metrics |= {f"context/window/{name}": [base + 2.0 * step for step in steps] for name, base in QUANTILES.items()}
    metrics |= {"context/limit": [120.0] * 20, "tokens/environment": [1500.0] * 20, "tokens/action": [500.0] * 20}
    metrics |= {f"forecast/p95/{name}": [value] * 20 for name, value in FORECAST.items()}
    metrics |= {"truncation/reply": [0.0] * 19 + [0.05], "memory/kv_bytes": [3.0 * 2**20] * 20}
    matches = [
        RecordedMatch(step, "train", result(opponent, win * step / 20, 0.1, seat))
        for step in (5, 10, 20)
        for opponent, win in (("perfect", 0.0), ("random", 0.8))
        for seat in (0, 1)
    ]
    events = [Event(0, NOW - 60, "start", "started"), Event(18, NOW - 5, "forecast", "p95 reaches the limit at 30")]
    return make_run(metrics, timings={"rollout": [1.0] * 20, "update": [3.0] * 20}, matches=matches, events=events)


QUANTILES = {"mean": 42.0, "p50": 40.0, "p95": 50.0, "p99": 55.0, "max": 60.0}
FORECAST = {"early": 27.0, "median": 30.0, "late": 36.0}
