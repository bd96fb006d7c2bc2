"""The fragments of a step in one process, and that two processes do together what one does alone."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.batch import Rows
from earl.placement.embedded import embedded_pipeline, rows_from_bytes, rows_to_bytes
from earl.placement.peers import Peers
from earl.rollout.pack import Learnable, joined, trajectories_of
from earl.trajectory import Author, Group, StopReason

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def placement(tiny):
    return lambda **sections: embedded_pipeline(tiny(**sections), Peers())


def prepared(placed, groups):
    return placed.prepare(groups, placed.dispatch(groups))


def columns(rows):
    return {name: getattr(rows, name).tolist() for name in Rows.__dataclass_fields__}


def test_a_step_says_in_how_many_waves_its_episodes_were_sampled(placement):
    free, bounded = placement(), placement(sampler={"kv_cache_gib": 1000 * 128 / 2**30})
    expected, found = (trajectories_of(placed.rollout(step=1)) for placed in (free, bounded))
    assert [own.tokens.tolist() for own in found] == [own.tokens.tolist() for own in expected]
    assert "sampler/waves" not in free.costs
    # A token takes 2 x 1 layer x 2 heads x 8 numbers x 4 bytes = 128 B, and there is room for 1,000: at the end of the
    # longest episode, so many slots of its length.
    longest = max(len(own.tokens) for own in found)
    assert 1 < bounded.costs["sampler/waves"] <= np.ceil(16 / (1000 // longest))


def test_a_rollout_is_groups_that_start_alike(placement):
    groups = placement().rollout(step=1)
    assert [len(group.trajectories) for group in groups] == [4] * 4
    for group in groups:
        assert len({trajectory.task for trajectory in group.trajectories}) == 1
        assert len({trajectory.seed for trajectory in group.trajectories}) == 4
    # Two opponents of equal share, two seats, four groups: one each.
    assert len({(group.task.opponent, group.task.seat) for group in groups}) == 4


def test_every_step_and_every_run_draws_anew(placement):
    def seeds(placed, step):
        return {trajectory.seed for trajectory in trajectories_of(placed.rollout(step))}

    one, other = placement(), placement(run={"seed": 6})
    assert seeds(one, 1) == seeds(placement(), 1)
    assert not seeds(one, 1) & seeds(one, 2)
    assert not seeds(one, 1) & seeds(other, 1)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_prepared_batch_holds_every_sampled_token(placement, name):
    placed = placement(algorithm={"name": name, "kl": 0.1})
    groups = placed.rollout(1)
    batch = placed.prepare(groups, placed.dispatch(groups))
    trajectories = trajectories_of(groups)
    assert batch.mask.sum() == sum((t.authors >= Author.THINKING).sum() for t in trajectories)
    # Nothing was learned yet: sampler, learner and reference are the same model.
    assert np.allclose(batch.reference[batch.mask], batch.logprobs[batch.mask], atol=1e-5)
    assert batch.returns.any() == (name == "ppo")


def test_without_kl_no_reference_is_kept(placement):
    placed = placement()
    prepared(placed, placed.rollout(1))
    assert placed.learner.state.frozen is None


def test_episodes_that_the_environment_ended_are_not_learned_from(placement):
    placed = placement()
    groups = placed.rollout(1)
    first, *others = groups[0].trajectories
    failed = replace(first, stop=StopReason.ENV_ERROR, error="KeyError")
    assert Learnable().learned([Group((failed, *others))]) == [Group(tuple(others))]
    assert Learnable().learned([Group((failed, failed))]) == []
    placed.update(prepared(placed, [Group((failed, *others)), *groups[1:]]), step=1)


def test_a_step_whose_every_episode_failed_changes_nothing(placement):
    placed = placement(algorithm={"name": "ppo", "kl": 0.1})
    before = {name: tensor.clone() for name, tensor in placed.learner.weights().items()}
    failed = replace(placed.rollout(1)[0].trajectories[0], stop=StopReason.ENV_ERROR, error="KeyError")
    placed.update(prepared(placed, [Group((failed,))]), step=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in placed.learner.weights().items())


def test_the_sampler_takes_the_learners_weights(placement):
    placed = placement()
    placed.update(prepared(placed, placed.rollout(1)), step=1)
    placed.sync(7)
    theirs = placed.players.fragment.sampler._model.state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in placed.learner.weights().items())
    versions = {v for t in trajectories_of(placed.rollout(2)) for v in t.versions.tolist()}
    assert versions == {-1, 7}


def rewarded(trajectory):
    """The same with a return that its seed gives."""
    last = replace(trajectory.turns[-1], reward=trajectory.seed % 7 - 3.0)
    return replace(trajectory, turns=(*trajectory.turns[:-1], last))


@pytest.mark.parametrize("mode", ["token", "sequence"])
def test_what_older_weights_sampled_is_corrected_and_stored_as_it_was(placement, mode):
    placed = placement(algorithm={"correction": mode, "correction_cap": 1.05})
    groups = [Group(tuple(map(rewarded, group.trajectories))) for group in placed.rollout(1)]
    on_policy = placed.update(placed.prepare(groups, placed.dispatch(groups)), step=1)
    assert on_policy["correction/weight"] == pytest.approx(1.0, abs=1e-4)
    batch = placed.prepare(groups, placed.dispatch(groups))  # of the same episodes: the learner has moved on
    advantages, proximal = batch.advantages.copy(), placed.learner.logprobs(batch)
    stats = placed.update(batch, step=2)
    weights = np.exp(proximal - batch.logprobs)[batch.mask]
    if mode == "token":
        assert stats["correction/weight"] == pytest.approx(float(np.minimum(weights, 1.05).mean()))
        assert stats["correction/capped"] == pytest.approx(float((weights > 1.05).mean()))
    assert stats["kl_to_sampler"] > 1e-6 > on_policy["kl_to_sampler"]
    stored = placed.recorded(groups, batch)[1]
    assert {a for e in stored for a in e.advantages.tolist()} == set(advantages[batch.mask].tolist())
    assert len(set(advantages.tolist())) > 3


def test_the_schedules_end_with_the_run(placement):
    placed = placement(algorithm={"entropy": 0.02, "final_entropy": 0.0}, run={"steps": 2})
    batch = prepared(placed, placed.rollout(1))
    first, last = placed.update(batch, step=1), placed.update(batch, step=2)
    assert (first["learning_rate"], first["entropy_weight"]) == (5e-4, 0.02)
    assert (last["learning_rate"], last["entropy_weight"]) == (pytest.approx(1e-4), 0.0)


def test_an_aggregating_warm_start_shows_the_episodes_of_all_steps_so_far(placement, monkeypatch):
    lesson = {"aggregate": True, "episodes": 6, "minibatches": 2}
    placed = placement(warm_start=lesson)
    first, both = placed.demonstrations(1), placed.demonstrations(2)
    assert columns(first) == columns(placement(warm_start={**lesson, "aggregate": False}).demonstrations(1))
    assert columns(both.select(np.arange(first.num_rows))) == columns(first)
    later = both.select(np.arange(first.num_rows, both.num_rows))
    assert later.num_rows and later.tokens.tolist() != first.tokens.tolist()
    assert columns(placed.demonstrations(2)) == columns(both)  # as after a failure for want of memory
    assert columns(placement(warm_start=lesson).demonstrations(2)) == columns(both)  # as in a run that is resumed
    asked = []
    monkeypatch.setattr(placed.learner, "update", lambda *given: asked.append(given[2].minibatches) or {})
    placed.imitate(placed.dispatch_taught(both, 2), both.num_turns, 2)
    assert asked == [4]  # twice as many minibatches of twice as many episodes


def test_rows_survive_the_way_between_processes(placement):
    rows = placement().demonstrations(1)
    order = np.arange(rows.num_rows)
    again, same = rows_from_bytes(rows_to_bytes((rows, order)))
    assert columns(again) == columns(rows)
    assert same.tolist() == order.tolist()
    whole, _ = joined([(rows, order), (again, order + rows.num_rows)])
    turns = int(rows.turns.max()) + 1
    assert whole.turns[whole.value_mask].tolist() == list(range(2 * turns))
    assert whole.tokens.tolist() == rows.tokens.tolist() * 2


def test_rows_of_all_processes_stand_in_the_order_of_their_episodes(placement):
    rows = placement(agent={"history": "board_only"}).demonstrations(1)
    # Episodes 0 and 1 of one row each, played by processes 1 and 0; then episode 2 of two rows by process 1.
    first, second = rows.select(np.array([1])), rows.select(np.array([0, 2, 3]))
    whole, _ = joined([(first, np.array([1])), (second, np.array([0, 2, 2]))])
    assert columns(whole)["tokens"] == columns(rows.select(np.arange(4)))["tokens"]


PROGRAM = """
import hashlib, sys, torch
from pathlib import Path
from earl.recipe import build, load_toml
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import end_with_parent, join_peers

