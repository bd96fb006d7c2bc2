"""Tiny runs of Tic-Tac-Toe, and what of a run must be the same to the bit."""

import hashlib
import sqlite3
from functools import cache

import pytest
import torch

from earl.audit import audit
from earl.audit.rebuild import Slot, slots_of
from earl.placement.embedded import EmbeddedBackend
from earl.placement.peers import Peers
from earl.recipe import build, dump, load_toml
from earl.runs import checkpoint
from earl.runs.folder import create, lock
from earl.runs.store import Store
from earl.runs.trajectories import path_of, read, read_whole
from earl.stopping import StopRequest
from earl.trainer import train

torch.set_num_threads(1)


def columns_of(path):
    """Every trajectory of a file, but for the wall time of its turns."""
    _, groups = read(path)
    return [
        (t.task, t.seed, t.stop, t.outcome, t.tokens.tobytes(), t.logprobs.tobytes(), t.versions.tobytes(), turns)
        for group in groups
        for t in group.trajectories
        for turns in [[(turn.action, turn.reward, turn.end) for turn in t.turns]]
    ]


def remains(folder):
    """All that a run leaves behind but times: weights, learner state, progress, numbers, matches, episodes."""
    last = checkpoint.load(checkpoint.latest(folder.checkpoints))
    files = {
        str(path.relative_to(last.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(last.path.rglob("*.safetensors"))
    }
    with sqlite3.connect(folder.database) as connection:
        metrics = connection.execute("SELECT * FROM metrics ORDER BY step, name").fetchall()
        matches = connection.execute("SELECT * FROM matches ORDER BY step, phase, opponent, seat").fetchall()
        timed = connection.execute("SELECT DISTINCT step FROM timings ORDER BY step").fetchall()
    connection.close()
    episodes = {path.name: columns_of(path) for path in sorted(folder.trajectories.glob("*.parquet"))}
    return {
        "files": files,
        "state": last.state,
        "metrics": metrics,
        "matches": matches,
        "timed": timed,
        "episodes": episodes,
        "checkpoints": checkpoint.all_steps(folder.checkpoints),
    }


class Stopping:
    """Asks for a stop once a step is done, or breaks the run off there."""

    def __init__(self, step, break_off=False):
        self.at, self.break_off, self.request, self.seen = step, break_off, StopRequest(), []

    def step(self, record):
        self.seen.append(record.step)
        if record.step == self.at:
            if self.break_off:
                raise BrokenPipeError("the run was broken off here")
            self.request.raised = True

    def event(self, step, kind, message):
        pass

    def stopping(self):
        pass


def carry_on(folder, config, observer=None):
    """Train in this process until the end or until the observer stops it."""
    request = observer.request if observer else StopRequest()
    with lock(folder):
        return train(folder, config, EmbeddedBackend(config, Peers()), Peers(), request, observer)


@pytest.fixture
def new_run(tmp_path):
    """Makes the folder of a new run."""
    return lambda config, name="run": create(tmp_path, name, dump(config))


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """What an uninterrupted run of a recipe leaves behind, trained once."""

    @cache
    def left_by(recipe):
        folder = create(tmp_path_factory.mktemp("whole"), "uninterrupted", recipe)
        assert carry_on(folder, build(load_toml(folder.config))).finished
        return remains(folder)

    return lambda config: left_by(dump(config))


@pytest.fixture(name="remains", scope="session")
def remains_fixture():
    return remains


@pytest.fixture(name="carry_on")
def carry_on_fixture():
    return carry_on


@pytest.fixture
def stopping():
    """An observer that stops after a step."""
    return Stopping


AHEAD = range(4, 12)
"""The steps of reinforcement learning of `ahead_recipe`, after a warm start of 3."""


@pytest.fixture
def ahead_recipe(tiny):
    """Makes the recipe of an asynchronous run, ahead by at most `bound` versions, with some settings changed."""
    recipe = {
        "env": {"delay_seconds": 0.01},
        "agent": {"retries": 4},
        "algorithm": {"correction": "token"},
        "run": {"steps": len(AHEAD), "checkpoint_every": 3, "keep_trajectories_every": 1},
        "evaluate": {"every": 3},
        "placement": {"kind": "disaggregated", "heartbeat_seconds": 3.0},
    }

    def make(bound, **sections):
        changed = {name: {**recipe.get(name, {}), **sections.get(name, {})} for name in {*recipe, *sections}}
        changed["placement"]["max_staleness"] = bound
        return tiny(**changed)

    return make


@pytest.fixture
def staleness():
    """The staleness of the oldest token of each step of a run."""

    def read(folder):
        with Store(folder.database, read_only=True) as store:
            return dict(store.metrics()["staleness/max"])

    return read


@pytest.fixture
def assert_sound(staleness):
    """Checks a run of `ahead_recipe`: each episode was learned once, none too late, and the audit finds nothing."""

    def check(folder, config):
        for step in AHEAD:
            path = path_of(folder.trajectories, step)
            _, groups, experiences = read_whole(path)
            stored = [played for group in groups for played in group.trajectories]
            assert [Slot(one.task, one.seed) for one in stored] == [*slots_of(config, step, stored)]
            assert all(experience.mask.any() for experience in experiences)
        found = staleness(folder)
        assert [*found] == [*AHEAD]
        assert all(0 <= value <= config.placement.max_staleness for value in found.values())
        assert [str(finding) for finding in audit(folder).findings] == []

    return check


@pytest.fixture
def assert_kept():
    """Checks that groups of a checkpoint's buffer were learned from as they were."""

    def check(folder, ended):
        for ticket, group in ended.items():
            _, learned = read(path_of(folder.trajectories, ticket.step))
            for before, after in zip(group.trajectories, learned[ticket.number].trajectories, strict=True):
                assert before.tokens.tolist() == after.tokens.tolist()
                assert before.versions.tolist() == after.versions.tolist()

    return check
