"""Each planted fault is caught and named, in every shape that it may come in, and nothing else is."""

import re
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from earl.audit.case import _rewards
from earl.audit.evidence import by_weights, gather
from earl.audit.findings import Fault
from earl.audit.rebuild import Replay
from earl.engine.model import character_tokenizer, load
from earl.runs.storage import step_name
from earl.runs.trajectories import read
from earl.trajectory import Author, Outcome, StopReason, Task, Trajectory, Turn
from tests.audit.plants import ARRAYS, PLACES, PLANTS, author, swapped

STEP, UNWEIGHED = 23, 21  # the weights that sampled step 63 are kept, those that sampled step 61 are not
CASES = [(fault, plant, said) for fault, plants in PLANTS.items() for plant, said in plants.items()]
SEALED = "None None: the column '(tokens|logprobs)' is not as it was written: its checksum differs"


@pytest.mark.parametrize(("fault", "plant", "said"), CASES)
def test_a_planted_fault_is_named_alone_with_weights_and_without(planted, fault, plant, said):
    run = planted()
    for step in (STEP, UNWEIGHED):
        run.change(step, plant)
    found = run.found()
    assert {(str(finding.fault), finding.step) for finding in found} == {(fault, STEP), (fault, UNWEIGHED)}
    for finding in found:
        expected = said if finding.step == STEP else f"{said}|{SEALED}"  # without weights only a checksum may show it
        assert re.fullmatch(expected, f"{finding.turn} {finding.token}: {finding.message}")


@pytest.mark.parametrize("moved", [True, False])
def test_the_same_text_in_other_tokens_is_a_re_encoded_action(planted, moved):
    """<tool_call> is one token; spelled in characters it is 11, which decode to the same text."""
    run = planted("arithmetic")
    tag = character_tokenizer().encode("<tool_call>")
    spelled = [character_tokenizer().encode(letter)[0] for letter in "<tool_call>"]

    def plant(rows):
        row = next(row for row in rows if row["tokens"][row["turns"][0]["action_start"]] == tag[0])
        place = row["turns"][0]["action_start"]
        repeats = {"tokens": spelled} | {name: [row[name][place]] * 11 for name in ARRAYS if name != "tokens"}
        for name, values in repeats.items():
            row[name][place : place + 1] = values
        for turn in row["turns"] if moved else ():
            turn.update({name: turn[name] + 10 * (turn[name] > place) for name in PLACES})

    run.change(STEP, plant)
    assert run.names() == {"re-encoded action"}


@pytest.mark.parametrize("which", [slice(None), slice(4, 5)])
def test_log_probs_of_other_weights_are_stale_weights(planted, which):
    """The tokens stay, the log-probs are those that the weights before the last step give them."""
    run = planted()
    older = load(run.folder.checkpoints / step_name(STEP)).model.eval()
    episodes = [(i, t) for i, t in enumerate(t for group in read(run.path(STEP))[1] for t in group.trajectories)]
    sampled, evidence = gather(episodes), by_weights(older, episodes, 1.0)

    def plant(rows):
        chosen = range(len(rows))[which]
        for place, logprob in zip(sampled.places, evidence.logprobs, strict=True):
            if place.episode in chosen:
                rows[place.episode]["logprobs"][place.token] = float(logprob)

    run.change(STEP, plant)
    assert run.names() == {"stale weights"}
    assert {finding.episode for finding in run.found()} == ({None} if which == slice(None) else {4})


def flipped(data):
    return data[:200] + bytes(255 - byte for byte in data[200:204]) + data[204:]


@pytest.mark.parametrize(
    "damage", [flipped, lambda data: data[:-100], lambda data: b"", lambda data: b"x" * 5000], ids=range(4)
)
def test_a_corrupt_file_is_named_and_the_others_are_checked_all_the_same(planted, damage):
    run = planted()
    run.path(STEP).write_bytes(damage(run.path(STEP).read_bytes()))
    run.change(UNWEIGHED, swapped)
    found = run.found()
    assert [(str(finding.fault), finding.step) for finding in found[:1]] == [("corrupt file", STEP)]
    assert {str(finding.fault) for finding in found[1:]} == {"swapped reward"}


def test_a_file_under_the_name_of_another_step_is_corrupt(planted):
    run = planted()
    run.path(STEP).write_bytes(run.path(UNWEIGHED).read_bytes())
    assert run.names() == {"corrupt file"}


def test_a_damaged_checkpoint_and_a_damaged_database_are_named(planted):
    run = planted()
    weights = run.folder.checkpoints / step_name(STEP) / "model.safetensors"
    weights.write_bytes(flipped(weights.read_bytes()))
    run.folder.database.write_bytes(b"no database" * 1000)
    assert run.names() == {"corrupt file"}
    assert len(run.found()) == 2


def test_a_file_that_another_program_wrote_is_read_by_its_columns(planted):
    """Without metadata and with every column nullable, as a table library writes it."""
    run = planted()
    rows = run.rows(STEP)
    author(Author.ACTION, Author.ENVIRONMENT)(rows)
    pq.write_table(pa.Table.from_pylist(rows), run.path(STEP))
    assert run.names() == {"corrupt file", "wrong author"}


def test_altered_numbers_of_learning_are_named(planted):
    run = planted()
    run.change(STEP, lambda rows: rows[0]["advantages"].__setitem__(0, 9.0))
    assert run.names() == {"wrong advantage"}


def test_a_truncation_that_nobody_told_is_named(planted):
    run = planted()

    def plant(rows):
        rows[6]["stop"] = "context_limit"

    run.change(STEP, plant)
    assert run.names() == {"unseen truncation"}


def test_numbers_that_the_episodes_do_not_show_are_named(planted):
    run = planted()
    with sqlite3.connect(run.folder.database) as connection:
        connection.execute("UPDATE metrics SET value = value + 0.25 WHERE step = ? AND name = 'reward'", (STEP,))
    connection.close()
    assert run.names() == {"wrong number"}


def test_turns_that_the_replay_does_not_have_are_named():
    """A turn that is stored twice."""
    turn, episode = Turn(0, 0, 1, 2, "6", 0.0, 0.1), np.zeros(2, np.int32)
    stored, played = (
        Trajectory(Task("tictactoe", 1), 2, *[episode] * 4, (turn,) * count, StopReason.FINISHED, Outcome.WIN, 0)
        for count in (2, 1)
    )
    found = list(_rewards(Replay(None, 3, 1, stored, None, played)))
    assert [(one.fault, one.message) for one in found] == [(Fault.WRONG_ENDING, "2 turns are stored, the replay has 1")]
