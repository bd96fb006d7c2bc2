import json

import pytest

from earl.errors import EarlError
from earl.placement import async_rollout
from earl.placement.async_rollout import Ticket
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import Peers


@pytest.fixture
def groups(tiny):
    placement = embedded_pipeline(tiny(), Peers())
    return [*placement.rollout(4), *placement.rollout(5)]


def tokens(group):
    return [(t.task, t.seed, t.tokens.tolist(), t.versions.tolist(), t.turns) for t in group.trajectories]


def test_groups_that_wait_survive_in_a_checkpoint(groups, tmp_path):
    ended = {Ticket(4, 1): groups[1], Ticket(4, 0): groups[0], Ticket(5, 3): groups[7]}
    limits = {4: 72, 5: 120, 6: 120}  # nothing of step 6 has ended
    async_rollout.save(tmp_path, limits, ended)
    again, found = async_rollout.load(tmp_path)
    assert again == limits
    assert sorted(found) == sorted(ended)
    assert all(tokens(found[ticket]) == tokens(ended[ticket]) for ticket in ended)


def test_a_checkpoint_without_any_holds_nothing_ahead(tmp_path):
    assert async_rollout.load(tmp_path) == ({}, {})


def test_a_damaged_buffer_is_named(groups, tmp_path):
    async_rollout.save(tmp_path, {4: 72}, {Ticket(4, 0): groups[0]})
    assert json.loads((tmp_path / "ahead/ahead.json").read_bytes()) == [{"step": 4, "limit": 72, "ended": [0]}]
    (tmp_path / "ahead/step-000004.parquet").write_bytes(b"PAR1")
    with pytest.raises(EarlError, match="step-000004"):
        async_rollout.load(tmp_path)


@pytest.mark.parametrize(
    "text", ["{}", "[" * 5000 + "]" * 5000, '[{"step": "a"}]', '[{"step": 4, "limit": 72, "ended": [0, 1]}]']
)
def test_a_foreign_list_of_what_waits_is_refused(groups, tmp_path, text):
    async_rollout.save(tmp_path, {4: 72}, {Ticket(4, 0): groups[0]})
    (tmp_path / "ahead/ahead.json").write_text(text)
    with pytest.raises(EarlError, match=r"(?s)ahead is not what earl wrote .* another checkpoint"):
        async_rollout.load(tmp_path)
