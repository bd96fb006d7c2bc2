"""Rows, and how they are cut into micro-batches."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from earl.batch import Batch, Rows, bundles, chunks_by_tokens, distinct, offsets_of, repeats

LENGTHS = st.lists(st.integers(1, 300), max_size=40).map(lambda lengths: np.array(lengths, dtype=np.int64))


def batch_of(lengths):
    """A batch whose every column tells where its token stood."""
    total = int(sum(lengths))
    columns = {
        field.name: np.arange(total, dtype=np.float32) + shift
        for shift, field in enumerate(fields(Batch))
        if field.name != "offsets"
    }
    return Batch(offsets=offsets_of(lengths), **columns)


@given(LENGTHS)
def test_offsets_and_lengths_are_each_others_inverse(lengths):
    rows = batch_of(lengths)
    assert rows.num_rows == len(lengths)
    assert rows.lengths.tolist() == lengths.tolist()
    assert rows.offsets.dtype == np.int64


@given(st.data(), LENGTHS.filter(len))
def test_selecting_takes_every_column_of_the_chosen_rows(data, lengths):
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=20))
    batch = batch_of(lengths)
    part = batch.select(np.array(chosen, dtype=np.int64))
    assert type(part) is Batch
    assert part.lengths.tolist() == [lengths[row] for row in chosen]
    for field in fields(Batch):
        if field.name != "offsets":
            column = getattr(batch, field.name)
            expected = [column[batch.offsets[row] : batch.offsets[row + 1]].tolist() for row in chosen]
            assert getattr(part, field.name).tolist() == [value for values in expected for value in values]


def test_selecting_no_rows_gives_no_rows():
    part = batch_of([3, 4]).select(np.zeros(0, dtype=np.int64))
    assert (part.num_rows, len(part.tokens)) == (0, 0)
    assert part.offsets.tolist() == [0]


@given(LENGTHS, st.integers(1, 500))
def test_micro_batches_hold_every_row_once_and_stay_within_the_bound(lengths, bound):
    chunks = chunks_by_tokens(lengths, bound)
    assert sorted(row for rows in chunks for row in rows.tolist()) == list(range(len(lengths)))
    for rows in chunks:
        assert lengths[rows].sum() <= bound or len(rows) == 1


@given(LENGTHS.filter(len), st.integers(1, 500))
def test_no_two_neighbouring_micro_batches_would_fit_together(lengths, bound):
    chunks = chunks_by_tokens(lengths, bound)
    for first, second in pairwise(chunks):
        # One more row, at most as long as the longest here, would already have been too much.
        assert (len(first) + 1) * int(lengths[first].max()) > bound
        assert lengths[first].min() >= lengths[second].max()


def test_rows_without_the_columns_of_the_update_are_selected_alike():
    batch = batch_of([2, 3])
    rows = Rows(**{field.name: getattr(batch, field.name) for field in fields(Rows)})
    assert type(rows.select(np.array([1]))) is Rows


def rows_of(*texts, targets=None):
    """One row for each text, whose capital letters are learned from."""
    joined = "".join(texts)
    tokens = np.array([ord(letter.lower()) for letter in joined], np.int32)
    mask = np.array([letter.isupper() for letter in joined])
    aims = tokens if targets is None else np.array([ord(letter) for letter in targets], np.int32)
    return Rows(
        offsets_of([len(text) for text in texts]), tokens, mask, aims,
        np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32), np.zeros(len(tokens), np.bool_),
    )  # fmt: skip


def test_rows_that_a_pass_treats_alike_are_of_one_kind():
    first, kind = distinct(rows_of("abC", "xy", "abC", "ab", "abC", "xy"))
    assert first.tolist() == [0, 1, 3]
    assert kind.tolist() == [0, 1, 0, 2, 0, 1]


def test_rows_learned_at_other_places_or_with_other_targets_are_not_alike():
    assert distinct(rows_of("abC", "aBc"))[1].tolist() == [0, 1]
    assert distinct(rows_of("aB", "aB", targets="abac"))[1].tolist() == [0, 1]
    assert distinct(rows_of("ab", "a", "b"))[1].tolist() == [0, 1, 2]  # tokens are not read across rows


def test_repeated_elements_of_rows():
    # Rows hold the elements 0 1 | 2 | 3 4 5.
    assert repeats(np.array([2, 1, 3]), np.array([2, 0, 0])).tolist() == [3, 4, 5, 0, 1, 0, 1]
    assert repeats(np.array([0, 2]), np.array([0, 1, 0])).tolist() == [0, 1]


def test_micro_batches_are_cut_longest_first():
    # 12 alone, though it is more than 10; 6 and 4 fill one; 4 and 3 leave 3, of which 2 are taken.
    chunks = chunks_by_tokens(np.array([4, 12, 3, 6, 4, 2]), 10)
    assert [rows.tolist() for rows in chunks] == [[1], [3, 0], [4, 2, 5]]
    assert all(rows.dtype == np.int64 for rows in chunks)
    assert [rows.tolist() for rows in chunks_by_tokens(np.array([5, 5, 5]), 5)] == [[0], [1], [2]]
    assert chunks_by_tokens(np.zeros(0, np.int64), 10) == []


def test_neighbours_are_bundled_up_to_a_size():
    # 5 fills one; 3 and 1 leave 1, less than the 4 that follows; 9 is too large for any.
    assert [*bundles([5, 3, 1, 4, 9, 2], lambda item: item, 5)] == [[5], [3, 1], [4], [9], [2]]
    assert [*bundles([], len, 5)] == []


def test_marked_tokens_are_counted_by_row():
    rows = rows_of("aBC", "d", "EfGh")
    assert rows.per_row(rows.mask).tolist() == [2, 0, 2]
    assert rows.per_row(rows.mask).dtype == np.int64
    assert rows.select(np.zeros(0, np.int64)).per_row(np.zeros(0, np.bool_)).tolist() == []
    assert rows.num_turns == 1
    assert rows.select(np.zeros(0, np.int64)).num_turns == 0


def test_joined_rows_lie_end_to_end():
    first, second = rows_of("aB", "c"), rows_of("De")
    joined = Rows.joined([first, second])
    assert joined.offsets.tolist() == [0, 2, 3, 5]
    assert bytes(joined.tokens.tolist()) == b"abcde"
    assert joined.mask.tolist() == [False, True, False, True, False]
    assert type(Batch.joined([batch_of([2]), batch_of([3])])) is Batch


def test_kinds_are_counted_in_order():
    first, kind = distinct(rows_of("ab", "ab", "c"))
    assert (first.dtype, kind.dtype) == (np.int64, np.int64)
    assert (first.tolist(), kind.tolist()) == ([0, 2], [0, 0, 1])
    valued = rows_of("ab", "ab")
    valued.value_mask[0] = True  # a value is read in the first alone
    assert distinct(valued)[1].tolist() == [0, 1]
    assert distinct(valued.select(np.zeros(0, np.int64)))[0].tolist() == []
