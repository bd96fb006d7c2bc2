"""Whatever the layout: every number is given once, by a rank that has it, in buckets that are small and well filled."""

from itertools import chain, product

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.weights import (
    PIECES,
    SentWeights,
    Weight,
    WeightManifest,
    assemble,
    cut,
    holders,
    pack,
    plan_weights,
    regrouping,
)
from earl.parallel.layout import Box, Layout

KINDS = (torch.float32, torch.bfloat16, torch.int8)


@st.composite
def weights(draw, number: int):
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    axes = st.none() | st.integers(0, len(shape) - 1) if shape else st.none()
    return Weight(f"tensor {number}", shape, draw(st.sampled_from(KINDS)), draw(axes), draw(axes))


@st.composite
def plans(draw):
    """A plan: tensors of any shape, ranks of any layout, buckets of a few numbers."""
    sizes = st.sampled_from([1, 2, 3])
    layout = draw(st.builds(Layout, sizes, sizes, sizes))
    count, bucket_bytes = draw(st.integers(0, 5)), draw(st.integers(32, 300))
    everything = [draw(weights(number)) for number in range(count)]
    return plan_weights(everything, layout, bucket_bytes, draw(sizes)), bucket_bytes


def whole(weight: Weight) -> torch.Tensor:
    """A tensor in which all numbers differ from their neighbours."""
    count = int(np.prod(weight.shape))
    return (torch.arange(count) % 127 + len(weight.name)).reshape(weight.shape).to(weight.dtype)


def held(plan, rank: int) -> dict[str, torch.Tensor]:
    """What a rank has, as views of whole tensors, so that most do not lie together."""
    boxes = {weight.name: plan.layout.box(weight.shape, weight.axis, rank) for weight in plan.weights}
    return {weight.name: whole(weight)[boxes[weight.name].slices] for weight in plan.weights}


@given(plans())
def test_every_number_is_given_once_bit_for_bit_by_a_rank_that_has_it(made):
    plan, _ = made
    read = {weight.name: torch.zeros_like(whole(weight)) for weight in plan.weights}
    came = {weight.name: np.zeros(weight.shape, int) for weight in plan.weights}
    for rank in range(plan.layout.size):
        own = held(plan, rank)
        for bucket in plan.buckets:
            pieces = [piece for piece in bucket if piece.source == rank]
            message, begin = pack(plan, rank, pieces, own), 0
            assert len(message) == sum(piece.size for piece in pieces)
            for piece in pieces:
                weight = plan.weights[piece.weight]
                raw = torch.from_numpy(message[begin : begin + piece.size].copy())
                read[weight.name][piece.box.slices] = raw.view(read[weight.name].dtype).view(piece.box.shape)
                came[weight.name][piece.box.slices] += 1
                begin += piece.size
    assert all((count == 1).all() for count in came.values())
    assert all(torch.equal(read[weight.name], whole(weight)) for weight in plan.weights)
    assert sum(plan.sent_bytes()) == sum(whole(weight).nbytes for weight in plan.weights)


@given(plans())
def test_a_process_of_a_split_reader_takes_its_part_and_nothing_else(made):
    plan, _ = made
    for process in range(plan.readers):
        taken = 0
        came = {weight.name: np.zeros(weight.shape, bool) for weight in plan.weights}
        for piece in chain(*plan.buckets):
            if piece.reader in (0, process + 1):
                taken += piece.size
                came[plan.weights[piece.weight].name][piece.box.slices] = True
        for weight in plan.weights:
            needed = np.zeros(weight.shape, bool)
            axis = None if plan.readers == 1 else weight.reader_axis
            needed[Layout(tp=plan.readers).box(weight.shape, axis, process).slices] = True
            assert (came[weight.name] == needed).all()
        assert taken == sum(int(came[weight.name].sum()) * weight.dtype.itemsize for weight in plan.weights)


@given(plans(), st.integers(1, 3))
def test_sent_directly_each_process_of_each_reader_gets_its_parts_once(made, copies):
    plan, bucket_bytes = made
    told = SentWeights(WeightManifest(plan.weights, plan.layout, bucket_bytes, plan.readers), copies)
    ranks, sizes = plan.layout.size, [*told.exchanges()]
    given = [[*told.messages(rank, held(plan, rank))] for rank in range(ranks)]
    for number, own in enumerate(sizes):
        sent = {(rank, to): len(message) for rank in range(ranks) for to, message in given[rank][number].items()}
        assert sent == {(rank, to): own[rank, to] for rank, to in np.argwhere(own).tolist()}, "ranks give"
    for copy, reader in product(range(copies), range(1, plan.readers + 1)):
        process = ranks + copy * plan.readers + reader - 1
        buckets = [
            {rank: given[rank][number][process] for rank in range(ranks) if process in given[rank][number]}
            for number in range(len(plan.buckets))
        ]
        came = dict(assemble(plan, reader, buckets))
        for number, weight in enumerate(plan.weights):
            box = plan.weights[number].needed(reader, plan.readers)
            assert number in came if box.numbers else number not in came
            assert not box.numbers or torch.equal(came[number], whole(weight)[box.slices])