NAMES = "usual", "starved"

def work(peers, name):
    torch.set_num_threads(1)
    placed = embedded_pipeline(build(load_toml(Path(__file__).with_name(f"{name}.toml"))), peers)
    rows = placed.demonstrations(1)
    placed.imitate(placed.dispatch_taught(rows, 1), rows.num_turns, 1)
    placed.sync(1)
    groups = placed.rollout(1)
    batch = placed.prepare(groups, placed.dispatch(groups))
    placed.update(batch, 1)
    weights = torch.cat([tensor.flatten() for tensor in placed.learner.weights().values()])
    assert len(set(peers.gather(weights.numpy().tobytes()))) == 1, "processes differ"
    seeds = [t.seed for group in groups for t in group.trajectories]
    return weights, seeds, batch

if __name__ == "__main__":
    end_with_parent()
    rank, size, rendezvous = sys.argv[1:]
    with join_peers(int(rank), int(size), Path(rendezvous)) as peers:
        for name in NAMES:
            work(peers, name)
"""
RECIPES = {
    "usual": {"algorithm": {"name": "ppo", "kl": 0.1}},
    # One group and one demonstration for two processes, and more minibatches than rows.
    "starved": {
        "rollout": {"episodes": 4, "group_size": 4},
        "warm_start": {"episodes": 1},
        "learner": {"minibatches": 9},
    },
}


@pytest.mark.slow
def test_two_processes_do_what_one_does(tiny, tmp_path):
    from earl.recipe import dump

    (tmp_path / "work.py").write_text(PROGRAM)
    for name, sections in RECIPES.items():
        (tmp_path / f"{name}.toml").write_text(dump(tiny(**sections)))
    driver = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(tmp_path)!r})
from work import NAMES, work
from earl.placement.peers import Peers, start_peers
with start_peers(2, Path({str(tmp_path / "meet")!r}), [{str(tmp_path / "work.py")!r}]) as peers:
    for name in NAMES:
        both, their_seeds, their_batch = work(peers, name)
        alone, seeds, batch = work(Peers(), name)
        assert sorted(seeds) == sorted(their_seeds), name
        assert sorted(batch.tokens.tolist()) == sorted(their_batch.tokens.tolist()), name
        print(float((alone - both).abs().max()))
"""
    ran = subprocess.run(
        [sys.executable, "-c", driver], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    differences = [*map(float, ran.stdout.split())]
    assert len(differences) == len(RECIPES) and max(differences) < 1e-5
