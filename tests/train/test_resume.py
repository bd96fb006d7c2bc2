"""Stopped or broken off after any step, then continued: the same run to the bit."""

import hashlib
import shutil
import time

import pytest
from safetensors.torch import load_file

from earl.placement.embedded import EmbeddedBackend
from earl.placement.peers import Peers, WorkerLost
from earl.runs import checkpoint
from earl.runs.folder import lock
from earl.runs.store import Store
from earl.stopping import StopRequest
from earl.trainer import train

KINDS = {
    "grpo": {},
    "rloo": {"algorithm": {"name": "rloo"}},
    "reinforce++": {"algorithm": {"name": "reinforce++", "entropy": 0.02, "final_entropy": 0.0}},
    "ppo": {"algorithm": {"name": "ppo"}},
    "kl": {"algorithm": {"kl": 0.1, "reset_reference": 2}},
    "curriculum": {
        "env": {"opponents": {"random": [2, 0], "perfect@0.5": 1, "heuristic": [0, 3]}, "prefer": "informative"},
        "warm_start": {"steps": 3, "distill": 0.5, "distill_steps": 2},
        "rollout": {"episodes": 16, "group_size": 4, "resample": 2},
        "algorithm": {"name": "dapo"},
    },
    "board only": {"agent": {"history": "board_only", "retries": 1}},
    "last turns": {"agent": {"history": "last_turns:1", "retries": 1}},
    "summaries": {"agent": {"history": "summary:2", "summary_tokens": 12}},
    "automatic limit": {"context": {"limit": "auto", "initial": 36}},
}


ALIKE = ("rloo", "reinforce++", "last turns", "board only", "ppo")
"""They keep nothing between steps that grpo does not, or the run that breaks off after every step."""


def marks_of(kind):
    return [] if kind == "grpo" else [pytest.mark.slow, *[pytest.mark.exhaustive] * (kind in ALIKE)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks_of(kind)) for kind in KINDS])
def test_every_algorithm_goes_on_where_it_was_broken_off(kind, tiny, new_run, whole, remains, carry_on, stopping):
    config = tiny(**KINDS[kind])
    folder = new_run(config)
    for step in (1, 4, 5):  # in the warm start, in the first step of RL, behind a checkpoint
        with pytest.raises(BrokenPipeError):
            carry_on(folder, config, stopping(step, break_off=True))
    assert carry_on(folder, config).finished
    assert remains(folder) == whole(config)


@pytest.mark.slow
def test_a_run_that_breaks_off_after_every_step(tiny, new_run, whole, remains, carry_on, stopping):
    config = tiny(run={"checkpoint_every": 1}, algorithm={"name": "ppo", "kl": 0.1}, warm_start={"aggregate": True})
    folder = new_run(config)
    for step in range(7):
        with pytest.raises(BrokenPipeError):
            carry_on(folder, config, stopping(step, break_off=True))
    carry_on(folder, config)
    assert remains(folder) == whole(config)


@pytest.mark.slow
def test_a_stop_by_request_saves_where_it_stopped(tiny, new_run, whole, remains, carry_on, stopping):
    config = tiny(run={"checkpoint_every": 50})
    folder = new_run(config)
    for step in range(6):
        observer = stopping(step)
        progress = carry_on(folder, config, observer)
        assert (progress.step, progress.finished) == (step, False)
        assert checkpoint.all_steps(folder.checkpoints)[-1] == step
        assert observer.seen == [step]  # nothing is done twice
    assert carry_on(folder, config).finished
    continued, expected = remains(folder), whole(config)
    # Which checkpoints are kept beside the last one may differ: one more was written.
    for part in ("files", "state", "metrics", "matches", "episodes"):
        assert continued[part] == expected[part]


@pytest.mark.slow
def test_the_reference_is_the_model_with_which_reinforcement_learning_began(
    tiny, new_run, carry_on, stopping, tmp_path
):
    config = tiny(algorithm={"kl": 0.1}, run={"checkpoint_every": 1})
    folder, began = new_run(config), tmp_path / "began.safetensors"

    for step in (2, 3, 4, 5):  # before the reference is made, just before, just after, later
        carry_on(folder, config, stopping(step))
        if step == 3:
            shutil.copy(folder.checkpoints / "step-000003" / "model.safetensors", began)
    carry_on(folder, config)
    last = folder.checkpoints / "step-000006"
    reference, model = load_file(last / "reference" / "model.safetensors"), load_file(began)
    assert reference.keys() == model.keys()
    assert all(reference[name].equal(model[name]) for name in model)
    assert not reference["lm_head.weight"].equal(load_file(last / "model.safetensors")["lm_head.weight"])


