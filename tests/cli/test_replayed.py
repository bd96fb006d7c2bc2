"""`earl plan --replay RUN`."""

import json
from pathlib import Path
from typing import Any

from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.selector.selector import Selector, text_of
from earl.runs.folder import create
from earl.runs.store import RecordedDecision, Store

SMALL, LARGE = Choice("update", Layout(4)), Choice("update", Layout(2, 2))


class Crossing:
    """The small one takes 1 s at 100 tokens and grows with them, the large one always 2 s."""

    def seconds(self, choice: Choice, load: Load) -> float:
        return load.mean_tokens / 100 if choice == SMALL else 2.0

    def obstacle(self, choice: Choice, load: Load) -> str:
        return ""


def recorded(root: Path) -> None:
    """A run whose contexts grow from 100 to 400 tokens in 100 steps."""
    selector = Selector({"update": [SMALL, LARGE]}, Crossing(), {"update": 3.0})
    with Store(create(root, "grown").database) as store:
        for step in range(1, 101):
            tokens = 100 + 3 * step
            selector.record_load(step, Load(64, float(tokens), 2 * tokens, 10_000))
            one = selector.decide("update", step)
            before = None if one.before is None else str(one.before)
            store.decision(
                RecordedDecision(step, one.stage, str(one.choice), before, one.reason, one.why, text_of(one))
            )


def test_the_same_decisions_again(earl: Any, tmp_path: Path) -> None:
    recorded(tmp_path)
    said = earl("plan", "--replay", "grown", "--runs", tmp_path, "--json")
    assert said.code == 0
    result = json.loads(said.out)
    assert (result["decisions"], result["same"], result["differ"]) == (100, 100, [])
    assert result["switches"] == result["switches_again"] == 1
    assert "100 of 100 decisions are the same" in earl("plan", "--replay", "grown", "--runs", tmp_path).out


def test_another_margin(earl: Any, tmp_path: Path) -> None:
    recorded(tmp_path)
    said = earl("plan", "--replay", "grown", "--runs", tmp_path, "--margin", "30", "--json")
    result = json.loads(said.out)
    assert result["same"] < 100
    assert result["expected_seconds_again"] > result["expected_seconds"]
    assert {"step", "stage", "recorded", "again", "reason", "why"} == set(result["differ"][0])


def test_what_cannot_be_replayed(earl: Any, tmp_path: Path) -> None:
    with Store(create(tmp_path, "fixed").database) as store:
        store.record_step(1, {"loss": 1.0}, {})
    said = earl("plan", "--replay", "fixed", "--runs", tmp_path)
    assert said.code == 2 and "has no decisions to replay" in said.err
    assert earl("plan", "--replay", "nowhere", "--runs", tmp_path).code == 2
    assert earl("plan", "tictactoe", "--gpus", "8xH100").code == 2
