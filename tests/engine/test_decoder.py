"""Earl's own forward pass against that of transformers, and what rows share."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from earl.engine import decoder
from earl.engine.decoder import Prefixes, packed_states, suits
from earl.engine.model import hidden_states, layers, recompute

SOME = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(SOME)
def test_tokens_after_the_same_tokens_are_one(rows):
    begun = [tuple(row[: end + 1]) for row in rows for end in range(len(row))]
    found = Prefixes.of(np.concatenate([np.array(row) for row in rows]), np.array([len(row) for row in rows]))
    first = [begun[place] for place in found.first.tolist()]
    assert sorted(first) == sorted(set(begun))
    assert [first[number] for number in found.places.tolist()] == begun
    assert [len(prefix) - 1 for prefix in first] == found.positions.tolist()
    whole, fed = iter(found.whole.tolist()), 0
    for count, own, shared in found.classes:
        for _ in range(count):
            row = [next(whole) for _ in range(shared + own)]
            assert [first[number] for number in row] == [first[row[-1]][: end + 1] for end in range(len(row))]
            assert row[shared:] == [*range(fed, fed + own)]
            fed += own
    assert next(whole, None) is None


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


def test_other_models_go_the_way_of_transformers(policy, small):
    assert suits(policy.model) == (policy.model.config.model_type == "qwen3")
    model = small().model
    assert suits(model)
    assert not suits(copy.deepcopy(model).bfloat16())
    assert not suits(copy.deepcopy(model).to("meta"))
    recompute(model)
    assert len(layers(model)) == 2
    assert not suits(model)
