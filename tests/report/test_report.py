"""Whole pages."""

import os
import random
import re
import string
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from earl import reports
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs.folder import RunFolder
from earl.runs.store import Store
from tests.report.page import Page, section, write

pytestmark = pytest.mark.cold

SECTIONS = ["results", "strength", "training", "context", "time", "recipe", "events", "episodes"]
MISSING = "not recorded yet"


def test_a_finished_run_has_every_section_filled(runs: Any) -> None:
    page = write(runs.run())
    assert [found["id"] for tag, found in page.tags if tag == "section"] == SECTIONS
    assert MISSING not in page.text
    for words in ("Run demo", "tictactoe", "30 parameters, qwen3, 1 layer, width 6", "finished", "60 of 60"):
        assert words in page.text
    assert "weights of step 60" in section(page, "results")
    assert "teacher = &#34;perfect&#34;" in page.source
    assert "all steps done" in section(page, "events")
    assert "48 of the 48 training episodes stored at step 60" in section(page, "episodes")
    assert len(page.packed("stored")["episodes"]) == 48
    # 2 opponents x 2 seats + 6 of training + 3 bands, authors, stops, memory, forecast, map + 1 of time
    # hidden: episodes, kl_to_sampler, learning_rate, tokens
    assert page.count("div", **{"class": "plot"}) == 19 + 4
    assert sum("data-table" in found for _, found in page.tags) == 19 + 4
    assert len(page.packed("figures")) == 19 + 4


def test_every_table_counts_a_game_that_repeats_once(runs: Any) -> None:
    folder = runs.run(final=False)
    game = MatchResult("tictactoe", "random", 0, False, 200, 0.96, 0.0, 0.04, 0.0, 0.0)
    once = replace(game, distinct_games=40, distinct_win=0.75, distinct_draw=0.05, distinct_loss=0.2)
    with Store(folder.database) as store:
        store.record_step(60, {}, {}, [once], "final")
        store.event(60, "finished", "all steps done")
    shown = section(write(folder), "results").replace("\N{NARROW NO-BREAK SPACE}", " ").replace(" ,", ",")
    assert "40 distinct of 200 games" in shown
    assert "win 75.0 %, draw 5.0 %, loss 20.0 %" in shown
    assert "96.0 %" not in shown


def test_an_opponent_held_out_is_met_at_the_end_only(runs: Any) -> None:
    folder = runs.run(final=False)
    recipe = folder.path / "config.toml"
    recipe.write_text(recipe.read_text().replace("[evaluate]", '[evaluate]\nheld_out = ["mcts:200"]'))
    with Store(folder.database) as store:
        store.record_step(
            60, {}, {}, [MatchResult("tictactoe", "mcts:200", 0, False, 9, 0.4, 0.0, 0.6, 0.0, 0.0)], "final"
        )
    assert "mcts:200 moves first met at the end only met at the end only" in section(write(folder), "results")


def test_sampled_results_have_intervals_and_exact_ones_leaves(runs: Any) -> None:
    sampled = section(write(runs.run(name="sampled")), "results")
    assert "400 games" in sampled and "95 % interval" in sampled
    # 0.9 of 400 games: 0.867 to 0.926 by Wilson
    assert "86.7 to 92.6" in sampled
    exact = section(write(runs.run(name="exact", exact=True)), "results")
    assert "exact: 400 leaves" in exact and "95 % interval" not in exact
    assert "both seats" in exact


def test_the_phases_stand_side_by_side(runs: Any) -> None:
    text = section(write(runs.run()), "results")
    assert text.index("At the start") < text.index("After warm start") < text.index("Final")


def test_a_tool_task_is_solved_or_not(runs: Any) -> None:
    folder = runs.empty()
    with Store(folder.database) as store:
        result = MatchResult("arithmetic", "", 0, False, 200, 0.9, 0.0, 0.1, 0.0, 0.0)
        store.record_step(0, {}, {}, [result], "start")
        store.record_step(60, {"reward": 0.9}, {}, [result], "final")
    text = section(write(folder), "results")
    assert "Solved" in text and "Not solved" in text and "held-out tasks" in text and "200 held-out tasks" in text
    assert "Draw" not in text and "Seat" not in text
    assert "On held-out tasks" in write(folder).text


def test_a_run_in_progress(runs: Any) -> None:
    page = write(runs.run(until=45, final=False))
    assert "not finished: in reinforcement learning" in page.text
    assert "45 of 60" in page.text
    assert "Latest, not final" in section(page, "results") and "step 40" in section(page, "results")


def test_a_run_stopped_in_the_warm_start(runs: Any) -> None:
    page = write(runs.run(until=6, final=False))
    assert "not finished: in the warm start" in page.text
    assert "before training" in page.text
    for name in ("results", "training", "context", "episodes"):
        assert MISSING in section(page, name)


