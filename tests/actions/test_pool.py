"""Calls of threads on real cores: never more at once than there are, each on its own, and limits that are kept."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from earl.actions.pool import ActionPool, action_metrics, granted
from earl.config import ToolsConfig
from earl.errors import EarlError
from earl.recipe import build, override


def call_many(
    pool: ActionPool, calls: int, tool: str = "python", cores: tuple[int, ...] = (1,)
) -> tuple[int, set[int]]:
    """The most calls that ran at once, and the cores that they had."""
    lock, now, most, seen = threading.Lock(), 0, 0, set[int]()

    def one(_: int) -> None:
        nonlocal now, most
        with pool.action(tool, cores):
            with lock:
                now += 1
                most = max(most, now)
                seen.update(granted())
            time.sleep(0.002)
            with lock:
                now -= 1

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, range(calls)))
    return most, seen


def test_no_more_calls_run_than_there_are_cores() -> None:
    pool = ActionPool([3, 5])
    assert call_many(pool, 40) == (2, {3, 5})
    recorded = pool.take()
    assert len(recorded) == 40
    assert all(one.asked <= one.began <= one.ended and one.cores == 1 for one in recorded)
    assert pool.take() == []
    metrics = action_metrics(recorded, 2)
    assert 0 < metrics["tool_core_use"] <= 1


def test_limits_are_kept_and_shared_by_processes() -> None:
    limits = ToolsConfig(at_once={"search": 6}, per_second={"look": 100})
    pool = ActionPool([0], limits, size=2)
    assert call_many(pool, 20, "search", ())[0] <= 3  # half of six
    began = time.monotonic()
    call_many(pool, 6, "look", ())
    assert time.monotonic() - began >= 0.09  # fifty a second, the first at once


def test_a_call_without_a_cost_does_not_wait() -> None:
    pool = ActionPool([0])
    with pool.action("python", (1,)), pool.action("calculator"):
        assert granted() == ()
    assert granted() == ()


def test_a_call_that_fails_gives_back_its_cores() -> None:
    pool = ActionPool([0])
    for _ in range(2):
        try:
            with pool.action("python", (1,)):
                raise ValueError
        except ValueError:
            pass
    assert len(pool.take()) == 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["env.processes=1"], "env.processes of table"),
        (["run.processes=3"], "tools.at_once.python = 2 is less than the 3 of run.processes"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(changed: list[str], told: str) -> None:
    tree = {"env": {"name": "table"}, "tools": {"at_once": {"python": 2}}}
    assert build(tree).tools.at_once == {"python": 2}
    with pytest.raises(EarlError, match=told):
        build(override(tree, changed))
