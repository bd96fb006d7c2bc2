"""Calls of threads on real cores: never more at once than there are, each on its own, and limits that are kept."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from earl.actions.pool import ActionPool, core_use, granted
from earl.config import ToolsConfig
from earl.trajectory import ToolCall


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


def test_the_time_of_a_call_is_told_apart_from_its_wait() -> None:
    pool, calls, all_asked = ActionPool([3, 5]), list[ToolCall](), threading.Event()

    def one(_: int) -> None:
        with pool.action("python", (1,)) as admitted:
            while not all_asked.is_set():
                time.sleep(0.001)
                if len(pool._queue.waiting) == 2:
                    all_asked.set()
            time.sleep(0.02)
        calls.append(admitted.record("faults"))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(4)))
    assert [(call.tool, call.cores, call.fault) for call in calls] == [("python", 1, "faults")] * 4
    assert all(call.run_seconds >= 0.02 for call in calls)
    assert sum(call.queue_seconds >= 0.02 for call in calls) >= 2  # two cores: two of four wait for the first two


def test_the_use_of_cores() -> None:
    # One core for 2 s and two for 3 s, from 100 to 105 on 4 cores: 8 of 20.
    calls = [ToolCall("a", 100.0, 0.0, 2.0, 1), ToolCall("b", 101.0, 1.0, 3.0, 2), ToolCall("c", 90.0, 0.0, 1.0)]
    assert core_use(calls, 4) == {"tool_core_use": pytest.approx(0.4)}
    assert core_use(calls[2:], 4) == {}


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
        with pytest.raises(ValueError), pool.action("python", (1,)):
            raise ValueError
