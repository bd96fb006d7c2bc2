"""Which part of a tensor every process holds."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.parallel.layout import EXPERTS, Box, Layout, chunk, whole

SIZES = st.integers(1, 3)
LAYOUTS = st.one_of(
    st.builds(Layout, st.integers(1, 5), st.integers(1, 5), SIZES),
    st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES).map(lambda n: Layout(n[0] * n[3] * n[4], *n[1:])),
)
SHAPES = st.lists(st.integers(1, 17), min_size=1, max_size=3).map(tuple)


@settings(deadline=None)  # how long torch takes is not the question
@given(LAYOUTS, SHAPES, st.sampled_from([None, 0, 1, 2, EXPERTS]))
def test_parts_that_are_kept_cover_a_tensor_once(layout, shape, axis):
    axis = None if axis not in (EXPERTS, *range(len(shape))) else axis
    count = torch.zeros(shape)
    for rank in range(layout.size):
        if layout.keeps(axis, rank):
            count[layout.box(shape, axis, rank).slices] += 1
    assert (count == 1).all()


@given(st.integers(1, 40), st.integers(1, 9))
def test_parts_are_those_of_torch(length, parts):
    theirs = [part.tolist() for part in torch.arange(length).chunk(parts)]
    ours = [list(range(start, start + size)) for start, size in (chunk(length, parts, own) for own in range(parts))]
    assert ours == theirs + [[]] * (parts - len(theirs))


@given(LAYOUTS, LAYOUTS, SHAPES)
def test_what_two_layouts_have_in_common_puts_a_tensor_together_again(old, new, shape):
    numbers = torch.arange(whole(shape).numbers).view(shape)
    for rank in range(new.size):
        wanted = new.box(shape, 0, rank)
        read = torch.full(wanted.shape, -1)
        for other in range(old.size):
            held = old.box(shape, len(shape) - 1, other)
            if old.keeps(0, other) and (common := held.common(wanted)):
                read[common.inside(wanted)] = numbers[held.slices][common.inside(held)]
        assert torch.equal(read, numbers[wanted.slices])


def test_experts_of_a_layer_over_a_host_and_its_replica():
    # 8 experts, 2 replicas of 4 ranks, of which two neighbours are an ep group: 4 experts each, sharded over 2 ranks.
    layout = Layout(4, 2, ep=2, replicas=2)
    assert (layout.shards, layout.expert_shards) == (2, 2)
    assert [layout.box((8, 3), EXPERTS, rank).offset[0] for rank in range(8)] == [0, 4, 2, 6, 0, 4, 2, 6]
    assert [layout.keeps(EXPERTS, rank) for rank in range(8)] == [True] * 4 + [False] * 4


def test_boxes_that_only_touch_have_nothing_in_common():
    assert Box((0, 0), (2, 4)).common(Box((2, 0), (2, 4))) is None
    assert Box((), ()).common(Box((), ())) == Box((), ())
