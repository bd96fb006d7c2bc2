"""Tokens that are split over processes: every one once, evenly, and with the numbers of one process."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earl.algorithms.registry import algorithm
from earl.batch import Batch, offsets_of
from earl.benchmarks.layouts import _alone, _learner, free_port
from earl.benchmarks.processes import run
from earl.config import AlgorithmConfig
from earl.engine.attention import spans
from earl.engine.learner import Update
from earl.engine.sampler import NOTHING_CUT, Truncation
from earl.engine.score import _bounds, _piece
from earl.parallel.layout import Layout
from tests.sampling import sampled

CPU = torch.device("cpu")


@given(st.integers(1, 60), st.integers(1, 5))
def test_every_token_is_in_one_piece(total, size):
    tokens = [token for rank in range(size) for bounds in _bounds(total, size, rank) for token in range(*bounds)]
    assert sorted(tokens) == [*range(total)]


def test_work_is_even():
    # A row of 1,024 tokens over 4 processes, 8 pieces of 128. Token t attends to t + 1 tokens, 1 + … + 1,024 = 524,800
    # in all: each process has 131,200 of them, where the last quarter of the row would be 229,504.
    for rank in range(4):
        assert sum(token + 1 for bounds in _bounds(1024, 4, rank) for token in range(*bounds)) == 131_200


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 3))
def test_pieces_attend_to_what_their_rows_do(lengths, size, seed):
    total, generator = sum(lengths), torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(total, heads, 8, generator=generator) for heads in (4, 2, 2))
    rows = spans(tuple(lengths), CPU)
    whole = rows.attended(query, key, value, None)
    for start, stop in (bounds for rank in range(size) for bounds in _bounds(total, size, rank)):
        if start < stop:
            first, piece = _piece(rows, start, stop)
            known = slice(first, stop)
            own = piece.attended(query[start:stop], key[known], value[known], None)
            assert torch.allclose(own, whole[start:stop], atol=1e-5)


CLOSE = 5e-5
"""Adam makes a step of the same length of a gradient that is nothing but rounding: tp 2 alone is 1.1e-5 away here."""


def made(lengths, seed):
    """A batch of rows in which every token but the first is learned, and a value is read before the second."""
    rng, size = np.random.default_rng(seed), sum(lengths)
    offsets = offsets_of(np.array(lengths))
    mask, ends, turns = np.ones(size, bool), np.zeros(size, bool), np.full(size, -1, np.int32)
    for row, start in enumerate(offsets[:-1]):
        mask[start], ends[start] = False, lengths[row] > 1
        turns[start + 1 : offsets[row + 1]] = row
    tokens = rng.integers(0, 100, size).astype(np.int32)
    noise, worth, returns = rng.normal(size=(3, size)).astype(np.float32)
    return Batch(
        *(offsets, tokens, mask, tokens, (-4.6 + 0.1 * noise) * mask, turns, ends),
        *(worth * mask, worth * 0, returns * ends, worth * 0),
    )


BATCHES = ([100], [1, 37, 1, 5, 60, 2, 1], [90, 1], [2], [1, 1], [3, 3, 3, 3, 3, 3, 3])
"""A row over all pieces; rows that end and begin within pieces; fewer tokens than pieces, and nothing to learn."""


def learned(learner, truncation):
    """Log-probs, those of the reference, values, statistics and weights, batch by batch."""
    found, learner._truncation = [], truncation
    for seed, lengths in enumerate(BATCHES):
        batch = made(lengths, seed)
        reference = learner.logprobs(batch, reference=True)
        batch.reference[batch.mask] = reference[batch.mask]
        read = [reference, learner.logprobs(batch), learner.values(batch)]
        update = Update(1e-3, entropy=0.01, minibatches=2, epochs=1, seed=seed, config=AlgorithmConfig(kl=0.1))
        stats = learner.update(batch, algorithm("ppo"), update)
        found.append([*read, np.array([stats[name] for name in sorted(stats)])])
    weights = {name: tensor.numpy().copy() for name, tensor in learner.weights().items()}
    return found, weights


def ours(seat, layout, case, truncation, port):
    from earl.engine.sharding.mesh import joined_mesh
    from earl.engine.sharding.shards import Shards

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    with joined_mesh(seat.process, layout, seat.address, port) as mesh:
        return learned(_learner(case, Shards(mesh)), truncation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "recompute", "truncation"),
    sampled(
        [
            (Layout(2, 1, 2), True, NOTHING_CUT),
            (Layout(cp=2), True, NOTHING_CUT),
            (Layout(cp=4), False, NOTHING_CUT),
            (Layout(1, 2, 2), False, NOTHING_CUT),
            (Layout(1, 2, 1), False, Truncation(0.9, 40)),  # the vocabulary is split, and cut as a whole
        ],
        every=2,
    ),
    ids=str,
)
def test_numbers_are_those_of_one_process(layout, recompute, truncation):
    case = {"recompute": recompute}
    told = run(None, (0,) * layout.size, ours, layout, case, truncation, free_port())
    expected, weights = learned(_alone(case), truncation)
    for found, _ in told:
        for own, other in zip(found, expected, strict=True):
            assert max(np.abs(a - b).max(initial=0) for a, b in zip(own, other, strict=True)) < CLOSE
    assert told[0][1].keys() == weights.keys()
    assert max(np.abs(told[0][1][name] - array).max() for name, array in weights.items()) < CLOSE
