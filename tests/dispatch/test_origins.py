"""Messages for whole hosts hold what a host lacks once, and all consumers find their part in them."""

import numpy as np
from hypothesis import given

from earl.dispatch.plan import volume
from earl.dispatch.rows import empty
from earl.dispatch.transports.base import keep, pack, unpack
from earl.dispatch.transports.objects import once, places
from tests.dispatch.simulated import filled, transfers


@given(transfers())
def test_one_message_per_producer_and_host_serves_all_consumers_there(transfer):
    pieces, hosts = transfer.pieces, transfer.hosts
    across = 0
    sent = {}
    for source in range(len(hosts)):
        held = filled(transfer, transfer.source, source)
        for host in set(hosts.tolist()):
            there = (pieces.origin == source) & (pieces.destination != source) & (hosts[pieces.destination] == host)
            offered = once(transfer, pieces.where(there))
            sent[source, host] = offered, pack(offered, transfer.columns, held)
            across += len(sent[source, host][1]) * (host != hosts[source])
    assert across == volume(transfer).across
    for process in range(len(hosts)):
        target = empty(transfer.target, process, transfer.lengths, transfer.columns)
        keep(transfer, process, filled(transfer, transfer.source, process), target)
        for source in range(len(hosts)):
            own = pieces.where((pieces.origin == source) & (pieces.destination == process))
            offered, message = sent[source, int(hosts[process])]
            if source != process:
                wanted = np.isin(places(transfer, offered), places(transfer, own))
                unpack(message, offered, transfer.columns, target, wanted)
        whole = filled(transfer, transfer.target, process)
        for name in transfer.columns:
            assert np.array_equal(target.columns[name], whole.columns[name])
