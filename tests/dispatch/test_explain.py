"""A plan in words."""

import numpy as np
from hypothesis import given

from earl.dispatch.plan import plan, volume
from earl.dispatch.predicted_cost import explain, lines
from earl.dispatch.rows import columns, spread
from earl.parallel.layout import Layout
from tests.dispatch.simulated import transfers


def test_every_byte_is_accounted_for() -> None:
    # 3 rows of 2**18 tokens x 4 bytes = 1 MiB each on process 0 (host 0), for dp 3: itself, its neighbour, and host 1.
    source, target = spread(Layout(), [0], [0, 0, 0]), spread(Layout(dp=3), [0, 1, 2], [0, 1, 2])
    made = plan(np.full(3, 1 << 18), columns(["logprobs"]), source, target, np.array([0, 0, 1]))
    told = explain(made)
    mib = 1 << 20
    assert [told[name] for name in ("rows", "tokens", "total", "needed")] == [3, 3 << 18, 3 * mib, 3 * mib]
    assert [told[name] for name in ("kept", "inside", "across")] == [mib, mib, mib]
    assert told["links"] == [{"host": 0, "sent": mib, "received": 0}, {"host": 1, "sent": 0, "received": mib}]
    assert [told[name] for name in ("busiest", "bound", "controller")] == [mib, mib, mib]  # the controller is on host 0
    assert lines(told) == [
        "3 rows, 786,432 tokens: 3.0 MiB, or 3.0 MiB with a copy for each process that reads them",
        "of these 33.3% lie there already, 33.3% come from their own host, 33.3% cross a link",
        "busiest link 1.0 MiB, under any plan at least 1.0 MiB; a controller's link 1.0 MiB",
        "busiest hosts: host 0 sends 1.0 MiB, receives 0.0 MiB; host 1 sends 0.0 MiB, receives 1.0 MiB",
    ]


def test_a_plan_of_nothing_is_told_too() -> None:
    source, target = spread(Layout(), [0], []), spread(Layout(), [1], [])
    told = explain(plan(np.zeros(0, np.int64), columns(["logprobs"]), source, target, np.array([0, 1])))
    assert told["needed"] == 0
    assert lines(told)[-1] == "no link between hosts carries anything"


@given(transfers())
def test_shares_add_up(transfer) -> None:
    told, moved = explain(transfer), volume(transfer)
    assert told["needed"] == told["kept"] + told["inside"] + told["across"]
    assert min(told["kept"], told["inside"], told["across"]) >= 0
    assert told["across"] == moved.across
    assert told["busiest"] == max((max(link["sent"], link["received"]) for link in told["links"]), default=0)
    assert all(lines(told))
