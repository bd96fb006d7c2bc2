"""Prompts that wait for each other: all of them come, none too large together, in as few waves as there can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.engine.local import need, waves
from earl.errors import EarlError
from earl.trajectory import Prompt


def test_a_prompt_needs_room_for_itself_and_its_reply():
    assert need(Prompt(session=0, tokens=[5] * 31, seed=1, max_tokens=4)) == 35


def test_where_all_fit_they_go_together_in_their_order():
    assert waves([3, 9, 4], room=27) == [[0, 1, 2]]  # 3 slots of 9


def test_prompts_of_like_length_go_together():
    # 100 by itself; then 40 and 30, two slots of 40; the next three of 25 and less; 80 of 100 would be left each time.
    assert waves([25, 40, 100, 10, 30, 20], room=100) == [[2], [1, 4], [0, 3, 5]]


def test_what_does_not_fit_by_itself_is_refused_with_a_cure():
    with pytest.raises(EarlError, match=r"for 11 tokens, and sampler\.kv_cache_gib has room for 10; raise it, split"):
        waves([4, 11], room=10)


@given(st.lists(st.integers(1, 60), max_size=9), st.integers(60, 200))
def test_every_prompt_comes_once_and_no_wave_is_too_large(needs, room):
    planned = waves(needs, room)
    assert sorted(number for wave in planned for number in wave) == [*range(len(needs))]
    assert all(wave == sorted(wave) for wave in planned)
    assert all(len(wave) * max(needs[number] for number in wave) <= room for wave in planned)
    assert len(planned) == fewest(sorted(needs, reverse=True), room)


def fewest(needs, room):
    """By trying: a wave of neighbours by length is as good as any other of its size."""
    if not needs:
        return 0
    return 1 + min(fewest(needs[size:], room) for size in range(1, len(needs) + 1) if size * needs[0] <= room)
