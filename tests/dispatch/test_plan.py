"""Whatever the layouts: everybody gets exactly what it needs, and no byte more is moved than has to be."""

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.plan import ACROSS, INSIDE, Segments, Volume, _pick, _turns, plan, volume
from earl.dispatch.rows import Work, balance, columns, even_counts, spread, token_bytes
from earl.parallel.layout import Layout
from tests.dispatch.simulated import carried_out, filled, transfers


def cells(where, process, lengths):
    """The (row, token) that a process holds, one by one, from the definition of a layout."""
    layout, found = where.layout, set()
    for rank, own in enumerate(where.processes.reshape(-1).tolist()):
        part, cut = rank // (layout.tp * layout.cp), rank // layout.tp % layout.cp
        for row in np.flatnonzero(where.parts == part).tolist() if own == process else []:
            size = -(-int(lengths[row]) // layout.cp)
            found |= {(row, token) for token in range(cut * size, min(cut * size + size, int(lengths[row])))}
    return found


def needs(transfer):
    """What each process has, and what it needs."""
    return [
        [cells(where, process, transfer.lengths) for process in range(len(transfer.hosts))]
        for where in (transfer.source, transfer.target)
    ]


@given(transfers())
def test_everybody_gets_what_it_lacks_once_and_nothing_else(transfer):
    own, (have, wanted), came = transfer.pieces, needs(transfer), Counter()
    held = [set(tokens) for tokens in have]
    order = np.argsort(own.hop, kind="stable")
    for index in order.tolist():
        source, to = int(own.source[index]), int(own.destination[index])
        sent = {(int(own.row[index]), token) for token in range(own.start[index], own.stop[index])}
        assert sent <= have[source], "it sends what it has"
        assert sent <= held[own.origin[index]], "it comes from its producer"
        came.update((to, cell) for cell in sent)
        have[to] |= sent
    assert all(count == 1 for count in came.values())
    assert {cell for cell, _ in came.items()} == {(p, cell) for p, tokens in enumerate(wanted) for cell in tokens}


@given(transfers())
def test_bytes_are_at_the_lower_bound(transfer):
    moved = volume(transfer)
    hosts = transfer.hosts.tolist()
    least, size, (held, wanted) = {}, token_bytes(transfer.columns), needs(transfer)
    for host in set(hosts):
        here = [process for process, own in enumerate(hosts) if own == host]
        has = set().union(*(held[process] for process in here))
        least[host] = size * len(set().union(*(wanted[process] for process in here)) - has)
    lacking = size * sum(len(w - h) for w, h in zip(wanted, held, strict=True))
    assert {host: int(moved.received[host]) for host in set(hosts)} == least
    assert moved.received.tolist() == moved.least.tolist()
    assert moved.across + int(moved.inside.sum()) == lacking
    assert moved.bound <= moved.busiest


def test_what_only_one_host_has_sets_the_bound_too():
    # Process 0 has 3 rows of 100 tokens, process 1 has 1; processes 2 and 3 get 2 each: 1,200 bytes leave host 0.
    lengths, source = np.full(4, 100), spread(Layout(2), [0, 1], [0, 0, 0, 1])
    target = spread(Layout(2), [2, 3], [0, 0, 1, 1])
    moved = volume(plan(lengths, columns(["logprobs"]), source, target, np.arange(4)))
    assert moved.owed.tolist() == [1200, 400, 0, 0] and moved.least.tolist() == [0, 0, 800, 800]
    assert moved.bound == moved.busiest == 1200


@given(transfers())
def test_the_result_is_that_of_gathering_and_scattering(transfer):
    results, log = carried_out(transfer, checksums=False)
    for process, shard in results.items():
        whole = filled(transfer, transfer.target, process)
        assert shard.rows.tolist() == whole.rows.tolist()
        for name in transfer.columns:
            assert shard.columns[name].tobytes() == whole.columns[name].tobytes()
    moved = volume(transfer)
    assert sum(size for _, _, size in log) == moved.across + int(moved.inside.sum())


def test_replicas_on_several_hosts_share_the_sending():
    # 40 rows of 100 tokens lie on processes 0 to 3, each on a host of its own; process 4 needs all of them.
    lengths = np.full(40, 100)
    source, target = spread(Layout(tp=4), range(4), np.zeros(40)), spread(Layout(), [4], np.zeros(40))
    moved = volume(plan(lengths, columns(["logprobs"]), source, target, np.arange(5)))
    assert moved.sent.tolist() == [4000, 4000, 4000, 4000, 0]
    assert moved.received.tolist() == [0, 0, 0, 0, 16_000]


def test_one_copy_crosses_the_link_for_eight_ranks_of_a_host():
    # One row of 1,000 tokens from host 0 to the tp group of 8 on host 1: 4,000 bytes over the link, 7 x 4,000 inside.
    source, target = spread(Layout(), [0], [0]), spread(Layout(tp=8), range(1, 9), [0])
    made = plan(np.array([1000]), columns(["logprobs"]), source, target, np.array([0, *[1] * 8]))
    moved = volume(made)
    assert (moved.across, moved.inside.tolist(), moved.copies) == (4000, [0, 28_000], 32_000)
    assert [*made.hops] == [0, 1]


def test_what_each_process_gives_and_gets():
    # As above: the first of the tp group gets the row, and hands it on.
    source, target = spread(Layout(), [0], [0]), spread(Layout(tp=8), range(1, 9), [0])
    made = plan(np.array([1000]), columns(["logprobs"]), source, target, np.array([0, *[1] * 8]))
    across, inside = np.zeros((9, 9), int), np.zeros((9, 9), int)
    across[0, 1] = inside[1, 2:] = 4000
    assert [table.tolist() for table in made.sizes] == [across.tolist(), inside.tolist()]
    assert all(table.dtype == np.int64 for table in made.sizes)
    assert made.bytes.tolist() == [4000] * 8
    assert [len(made.of(process, ACROSS)) for process in range(4)] == [1, 1, 0, 0]
    assert [len(made.of(process, INSIDE)) for process in range(4)] == [0, 7, 1, 1]
    assert made.of(3, INSIDE).tokens.tolist() == [1000]
    assert made.of(3, INSIDE).origin.tolist() == [0]


def test_nothing_to_move_takes_no_hop():
    made = plan(
        np.zeros(0, int), columns(["logprobs"]), spread(Layout(), [0], []), spread(Layout(), [0], []), np.zeros(1, int)
    )
    assert ([*made.hops], made.sizes, len(made.pieces)) == ([], [], 0)
    moved = volume(made)
    assert (moved.across, moved.busiest, moved.bound, moved.total, moved.copies) == (0, 0, 0, 0, 0)


def test_kept_tokens_are_no_messages():
    # Process 0 keeps the first row, and gets the second from process 1 on the same host.
    source, target = spread(Layout(2), [0, 1], [0, 1]), spread(Layout(), [0], [0, 0])
    made = plan(np.array([30, 20]), columns(["logprobs"]), source, target, np.zeros(2, int))
    assert [table.tolist() for table in made.sizes] == [[[0, 0], [80, 0]]]
    moved = volume(made)
    assert (moved.inside.tolist(), moved.across, moved.total, moved.copies) == ([80], 0, 200, 200)
    assert (moved.least.tolist(), moved.owed.tolist()) == ([0], [0])


def test_the_busiest_link_and_its_bound():
    own = Volume(*(np.array(column) for column in ([3, 9], [7, 5], [1, 1], [6, 2], [4, 8])), total=20, copies=30)
    assert (own.across, own.busiest, own.bound) == (12, 9, 8)
    received = Volume(*(np.array(column) for column in ([3, 1], [7, 5], [1, 1], [6, 2], [4, 1])), total=20, copies=30)
    assert (received.busiest, received.bound) == (7, 6)


def test_holders_take_turns_the_largest_first():
    tokens = np.array([5, 9, 3, 7])
    nothing = np.zeros(4, int)
    segments = Segments(nothing, nothing, tokens, np.array([[0], [0], [1], [0]]), np.zeros((4, 1), int))
    assert _turns(segments).tolist() == [2, 0, 0, 1]
    offered = np.array([[True, False, True, True]] * 4 + [[False] * 4])
    assert _pick(offered, np.array([0, 1, 2, 3, 2])).tolist() == [0, 2, 3, 0, 0]


def test_a_thousand_ranks_are_planned_in_a_moment():
    # 512 producers (dp 64 x tp 8), 512 consumers (dp 128 x tp 4) on 128 hosts of 8, 16,384 rows.
    random = np.random.default_rng(0)
    lengths = random.integers(100, 32_768, 16_384)
    source = spread(Layout(64, 8), range(512), random.integers(0, 64, 16_384))
    target = spread(Layout(128, 4), range(512, 1024), random.integers(0, 128, 16_384))
    begin = time.process_time()
    made = plan(lengths, columns(["tokens", "logprobs"]), source, target, np.arange(1024) // 8)
    spent = time.process_time() - begin
    assert len(made.pieces) == 16_384 * 4
    assert volume(made).across == int(lengths.sum()) * 8
    print(f"planned in {spent:.2f} s")


@pytest.mark.parametrize(("work", "most"), [(Work(), 1e-4), (Work(1.0, 1 / 8192), 1e-4)], ids=["tokens", "attention"])
def test_rows_dealt_by_work_leave_hardly_any_excess(work, most):
    # 10,000 log-normal rows over 32 consumers; equally many rows give the slowest one a fifth more than the mean.
    lengths = np.random.default_rng(0).lognormal(7, 1, 10_000).astype(np.int64) + 1
    costs = work.of(lengths)
    by_work, by_count = (
        np.bincount(dealt, weights=costs, minlength=32) for dealt in (balance(costs, 32), even_counts(10_000, 32))
    )
    assert by_work.max() / by_work.mean() - 1 < most
    assert by_count.max() / by_count.mean() - 1 > 0.15


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 6))
def test_parts_differ_by_at_most_one_row(lengths, parts):
    # The last row put on the heaviest part was put there when that part was the lightest.
    work = np.array(lengths, np.float64)
    dealt = balance(work, parts)
    assert len(dealt) == len(lengths) and dealt.max() < parts
    loads = np.bincount(dealt, weights=work, minlength=parts)
    assert loads.max() - loads.min() <= work.max()


def test_rows_are_dealt_longest_first_each_to_the_lightest():
    # 9 to the first, 7 to the second, 5 to the second (12), 4 to the first (13), 4 to the second, 1 to the first.
    assert balance(np.array([4.0, 9.0, 1.0, 7.0, 4.0, 5.0]), 2).tolist() == [0, 0, 0, 1, 1, 1]
    assert balance(np.array([3.0]), 3).tolist() == [0]
    assert balance(np.zeros(0), 3).tolist() == []
