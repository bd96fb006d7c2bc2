"""Untouched runs pass, and an audit says what it could not check."""

import pytest

from earl.audit import audit
from earl.errors import EarlError
from earl.recipe import dump
from earl.runs.folder import create


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "arithmetic"])
def test_an_untouched_run_passes(sound, name):
    said = audit(sound(name))
    assert [str(finding) for finding in said.findings] == []
    assert (said.files, said.episodes) == (3, 48)  # 3 steps of 16 episodes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "reinforce", "board_only", "self_play", "last_turns", "cut_off"])
def test_an_untouched_run_of_any_recipe_passes(sound, name):
    said = audit(sound(name))
    assert [str(finding) for finding in said.findings] == []
    assert said.files == 3


def test_an_option_that_is_no_more_is_one_error(tiny, tmp_path):
    config = tiny(env={"options": {"turned": True}})
    with pytest.raises(EarlError, match="unknown option of environment tictactoe 'turned'"):
        audit(create(tmp_path, "old", dump(config)))
