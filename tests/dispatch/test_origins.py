"""Messages for whole hosts hold what a host lacks once, and all consumers find their part in them."""

import numpy as np
from hypothesis import given, settings

from earl.dispatch.execute import keep, room
from earl.dispatch.plan import volume
from earl.dispatch.transports.base import pack, unpack
from earl.dispatch.transports.objects import among, from_origins, once
from tests.dispatch.simulated import filled, transfers


@settings(max_examples=100)
@given(transfers())
def test_one_message_per_producer_and_host_serves_all_consumers_there(transfer):
    direct, hosts = from_origins(transfer), transfer.hosts
    across = 0
    sent = {}
    for source in range(len(hosts)):
        held = [filled(leg, leg.source, source, transfer.lengths) for leg in transfer.legs]
        for host in set(hosts.tolist()):
            there = (direct.source == source) & (direct.destination != source) & (hosts[direct.destination] == host)
            pieces = once(direct.where(there))
            sent[source, host] = pieces, pack(pieces, transfer.legs, held)
            across += len(sent[source, host][1]) * (host != hosts[source])
    assert across == volume(transfer).across
    for process in range(len(hosts)):
        target = room(transfer, process)
        held = [filled(leg, leg.source, process, transfer.lengths) for leg in transfer.legs]
        keep(direct, process, transfer.legs, held, target)
        for source in range(len(hosts)):
            own = direct.where((direct.source == source) & (direct.destination == process))
            pieces, message = sent[source, int(hosts[process])]
            if source != process:
                unpack(message, pieces, transfer.legs, target, among(transfer, pieces, own))
        for leg in transfer.legs:
            whole = filled(leg, transfer.target, process, transfer.lengths)
            for column in leg.columns:
                assert np.array_equal(target[leg.axis].columns[column.name], whole.columns[column.name])
