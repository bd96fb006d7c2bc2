"""Asynchronous training: rollout workers that play ahead, here in this process, and real learning between them."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from earl.audit import audit
from earl.dispatch.rows import empty_shard
from earl.dispatch.transports.base import pack, unpack
from earl.engine.model import load
from earl.engine.sampler import Probe, probe_rows, probe_tokens
from earl.parallel.layout import Layout
from earl.placement import async_rollout
from earl.placement.async_rollout import Ticket
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import Peers, WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.placement.ray.actor_group import CallResults
from earl.placement.ray.rollout_actor import ContinuousActor
from earl.placement.ray.rollout_workers import AheadWorkers
from earl.placement.ray.row_exchange import Manifest
from earl.runs import checkpoint, trajectories
from earl.runs.folder import lock
from earl.stopping import StopRequest
from earl.trainer import train
from earl.trajectory import Group
from tests.placement.near import Near
from tests.sampling import sampled

pytestmark = pytest.mark.slow

torch.set_num_threads(1)


class RemoteActor:
    """An actor of this process: what is asked of it is done when the answer is taken."""

    def __init__(self, recipe):
        self.actor = ContinuousActor()
        self.recipe = recipe

    def __getattr__(self, name):
        method = getattr(self.actor, name)
        return type("Method", (), {"remote": staticmethod(lambda *given: lambda: method(*given))})


class Crew:
    """Actors without processes. Each call loses some worker with a probability."""

    members = ()

    def __init__(self, recipe, size, losing=0.0):
        self.recipe, self.losing, self.rng, self.losses = recipe, losing, random.Random(1), 0
        self.actors = [RemoteActor(recipe) for _ in range(size)]

    def __len__(self):
        return len(self.actors)

    def ask(self, stage, call, numbers):
        results, lost = {}, {}
        for number in numbers:
            if self.loses(stage, number):
                lost[number] = "has died"
            else:
                results[number] = call(self.actors[number], number)()
        self.losses += len(lost)
        return CallResults(results, lost)

    def loses(self, stage, number):
        return self.rng.random() < self.losing

    def replace(self, number):
        if hasattr(self.actors[number].actor, "_fragment"):
            self.actors[number].abandon.remote()()
        self.actors[number] = RemoteActor(self.recipe)

    def introduce(self):
        return {}

    def mates(self, number):
        return range(number, number + 1)


class Struck(Crew):
    """Loses workers when it is told to: at stages, in turn."""

    def __init__(self, recipe, size, blows):
        super().__init__(recipe, size)
        self.blows = [*blows]

    def loses(self, stage, number):
        struck = self.blows[:1] == [(stage, number)]
        del self.blows[:struck]
        return struck


class Place:
    """A learner of this process, and workers that play ahead of it."""

    def __init__(self, config, losing=0.0, lost_at=None):
        self.config, self.group, self.lost_at = config, Crew(config.model_dump(), 2, losing), lost_at

    def open(self, saved):
        here = embedded_pipeline(self.config, Peers(), load(saved) if saved else None)
        weights, update, source = here.learner.weights, here.learner.update, str(saved) if saved else None
        tokens = probe_tokens(here.learner.vocab)
        here.learner.weights = lambda: (
            Near({name: tensor.clone() for name, tensor in weights().items()}),
            Probe(tokens, here.learner.logprobs(probe_rows(tokens), temperature=1.0)[1:].tolist()),
        )
        here.learner.update = lambda batch, algorithm, settings: self.update(update, batch, algorithm, settings)
        here.learner.take = self.take
        setup = lambda actor, _, meeting: actor.setup.remote(self.group.recipe, source, (), meeting)  # noqa: E731
        self.players = AheadWorkers(self.group, setup, self, self.config)
        return StepPipeline(self.config, here.world, here.shape, here.learner, self.players)

    def take(self, table, seed, minibatches):
        """All rows come here, from wherever they were played."""
        hosts = np.zeros(1 + len(self.group), np.int32)
        manifest = Manifest(table, np.zeros(len(table.lengths), np.int32), Layout(), hosts)
        plan = manifest.plan()
        target = empty_shard(plan.target, 0, plan.lengths, plan.columns)
        for worker, actor in enumerate(self.group.actors):
            shard = actor.actor._episodes.shard(manifest.numbers(worker), table.columns)
            pieces = plan.pieces.where(plan.pieces.source == 1 + worker)
            unpack(pack(pieces, plan.columns, shard), pieces, plan.columns, target)
        return manifest.taken(target)[0]

    def update(self, update, batch, algorithm, settings):
        if self.lost_at is not None:
            self.lost_at -= 1
            if self.lost_at == 0:
                raise WorkerLost("learner rank 0 has died")
        return update(batch, algorithm, settings)

    def mend(self, lost):
        pass

    def turn(self, group):
        pass

    def failed(self, message):
        pass

    def note(self, kind, message):
        pass

    def notes(self):
        return ()


def carry_on(folder, place, observer=None):
    request = observer.request if observer else StopRequest()
    with lock(folder):
        return train(folder, place.config, place, Peers(), request, observer)


@pytest.mark.parametrize("bound", sampled([2, 1], every=2))
def test_a_run_learns_every_episode_once_and_none_too_late(ahead_recipe, new_run, assert_sound, staleness, bound):
    config = ahead_recipe(bound)
    folder = new_run(config)
    assert carry_on(folder, Place(config)).finished
    assert_sound(folder, config)
    assert max(staleness(folder).values()) == bound  # rollout did run ahead


def test_lost_workers_cost_no_episode(ahead_recipe, new_run, assert_sound):
    config = ahead_recipe(2)
    folder, place = new_run(config), Place(config, losing=0.05)
    assert carry_on(folder, place).finished
    assert place.group.losses
    assert_sound(folder, config)


def test_groups_of_one_that_is_lost_again_while_it_is_replaced_are_begun_once_more_not_twice(ahead_recipe, monkeypatch):
    config, begun = ahead_recipe(1), Counter()
    start = ContinuousActor.start

    def counted(actor, orders):
        begun.update(Ticket(step, number) for step, tasks, *_ in orders for number in tasks)
        start(actor, orders)

    monkeypatch.setattr(ContinuousActor, "start", counted)
    place = Place(config)
    place.group = Struck(config.model_dump(), 2, [("rollout", 0), ("start", 0)])
    stages = place.open(None)
    stages.limit(config.context.first_limit)
    stages.sync(3)
    assert len(stages.rollout(4)) == config.rollout.prompts
    assert not place.group.blows
    # Dealt in turn: worker 0 has every other group of steps 4 and 5.
    every = [Ticket(step, number) for step in (4, 5) for number in range(config.rollout.prompts)]
    assert begun == Counter(every) + Counter(every[::2])


def test_a_lost_learner_goes_back_to_its_checkpoint_and_so_does_what_was_played(ahead_recipe, new_run, assert_sound):
    config = ahead_recipe(2)
    folder = new_run(config)
    assert carry_on(folder, Place(config, lost_at=3 + 5)).finished  # in the fifth step after the warm start
    assert_sound(folder, config)


def late(place, observer):
    """The observer, who at its last step waits until all groups that were begun have ended, which nobody asks for."""
    stop = observer.step

    def step(record, *rest):
        if record.step == observer.at:
            for actor in place.group.actors:
                fragment = actor.actor._fragment
                with fragment._changed:
                    assert fragment._changed.wait_for(lambda playing=fragment._playing: not playing, 60)
        stop(record, *rest)

    observer.step = step
    return observer


def test_what_was_played_ahead_is_not_played_again(ahead_recipe, new_run, assert_sound, assert_kept, stopping):
    config = ahead_recipe(2)
    folder, place = new_run(config), Place(config)
    carry_on(folder, place, late(place, stopping(7)))
    saved = checkpoint.load(checkpoint.latest(folder.checkpoints))
    limits, ended = async_rollout.load(saved.path)
    assert saved.step == 7
    assert sorted(limits) == [8, 9, 10]
    assert {ticket.step for ticket in ended} >= {8}
    assert carry_on(folder, Place(config)).finished
    assert_sound(folder, config)
    assert_kept(folder, ended)


def test_a_run_that_goes_on_with_a_smaller_bound_plays_again_what_is_too_old_for_it(
    ahead_recipe, new_run, staleness, stopping
):
    folder, place = new_run(ahead_recipe(2)), Place(ahead_recipe(2))
    carry_on(folder, place, late(place, stopping(7)))  # groups of step 9, begun under version 6, have ended
    _, ended = async_rollout.load(checkpoint.latest(folder.checkpoints))
    assert any(8 - episode.oldest > 1 for t, group in ended.items() if t.step == 9 for episode in group.trajectories)
    assert carry_on(folder, Place(ahead_recipe(1))).finished
    found = staleness(folder)
    assert [*found] == [*range(4, 12)]
    assert all(found[step] <= 1 for step in range(8, 12))


def older(trajectory):
    """As if weights had sampled it that are older than the bound allows."""
    return replace(trajectory, versions=trajectory.versions - 3 * trajectory.sampled.astype(np.int32))


def newest(trajectory):
    """As if the newest weights had sampled all of it."""
    return replace(trajectory, versions=np.where(trajectory.sampled, trajectory.versions.max(), -1).astype(np.int32))


def louder(trajectory):
    """With other log-probs where the newest weights sampled."""
    latest = trajectory.versions == trajectory.versions.max()
    return replace(trajectory, logprobs=trajectory.logprobs - 0.01 * latest.astype(np.float32))


def backwards(trajectory):
    """With the versions in another order."""
    versions = trajectory.versions.copy()
    versions[trajectory.sampled] = versions[trajectory.sampled][::-1]
    return replace(trajectory, versions=versions)


def test_the_audit_hears_of_weights_that_are_too_old_or_others_than_said(ahead_recipe, new_run):
    step = 10  # the weights of step 9 are kept, those of step 8 are not
    config = ahead_recipe(1, env={"delay_seconds": 0.05})  # so that games last longer than an update
    for name in "abcde":  # on a busy machine all of a step may be played ahead
        folder = new_run(config, name)
        carry_on(folder, Place(config))
        path = trajectories.path_of(folder.trajectories, step)
        _, groups, experiences = trajectories.read_whole(path)
        if any({8, 9} <= {*t.versions.tolist()} for group in groups for t in group.trajectories):
            break
    assert {9} < {v for group in groups for t in group.trajectories for v in t.versions.tolist()} <= {-1, 8, 9}

    def faults(change):
        """What the audit says when the episodes that two weights sampled are changed."""
        changed = [
            Group(tuple(change(t) if {8, 9} <= {*t.versions.tolist()} else t for t in group.trajectories))
            for group in groups
        ]
        trajectories.write(path, trajectories.to_table(changed, step, experiences))
        return {str(finding.fault) for finding in audit(folder, step).findings}

    assert faults(lambda trajectory: trajectory) == set()
    assert "stale weights" in faults(older)
    assert "stale weights" in faults(backwards)
    assert "altered log-prob" in faults(louder)
    assert faults(newest)
