"""`earl audit` and `earl replay` as a user calls them."""

import io
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def damaged(trained, tmp_path):
    """A copy of a finished run in which a reward was changed, and an opponent has a hostile name."""
    shutil.copytree(trained, tmp_path / "runs" / "done")
    path = sorted((tmp_path / "runs" / "done" / "trajectories").glob("*.parquet"))[-1]
    rows, schema = pq.read_table(path).to_pylist(), pq.read_schema(path)
    rows[1]["turns"][-1]["reward"] += 2
    rows[2]["opponent"] = "\x1b[31mevil\u202e"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return tmp_path / "runs"


def test_an_untouched_run_passes_with_exit_code_0(trained, earl):
    said = earl("audit", "done", "--runs", trained.parent)
    assert said.code == 0
    assert "nothing wrong in" in said.out


def test_findings_are_sentences_and_exit_code_1(damaged, earl):
    said = earl("audit", "done", "--runs", damaged)
    assert said.code == 1
    assert "swapped reward: step 3, episode 1, turn" in said.out
    assert "wrong seed: step 3, episode 2: the opponent is 'evil'" in said.out.replace("\\x1b[31m", "").replace(
        "\\u202e", ""
    )
    assert "\x1b" not in said.out and "\u202e" not in said.out


def test_findings_as_json(damaged, earl):
    said = earl("audit", "done", "--runs", damaged, "--json", "--step", 3)
    assert said.code == 1
    assert {found["fault"] for found in said.json["findings"]} == {"swapped reward", "wrong seed"}
    assert {check["check"]: check["state"] for check in said.json["checks"]}["rewards"] == "failed"
    assert not said.json["passed"]


def test_a_step_that_is_not_kept_is_refused(trained, earl):
    said = earl("audit", "done", "--runs", trained.parent, "--step", 77)
    assert said.code == 2
    assert "keeps no episodes of step 77; kept are the steps 3" in said.err


def test_an_episode_is_printed_turn_by_turn(trained, earl):
    said = earl("replay", "done", "3/1", "--runs", trained.parent, "--logprobs")
    assert said.code == 0
    assert "done, step 3, episode 1: tictactoe against" in said.out
    assert "turn 0 of" in said.out and "log-prob" in said.out and "advantage" in said.out


def test_an_episode_as_json(trained, earl):
    said = earl("replay", "done", 1, "--runs", trained.parent, "--json")
    [first, *_] = said.json["turns"]
    assert said.json["step"] == 3  # the last that is stored
    assert {said.json["authors"][author] for author, _ in first["given"]} == {"template", "environment"}
    assert all(logprob < 0 for logprob in first["reply"]["logprobs"])
    assert sum(turn["reward"] for turn in said.json["turns"]) == said.json["reward"]


def test_hostile_text_is_only_text(damaged, earl):
    said = earl("replay", "done", "3/2", "--runs", damaged)
    assert said.code == 0
    assert "against evil" in said.out
    assert "\x1b" not in said.out and "\u202e" not in said.out


@pytest.mark.parametrize(
    ("episode", "complaint"),
    [("x", "is neither a number nor STEP/NUMBER"), ("99", "has no episode 99"), ("7/0", "keeps no episodes of step 7")],
)
def test_an_episode_that_is_not_there_is_refused(trained, earl, episode, complaint):
    said = earl("replay", "done", episode, "--runs", trained.parent)
    assert said.code == 2
    assert complaint in said.err


def test_keys_step_through():
    from rich.console import Console

    from earl.cli.replay import step_through

    reply = {"texts": ["5"], "authors": [4], "logprobs": [-0.5], "ratios": [1.1]}
    rest = {"reply": reply, "boards": [], "summary": False, "refused": False, "reward": 0.0, "advantage": None}
    played = {"turns": [{"given": [(1, f"board {n}")], **rest} for n in range(3)], "rest": []}
    shown = []
    for keys in ("nq", "nplq", "nnn", "\r\r\r"):
        console = Console(record=True, width=80, file=io.StringIO())
        waiting = iter(keys)
        step_through("head", played, console, False, lambda waiting=waiting: next(waiting))
        shown.append([line[-1] for line in console.export_text().splitlines() if line.startswith("board")])
    # n goes on, p goes back, l shows the same turn again; behind the last turn it ends
    assert shown == [["0", "1"], ["0", "1", "0", "0"], ["0", "1", "2"], ["0", "1", "2"]]
