"""The attempt at Figure 1: what it tells of its runs, and that its recipe grows at all."""

import json

import pytest

from earl.benchmarks import arms
from earl.cli.main import run as command_line
from earl.runs.folder import create
from earl.runs.store import Store


def test_what_is_told_of_a_run(tmp_path):
    folder = create(tmp_path, "run")
    with Store(folder.database) as store:
        store.record_step(1, {"warm_start/loss": 1.0}, {})
        for number in range(20):
            # Grows by a token a step; from the 11th step on half of the episodes are cut, and charged 1.
            cut = 0.5 if number >= 10 else 0.0
            store.record_step(
                2 + number,
                {
                    "reward": 0.4 - cut,
                    "stop/finished": 1 - cut,
                    "tokens/sampled": 8.0 * (10 + number),
                    "episodes": 8.0,
                    "truncation/prompt": 0.0,
                    "truncation/reply": cut,
                    "context/limit": 60.0,
                },
                {},
            )
    told = arms.reward_and_length(folder)
    assert told["reward_first"] == told["reward_best"] == pytest.approx(0.4)
    assert told["reward_last"] == pytest.approx(-0.1)
    assert told["fallen"] == pytest.approx(0.5)
    assert (told["solved_first"], told["solved_last"]) == pytest.approx((0.4, 0.4))  # -0.1 + 0.5 charged
    assert (told["reply_first"], told["reply_last"]) == (12.0, 27.0)  # means of 10 … 14 and of 25 … 29
    # 10 steps with half of the episodes cut; the first five of the ten before them are as good as any.
    assert (told["cut_last"], told["cut_steps"], told["limit_last"], told["best_step"]) == (0.5, 10.0, 60.0, 1.0)


@pytest.mark.slow
def test_the_command_trains_every_arm_and_takes_up_what_is_there(tmp_path, capsys):
    tiny = ["model.hidden=16", "model.layers=1", "model.heads=1", "warm_start.steps=1", "warm_start.episodes=16",
            "rollout.episodes=16", "evaluate.final_episodes=4", "evaluate.episodes=4"]  # fmt: skip
    settings = [argument for key in tiny for argument in ("--set", key)]
    command = ["bench", "collapse", "--seeds", "1", "--steps", "2", "--runs", str(tmp_path), "--json", *settings]
    assert command_line(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"fixed", "fixed_left_out", "auto", "roomy"} <= set(told)
    assert (told["fixed"]["limit_last"]["max"], told["roomy"]["limit_last"]["max"]) == (60, 96)
    assert told["auto"]["limit_last"]["min"] >= 60
    assert command_line(command) == 0
    assert json.loads(capsys.readouterr().out) == told  # no step was done again
