"""Whatever the layouts: every box is filled once with the right numbers, in buckets, and no byte more is moved."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from earl.dispatch.weights import PIECES, Copies, Weight, cut, extra_bytes, plan_weights
from earl.errors import EarlError
from earl.parallel.layout import Box, Layout
from tests.dispatch.weights import carried_out, transfers, whole


def cells(weight, axis, side, process):
    """The numbers of a tensor that a process holds, one by one, from the definition of a layout."""
    box = side.box(weight.shape, axis, process)
    return set() if box is None else {*np.arange(whole(weight).numel()).reshape(weight.shape)[box.slices].flat}


def needs(transfer):
    """By tensor: what each process has, and what it needs."""
    for weight in transfer.weights:
        processes = range(len(transfer.hosts))
        having = [cells(weight, weight.given, transfer.source, process) for process in processes]
        yield weight, having, [cells(weight, weight.wanted, transfer.target, process) for process in processes]


@settings(max_examples=200)
@given(transfers())
def test_every_box_is_filled_once_and_nothing_else_is_sent(transfer):
    came = [Counter() for _ in transfer.weights]
    have = [[set(cells) for cells in having] for _, having, _ in needs(transfer)]
    moves = [move for process in range(len(transfer.hosts)) for bucket in transfer.of(process) for move in bucket]
    for move in sorted({*moves}, key=lambda move: move.hop):
        weight = transfer.weights[move.weight]
        sent = {*np.arange(whole(weight).numel()).reshape(weight.shape)[move.box.slices].flat}
        assert sent <= have[move.weight][move.source], "it sends what it has"
        assert move.size == len(sent) * weight.number_bytes
        came[move.weight].update((move.destination, cell) for cell in sent)
        have[move.weight][move.destination] |= sent
    for (_, _, wanted), got in zip(needs(transfer), came, strict=True):
        assert got == Counter((process, cell) for process, cells in enumerate(wanted) for cell in cells)


@settings(max_examples=200)
@given(transfers())
def test_bytes_are_at_the_lower_bound(transfer):
    moved, hosts = transfer.volume(), transfer.hosts.tolist()
    least, lacking = Counter(), 0
    for weight, having, wanted in needs(transfer):
        for host in set(hosts):
            here = [process for process, own in enumerate(hosts) if own == host]
            has = set().union(*(having[process] for process in here))
            least[host] += weight.number_bytes * len(set().union(*(wanted[process] for process in here)) - has)
        lacking += weight.number_bytes * sum(len(w - h) for w, h in zip(wanted, having, strict=True))
    assert {host: int(moved.received[host]) for host in set(hosts)} == {host: least[host] for host in set(hosts)}
    assert moved.received.tolist() == moved.least.tolist()
    assert moved.across + int(moved.inside.sum()) == lacking


@settings(max_examples=60)
@given(transfers())
def test_numbers_arrive_bit_for_bit_within_a_bucket_of_memory(transfer):
    results, log = carried_out(transfer)
    for process, tensors in results.items():
        for weight in transfer.weights:
            box = transfer.target.box(weight.shape, weight.wanted, process)
            assert (box is None) == (weight.name not in tensors)
            if box is not None:
                assert torch.equal(tensors[weight.name], whole(weight)[box.slices])
    moved = transfer.volume()
    assert sum(size for _, _, size in log) == moved.across + int(moved.inside.sum())
    assert (extra_bytes(transfer) <= transfer.bucket_bytes).all()


def test_a_large_box_is_cut_into_pieces():
    # 5 x 6 numbers, at most 4 of them: a row has 6, so rows are cut into 4 + 2.
    pieces = cut(Box((1, 0), (5, 6)), 4)
    assert [piece.shape for piece in pieces] == [(1, 4), (1, 2)] * 5
    assert pieces[3] == Box((2, 4), (1, 2))


def test_tensors_of_a_few_bytes_share_a_bucket():
    # 100 norms of 16 numbers of 4 bytes: 6,400 bytes from one process to another fit into one bucket of 8 KiB.
    norms = [Weight(f"norm {number}", (16,), 4) for number in range(100)]
    made = plan_weights(norms, Copies(Layout(), ((0,),)), Copies(Layout(), ((1,),)), [0, 1], 8192)
    assert (made.num_buckets, int(made.volume().across)) == (1, 6400)


def test_buckets_are_well_filled():
    # 64 MiB over dp 4 to dp 2 x tp 2 on the same processes: every process sends and receives 12 MiB of its 16.
    # Rank 0 has rows 0 to 1023, and needs the left half of rows 0 to 2047: it keeps 1/2 of its own, sends 1/2, ...
    weights = [Weight(f"matrix {number}", (4096, 512), 2, 1, 1) for number in range(16)]
    grid = ((0, 1, 2, 3),)
    made = plan_weights(weights, Copies(Layout(4), grid), Copies(Layout(2, 2), grid), [0, 1, 2, 3], 1 << 20)
    moved = made.volume()
    assert moved.received.tolist() == moved.sent.tolist() == [8 << 20] * 4
    # Sent, received and kept: 8 + 8 + 8 MiB in buckets of 1 MiB, of which pieces leave at most an eighth empty.
    assert 24 <= made.num_buckets <= 24 * PIECES // (PIECES - 1) + 1


def test_replicas_share_the_sending():
    # 32 tensors of 1 KiB that are not split lie on a tensor-parallel group of four: each sends eight of them.
    weights = [Weight(f"vector {number}", (256,), 4) for number in range(32)]
    source = Copies(Layout(tp=4), ((0, 1, 2, 3),))
    made = plan_weights(weights, source, Copies(Layout(), ((4,),)), range(5), 1 << 20)
    assert made.volume().sent.tolist() == [8 << 10] * 4 + [0]


def test_one_copy_crosses_the_link_for_two_samplers_of_a_host():
    # 1 KiB from one host to two samplers of two devices each on another one: each half once over the link, once inside.
    weights = [Weight("matrix", (16, 16), 4, 0, 0)]
    target = Copies(Layout(tp=2), ((1, 2), (3, 4)))
    made = plan_weights(weights, Copies(Layout(), ((0,),)), target, [0, 1, 1, 1, 1], 1 << 20)
    moved = made.volume()
    assert (moved.across, moved.inside.tolist(), made.num_buckets) == (1024, [0, 1024], 2)


def test_a_bucket_without_room_is_refused():
    one = Copies(Layout(), ((0,),))
    with pytest.raises(EarlError, match="a bucket of 16 bytes has no room for 8 numbers of 4 bytes"):
        plan_weights([Weight("vector", (9,), 4)], one, one, [0], 16)


def test_a_model_of_72_billion_is_planned_for_eight_samplers():
    # Qwen2.5-72B in bf16 from dp 8 x tp 8 on 8 hosts to a sampler of tp 8 on each of 8 others: 370,000 ways.
    def layer(number: int) -> list[Weight]:
        split = {"q": (8192, 8192), "k": (1024, 8192), "v": (1024, 8192), "gate": (29568, 8192), "up": (29568, 8192)}
        rows = [Weight(f"{number}.{name}", shape, 2, 0, 0) for name, shape in split.items()]
        across = [Weight(f"{number}.o", (8192, 8192), 2, 1, 1), Weight(f"{number}.down", (8192, 29568), 2, 1, 1)]
        return [*rows, *across, Weight(f"{number}.norm", (8192,), 2), Weight(f"{number}.other norm", (8192,), 2)]

    words = [Weight("embeddings", (152064, 8192), 2, 0, 0), Weight("head", (152064, 8192), 2, 0, 0)]
    weights = [*words, *(weight for number in range(80) for weight in layer(number))]
    source = Copies(Layout(8, 8), (tuple(range(64)),))
    target = Copies(Layout(tp=8), tuple(tuple(range(64 + 8 * copy, 72 + 8 * copy)) for copy in range(8)))
    made = plan_weights(weights, source, target, np.arange(128) // 8, 1 << 30)
    moved = made.volume()
    # Every sampler host has to get the model once; the learner's hosts share the sending of eight copies.
    assert moved.received.tolist() == [0] * 8 + [moved.total] * 8
    assert moved.busiest == moved.bound == moved.total
    assert (extra_bytes(made) <= 1 << 30).all()
