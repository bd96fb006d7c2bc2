"""Faults to plant: each changes the stored rows of a step in place, as a careless program might."""

import numpy as np

from earl.trajectory import Author

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
"""By the name of the fault that they are."""
