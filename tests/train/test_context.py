"""The context limit of a whole run: raised ahead of growth, met and told, and what is made of cut episodes."""

import numpy as np
import pytest

from earl.runs import checkpoint, trajectories
from earl.runs.storage import step_of
from earl.runs.store import Store
from earl.runs.summary import context_limit

# The first prompt takes 16 tokens and a reply 2; every further round 18: 36 tokens are two rounds.
TWO_ROUNDS = 36


def numbers(folder):
    with Store(folder.database, read_only=True) as store:
        return store.metrics(), store.events(), store.contexts()


def test_an_automatic_limit_is_raised_for_the_teacher_and_kept(tiny, new_run, carry_on):
    config = tiny(context={"limit": "auto", "initial": TWO_ROUNDS, "ceiling": 200})
    folder = new_run(config)
    carry_on(folder, config)
    metrics, events, _ = numbers(folder)
    raised = [event for event in events if event.kind == "limit"]
    assert raised[0].step == 1  # by the first demonstrations, which were not cut
    assert all(share == 0 for name in ("prompt", "reply") for _, share in metrics[f"truncation/{name}"])
    limits = [limit for _, limit in metrics["context/limit"]]
    assert limits == sorted(limits)
    assert limits[0] > TWO_ROUNDS
    last = checkpoint.load(checkpoint.latest(folder.checkpoints))
    assert context_limit(last) >= limits[-1]


def test_without_a_warm_start_it_follows_what_is_cut(tiny, new_run, carry_on):
    config = tiny(context={"limit": "auto", "initial": TWO_ROUNDS, "ceiling": 64}, warm_start={"steps": 0})
    folder = new_run(config)
    carry_on(folder, config)
    metrics, events, _ = numbers(folder)
    limits = dict(metrics["context/limit"])
    cut = {step: share + dict(metrics["truncation/reply"])[step] for step, share in metrics["truncation/prompt"]}
    assert limits[1] == TWO_ROUNDS
    for step, share in cut.items():
        if share and limits[step] < 64 and step + 1 in limits:
            assert limits[step + 1] > limits[step]
    assert max(limits.values()) <= 64
    assert {event.kind for event in events} >= {"start"}


def test_a_fixed_limit_stays_and_what_it_cuts_is_said(tiny, new_run, carry_on):
    config = tiny(context={"limit": TWO_ROUNDS})
    folder = new_run(config)
    carry_on(folder, config)
    metrics, events, _ = numbers(folder)
    assert {limit for _, limit in metrics["context/limit"]} == {TWO_ROUNDS}
    assert sum(share for _, share in metrics["truncation/prompt"]) > 0
    assert [event.kind for event in events].count("forecast") == 1
    assert any("were cut off at the limit of 36 tokens" in event.message for event in events)


def test_where_nothing_can_be_learned_the_run_goes_on_and_says_so(tiny, new_run, carry_on):
    # No game of Tic-Tac-Toe ends within two rounds, and a reply that breaks the rule asks again until there is no room.
    config = tiny(
        context={"limit": TWO_ROUNDS, "learn_truncated": False},
        agent={"retries": 9},
        warm_start={"steps": 0},
        run={"keep_trajectories_every": 1},
    )
    folder = new_run(config)
    assert carry_on(folder, config).finished
    metrics, events, _ = numbers(folder)
    skipped = [event.step for event in events if event.kind == "skipped"]
    assert skipped == [step for step, _ in metrics["reward"]]
    assert "loss" not in metrics
    for path in folder.trajectories.glob("*.parquet"):
        assert not any(own.mask.any() for own in trajectories.read_whole(path)[2])


def test_tokens_by_turn_add_up_to_those_by_author(tiny, new_run, carry_on):
    config = tiny()
    folder = new_run(config)
    carry_on(folder, config)
    metrics, _, contexts = numbers(folder)
    for step, tokens in metrics["tokens"]:
        assert sum(cell.tokens for cell in contexts if cell.step == step) == tokens
    by_action = dict(metrics["tokens/action"])
    for step in by_action:
        assert by_action[step] == sum(cell.tokens for cell in contexts if cell.step == step and cell.author == 4)


@pytest.mark.parametrize("history", ["full", "last_turns:1"])
def test_stored_masks_are_what_was_sampled(tiny, new_run, carry_on, history):
    config = tiny(agent={"history": history})
    folder = new_run(config)
    carry_on(folder, config)
    paths = sorted(folder.trajectories.glob("*.parquet"))
    assert paths
    for path in paths:
        step, groups, experiences = trajectories.read_whole(path)
        rows = [trajectory for group in groups for trajectory in group.trajectories]
        for trajectory, own in zip(rows, experiences, strict=True):
            assert own.mask.tolist() == trajectory.sampled.tolist()
            assert set(trajectory.versions[own.mask].tolist()) == {step - 1}
            assert len(own.advantages) == len(trajectory.turns)
            assert np.all(own.logprobs[own.mask] < 0)


def test_episodes_are_kept_right_after_a_checkpoint_too(tiny, new_run, carry_on):
    config = tiny(run={"checkpoint_every": 2, "keep_trajectories_every": 50}, evaluate={"every": 50})
    folder = new_run(config)
    carry_on(folder, config)
    kept = {step_of(path) for path in folder.trajectories.glob("*.parquet")}
    assert {step + 1 for step in checkpoint.all_steps(folder.checkpoints) if 3 <= step < 6} <= kept
