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


LATER = "None 0: the tokens learned from stand 1 later than those that were sampled"
REPLY = r"the reply's tokens '.+' are stored where the action '.+' took '.+'"
SEEDED = r", the run's seed gives"

PLANTS = {
    "shifted mask": {
        rolled(1): LATER,
        rolled(-1): "None 15: the tokens learned from stand 1 earlier than those that were sampled",
        rolled_once: LATER.replace("0", r"\d\d"),
        rolled_over_episodes: LATER,
        sampled_shifted: LATER.replace("learned from", "marked as sampled"),
    },
    "re-encoded action": {
        other_digit(0): f"0 16: {REPLY}",
        other_digit(1): rf"1 \d+: {REPLY}",
        other_digit(-1): r"\d \d+: '.+' is not what was sampled: the draw 0\.\d{4} gives another token, "
        r"'.+' stands from [01]\.\d{4} to [01]\.\d{4} by the weights of step 22"
        r"|\d None: the reply's tokens read as the action .+, stored is the action '\d'",
        without_end: r"0 17: the reply's tokens nothing are stored where the action '.+' took '<\|end\|>'",
    },
    "altered log-prob": {
        other_logprob: r"1 \d+: the log-prob of '.+' is stored as -\S+, by the weights of step 22 it is -\S+",
        scaled_logprobs: r"0 16: the log-prob of '.+' is stored as -\S+, by the weights of step 22 it is -\S+ "
        r"\(and \d+ more tokens\)",
        logprob_of_given: r"None 0: the log-prob is -0\.5, but nothing was sampled there",
        shifted_logprobs: r"None 0: the log-prob is -\S+, but nothing was sampled there \(and \d+ more tokens\)",
    },
    "stale weights": {
        older(slice(None)): "None None: 16 episodes were sampled by the weights of step (21|19), not by those of step "
        "(22|20)",
        older(
            slice(3, 4)
        ): "None None: tokens were sampled by the weights of step (21|19), not by those of step (22|20)",
    },
    "left truncation": {
        left(5): r"None 0: the first 5 of \d+ tokens are missing",
        left(5, turns=False): r"None 0: the first 5 of \d+ tokens are missing",
        left(5, arrays=("tokens",)): r"None 0: the episode begins with '.', a prompt begins with '<\|user\|>': "
        "the tokens before are missing",
        left(30): r"None 0: the first 30 of \d+ tokens are missing",
        hidden_left: r"\d None: the prompt is stored to begin at token 3, it began at 0",
    },
    "swapped reward": {
        swapped: r"\d None: the turn is rewarded with -?\d, the environment gives -?\d",
        swapped_turns: r"\d None: the turn is rewarded with -?\d, the environment gives -?\d",
    },
    "missing turn": {
        untold_turn(0): r"0 None: no turn is stored for the reply '.+<\|end\|>'",
        untold_turn(-1): r"\d None: no turn is stored for the reply '.+<\|end\|>'",
        removed_turn(0): r"0 \d+: a turn is missing: with the action '.+' put before turn 0 all later tokens fit",
        removed_turn(1): r"1 \d+: a turn is missing: with the action '.+' put before turn 1 all later tokens fit",
        removed_turn(-1): r"(\d) \d+: a turn is missing: with the action '.+' put before turn \1 all later tokens fit",
        removed_tokens: r"1 \d+: a turn is missing: with the action '.+' put before turn 1 all later tokens fit",
    },
    "wrong author": {
        author(Author.ENVIRONMENT, Author.TEMPLATE): "None 1: '.' was written by environment, stored is template",
        author(Author.ACTION, Author.ENVIRONMENT): r"None 16: '.+' was written by action, stored is environment",
    },
    "duplicated episode": {
        appended: "None None: episode 4 has task and seed of episode 3: it stands in the file twice",
        in_place_of_another: "None None: episode 5 has task and seed of episode 3: it stands in the file twice",
    },
    "wrong seed": {
        seeded("seed"): rf"None None: the episode's seed is \d+{SEEDED} \d+",
        seeded("task_seed"): rf"None None: the task seed is \d+{SEEDED} \d+",
        seeded("seat"): f"None None: the seat is [01]{SEEDED} [01]",
        seeded("opponent"): rf"None None: the opponent is '\S+'{SEEDED} '\S+'",
    },
    "loss on a template token": {
        learned_at(Author.TEMPLATE): r"None 0: '<\|user\|>', written by template, is learned from, but was not sampled"
    },
    "loss on an environment token": {
        learned_at(Author.ENVIRONMENT): "None 1: '.', written by environment, is learned from, but was not sampled"
    },
}
"""By the name of the fault that they are: each with what is said of it, after the turn and the token that are named."""
