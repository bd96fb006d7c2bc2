"""Which transport is taken: the centralised one only where it is expected to be faster."""

import numpy as np

from earl.benchmarks.transfers import LOGPROBS, Case
from earl.dispatch.columns import columns
from earl.dispatch.plan import plan
from earl.dispatch.segments import Leg
from earl.dispatch.spread import spread
from earl.dispatch.transports.choice import Link, choose, message_seconds
from earl.parallel.layout import Layout


def test_large_transfers_go_directly_and_the_reason_is_told():
    made = Case("paper", LOGPROBS, 1000, 160, 1).plan(range(16))
    choice = choose(made, Link(12.5e6, 1e-3, 0.03, 0.026))
    assert choice.transport == "peers"
    # 160 rows of 4,000 bytes, of which 150 leave; 15 messages and 4 to agree.
    assert np.isclose(choice.seconds, 600_000 * 1.06 / 12.5e6 + 19 * 1e-3)
    # 15 hosts give the controller 640,000 bytes each, which gives as much back.
    assert np.isclose(choice.other_seconds, 2 * 9_600_000 * 1.06 / 12.5e6 + 0.026, rtol=0.01)
    assert choice.reason.startswith("direct: 0.0699 s expected, centralised ")


def test_the_smallest_transfers_go_through_the_controller_where_cores_are_shared():
    made = Case("small", LOGPROBS, 1, 16, 1).plan(range(16))
    choice = choose(made, Link(12.5e6, 1e-3, 0.03, 0.026))
    assert choice.transport == "controller"
    assert choice.reason == "centralised: 0.0262 s expected, direct 0.03 s"
    # On cores of their own the messages of a host do not wait for those of others.
    assert choose(made, Link(12.5e6, 1e-3, 0.009, 0.018)).transport == "peers"


def test_a_transfer_between_two_of_many_does_not_wait_for_all():
    # Only 2 of 16 processes have anything for each other: 2 of 240 messages at once, and 4 messages to agree.
    made = between(2, of=16)
    choice = choose(made, Link(12.5e6, 1e-3, 0.03, 0.026))
    assert choice.transport == "peers"
    assert np.isclose(choice.seconds, 2 / 240 * 0.03 + 238 / 240 * 4e-3, rtol=0.01)


def between(count, of):
    """The first processes give each other a row each, the others nothing."""
    rows, pair = np.arange(count), range(count)
    leg = Leg(columns(LOGPROBS), spread(Layout(count), pair, rows))
    return plan(np.ones(count, np.int64), [leg], spread(Layout(count), pair, rows[::-1]), np.arange(of))


def test_processes_of_one_host_share_memory():
    made = Case("replicas", LOGPROBS, 1000, 16, 1, tp=2).plan([0, 0, 1, 1])
    assert choose(made, Link(12.5e6, 1e-3, 0.03, 0.026)).transport == "shared"


def test_a_message_takes_its_share_of_an_agreement():
    assert message_seconds(0.008, 16) == 0.002  # up two branches of a tree, and down again
    assert message_seconds(0.001, 1) == 0.001
