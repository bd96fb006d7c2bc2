"""Runs of self-play: what they learn from, what survives a resume, and the way back after a collapse."""

import pytest
import torch
from safetensors.torch import load_file

from earl import trainer
from earl.cli.training import continued
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.placement.pipeline import StepPipeline
from earl.runs.store import Store, read_numbers
from earl.runs.trajectories import path_of, read_whole

SELF_PLAY = {
    "env": {
        "opponents": {"self": 1, "past": 1, "random": 1, "exploiter": 1},
        **{"random_replies": 2, "restarts": 0.5, "prefer": "hard"},
    },
    "algorithm": {"name": "rae"},
    "run": {"steps": 8, "checkpoint_every": 1, "pool": 2},
}


@pytest.mark.slow
def test_both_seats_of_a_game_are_learned_from(tiny, new_run, carry_on):
    taught = {
        "steps": 20,
        "teacher": "random",
        "noise": 0.0,
        "episodes": 32,
        "learning_rate": 1e-2,
    }  # replies are legal
    config = tiny(env={"opponents": {"self": 1}}, warm_start=taught, run={"steps": 1})
    folder = new_run(config)
    carry_on(folder, config)
    _, groups, records = read_whole(path_of(folder.trajectories, 21))
    played = [one for group in groups for one in group.trajectories]
    learned = dict.fromkeys((0, 1), 0)
    for one, record in zip(played, records, strict=True):
        assert (record.mask == one.sampled).all()
        learned[one.task.seat] += int(record.mask.sum())
    assert min(learned.values()) > 0
    assert all(len({one.task.seat for one in group.trajectories}) == 1 for group in groups)


@pytest.mark.slow
def test_baselines_scores_and_pool_survive_a_resume_to_the_bit(tiny, new_run, remains, carry_on, stopping):
    config = tiny(**SELF_PLAY)
    folder = new_run(config)
    for step in (5, 8, 9):  # before there is a pool, with one, and after the first left it
        with pytest.raises(BrokenPipeError):
            carry_on(folder, config, stopping(step, break_off=True))
    carry_on(folder, config)
    whole = new_run(config, "whole")
    carry_on(whole, config)
    continued, expected = remains(folder), remains(whole)
    assert all(expected["state"][kept] for kept in ("baselines", "preferences", "starts", "lost"))
    met = {task.opponent for episodes in expected["episodes"].values() for task, *_ in episodes}
    assert {name.partition(":")[0] + ":" for name in met} >= {"run:", "self:", "exploiter:"}
    assert repr(continued).replace(str(folder.path), "") == repr(expected).replace(str(whole.path), "")


@pytest.mark.slow
def test_the_checkpoint_of_a_stop_does_not_join_the_pool(tiny, new_run, remains, carry_on, stopping):
    config = tiny(**{**SELF_PLAY, "run": {"steps": 8, "checkpoint_every": 2, "pool": 2}})
    folder, whole = new_run(config), new_run(config, "whole")
    assert not carry_on(folder, config, stopping(5)).finished
    carry_on(folder, config)
    carry_on(whole, config)
    continued, expected = remains(folder), remains(whole)
    assert continued["state"]["pool"] == expected["state"]["pool"] != []
    assert repr(continued["episodes"]).replace(str(folder.path), "") == repr(expected["episodes"]).replace(
        str(whole.path), ""
    )


@pytest.fixture
def lost(monkeypatch):
    """Sets the fraction of lost games of each evaluation, in order; the rest are as the last."""

    def make(*fractions):
        left = list(fractions)

        def evaluate(*_):
            loss = left.pop(0) if left[1:] else left[0]
            return [MatchResult("tictactoe", "random", 0, False, 10, 1 - loss, 0.0, loss, 0.0, 0.0)]

        monkeypatch.setattr(trainer, "evaluate_matches", evaluate)

    return make


COLLAPSE = {"every": 1, "collapse": 0.3}


@pytest.fixture
def weights(monkeypatch):
    """By step, the output layer with which its rollout was played."""
    seen = {}
    rollout = StepPipeline.rollout

    def watched(self, step, *others):
        seen[step] = self.learner.weights()["lm_head.weight"].clone()
        return rollout(self, step, *others)

    monkeypatch.setattr(StepPipeline, "rollout", watched)
    return seen


def alarms(folder):
    with Store(folder.database, read_only=True) as store:
        return [event.step for event in store.events() if event.kind == "collapse"]


@pytest.mark.slow
@pytest.mark.parametrize("returns", [False, True])
def test_a_collapse_raises_an_alarm_and_leads_back_to_the_best(returns, tiny, new_run, carry_on, lost, weights):
    # Steps 0 … 6: the best is that of step 4 with 0.2; 0.45 at step 5 is no more than 0.3 above it, 0.6 at step 6 is.
    lost(0.9, 0.9, 0.9, 0.9, 0.2, 0.45, 0.6, 0.6, 0.2)
    rule, run = {**COLLAPSE, "return_to_best": returns}, {"steps": 6, "checkpoint_every": 1}
    config = tiny(evaluate=rule, run=run, learner={"learning_rate": 4e-4, "final_learning_rate": 4e-4})
    folder = new_run(config)
    carry_on(folder, config)
    assert alarms(folder) == [6, 7]
    rates = dict(read_numbers(folder.database).metrics["learning_rate"])
    halved = [1, 1, 0.5, 0.25] if returns else [1, 1, 1, 1]
    assert [rates[step] for step in range(5, 9)] == [4e-4 * part for part in halved]
    best = load_file(folder.checkpoints / "step-000004" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(weights[7], best) is returns
    assert torch.equal(weights[5], best)  # the step after the best begins there anyway
    assert not torch.equal(weights[6], best)


def test_without_the_setting_there_is_no_alarm(tiny, new_run, carry_on, lost):
    lost(0.1, 0.9)
    config = tiny(evaluate={"every": 1})
    folder = new_run(config)
    carry_on(folder, config)
    assert alarms(folder) == []


def test_patience_ends_a_run_that_loses_to_no_reply(tiny, new_run, carry_on, lost, stopping):
    # Unbeaten from step 1 on, with all games won: after the 3 steps of imitation two evaluations find none better.
    lost(0.9, 0.0)
    config = tiny(evaluate={"every": 1, "opponents": ["any"], "exact": True, "patience": 2}, run={"steps": 9})
    folder = new_run(config)
    with pytest.raises(BrokenPipeError):
        carry_on(folder, config, stopping(4, break_off=True))
    progress = carry_on(folder, config)
    assert (progress.step, progress.best_step, progress.finished) == (5, 1, True)
    with Store(folder.database, read_only=True) as store:
        assert "none won more" in next(event.message for event in store.events() if event.kind == "finish")
    with pytest.raises(EarlError, match="ended at step 5 of 12, as its weights lose to no reply"):
        continued(folder.path.parent, folder.name, None, [], {}, [], dry=True, more=3)


def test_patience_waits_while_a_reply_wins(tiny, new_run, carry_on, lost):
    lost(0.9, 0.1)
    config = tiny(evaluate={"every": 1, "opponents": ["any"], "exact": True, "patience": 1}, run={"steps": 3})
    assert carry_on(new_run(config), config).step == config.total_steps
