"""Earl's own forward pass against that of transformers, and what rows share."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from earl.engine import decoder
from earl.engine.decoder import Prefixes, Queries, packed_states, suits
from earl.engine.model import hidden_states, layers, recompute

SOME = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


def prefixes(rows: list[list[int]], wanted: list[int]) -> Prefixes:
    tokens = np.concatenate([np.array(row) for row in rows])
    return Prefixes.of(tokens, np.array([len(row) for row in rows]), np.array(wanted, np.int64))


def check_queries(queries: Queries, first: list[tuple[int, ...]]) -> None:
    """Of each class the rows are whole, and their last tokens attend."""
    known, asked = iter(queries.rows.tolist()), iter(queries.tokens.tolist())
    for count, own, before in queries.classes:
        for _ in range(count):
            row = [next(known) for _ in range(before + own)]
            assert [first[number] for number in row] == [first[row[-1]][: end + 1] for end in range(len(row))]
            assert row[before:] == [next(asked) for _ in range(own)]
    assert next(known, None) is None and next(asked, None) is None


@given(SOME, st.randoms(use_true_random=False))
def test_tokens_after_the_same_tokens_are_one(rows, rng):
    begun = [tuple(row[: end + 1]) for row in rows for end in range(len(row))]
    wanted = rng.choices(range(len(begun)), k=rng.randint(1, 5))
    found = prefixes(rows, wanted)
    first = [begun[place] for place in found.first.tolist()]
    assert sorted(first) == sorted(set(begun))
    assert [len(prefix) - 1 for prefix in first] == found.positions.tolist()
    check_queries(found.every, first)
    check_queries(found.last, first)
    assert found.every.tokens.tolist() == [*range(len(first))]
    kept = found.last.tokens[found.wanted]
    assert [first[number] for number in kept[found.places].tolist()] == [begun[place] for place in wanted]
    assert len(kept) == len({begun[place] for place in wanted})


def test_only_the_end_of_a_row_attends_in_the_last_layer():
    rows = [[0, 1, 2, 3], [0, 1, 2, 4], [5, 6, 7], [0, 1, 2, 4]]
    last = prefixes(rows, [2, 6, 7, 14]).last  # [0 1 2] twice, and [0 1 2 4] twice
    assert last.classes == ((1, 1, 3), (1, 2, 2))
    assert len(last.tokens) == 3


@pytest.mark.parametrize("masked", [0, decoder.MASKED])
def test_states_and_gradients_are_those_of_transformers(small, masked, monkeypatch):
    monkeypatch.setattr(decoder, "MASKED", masked)
    model = small().model
    beginning = torch.arange(20) % 11
    rows = [beginning[:9], beginning, torch.cat([beginning[:12], torch.arange(5)]), torch.arange(30, 33), beginning]
    wanted = [(0, 8), (1, 0), (1, 19), (2, 12), (2, 13), (3, 2), (4, 19)]
    starts = np.cumsum([0, *map(len, rows)])
    places = torch.tensor([int(starts[row]) + place for row, place in wanted])
    ours = packed_states(model, torch.cat(rows), tuple(map(len, rows)), places)
    other = copy.deepcopy(model)
    padded = torch.stack([pad(row, (0, 20 - len(row))) for row in rows])
    theirs = hidden_states(other, padded, use_cache=False)[[row for row, _ in wanted], [place for _, place in wanted]]
    assert torch.allclose(ours, theirs, atol=1e-5)
    weights = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    for states in (ours, theirs):
        (states * weights).sum().backward()
    for (name, own), known in zip(model.named_parameters(), other.parameters(), strict=True):
        if known.grad is not None:
            assert torch.allclose(own.grad, known.grad, atol=1e-5 * float(known.grad.abs().max())), name


def test_no_states_are_wanted_of_processes_without_rows(small):
    states = packed_states(small().model, torch.zeros(1, dtype=torch.long), (1,), torch.zeros(0, dtype=torch.long))
    assert states.shape[0] == 0 and states.requires_grad


def test_other_models_go_the_way_of_transformers(policy, small):
    assert suits(policy.model) == (policy.model.config.model_type == "qwen3")
    model = small().model
    assert suits(model)
    assert not suits(copy.deepcopy(model).bfloat16())
    assert not suits(copy.deepcopy(model).to("meta"))
    recompute(model)
    assert len(layers(model)) == 2
    assert not suits(model)