def test_numbers_are_cast_where_they_are_as_they_would_be_where_they_go():
    numbers = torch.randn(64, 48) * 10.0 ** torch.randint(-30, 30, (64, 48))
    numbers[0, :4] = torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8])  # the last two lie between two bfloat16
    plan = plan_weights([Weight("words", (64, 48), torch.bfloat16)], Layout(), 1 << 20)
    message = torch.from_numpy(pack(plan, 0, plan.buckets[0], {"words": numbers}))
    assert len(message) == 2 * numbers.numel(), "half of the bytes of float32"
    pieces = message.split([piece.size for piece in plan.buckets[0]])
    for piece, own in zip(plan.buckets[0], pieces, strict=True):
        cast = numbers[piece.box.slices].to(torch.bfloat16)
        assert own.view(torch.int16).equal(cast.flatten().view(torch.int16))


@given(plans(), st.randoms())
def test_regrouping_brings_every_number_once_to_its_owner(made, random):
    plan, piece_bytes = made
    owners = [random.randrange(plan.layout.size) for _ in plan.weights]
    came = {weight.name: np.zeros(weight.shape, int) for weight in plan.weights}
    for pieces in regrouping(plan.weights, owners, plan.layout, piece_bytes):
        for owner in range(plan.layout.size):
            received = [piece for piece in pieces if owners[piece.weight] == owner]
            assert len({piece.weight for piece in received}) <= 1, "of one tensor at a time"
            assert sum(piece.size for piece in received) <= plan.layout.size * piece_bytes
        for piece in pieces:
            weight = plan.weights[piece.weight]
            assert piece.size <= piece_bytes
            assert piece.box.common(plan.layout.box(weight.shape, weight.axis, piece.source)) == piece.box
            came[weight.name][piece.box.slices] += 1
    assert all((count == 1).all() for count in came.values())


@given(plans())
def test_no_bucket_is_larger_than_it_may_be(made):
    plan, bucket_bytes = made
    assert all(sum(piece.size for piece in bucket) <= bucket_bytes for bucket in plan.buckets)


def test_a_large_box_is_cut_into_pieces():
    # 5 x 6 numbers, at most 4 of them: a row has 6, so rows are cut into 4 + 2.
    pieces = cut(Box((1, 0), (5, 6)), 4)
    assert [piece.shape for piece in pieces] == [(1, 4), (1, 2)] * 5
    assert pieces[3] == Box((2, 4), (1, 2))


def test_tensors_of_a_few_bytes_share_a_bucket():
    # 100 norms of 16 numbers of 4 bytes: 6,400 bytes fit into one bucket of 8 KiB.
    plan = plan_weights([Weight(f"norm {number}", (16,), torch.float32) for number in range(100)], Layout(), 8192)
    assert len(plan.buckets) == 1
    assert plan.sent_bytes() == [6400]


def test_buckets_are_well_filled_and_every_rank_gives_a_part_of_each():
    # 64 MiB over dp 2 x tp 2 in buckets of 1 MiB, of which pieces leave at most an eighth empty.
    layout = Layout(2, 2)
    plan = plan_weights(
        [Weight(f"matrix {number}", (4096, 512), torch.bfloat16, 1) for number in range(16)], layout, 1 << 20
    )
    assert plan.sent_bytes() == [16 << 20] * 4
    assert 64 <= len(plan.buckets) <= 64 * PIECES // (PIECES - 1) + 1
    assert all({piece.source for piece in bucket} == {0, 1, 2, 3} for bucket in plan.buckets)


def test_ranks_that_hold_a_part_alike_share_the_giving():
    # 32 tensors of 1 KiB that are not split lie on a tensor-parallel group of four: each gives eight of them.
    same = [Weight(f"vector {number}", (256,), torch.float32) for number in range(32)]
    assert [*holders(same[0], Layout(tp=4)).values()] == [[0, 1, 2, 3]]
    assert plan_weights(same, Layout(tp=4), 1 << 20).sent_bytes() == [8 << 10] * 4


def test_a_model_of_72_billion_is_planned():
    # Qwen2.5-72B in bf16 over dp 8 x tp 8: every rank gives a 64th of it, to a thousandth.
    def layer(number: int) -> list[Weight]:
        split = {"q": (8192, 8192), "k": (1024, 8192), "v": (1024, 8192), "gate": (29568, 8192), "up": (29568, 8192)}
        rows = [Weight(f"{number}.{name}", shape, torch.bfloat16, 0) for name, shape in split.items()]
        across = [
            Weight(f"{number}.o", (8192, 8192), torch.bfloat16, 1),
            Weight(f"{number}.down", (8192, 29568), torch.bfloat16, 1),
        ]
        return [
            *rows,
            *across,
            Weight(f"{number}.norm", (8192,), torch.bfloat16),
            Weight(f"{number}.other norm", (8192,), torch.bfloat16),
        ]

    words = [Weight("embeddings", (152064, 8192), torch.bfloat16, 0), Weight("head", (152064, 8192), torch.bfloat16, 0)]
    everything = [*words, *(weight for number in range(80) for weight in layer(number))]
    plan = plan_weights(everything, Layout(8, 8), 1 << 28)
    total = sum(2 * int(np.prod(weight.shape)) for weight in everything)
    each = plan.sent_bytes()
    assert sum(each) == total
    assert max(each) <= 1.001 * total / 64
    assert len(plan.buckets) <= (total >> 28) * PIECES / (PIECES - 1) + 1