@pytest.mark.slow
def test_a_model_of_somebody_elses_trains_and_resumes(tiny, new_run, whole, remains, carry_on, stopping, tmp_path):
    # Tied embeddings are written once, under one of their two names.
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from earl.engine.model import Policy, character_tokenizer

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=106, num_key_value_heads=1, tie_word_embeddings=True, **shape))
    Policy(model, character_tokenizer()).save(tmp_path / "model")
    config = tiny(model={"path": str(tmp_path / "model")}, algorithm={"kl": 0.1})
    folder = new_run(config)
    for step in (2, 4):
        with pytest.raises(BrokenPipeError):
            carry_on(folder, config, stopping(step, break_off=True))
    carry_on(folder, config)
    assert remains(folder) == whole(config)


@pytest.mark.slow
def test_checkpoints_do_not_change_behind_a_runs_back(tiny, new_run, carry_on):
    config = tiny()
    folder = new_run(config)
    carry_on(folder, config)
    before = {
        path: hashlib.sha256(path.read_bytes()).digest() for path in folder.checkpoints.rglob("*") if path.is_file()
    }
    carry_on(folder, config)
    assert before == {path: hashlib.sha256(path.read_bytes()).digest() for path in before}


@pytest.mark.slow
def test_what_was_written_after_the_checkpoint_is_gone_before_it_is_done_again(tiny, new_run, carry_on, stopping):
    config = tiny(run={"checkpoint_every": 50, "steps": 5}, evaluate={"every": 50})
    folder, found = new_run(config), []
    with pytest.raises(BrokenPipeError):
        carry_on(folder, config, stopping(7, break_off=True))
    again = checkpoint.all_steps(folder.checkpoints)[-1] + 1
    assert again < last_step(folder) == 7

    class Looking(stopping):
        def step(self, record):
            found.append((record.step, last_step(folder), len(list(folder.trajectories.glob("*.parquet")))))

    carry_on(folder, config, Looking(99))
    assert found[0] == (again, again, max(0, again - 3))  # episodes are kept of the steps after the third


def last_step(folder):
    with Store(folder.database, read_only=True) as store:
        return store.last_step()


@pytest.mark.slow
def test_events_are_not_told_twice(tiny, new_run, carry_on, stopping):
    config = tiny()
    whole, broken = new_run(config, "whole"), new_run(config, "broken")
    carry_on(whole, config)
    for step in (0, 3, 5):
        with pytest.raises(BrokenPipeError):
            carry_on(broken, config, stopping(step, break_off=True))
    carry_on(broken, config)
    assert events(broken) == events(whole) != []


def events(folder):
    with Store(folder.database, read_only=True) as store:
        return [(event.step, event.kind, event.message) for event in store.events() if event.kind != "resume"]


class Losing:
    """Loses a process once, behind a checkpoint that is damaged meanwhile; whoever mends it finds that put aside."""

    def __init__(self, config, folder):
        self._here, self._folder, self.found = EmbeddedBackend(config, Peers()), folder, []
        self.open, self.notes, self.request = self._here.open, self._here.notes, StopRequest()

    def mend(self, lost):
        self.found.append(checkpoint.latest(self._folder.checkpoints).name)

    def step(self, record):
        if record.step == 5 and not self.found:
            last = self._folder.checkpoints / "step-000004"
            while not last.exists():  # it is written meanwhile
                time.sleep(0.01)
            (last / "model.safetensors").write_bytes(b"")
            raise WorkerLost("the process")

    def event(self, step, kind, message):
        pass

    def stopping(self):
        pass


@pytest.mark.slow
def test_a_run_that_is_mended_goes_on_from_the_last_whole_checkpoint(tiny, new_run, whole, remains):
    config = tiny(run={"checkpoint_every": 2}, evaluate={"every": 50})
    folder = new_run(config)
    place = Losing(config, folder)
    with lock(folder):
        assert train(folder, config, place, Peers(), place.request, place).finished
    assert place.found[0] < "step-000004"
    with Store(folder.database, read_only=True) as store:
        told = [event.message for event in store.events() if event.kind == "damaged"]
    assert len(told) == 1
    assert "step-000004 is damaged: model.safetensors has 0 bytes" in told[0]
    continued, expected = remains(folder), whole(config)
    for part in ("files", "state", "metrics", "matches", "episodes"):
        assert continued[part] == expected[part]
