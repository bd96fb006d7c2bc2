"""A tiny run from end to end in this process: what it records, and that its seed decides everything."""

import threading

import pytest
import torch
from safetensors.torch import load_file

from earl.engine.train_state import TrainState
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs import checkpoint, trajectories
from earl.runs.store import Store


def test_the_same_recipe_gives_the_same_run_to_the_bit(tiny, new_run, whole, remains, carry_on):
    config = tiny()
    first = whole(config)
    folder = new_run(config, "again")
    carry_on(folder, config)
    assert remains(folder) == first


def test_another_seed_gives_another_run(tiny, new_run, whole, remains, carry_on):
    other = tiny(run={"seed": 6})
    folder = new_run(other, "other")
    carry_on(folder, other)
    assert remains(folder)["files"] != whole(tiny())["files"]


def test_what_a_run_records(tiny, new_run, carry_on):
    config = tiny()
    folder = new_run(config)
    progress = carry_on(folder, config)
    assert (progress.step, progress.finished) == (6, True)
    with Store(folder.database, read_only=True) as store:
        metrics, matches, timings = store.metrics(), store.matches(), store.timings()
    steps = {name: [step for step, _ in points] for name, points in metrics.items()}
    # 3 steps of warm start, then 3 of reinforcement learning.
    assert steps["warm_start/loss"] == [1, 2, 3]
    assert steps["loss"] == steps["reward"] == steps["context/turn/p95"] == [4, 5, 6]
    assert {step for step, _ in timings["rollout"]} == {1, 2, 3, 4, 5, 6}
    # At the start, at the end of the warm start, every 2 steps, at the end, and the best once more.
    assert [(match.step, match.phase, match.result.seat) for match in matches] == [
        (step, phase, seat)
        for step, phase in [
            (0, "start"),
            (2, "warm_start"),
            (3, "warm_start"),
            (4, "train"),
            (6, "final"),
            (6, "train"),
        ]
        for seat in (0, 1)
    ]
    assert {match.result.episodes for match in matches if match.phase == "final"} == {7}
    kept = sorted(path.name for path in folder.trajectories.glob("*.parquet"))
    assert kept == ["step-000004.parquet", "step-000005.parquet", "step-000006.parquet"]
    step, groups = trajectories.read(folder.trajectories / kept[0])
    assert (step, len(groups), {len(group.trajectories) for group in groups}) == (4, 4, {4})
    assert {version for t in groups[0].trajectories for version in t.versions.tolist()} == {-1, 3}


def test_the_last_checkpoints_and_the_best_stay(tiny, new_run, carry_on):
    config = tiny(run={"checkpoint_every": 1})
    folder = new_run(config)
    progress = carry_on(folder, config)
    assert checkpoint.all_steps(folder.checkpoints) == sorted({5, 6, progress.best_step})


@pytest.mark.parametrize(("ema", "best"), [(0.0, 2), (0.9, 6)])
def test_the_final_evaluation_is_of_the_best_weights(tiny, new_run, carry_on, monkeypatch, ema, best):
    # Losses by step: 2 is the best, though it is neither the last nor among the last checkpoints. A mean is at the end.
    losses, asked = {0: 0.9, 1: 0.5, 2: 0.1, 3: 0.3, 4: 0.1, 5: 0.2, 6: 0.4}, []

    def measured(placement, final):
        version = placement.players.fragment.sampler.version
        asked.append((version, final))
        return [MatchResult("tictactoe", "random", 0, False, 9, 0.0, 1 - losses[version], losses[version], 0.0, 0.0)]

    monkeypatch.setattr("earl.trainer.evaluate_matches", measured)
    config = tiny(evaluate={"every": 1}, run={"checkpoint_every": 1}, learner={"ema": ema})
    folder = new_run(config)
    assert carry_on(folder, config).best_step == best
    assert asked == [(step, False) for step in range(7)] + [(best, True)]
    assert checkpoint.all_steps(folder.checkpoints) == [2, 5, 6]


def test_a_finished_run_that_is_continued_only_measures_again(tiny, new_run, whole, remains, carry_on, stopping):
    config = tiny()
    folder = new_run(config)
    carry_on(folder, config)
    observer = stopping(99)
    carry_on(folder, config, observer)
    assert observer.seen == [6]  # the final evaluation alone
    assert remains(folder) == whole(config)


def test_a_warm_start_alone_is_a_run(tiny, new_run, carry_on):
    config = tiny(run={"steps": 0})
    assert carry_on(new_run(config), config).step == 3


