"""External calls on this machine: what is held is waited for, and what calls return does not depend on it."""

import time

import pytest

from earl.actions.pool import pool
from earl.benchmarks.actions_real import TimedCall, _held, _played, _tools
from earl.config import ToolsConfig


def act() -> str:
    time.sleep(0.1)
    return "done"


def test_a_wait_for_what_a_trajectory_holds_counts_to_its_calls() -> None:
    # Two trajectories of two calls of 0.1 s, one slot, so 0.4 s in all. Where it is held the second trajectory waits
    # 0.2 s for it, less what it began later: (4 · 0.1 + 0.2) / 4 s a call.
    drawn = [[TimedCall("search", 0.0, act), TimedCall("search", 0.0, act)] for _ in range(2)]
    with _tools(ToolsConfig(at_once={"search": 1})):
        seconds, _, told = _played(drawn, {"search": ()}, None)
    assert seconds >= 0.4
    with _tools(ToolsConfig(at_once={"hold": 1})):
        seconds, mean, same = _played(drawn, {}, ())
    assert seconds >= 0.4
    assert mean > 0.13
    assert told == same == [["done", "done"]] * 2


def test_as_many_episodes_hold_a_core_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[list[str]] = []

    def play(episodes: list[str], sampler: None) -> list[str]:
        played.append(episodes)
        return episodes

    monkeypatch.setattr("earl.rollout.drivers.play", play)
    cores = len(pool().cores)
    episodes = [str(number) for number in range(2 * cores + 1)]
    assert _held(episodes, None) == episodes  # type: ignore[arg-type, comparison-overlap]
    assert [len(part) for part in played] == [cores, cores, 1]
