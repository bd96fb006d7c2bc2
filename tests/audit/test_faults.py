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
from earl.trajectory import Outcome, StopReason, Task, Trajectory, Turn
from tests.audit.plants import ARRAYS, PLACES, PLANTS, swapped

STEP, UNWEIGHED = 23, 21  # the weights that sampled step 23 are kept, those that sampled step 21 are not
CASES = [
    pytest.param(fault, plant, said, id=f"{fault} {number}")
    for fault, plants in PLANTS.items()
    for number, (plant, said) in enumerate(plants.items())
]
SEALED = "None None: the column '(tokens|logprobs)' is not as it was written: its checksum differs"


@pytest.mark.slow
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


@pytest.mark.slow
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
    [finding] = run.found()
    assert (str(finding.fault), finding.step) == ("corrupt file", UNWEIGHED)
    assert finding.message == f"step-{STEP:06d}.parquet holds the episodes of step {UNWEIGHED}"


@pytest.mark.slow
def test_a_damaged_checkpoint_and_a_damaged_database_are_named(planted):
    run = planted()
    weights = run.folder.checkpoints / step_name(STEP) / "model.safetensors"
    weights.write_bytes(flipped(weights.read_bytes()))
    run.folder.database.write_bytes(b"no database" * 1000)
    assert run.names() == {"corrupt file"}
    assert len(run.found()) == 2


def test_a_file_that_another_program_wrote_is_corrupt(planted):
    """Without metadata and with every column nullable, as a table library writes it."""
    run = planted()
    pq.write_table(pa.Table.from_pylist(run.rows(STEP)), run.path(STEP))
    assert run.names() == {"corrupt file"}


def first(name, change):
    """Changes a column of the first episode."""
    return lambda rows: change(rows[0][name])


def of_another_group(rows):
    """The last episode of the first group becomes the first one of the second."""
    rows[3]["group"] = 1


def of_the_step_before(rows):
    for row in rows:
        row["task_seed"] += 1


def learned_less(rows):
    row = rows[0]
    row["mask"][row["turns"][0]["action_start"]] = False


def learned_otherwise(rows):
    row = rows[2]
    place = row["turns"][1]["action_start"]
    row["new_logprobs"][place] -= 0.25
    row["new_logprobs"][place + 1] -= 0.25


OTHERS = [
    (first("advantages", lambda values: values.__setitem__(0, 9.0)), "wrong advantage", [
        r"0 0 None: the advantage is stored as 9, the rewards give -?[\d.]+"]),
    (first("advantages", lambda values: values.append(0.0)), "wrong advantage", [
        r"0 None None: (\d) advantages are stored for \d turns"]),
    (first("advantages", lambda values: values.__setitem__(0, np.nan)), "wrong advantage", [
        r"0 0 None: the advantage is stored as nan, the rewards give -?[\d.]+"]),
    (lambda rows: rows[6].update(stop="context_limit"), "unseen truncation", [
        "6 None None: the episode is stored as context_limit, the replay ends as (finished|illegal_action)"]),
    (lambda rows: rows.pop(7), "missing episode", [
        "None None None: 15 episodes are stored, the recipe plays 16; missing is that of place 7"]),
    (of_another_group, "wrong group", [
        "3 None None: the episode stands in group 1, it was played in group 0"]),
    (of_the_step_before, "wrong seed", [
        "None None None: 16 of 16 episodes have other tasks and seeds than the step's: "
        "no step's of a run with the seed 5"]),
    (learned_less, "wrong mask", [
        r"0 None 16: '.+' was sampled, but is not learned from"]),
    (first("mask", lambda values: values.pop()), "wrong mask", [
        r"0 None None: a mask of \d+ stands beside \d+ tokens"]),
    (learned_otherwise, "altered log-prob", [
        r"2 1 \d+: the learner's log-prob of '.+' is stored as -\S+, "
        r"by the weights of step 23 it is -\S+ \(and 1 more tokens\)"]),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "fault", "said"), OTHERS, ids=range(len(OTHERS)))
