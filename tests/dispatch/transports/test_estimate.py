"""What transfers should take by each transport, before any was tried."""

import numpy as np
import pytest

from earl.benchmarks.transfers import LOGPROBS, TransferCase
from earl.dispatch.plan import Leg, plan
from earl.dispatch.rows import columns, spread
from earl.dispatch.transports.choice import HostLink, expected_seconds, message_seconds
from earl.parallel.layout import Layout

LINK = HostLink(12.5e6, 1e-3)


def test_large_transfers_wait_for_the_busiest_link():
    made = TransferCase("paper", LOGPROBS, 1000, 160, 1).plan(range(16))
    seconds = expected_seconds(made, LINK)
    # 160 rows of 4,000 bytes, of which 150 leave; 15 messages and 4 to agree.
    assert seconds["peers"] == pytest.approx(600_000 * 1.06 / 12.5e6 + 19e-3)
    # 15 hosts give the controller 640,000 bytes each, which gives as much back; twice 15 messages and 4 to agree.
    assert seconds["controller"] == pytest.approx(2 * 9_600_000 * 1.06 / 12.5e6 + 38e-3, rel=0.01)


def test_the_smallest_transfers_wait_for_messages():
    seconds = expected_seconds(TransferCase("small", LOGPROBS, 1, 16, 1).plan(range(16)), LINK)
    assert seconds == pytest.approx({"peers": 19e-3, "controller": 38e-3}, rel=0.01)


def test_a_transfer_between_two_of_many_does_not_wait_for_all():
    # Only 2 of 16 processes have anything for each other: a message there and back at once, and 4 messages to agree.
    assert expected_seconds(between(2, of=16), LINK)["peers"] == pytest.approx(5e-3, rel=0.01)


def between(count, of):
    """The first processes give each other a row each, the others nothing."""
    rows, pair = np.arange(count), range(count)
    leg = Leg(columns(LOGPROBS), spread(Layout(count), pair, rows))
    return plan(np.ones(count, np.int64), [leg], spread(Layout(count), pair, rows[::-1]), np.arange(of))


def test_processes_of_one_host_share_memory():
    made = TransferCase("replicas", LOGPROBS, 1000, 16, 1, tp=2).plan([0, 0, 1, 1])
    assert expected_seconds(made, LINK).keys() == {"controller", "shared"}


def test_a_message_takes_its_share_of_an_agreement():
    assert message_seconds(0.008, 16) == 0.002  # up two branches of a tree, and down again
    assert message_seconds(0.001, 1) == 0.001
