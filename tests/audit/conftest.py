"""Small real runs, and faults planted in copies of their stored files."""

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from earl.audit import audit
from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.placement.embedded import EmbeddedBackend
from earl.placement.peers import Peers
from earl.recipe import dump
from earl.runs.folder import RunFolder, create, lock
from earl.stopping import StopRequest
from earl.trainer import train

torch.set_num_threads(1)

# Stored are the episodes of the steps 21, 22 and 23, and the weights of the steps 22 and 23, and of the best.
WARM = {"steps": 20, "teacher": "expert", "episodes": 48, "minibatches": 4, "learning_rate": 5e-3}
SOLVER = {**WARM, "teacher": "solver", "noise": 0.0}
SELDOM = {"every": 20}
PACE = {"checkpoint_every": 2, "keep_trajectories_every": 1}
RUNS = {
    "grpo": {},
    "ppo": {"algorithm": {"name": "ppo"}},
    "reinforce": {"algorithm": {"name": "reinforce++"}, "context": {"length_penalty": 0.01}},
    "board_only": {
        "agent": {"history": "board_only", "retries": 1},
        "env": {"opponents": {"random": 1, "exploiter": 1}},
    },
    "self_play": {
        "agent": {"history": "board_only"},
        "env": {"opponents": {"self": 3, "random": 1}, "random_replies": 2, "restarts": 0.5},
    },
    "last_turns": {"agent": {"history": "last_turns:1", "retries": 1}},
    "cut_off": {"context": {"limit": 72, "learn_truncated": False}},
    "arithmetic": {
        "env": {"name": "arithmetic", "opponents": {}},
        "agent": {"max_turn_tokens": 64},
        "context": {"limit": 300},
        "warm_start": SOLVER,
        "evaluate": {**SELDOM, "opponents": []},
    },
}


solve = ArithmeticEnv.solve


def hermes(reply):
    """The call in another form, in which tags are a token each."""
    return re.sub(r'calc\("(.*)"\)', r'<tool_call>{"name":"calc","arguments":{"expression":"\1"}}</tool_call>', reply)


@pytest.fixture(scope="session")
def sound(tiny, tmp_path_factory):
    """The folder of an untouched run, trained once."""
    root = tmp_path_factory.mktemp("audited")

    def make(name):
        if not (root / name).exists():
            config = tiny(**{"warm_start": WARM, "run": PACE, "evaluate": SELDOM, **RUNS[name]})
            folder = create(root, name, dump(config))
            with lock(folder), pytest.MonkeyPatch.context() as patch:
                patch.setattr(ArithmeticEnv, "solve", lambda env, rng: hermes(solve(env, rng)))
                assert train(folder, config, EmbeddedBackend(config, Peers()), Peers(), StopRequest(), None).finished
        return RunFolder(root / name)

    return make


class Planted:
    """A copy of a run whose stored rows can be changed."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, step):
        return self.folder.trajectories / f"step-{step:06d}.parquet"

    def rows(self, step):
        return pq.read_table(self.path(step)).to_pylist()

    def write(self, step, rows):
        schema = pq.read_schema(self.path(step))
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), self.path(step))

    def change(self, step, plant):
        """Let `plant` change the rows in place, and write them back."""
        rows = self.rows(step)
        plant(rows)
        self.write(step, rows)

    def found(self, step=None):
        """What an audit says now."""
        return audit(self.folder, step).findings

    def names(self, step=None):
        """The faults that an audit names now."""
        return {str(finding.fault) for finding in self.found(step)}


@pytest.fixture
def planted(sound, tmp_path):
    """Makes a copy of a run to plant faults in."""

    def make(name="grpo"):
        shutil.copytree(sound(name).path, tmp_path / name)
        return Planted(RunFolder(tmp_path / name))

    return make
