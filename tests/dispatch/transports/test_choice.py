"""Which transport is taken: the centralised one only where it is expected to be faster."""

import numpy as np

from earl.benchmarks.transfers import LOGPROBS, Case
from earl.dispatch.transports.choice import Link, choose, message_seconds


def test_large_transfers_go_directly_and_the_reason_is_told():
    made = Case("paper", LOGPROBS, 1000, 160, 1).plan(range(16))
    choice = choose(made, Link(12.5e6, 1e-3))
    assert choice.transport == "peers"
    # 160 rows of 4,000 bytes, of which 150 leave; 15 messages and 4 to agree.
    assert np.isclose(choice.seconds, 600_000 * 1.06 / 12.5e6 + 19 * 1e-3)
    # 15 hosts give the controller 640,000 bytes each, which gives as much back; 2 x (15 / 5 + 4) messages.
    assert np.isclose(choice.other_seconds, 2 * 9_600_000 * 1.06 / 12.5e6 + 2 * (3 + 4) * 1e-3, rtol=0.01)
    assert choice.reason.startswith("direct: 0.0699 s expected, centralised ")


def test_the_smallest_transfers_go_through_the_controller():
    # 16 rows of 4 bytes on each of 16 hosts: 19 messages after one another, against 2 x (15 / 5 + 4).
    choice = choose(Case("small", LOGPROBS, 1, 16, 1).plan(range(16)), Link(12.5e6, 3e-3))
    assert choice.transport == "controller"
    assert choice.reason == "centralised: 0.0422 s expected, direct 0.057 s"


def test_processes_of_one_host_share_memory():
    made = Case("replicas", LOGPROBS, 1000, 16, 1, tp=2).plan([0, 0, 1, 1])
    assert choose(made, Link(12.5e6, 1e-3)).transport == "shared"


def test_a_message_takes_its_share_of_an_agreement():
    assert message_seconds(0.008, 16) == 0.002  # four rounds
    assert message_seconds(0.001, 1) == 0.001
