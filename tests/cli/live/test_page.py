"""The view as lines of text: complete, exactly as large as the terminal, never steered by what it shows."""

import math
from collections.abc import Callable
from io import BytesIO, TextIOWrapper

import pytest
from rich.cells import cell_len
from rich.console import Console

from earl.cli.live.now import RunNow
from earl.cli.live.page import PANELS, arrange, draw
from earl.matches import MatchResult
from earl.runs.store import Event, RecordedMatch

Make = Callable[..., RunNow]
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m[bold red]\u202e漢字\n\r\tend"


def page(run: RunNow, width: int, height: int, number: int = 0, ascii_only: bool = False) -> list[str]:
    stream = TextIOWrapper(BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = Console(file=stream, width=width, height=height, markup=False, emoji=False, highlight=False)
    size = console.options.update_dimensions(width, height)
    lines = console.render_lines(draw(run, width, height, number), size)
    return ["".join(part.text for part in line) for line in lines]


def everything(run: RunNow, width: int = 80, height: int = 24, ascii_only: bool = False) -> str:
    """All pages."""
    pages = arrange(width, height - 3, len(PANELS)).pages
    return "\n".join(line for number in range(len(pages)) for line in page(run, width, height, number, ascii_only))


@pytest.mark.parametrize(
    ("width", "height", "columns", "pages"),
    [
        (80, 21, 1, ((0, 1), (2, 3), (4, 5))),
        (160, 47, 2, ((0, 1, 2, 3, 4, 5),)),
        (200, 25, 3, ((0, 1, 2, 3, 4, 5),)),
        (120, 26, 2, ((0, 1, 2), (3, 4, 5))),  # 2 x 2 places for 6 panels: 2 pages of 3
        (40, 9, 1, ((0,), (1,), (2,), (3,), (4,), (5,))),
        (1, 1, 1, ((0,), (1,), (2,), (3,), (4,), (5,))),
    ],
)
def test_panels_are_shared_out(width: int, height: int, columns: int, pages: tuple[tuple[int, ...], ...]) -> None:
    grid = arrange(width, height, 6)
    assert (grid.columns, grid.pages) == (columns, pages)


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (100, 30), (250, 70), (60, 16), (20, 5), (1, 1), (300, 10)])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_page_fills_the_terminal_exactly(
    full_run: RunNow, make_run: Make, size: tuple[int, int], ascii_only: bool
) -> None:
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


def test_at_80_x_24_everything_is_on_three_pages(full_run: RunNow) -> None:
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
    for words in ("update", "3 s", "rollout", "tokens/s", "started", "forecast: p95 reaches"):
        assert words in third
    assert page(full_run, 80, 24, 3) == page(full_run, 80, 24, 0)  # counted round
    assert page(full_run, 80, 24, -1) == page(full_run, 80, 24, 2)


def test_at_160_x_50_everything_is_on_one_page(full_run: RunNow) -> None:
    shown = "\n".join(page(full_run, 160, 50))
    for words in ("Strength", "Training", "Context", "Tokens by author", "Time of a step", "Events", "p95 reaches the"):
        assert words in shown
    assert "Tab" not in shown
    assert "p95 reaches the limit at step 30 (80%: 27 to 36)" in shown


def test_forecasts_in_words(make_run: Make) -> None:
    def told(early: float, median: float, late: float) -> str:
        values = zip(("early", "median", "late"), (early, median, late), strict=True)
        forecast = {f"forecast/p95/{name}": [value] * 9 for name, value in values}
        metrics = {"context/window/p95": [50.0] * 9, "context/window/mean": [40.0] * 9, "context/limit": [72.0] * 9}
        return everything(make_run(metrics | forecast), 160, 50)

    assert "p95 reaches the limit at step 30 (80%: 27 to never)" in told(27, 30, math.inf)
    assert "p95: the limit from step 27 on, but more likely not" in told(27, math.inf, math.inf)
    assert "the limit is not forecast to be reached; longest context per episode: 40 tokens" in told(*[math.inf] * 3)
    assert "p95 has reached the limit" in told(1, 9, 12)


def test_a_limit_far_above_is_told_and_not_drawn(make_run: Make) -> None:
    shown = everything(make_run({"context/window/p50": [50.0, 60.0], "context/limit": [8192.0, 8192.0]}), 160, 50)
    assert "limit 8.19K, above" in shown


def test_without_utf_8_all_is_ascii(full_run: RunNow) -> None:
    assert everything(full_run, ascii_only=True).isascii()
    assert everything(full_run, 160, 50, ascii_only=True).isascii()
    assert not everything(full_run).isascii()


def test_what_others_wrote_cannot_steer_the_terminal(make_run: Make) -> None:
    match = RecordedMatch(1, "train", MatchResult("tictactoe", HOSTILE, 0, False, 9, 0.5, 0.5, 0.0, 0.0, 0.0))
    events = [Event(1, 0.0, "forecast", HOSTILE), Event(1, 0.0, HOSTILE, HOSTILE)]
    run = make_run({"reward": [0.5]}, timings={HOSTILE: [1.0]}, matches=[match], events=events, problems=(HOSTILE,))
    for size in ((80, 24), (160, 50)):
        shown = everything(run, *size)
        assert not set(shown) & set("\x1b\x07\x9b\u202e\r\t")
        assert "owned" not in shown
        assert "[bold red]" in shown  # as text


def test_a_finished_run_says_so_and_shows_the_best_weights(make_run: Make) -> None:
    final = [RecordedMatch(40, "final", MatchResult("tictactoe", "random", 0, False, 9, 0.75, 0.25, 0.0, 0.0, 0.0))]
    events = [Event(40, 0.0, "finish", "finished; the best weights are those of step 20")]
    shown = everything(make_run({"reward": [1.0] * 40}, state="finished", matches=final, events=events))
    for words in ("finished; the best weights are those of step 20", "best weights:", "75.0 %", "100 %"):
        assert words in shown


def test_other_states(make_run: Make) -> None:
    assert "starting" in everything(make_run())
    assert "nothing recorded yet" in everything(make_run())
    assert "stopped; earl train --resume goes on" in everything(make_run({"reward": [1.0]}, state="stopped"))
    assert "nothing was written for 10 min 0 s" in everything(make_run({"reward": [1.0]}, quiet=600.0))
    assert "problem: run.db is damaged" in everything(make_run(problems=("run.db is damaged",)))


def test_repeated_events_are_told_once(make_run: Make) -> None:
    shown = everything(make_run(events=[Event(step, 0.0, "best", "better") for step in range(5)]))
    assert shown.count("better") == 1
    assert "best x5: better" in shown