def test_a_run_without_a_warm_start(tiny, new_run, carry_on):
    config = tiny(warm_start={"steps": 0})
    folder = new_run(config)
    assert carry_on(folder, config).step == 3


def test_a_run_of_no_steps_measures_the_model_as_it_is(tiny, new_run, carry_on):
    config = tiny(run={"steps": 0}, warm_start={"steps": 0})
    assert carry_on(new_run(config), config).finished


@pytest.mark.parametrize("history", ["full", "board_only"])
def test_a_tool_task_trains_the_same_way(tiny, new_run, carry_on, history):
    config = tiny(
        env={"name": "arithmetic", "opponents": {}},
        agent={"max_turn_tokens": 16, "history": history},
        warm_start={"teacher": "solver"},
        evaluate={"opponents": []},
    )
    folder = new_run(config)
    carry_on(folder, config)
    with Store(folder.database, read_only=True) as store:
        (final,) = [match.result for match in store.matches() if match.phase == "final"]
    assert (final.opponent, final.seat, final.episodes) == ("", 0, 7)


def test_learning_the_teacher_lowers_the_loss(tiny, new_run, carry_on):
    config = tiny(warm_start={"steps": 30, "learning_rate": 1e-2}, run={"steps": 0, "checkpoint_every": 50})
    folder = new_run(config)
    carry_on(folder, config)
    with Store(folder.database, read_only=True) as store:
        losses = [loss for _, loss in store.metrics()["warm_start/loss"]]
    assert sum(losses[-5:]) < sum(losses[:5]) / 2


def test_the_next_step_is_done_while_a_checkpoint_is_written(tiny, new_run, carry_on, stopping, monkeypatch):
    config, done, save = tiny(run={"checkpoint_every": 3}, evaluate={"every": 50}), threading.Event(), checkpoint.save

    def late(folder, step, *rest):
        if step == 3:
            assert done.wait(60), "step 4 waits for the checkpoint of step 3"
        return save(folder, step, *rest)

    class Watching(stopping):
        def step(self, record):
            if record.step == 4:
                assert checkpoint.latest(folder.checkpoints) != folder.checkpoints / "step-000003"
                done.set()

    monkeypatch.setattr(checkpoint, "save", late)
    folder = new_run(config)
    assert carry_on(folder, config, Watching(99)).finished
    assert {3, 6} <= {*checkpoint.all_steps(folder.checkpoints)}


def test_a_run_that_learns_nothing_three_times_in_a_row_stops_with_a_cause(tiny, new_run, carry_on):
    # Once the policy has left the reference, the gradient of its divergence times 1e38 has no finite norm.
    once = {"minibatches": 1, "epochs": 1}
    config = tiny(learner=once, algorithm={"kl": 1e38}, run={"steps": 40, "checkpoint_every": 1})
    folder, said = new_run(config), []
    for _ in range(2):  # resumed, it comes to the same
        with pytest.raises(EarlError, match="nothing could be learned in 3 steps in a row, up to step ") as raised:
            carry_on(folder, config)
        said.append(str(raised.value))
    assert said[0] == said[1]
    last = int(said[0].partition("up to step ")[2].partition(":")[0])
    with Store(folder.database, read_only=True) as store:
        skipped = [event for event in store.events() if event.kind == "skipped"]
    assert [event.step for event in skipped][-3:] == [last - 2, last - 1, last]
    assert "skipped the whole update: loss or gradient were not finite" in skipped[-1].message
    steps = checkpoint.all_steps(folder.checkpoints)
    assert steps[-2:] == [last - 2, last - 1]
    for step in steps:
        for path in checkpoint.load(folder.checkpoints / f"step-{step:06d}").path.rglob("*.safetensors"):
            assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_a_checkpoint_that_is_not_finite_is_refused_and_the_earlier_ones_stay(tiny, new_run, carry_on, monkeypatch):
    config = tiny(run={"steps": 6, "checkpoint_every": 1})
    step = TrainState.step

    def overflows(kept):
        step(kept)
        if kept.steps > 20:
            with torch.no_grad():
                next(iter(kept.trained.values()))[0] = float("inf")

    monkeypatch.setattr(TrainState, "step", overflows)
    folder = new_run(config)
    with pytest.raises(EarlError, match=r"holds numbers that are NaN or infinite; .* earlier checkpoints stay"):
        carry_on(folder, config)
    kept = checkpoint.all_steps(folder.checkpoints)
    assert len(kept) >= 2
    for number in kept:
        checkpoint.load(folder.checkpoints / f"step-{number:06d}")
    monkeypatch.setattr(TrainState, "step", step)
    assert carry_on(folder, config).finished
