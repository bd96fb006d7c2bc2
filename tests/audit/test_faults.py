"""Each planted fault is caught and named, in every shape that it may come in, and nothing else is."""

import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from earl.audit.evidence import by_weights, gather
from earl.engine.model import load
from earl.engine.tokenizer import character_tokenizer
from earl.runs.storage import step_name
from earl.runs.trajectories import read
from earl.trajectory import Author

STEP, UNWEIGHED = 63, 61  # the weights that sampled step 63 are kept, those that sampled step 61 are not
ARRAYS = ("tokens", "authors", "logprobs", "versions", "mask", "new_logprobs")
PLACES = ("context_start", "prompt_start", "action_start", "end")


def longest(rows):
    """The row with most turns."""
    return max(rows, key=lambda row: len(row["turns"]))


def cut(row, start, end, turns=True):
    """Take tokens start … end out of a row, and move the turns behind them."""
    for name in ARRAYS:
        row[name] = row[name][:start] + row[name][end:]
    for turn in row["turns"] if turns else ():
        for place in PLACES:
            turn[place] -= max(0, min(turn[place], end) - start)


def left(count, turns=True, arrays=ARRAYS):
    def plant(rows):
        row = longest(rows)
        if arrays == ARRAYS:
            cut(row, 0, count, turns)
        else:
            row.update({name: row[name][count:] for name in arrays})

    return plant


def hidden_left(rows):
    longest(rows)["turns"][-1]["context_start"] += 3


def rolled(by):
    def plant(rows):
        for row in rows:
            row["mask"] = np.roll(row["mask"], by).tolist()

    return plant


def rolled_once(rows):
    row = longest(rows)
    turn = row["turns"][1]
    span = slice(turn["action_start"], turn["end"] + 1)
    row["mask"][span] = np.roll(row["mask"][span], 1).tolist()


def rolled_over_episodes(rows):
    flat = np.roll(np.concatenate([row["mask"] for row in rows]), 1)
    for row, part in zip(rows, np.split(flat, np.cumsum([len(row["mask"]) for row in rows])[:-1]), strict=True):
        row["mask"] = part.tolist()


def sampled_shifted(rows):
    row = longest(rows)
    row["versions"] = np.roll(row["versions"], 1).tolist()


def learned_at(author):
    def plant(rows):
        row = longest(rows)
        row["mask"][row["authors"].index(author)] = True

    return plant


def other_digit(turn):
    def plant(rows):
        row = longest(rows)
        place = row["turns"][turn]["action_start"]
        digit = row["tokens"][place]
        row["tokens"][place] = next(t for t in {r["tokens"][r["turns"][0]["action_start"]] for r in rows} if t != digit)

    return plant


def without_end(rows):
    row = next(row for row in rows if row["turns"][0]["action"])
    end = row["turns"][0]["end"]
    cut(row, end - 1, end)


def other_logprob(rows):
    row = longest(rows)
    row["logprobs"][row["turns"][1]["action_start"]] -= 0.2


def scaled_logprobs(rows):
    for row in rows:
        row["logprobs"] = [1.1 * value for value in row["logprobs"]]


def logprob_of_given(rows):
    rows[2]["logprobs"][0] = -0.5


def shifted_logprobs(rows):
    rows[2]["logprobs"] = np.roll(rows[2]["logprobs"], 1).tolist()


def older(which):
    def plant(rows):
        for row in rows[which]:
            row["versions"] = [version - 1 if version >= 0 else -1 for version in row["versions"]]

    return plant


def swapped(rows):
    first, second = (next(row for row in rows if sum_of(row) == value) for value in (min_of(rows), max_of(rows)))
    a, b = first["turns"][-1], second["turns"][-1]
    a["reward"], b["reward"] = b["reward"], a["reward"]


def sum_of(row):
    return sum(turn["reward"] for turn in row["turns"])


def min_of(rows):
    return min(map(sum_of, rows))


def max_of(rows):
    return max(map(sum_of, rows))


def swapped_turns(rows):
    turns = longest(rows)["turns"]
    turns[0]["reward"], turns[-1]["reward"] = turns[-1]["reward"] + 1, turns[0]["reward"]


def untold_turn(number):
    return lambda rows: longest(rows)["turns"].pop(number)


def removed_turn(number):
    def plant(rows):
        row = longest(rows)
        turn = row["turns"].pop(number)
        cut(row, turn["prompt_start"], turn["end"])
        row["advantages"].pop(number)

    return plant


def removed_tokens(rows):
    row = longest(rows)
    turn = row["turns"][1]
    cut(row, turn["prompt_start"], turn["end"], turns=False)


def author(before, after):
    def plant(rows):
        row = longest(rows)
        row["authors"][row["authors"].index(before)] = after

    return plant


def appended(rows):
    rows.insert(4, dict(rows[3]))


def in_place_of_another(rows):
    rows[5] = {**rows[3], "group": rows[5]["group"]}


def seeded(name):
    others = {"opponent": ("random", "perfect@0.5"), "seat": (0, 1)}

    def plant(rows):
        before = rows[3][name]
        rows[3][name] = next(other for other in others.get(name) or (before + 1,) if other != before)

    return plant


PLANTS = {
    "shifted mask": [rolled(1), rolled(-1), rolled_once, rolled_over_episodes, sampled_shifted],
    "re-encoded action": [other_digit(0), other_digit(1), other_digit(-1), without_end],
    "altered log-prob": [other_logprob, scaled_logprobs, logprob_of_given, shifted_logprobs],
    "stale weights": [older(slice(None)), older(slice(3, 4))],
    "left truncation": [
        left(5),
        left(5, turns=False),
        left(5, arrays=("tokens",)),
        left(30),
        hidden_left,
    ],
    "swapped reward": [swapped, swapped_turns],
    "missing turn": [
        untold_turn(0),
        untold_turn(-1),
        removed_turn(0),
        removed_turn(1),
        removed_turn(-1),
        removed_tokens,
    ],
    "wrong author": [author(Author.ENVIRONMENT, Author.TEMPLATE), author(Author.ACTION, Author.ENVIRONMENT)],
    "duplicated episode": [appended, in_place_of_another],
    "wrong seed": [seeded("seed"), seeded("task_seed"), seeded("seat"), seeded("opponent")],
    "loss on a template token": [learned_at(Author.TEMPLATE)],
    "loss on an environment token": [learned_at(Author.ENVIRONMENT)],
}
CASES = [(fault, plant) for fault, plants in PLANTS.items() for plant in plants]


@pytest.mark.parametrize(("fault", "plant"), CASES)
def test_a_planted_fault_is_named_alone(planted, fault, plant):
    run = planted()
    run.change(STEP, plant)
    assert run.names() == {fault}


@pytest.mark.parametrize(("fault", "plant"), CASES)
def test_a_fault_is_named_where_no_weights_are_kept(planted, fault, plant):
    run = planted()
    run.change(UNWEIGHED, plant)
    assert run.names() == {fault}


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