def test_what_else_may_be_wrong_with_a_step_is_named(planted, plant, fault, said):
    run = planted()
    run.change(STEP, plant)
    found = run.found(STEP)
    assert {str(finding.fault) for finding in found} == {fault}
    shown = [f"{finding.episode} {finding.turn} {finding.token}: {finding.message}" for finding in found]
    assert len(shown) == len(said) and all(map(re.fullmatch, said, shown)), shown


def test_the_episodes_of_another_step_are_told(planted):
    run = planted()
    run.write(STEP, [row | {"step": STEP} for row in run.rows(STEP - 1)])
    [finding] = [finding for finding in run.found(STEP) if finding.fault is Fault.WRONG_SEED]
    others = "16 of 16 episodes have other tasks and seeds than the step's: those of step 22"
    assert (finding.message, finding.step, finding.episode) == (others, STEP, None)


def test_a_group_has_one_line_of_the_exploiter(planted):
    plant = planted("board_only")
    lines = [row["opponent"] for row in plant.rows(21)]
    [index, *_] = [number for number, line in enumerate(lines) if number and line == lines[number - 1] != "random"]
    assert lines[index].startswith("exploiter:")
    plant.change(21, lambda rows: rows[index].update(opponent="exploiter:1 2"))
    assert "wrong seed" in plant.names(21)


@pytest.fixture
def both_seats(planted):
    """A run with games of the policy with itself, and for some game of step 23 the rows of both seats."""
    run = planted("self_play")
    rows = [(number, row) for number, row in enumerate(run.rows(STEP)) if row["opponent"] == "self"]
    seats = {row["seat"]: number for number, row in reversed(rows) if row["task_seed"] == rows[0][1]["task_seed"]}
    return run, (seats[0], seats[1])


def test_a_missing_seat_leaves_the_other_one_no_replay(both_seats):
    run, (first, second) = both_seats
    run.change(STEP, lambda rows: rows.pop(second))
    [found] = [finding for finding in run.found(STEP) if finding.episode == first]
    assert (found.fault, found.message) == (
        Fault.WRONG_TOKEN, "the episode cannot be replayed: a reply of the other seat is missing"
    )  # fmt: skip


def test_games_of_which_both_seats_are_missing_are_named(both_seats):
    run, pair = both_seats
    seed = run.rows(STEP)[pair[0]]["task_seed"]
    run.write(STEP, [row for row in run.rows(STEP) if row["task_seed"] != seed])
    assert "missing episode" in run.names(STEP)


def test_what_a_seat_earned_follows_from_both(both_seats):
    run, pair = both_seats
    for number in pair:
        run.change(STEP, lambda rows, number=number: rows[number]["turns"][-1].update(reward=0.5))
    found = {(finding.fault, finding.episode) for finding in run.found(STEP)}
    assert {(Fault.SWAPPED_REWARD, number) for number in pair} <= found


def test_numbers_that_the_episodes_do_not_show_are_named(planted):
    run = planted()
    with sqlite3.connect(run.folder.database) as connection:
        connection.execute("UPDATE metrics SET value = value + 0.25 WHERE step = ? AND name = 'reward'", (STEP,))
    connection.close()
    [finding] = run.found()
    assert (finding.fault, finding.step) == (Fault.WRONG_NUMBER, STEP)
    recorded = re.fullmatch(r"reward is recorded as (\S+), the stored episodes give (\S+)", finding.message)
    assert float(recorded[1]) == pytest.approx(float(recorded[2]) + 0.25, abs=1e-5)


def test_turns_that_the_replay_does_not_have_are_named():
    """A turn that is stored twice."""
    turn, episode = Turn(0, 0, 1, 2, "6", 0.0, 0.1), np.zeros(2, np.int32)
    stored, played = (
        Trajectory(Task("tictactoe", 1), 2, *[episode] * 4, (turn,) * count, StopReason.FINISHED, Outcome.WIN, 0)
        for count in (2, 1)
    )
    found = list(_rewards(Replay(None, 3, 1, stored, None, played)))
    assert [(one.fault, one.message) for one in found] == [(Fault.WRONG_ENDING, "2 turns are stored, the replay has 1")]
