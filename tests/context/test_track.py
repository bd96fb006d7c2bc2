"""Lengths, authors and causes, counted by hand. Every character of a text is one token by one author."""

import numpy as np
import pytest

from earl.context.track import cause, context_metrics, tokens_by_turn, window
from earl.trajectory import KEPT_TURNS, Author, ContextTokens, Outcome, StopReason, Task, Trajectory, Turn

LETTERS = {".": Author.TEMPLATE, "e": Author.ENVIRONMENT, "t": Author.TOOL, "h": Author.THINKING, "a": Author.ACTION}


def trajectory(*rounds, rest="", stop=StopReason.FINISHED, restarts=()):
    """Rounds such as "e.aa"; `restarts` names the rounds that begin a new context."""
    text, turns, start = "", [], 0
    for number, own in enumerate(rounds):
        start = len(text) if number in restarts else start
        places = (start, len(text), len(text) + len(own.rstrip("ha")), len(text) + len(own))
        turns.append(Turn(*places, action="1", reward=0.0, seconds=0.0))
        text += own
    authors = np.array([LETTERS[letter] for letter in text + rest], np.uint8)
    count = len(authors)
    versions = np.where(authors >= Author.THINKING, 1, -1).astype(np.int32)
    return Trajectory(
        Task("made-up", 0), 0, np.zeros(count, np.int32), authors, np.zeros(count, np.float32), versions,
        tuple(turns), stop, Outcome.WIN, 0,
    )  # fmt: skip


def test_lengths_by_level():
    numbers = context_metrics([trajectory(".e.aa", "e.a"), trajectory(".e.aa")])
    assert numbers["context/turn/mean"] == pytest.approx((5 + 3 + 5) / 3)
    assert (numbers["context/turn/p50"], numbers["context/turn/max"]) == (5, 5)
    assert (numbers["context/window/max"], numbers["context/episode/max"]) == (8, 8)
    assert numbers["context/window/p50"] == pytest.approx(6.5)  # between 5 and 8
    assert numbers["context/window/p99"] == pytest.approx(5 + 0.99 * 3)


def test_the_window_is_what_one_reply_saw_at_most():
    # Contexts of 5, then of 4 + 6 tokens; the episode gathered 15.
    forgetful = trajectory(".e.aa", ".eea", ".e.aaa", restarts=(1,))
    assert (window(forgetful), len(forgetful.tokens)) == (10, 15)


def test_tokens_by_author():
    numbers = context_metrics([trajectory(".e.ha", "t.a"), trajectory("e.aa")])
    by_author = [numbers[f"tokens/{name}"] for name in ("template", "environment", "tool", "thinking", "action")]
    assert by_author == [4, 2, 1, 1, 4]
    assert (numbers["tokens"], numbers["tokens/sampled"]) == (12, 5)


def test_causes_of_truncation():
    whole = trajectory(".eaa")
    no_room = trajectory(".eaa", rest="e.", stop=StopReason.CONTEXT_LIMIT)
    cut = trajectory(".eaa", stop=StopReason.CONTEXT_LIMIT)
    long = trajectory(".eaa", stop=StopReason.TRUNCATED_TURN)
    assert [cause(own) for own in (whole, no_room, cut, long)] == [None, "prompt", "reply", "turn"]
    numbers = context_metrics([whole, no_room, no_room, cut])
    assert (numbers["truncation/prompt"], numbers["truncation/reply"], numbers["truncation/turn"]) == (0.5, 0.25, 0)
    assert window(no_room) == 6  # the prompt that left no room counts


def test_a_new_context_that_left_no_room_counts_by_itself():
    own = trajectory(".e.aa", "e.a", rest="eeee", stop=StopReason.CONTEXT_LIMIT, restarts=(1,))
    assert window(own) == 5  # contexts of 5, 3 and 4 tokens


def test_tokens_by_turn_and_author():
    seen = tokens_by_turn([trajectory(".eaa", "ea"), trajectory(".ea", rest="e")], step=7)
    assert seen == [
        ContextTokens(7, 0, Author.TEMPLATE, 2, episodes=2),
        ContextTokens(7, 0, Author.ENVIRONMENT, 2, episodes=2),
        ContextTokens(7, 0, Author.ACTION, 3, episodes=2),
        ContextTokens(7, 1, Author.ENVIRONMENT, 2, episodes=2),  # of the second episode, what came after its last turn
        ContextTokens(7, 1, Author.ACTION, 1, episodes=2),
    ]


def test_later_turns_share_the_last_place():
    own = trajectory(*["ea"] * (KEPT_TURNS + 5))
    last = [cell for cell in tokens_by_turn([own], 1) if cell.turn == KEPT_TURNS - 1]
    # Turns 63 to 68 are 6, with one token by each author.
    assert [(cell.author, cell.tokens, cell.episodes) for cell in last] == [
        (Author.ENVIRONMENT, 6, 1),
        (Author.ACTION, 6, 1),
    ]


def test_an_episode_that_never_began_counts_as_empty():
    failed = trajectory(stop=StopReason.ENV_ERROR)
    assert window(failed) == 0
    assert tokens_by_turn([failed, trajectory("ea")], 1)[0].episodes == 2


def test_every_level_has_every_quantile():
    numbers = context_metrics([trajectory("e" * length + "a") for length in range(101)])  # 1, 2 … 101 tokens
    for level in ("turn", "window", "episode"):
        found = {name: numbers[f"context/{level}/{name}"] for name in ("mean", "p50", "p95", "p99", "max")}
        assert found == pytest.approx({"mean": 51, "p50": 51, "p95": 96, "p99": 100, "max": 101})
    silent = context_metrics([trajectory(rest="ee")])
    assert (silent["context/turn/mean"], silent["context/window/max"], silent["context/episode/max"]) == (0, 2, 2)


def test_what_a_prompt_without_a_reply_takes():
    own = trajectory("ea", "eea", rest="eeee", stop=StopReason.CONTEXT_LIMIT)
    assert window(own) == 9  # the whole episode: its context never began anew
    finished = trajectory("ea", "eea", rest="eeee")
    assert window(finished) == 5  # what stands behind the last reply was no prompt
    assert cause(trajectory(rest="ee", stop=StopReason.CONTEXT_LIMIT)) == "prompt"
    assert window(trajectory(rest="ee", stop=StopReason.CONTEXT_LIMIT)) == 2
