"""What recorded calls of tools need, against arithmetic by hand."""

import pytest

from earl.errors import EarlError
from earl.planner.workload import Needed, TracedCall, read_calls, recorded_call, sizes
from earl.trajectory import ToolCall


def calls(width: int, together: int) -> list[TracedCall]:
    """So many calls of one second that come at once, each of an episode of its own."""
    return [TracedCall(str(number), "python", 5.0, 5.0, 1.0, width) for number in range(together)]


def test_powers_of_two_until_hardly_a_call_waits() -> None:
    # Four at once: one core ends them after 1, 2, 3, 4 s, two after 1, 1, 2, 2 s, four after 1 s.
    found = sizes(calls(1, 4), None)
    assert [(one.resource, one.units, one.completion_seconds, one.queue_seconds) for one in found] == [
        ("cores", 1, pytest.approx(2.5), pytest.approx(1.5)),
        ("cores", 2, pytest.approx(1.5), pytest.approx(0.5)),
        ("cores", 4, pytest.approx(1.0), pytest.approx(0.0)),
    ]
    assert [one.use for one in found] == pytest.approx([1.0, 1.0, 1.0])


def test_the_least_size_for_a_wanted_mean() -> None:
    # Three cores: 1, 1, 1, 2 s. Of calls that take no core, three at a time.
    assert sizes(calls(1, 4), 1.3)[0] == Needed(
        "cores", 3, pytest.approx(1.25), pytest.approx(0.25), pytest.approx(4 / 6)
    )
    assert sizes(calls(0, 4), 1.3)[0].resource == "python"
    assert sizes(calls(0, 4), 1.3)[0].units == 3
    with pytest.raises(EarlError, match="s cannot be had: calls of cores run for 1 s"):
        sizes(calls(1, 4), 0.5)


def test_an_episode_asks_again_so_long_after_its_call_has_ended() -> None:
    # Recorded on one core: the second episode's calls waited. Each asks again 1 s after the end.
    one = [TracedCall("a", "run", 0.0, 0.0, 2.0, 1), TracedCall("a", "run", 3.0, 4.0, 2.0, 1)]
    two = [TracedCall("b", "run", 0.0, 2.0, 2.0, 1), TracedCall("b", "run", 5.0, 6.0, 2.0, 1)]
    [least] = sizes([*one, *two], 2.0)
    assert (least.units, least.queue_seconds) == (2, 0.0)  # with two cores both ask at 0 and at 3


def test_a_tool_that_was_seen_at_several_widths_may_have_any_of_them() -> None:
    # 4 s on one core, 1 s on four: it scales, so where none waits each takes 1 s.
    seen = [
        TracedCall(str(number), "tests", 9.0 * number, 9.0 * number, *((4.0, 1), (1.0, 4))[number % 2])
        for number in range(60)
    ]
    [first, *_] = sizes(seen, None)
    assert (first.units, first.completion_seconds) == (4, pytest.approx(1.0, rel=0.1))


def test_a_table_is_read_and_what_is_no_call_is_named(tmp_path) -> None:
    path = tmp_path / "calls.csv"
    path.write_text("arrival,duration,width,tool\n1,0.5,2,python\n3,1,0,search\n")
    assert read_calls(path) == [
        TracedCall("-1", "python", 1.0, 1.0, 0.5, 2),
        TracedCall("-2", "search", 3.0, 3.0, 1.0, 0),
    ]
    for row in ("1,0.5", "1,x,2", "1,-1,1", "nan,1,1", "1,1,1.5", "1,inf,1", "1,1,99999999"):
        path.write_text(f"arrival,duration,width\n{row}\n")
        with pytest.raises(EarlError, match=r"row 1: .* is not a call"):
            read_calls(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(EarlError, match="cannot be read as CSV"):
        read_calls(path)
    with pytest.raises(EarlError, match="is not a call"):
        recorded_call("1 0", ToolCall("python", float("inf"), 0.0, 1.0))
    with pytest.raises(EarlError, match="no call is recorded"):
        sizes([], None)
