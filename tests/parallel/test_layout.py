"""Which part of a tensor every process holds."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.parallel.layout import Box, Layout, chunk, whole

LAYOUTS = st.builds(Layout, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
SHAPES = st.lists(st.integers(1, 17), min_size=1, max_size=3).map(tuple)


@settings(deadline=None)  # how long torch takes is not the question
@given(LAYOUTS, SHAPES, st.sampled_from([None, 0, 1, 2]))
def test_parts_that_are_kept_cover_a_tensor_once(layout, shape, axis):
    axis = None if axis is None or axis >= len(shape) else axis
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


def test_boxes_that_only_touch_have_nothing_in_common():
    assert Box((0, 0), (2, 4)).common(Box((2, 0), (2, 4))) is None
    assert Box((), ()).common(Box((), ())) == Box((), ())
