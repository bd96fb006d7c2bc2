"""The view as lines of text: complete, exactly as large as the terminal, never steered by what it shows."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from io import BytesIO, TextIOWrapper

import pytest
from rich.cells import cell_len
from rich.console import Console

from earl.cli.panels import as_object, draw, pages, phase, stage_seconds
from earl.matches import MatchResult
from earl.recipe import build
from earl.runs.store import Event, Numbers, RecordedMatch, Series
from earl.runs.summary import StoredRun

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m[bold red]\u202e漢字\n\r\tend"


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
) -> StoredRun:
    """A run whose metrics and timings have one value for each step, from step 1 on."""

    def series(values: Mapping[str, Sequence[float]] | None) -> Series:
        return {name: list(enumerate(row, start=1)) for name, row in (values or {}).items() if row}

    recorded, timed = series(metrics), series(timings)
    last = max((points[-1][0] for points in [*recorded.values(), *timed.values()]), default=None)
    config = build({"env": {"name": "tictactoe"}, "context": {"limit": limit}, "run": {"steps": steps}})
    numbers = Numbers(recorded, timed, list(matches), list(events), last)
    run = StoredRun.__new__(StoredRun)  # without a folder
    changed = time.time() - quiet
    vars(run).update(name="demo", config=config, numbers=numbers, state=state, changed=changed, problems=problems)
    return run


@pytest.fixture
def full_run() -> StoredRun:
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


def page(run: StoredRun, width: int, height: int, number: int = 0, ascii_only: bool = False) -> list[str]:
    stream = TextIOWrapper(BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = Console(file=stream, width=width, height=height, markup=False, emoji=False, highlight=False)
    size = console.options.update_dimensions(width, height)
    lines = console.render_lines(draw(run, width, height, number), size)
    return ["".join(part.text for part in line) for line in lines]


def everything(run: StoredRun, width: int = 80, height: int = 24, ascii_only: bool = False) -> str:
    """All pages."""
    count = len(pages(width, height - 3))
    return "\n".join(line for number in range(count) for line in page(run, width, height, number, ascii_only))


@pytest.mark.parametrize(
    ("width", "height", "rows"),
    [(80, 21, [2, 2, 2]), (160, 47, [3]), (200, 25, [2]), (120, 26, [2, 1]), (40, 9, [1] * 6), (1, 1, [1] * 6)],
)
def test_panels_are_shared_out(width: int, height: int, rows: list[int]) -> None:
    found = pages(width, height)
    assert [len(page) for page in found] == rows
    assert sum(len(row) for page in found for row in page) == 6


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (100, 30), (250, 70), (60, 16), (20, 5), (1, 1), (300, 10)])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_page_fills_the_terminal_exactly(full_run: StoredRun, size: tuple[int, int], ascii_only: bool) -> None:
    width, height = size
    hostile = RecordedMatch(5, "train", MatchResult(HOSTILE, HOSTILE, 0, False, 9, 0.5, 0.5, 0.0, 0.1, 0.0))
    odd = make_run(
        {"reward": [math.nan, math.inf], "context/window/max": [math.inf]},
        matches=[hostile],
        events=[Event(1, 0.0, HOSTILE, HOSTILE * 2000)] * 99,
        problems=(HOSTILE,),
    )
    for run in (full_run, odd, make_run(), make_run(state="finished"), make_run({"reward": [1.0]}, state="stopped")):
        for number in (0, 1, 5, -1):
            lines = page(run, width, height, number, ascii_only)
            assert len(lines) == height
            assert {cell_len(line) for line in lines} == {width}


def test_at_80_x_24_everything_is_on_three_pages(full_run: StoredRun) -> None:
    first, second, third = (("\n".join(page(full_run, 80, 24, number))) for number in range(3))
    assert "demo  tictactoe  training  last change 2 s ago" in first
    assert "step 20/40" in first
    assert "50.0 %, 4 s per step, about 80 s left" in first
    assert "forecast at step 18: p95 reaches the limit at 30" in first
    for words in ("at step 20:", "random", "80.0 %", "reward 0.5", "illegal replies"):
        assert words in first
    assert "reward 0.5" not in second
    for words in ("limit 120", "p95 90", "reply hit the limit", "environment", "75.0 %", "action"):
        assert words in second
    for words in ("update", "3 s", "rollout", "started", "forecast: p95 reaches"):
        assert words in third
    assert page(full_run, 80, 24, 3) == page(full_run, 80, 24, 0)  # counted round
    assert page(full_run, 80, 24, -1) == page(full_run, 80, 24, 2)


def test_at_160_x_50_everything_is_on_one_page(full_run: StoredRun) -> None:
    shown = "\n".join(page(full_run, 160, 50))
    for words in ("Strength", "Training", "Context", "Tokens by author", "Time of a step", "Events", "p95 reaches the"):
        assert words in shown
    assert "Tab" not in shown
    assert "p95 reaches the limit at step 30 (80 %: 27 to 36)" in shown


def test_forecasts_in_words() -> None:
    def told(early: float, median: float, late: float) -> str:
        values = zip(("early", "median", "late"), (early, median, late), strict=True)
        forecast = {f"forecast/p95/{name}": [value] * 9 for name, value in values}
        metrics = {"context/window/p95": [50.0] * 9, "context/window/mean": [40.0] * 9, "context/limit": [72.0] * 9}
        return everything(make_run(metrics | forecast), 160, 50)

    assert "p95 reaches the limit at step 30 (80 %: 27 to never)" in told(27, 30, math.inf)
    assert "p95 may reach the limit from step 27 on" in told(27, math.inf, math.inf)
    assert "the limit is not forecast to be reached" in told(*[math.inf] * 3)
    assert "p95 has reached the limit" in told(1, 9, 12)


def test_a_limit_far_above_is_told_and_not_drawn() -> None:
    shown = everything(make_run({"context/window/p50": [50.0, 60.0], "context/limit": [8192.0, 8192.0]}), 160, 50)
    assert "limit 8.19K, above" in shown


def test_without_utf_8_all_is_ascii(full_run: StoredRun) -> None:
    assert everything(full_run, ascii_only=True).isascii()
    assert everything(full_run, 160, 50, ascii_only=True).isascii()
    assert not everything(full_run).isascii()


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    match = RecordedMatch(1, "train", MatchResult("tictactoe", HOSTILE, 0, False, 9, 0.5, 0.5, 0.0, 0.0, 0.0))
    events = [Event(1, 0.0, "forecast", HOSTILE), Event(1, 0.0, HOSTILE, HOSTILE)]
    run = make_run({"reward": [0.5]}, timings={HOSTILE: [1.0]}, matches=[match], events=events, problems=(HOSTILE,))
    for size in ((80, 24), (160, 50)):
        shown = everything(run, *size)
        assert not set(shown) & set("\x1b\x07\x9b\u202e\r\t")
        assert "owned" not in shown
        assert "[bold red]" in shown  # as text


def test_a_finished_run_says_so_and_shows_the_best_weights() -> None:
    final = [RecordedMatch(40, "final", MatchResult("tictactoe", "random", 0, False, 9, 0.75, 0.25, 0.0, 0.0, 0.0))]
    events = [Event(40, 0.0, "finish", "finished; the best weights are those of step 20")]
    shown = everything(make_run({"reward": [1.0] * 40}, state="finished", matches=final, events=events))
    for words in ("finished; the best weights are those of step 20", "best weights:", "75.0 %", "100 %"):
        assert words in shown


def test_other_states() -> None:
    assert "starting" in everything(make_run())
    assert "nothing recorded yet" in everything(make_run())
    assert "stopped; earl train --resume goes on" in everything(make_run({"reward": [1.0]}, state="stopped"))
    assert "last change 10 min 0 s ago" in everything(make_run({"reward": [1.0]}, quiet=600.0))
    assert "problem: run.db is damaged" in everything(make_run(problems=("run.db is damaged",)))


def test_repeated_events_are_told_once() -> None:
    shown = everything(make_run(events=[Event(step, 0.0, "best", "better") for step in range(5)]))
    assert shown.count("better") == 1
    assert "best x5: better" in shown


def test_the_time_of_a_step_counts_all_stages_and_rare_ones_less() -> None:
    run = make_run(timings={"rollout": [1.0, 1.0], "update": [3.0, 5.0], "evaluate": [2.0]})
    assert stage_seconds(run) == {"update": 4.0, "rollout": 1.0, "evaluate": 1.0}
    # 6 s per step, 38 of 40 left: 228 s
    assert "6 s per step, about 228 s left" in everything(run)


@pytest.mark.parametrize(
    ("state", "step", "expected"),
    [
        ("running", 0, "starting"),
        ("running", 3, "training"),
        ("running", 40, "last evaluation"),
        ("stopped", 0, "not started"),
        ("stopped", 3, "stopped"),
        ("finished", 40, "finished"),
    ],
)
def test_what_a_run_does(state: str, step: int, expected: str) -> None:
    assert phase(make_run({"reward": [0.0] * step}, state=state)) == expected


def test_json_holds_numbers_that_json_has(full_run: StoredRun) -> None:
    run = make_run({"reward": [math.nan], "forecast/p95/late": [math.inf]}, events=[Event(1, 0.0, "best", "x")])
    said = json.loads(json.dumps(as_object(run), allow_nan=False))
    assert said["metrics"]["reward"] == said["metrics"]["forecast/p95/late"] == {"step": 1, "value": None}
    said = json.loads(json.dumps(as_object(full_run), allow_nan=False))
    assert (said["state"], said["step"], said["steps"]) == ("running", 20, 40)
    assert said["metrics"]["context/limit"] == {"step": 20, "value": 120.0}
    assert [entry["opponent"] for entry in said["evaluation"]] == ["perfect", "random"]
