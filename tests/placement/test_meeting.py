"""What processes that have just met find out about the links between them."""

import numpy as np
import pytest

from earl.benchmarks.hosts import run
from earl.placement.ray.exchange_member import measured

HOSTS = (0, 1, 1, 0)


def meeting(seat, store, hosts):
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import join

    peers = join(FileStore(str(store), len(hosts)), seat.process, np.array(hosts), seat.address, 20.0)
    link = measured(peers, seat.process, np.array(hosts, np.int32))
    peers.close()
    return link


@pytest.mark.slow
def test_links_between_hosts_are_measured_and_there_are_none_on_one(tmp_path):
    for link in run(None, HOSTS, meeting, tmp_path / "store", HOSTS):
        assert 0 < link.bytes_per_second < 1e12 and 0 < link.message_seconds < 1
    for link in run(None, (0, 0), meeting, tmp_path / "other", (0, 0)):
        assert link.bytes_per_second == float("inf") and 0 < link.message_seconds < 1
