"""A link that is slower than the transfer has time for."""

import numpy as np
import pytest

from earl.benchmarks.dispatch import LOGPROBS, TransferCase
from earl.benchmarks.processes import run, shaped
from earl.dispatch.rows import empty_shard
from earl.dispatch.transports.base import execute
from earl.errors import EarlError
from earl.rehearsal.plan import check_network


def transfer(seat, store, case, seconds):
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import join

    peers = join(FileStore(str(store), 2), seat.process, np.array(seat.hosts), seat.address, seconds)
    made = case.plan(seat.hosts)
    held = empty_shard(made.source, seat.process, made.lengths, made.columns)
    try:
        execute(made, seat.process, held, peers)
    except EarlError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.mark.slow
def test_a_slow_link_is_named(tmp_path):
    try:
        check_network()
    except EarlError as error:
        pytest.skip(str(error))
    # Two rows of 500,000 tokens each: 2 MB to each other, 16 s at 1 Mbit/s.
    case = TransferCase("paper", LOGPROBS, 500_000, 2, 1)
    with shaped(2, "1mbit") as cluster:
        said = run(cluster, [0, 1], transfer, tmp_path / "late", case, 5.0)
        assert (
            run(cluster, [0, 1], transfer, tmp_path / "patient", TransferCase("paper", LOGPROBS, 50_000, 2, 1), 60.0)
            == [("nothing", "")] * 2
        )
    for kind, message in said:
        assert kind == "PeerLost" and "(host " in message
        assert "did not do its part within 5 s" in message