def test_a_run_that_has_only_its_recipe(runs: Any) -> None:
    page = write(runs.empty())
    assert "no step recorded yet" in page.text
    for name in set(SECTIONS) - {"recipe", "events"}:
        assert MISSING in section(page, name)
    assert page.count("div", **{"class": "plot"}) == 0


def test_what_cannot_be_read_is_told_and_the_rest_is_shown(runs: Any) -> None:
    folder = runs.run()
    damaged = folder.trajectories / "step-000070.parquet"
    damaged.write_bytes(b"not parquet")
    folder.database.write_bytes(b"not a database" * 100)
    folder.database.with_name("run.db-wal").unlink(missing_ok=True)
    next(folder.checkpoints.glob("*/tokenizer.json")).write_text("{")
    page = write(folder)
    assert page.text.count("Could not be read") == 3
    assert "step-000070.parquet" in page.text and "is damaged" in page.text
    assert "tokenizer.json cannot be read" in page.text
    assert "⟨token " in str(page.packed("stored")), "episodes are shown by their numbers"


def test_a_recipe_of_another_version_is_told(runs: Any) -> None:
    page = write(runs.empty(recipe='[env]\nname = "tictactoe"\n[future]\nkey = 1\n'))
    assert "unknown key 'future'" in page.text
    assert "key = 1" in section(page, "recipe")


@pytest.mark.slow
def test_the_page_stays_small(runs: Any, make_episode: Any) -> None:
    folder = runs.run()
    empty = len(write(runs.empty(name="empty")).source)
    noise = random.Random(3)
    words = lambda number: "".join(noise.choices(string.printable[:90], k=number))  # noqa: E731
    long = [make_episode([(words(400), f"<think>{words(90)}</think>move")] * 12, logprob=-0.1) for _ in range(200)]
    runs.episodes(folder, 100, long)
    page = write(folder)
    assert empty < 2_500_000
    assert len(page.packed("stored")["episodes"]) == 200
    assert len(page.source) < 6_000_000


def test_episodes_that_do_not_fit_are_shown_in_part(
    runs: Any, make_episode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs.run()
    runs.episodes(folder, 100, [make_episode([("board " * 40, "x" * 300)] * 4)])
    whole = write(folder).packed("stored")["episodes"][0]
    assert "cut" not in whole["turns"][0]["reply"]
    monkeypatch.setattr("earl.reports.episodes.BUDGET", 2000)
    part = write(folder).packed("stored")["episodes"][0]
    assert part["turns"][0]["reply"]["cut"][1] == 261  # 300 and a mark; 40 are shown at least


def test_the_same_run_gives_the_same_page_but_for_the_time(runs: Any) -> None:
    folder = runs.run()
    first, second = (re.sub(r"Written by earl, [^.]*", "", write(folder).source) for _ in range(2))
    assert first == second


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_refuses(runs: Any) -> None:
    folder = runs.empty()
    folder.path.chmod(0o500)
    with pytest.raises(EarlError, match="refused"):
        reports.write(folder)


def test_a_folder_that_has_vanished(runs: Any) -> None:
    with pytest.raises(EarlError, match="vanished"):
        reports.write(RunFolder(runs.root / "nowhere"))


def test_several_runs_stand_side_by_side(runs: Any) -> None:
    first, second = runs.run(name="a"), runs.run(name="b", until=45, final=False, limit=200)
    path = reports.write(first, second)
    assert path == runs.root / "report-a-b.html"
    page = Page(path)
    results, recipe = section(page, "results"), section(page, "recipe")
    assert "86.7 to 92.6" in results and "latest, not final" in results, "each run's last evaluation"
    assert "context.limit 120 200" in recipe and "run.seed" not in recipe
    # 2 opponents x 2 seats; a map and the authors of each run; nothing is stacked over runs
    names = set(page.packed("figures"))
    assert {"strength-3", "heat-0", "heat-1", "authors-1"} <= names and "strength-4" not in names
    curves = page.packed("figures")["strength-0"]
    assert curves["choices"] == ["wins", "draws", "losses"]
    shown = [trace["name"] for trace in curves["data"] if trace["visible"] and trace.get("fill") != "toself"]
    assert shown == ["a", "b"]
    assert len([trace for trace in curves["data"] if trace.get("fill") == "toself"]) == 6, "an interval around each"
    stored = page.packed("stored")
    assert stored["runs"] == ["a", "b"] and {found["run"] for found in stored["episodes"]} == {0, 1}


def test_a_page_may_lie_elsewhere(runs: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert reports.write(runs.run(), out=path) == path
    assert path.is_file()
    with pytest.raises(EarlError, match="none is no folder; make it, or give another --out than "):
        reports.write(runs.run(name="b"), out=tmp_path / "none" / "page.html")


def test_a_report_needs_no_torch(runs: Any) -> None:
    folder = runs.run()
    script = (
        "import sys; from pathlib import Path; from earl import reports; from earl.runs.folder import RunFolder\n"
        f"reports.write(RunFolder(Path({str(folder.path)!r})))\n"
        "print(sorted({'torch', 'transformers', 'ray', 'vllm'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
