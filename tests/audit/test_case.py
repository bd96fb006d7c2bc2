"""The diagnosis of one episode, by hand: what is stored beside what the replay gives.

A token is a character: `>` of the template, letters of the environment, digits a reply, and `.` its end.
"""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from earl.audit.case import _missing_action, _outgrown, diagnose
from earl.audit.checks import MAX_SHIFT, _shift
from earl.audit.rebuild import Replay, Slot, edit, readings, runs
from earl.trajectory import Author, Completion, Outcome, StopReason, Task, ToolCall, Trajectory, Turn

CHAT = SimpleNamespace(
    stop={ord(".")},
    tokenizer=SimpleNamespace(decode=lambda tokens, skip_special_tokens: "".join(map(chr, tokens))),
    decode=lambda tokens: "".join(map(chr, tokens)),
    written=lambda action: [ord(letter) for letter in f"{action}."],
)
AUTHORS = {">": Author.TEMPLATE, ".": Author.ACTION} | dict.fromkeys("0123456789", Author.ACTION)
TASK = Task("tictactoe", 1)


def episode(text, **other):
    """Its turns are its runs of digits, each with the end behind it."""
    spans = [(match.start(), match.end()) for match in re.finditer(r"[\d.]+", text)]
    begun = [0, *(end for _, end in spans)]
    turns = tuple(
        Turn(0, before, start, end, text[start:end].rstrip("."), 0.5, 0.1)
        for before, (start, end) in zip(begun, spans, strict=False)
    )
    authors = np.array([AUTHORS.get(letter, Author.ENVIRONMENT) for letter in text], np.uint8)
    sampled = authors == Author.ACTION
    fields = {
        "tokens": np.array([ord(letter) for letter in text], np.int32),
        "authors": authors,
        "logprobs": np.where(sampled, -0.5, 0).astype(np.float32),
        "versions": np.where(sampled, 2, -1).astype(np.int32),
        "turns": turns,
    }
    return Trajectory(TASK, 7, **(fields | {"stop": StopReason.FINISHED, "outcome": Outcome.WIN, "illegal": 0} | other))


def turned(text, number, **other):
    """An episode in which one turn is stored otherwise."""
    turns = list(episode(text).turns)
    turns[number] = replace(turns[number], **other)
    return episode(text, turns=tuple(turns))


def replay_of(stored, played, **other):
    room = tuple(turn.end - turn.action_start for turn in played.turns)
    return Replay(SimpleNamespace(chat=CHAT), 3, 1, stored, Slot(TASK, 7), played, **({"room": room} | other))


def said(stored, played, **other):
    found = diagnose(replay_of(stored, played, **other), [])
    assert all((finding.step, finding.episode) == (3, 1) for finding in found)
    return [(str(finding.fault), finding.turn, finding.token, finding.message) for finding in found]


SOUND_TEXT = ">ab1.cd2."
SOUND = episode(SOUND_TEXT)


def test_a_replay_has_the_stored_times_of_the_same_calls():
    calls = [ToolCall("calc", 0.0, 0.2, seconds) for seconds in (0.1, 9.0)]
    stored, played = (episode(SOUND_TEXT, tools=(call,)) for call in calls)
    again = SimpleNamespace(stop=StopReason.FINISHED, trajectory=lambda: played)
    world = SimpleNamespace(episode=lambda task, seed, session: again)
    replay = replace(replay_of(stored, stored), world=world).play(Slot(TASK, 7), [])
    assert [call.run_seconds for call in replay.played.tools] == [0.1]


def test_what_is_alike_has_no_fault():
    assert said(SOUND, SOUND) == []


@pytest.mark.parametrize(
    ("stored", "played", "fault"),
    [
        ("b1.cd2.", ">ab1.cd2.", ("left truncation", None, 0, "the first 2 of 9 tokens are missing")),
        (
            "b1.xx9.yy",
            ">ab1.cd2.",
            (
                *("left truncation", None, 0),
                "the episode begins with 'b', a prompt begins with '>': the tokens before are missing",
            ),
        ),
        (
            ">ab7.cd2.",
            ">ab1.cd2.",
            ("re-encoded action", 0, 3, "the reply's tokens '7' are stored where the action '1' took '1'"),
        ),
        (
            ">ab1.cd2",
            ">ab1.cd2.",
            ("re-encoded action", 1, 8, "the reply's tokens nothing are stored where the action '2' took '.'"),
        ),
        (">ab1.ef3.", ">ab1.cd2.ef3.", ("missing turn", 1, 5, "turn 1, whose reply is '2.', is missing")),
        (">xb1.cd2.", ">ab1.cd2.", ("wrong token", None, 1, "the replay gives 'a' (environment), stored is 'x'")),
        (">ab1.cx2.", ">ab1.cd2.", ("wrong token", None, 6, "the replay gives 'd' (environment), stored is 'x'")),
        (">ab1.cd2.zz", ">ab1.cd2.", ("wrong token", None, 9, "the replay gives nothing (no author), stored is 'zz'")),
    ],
)
def test_other_tokens_have_one_cause(stored, played, fault):
    assert said(episode(stored), episode(played)) == [fault]


def test_an_episode_that_waits_lacks_a_turn():
    waiting = (
        "missing turn",
        1,
        5,
        "the environment still waits after the 1 stored turns, no limit is reached",
    )
    assert said(episode(">ab1."), episode(">ab1.cd"), waiting=True) == [waiting]
    silent = ("missing turn", 2, None, "the reply to the last prompt is missing")
    assert said(SOUND, SOUND, waiting=True) == [silent]


def test_what_cannot_be_played_says_why():
    failed = ("wrong token", None, None, "the episode cannot be replayed: ValueError: no such game")
    assert said(SOUND, SOUND, fault="ValueError: no such game") == [failed]


@pytest.mark.parametrize(
    ("name", "fault"), [("authors", "wrong author"), ("logprobs", "altered log-prob"), ("versions", "wrong mask")]
)
def test_columns_of_another_length_are_named(name, fault):
    stored = replace(SOUND, **{name: getattr(SOUND, name)[:-2]})
    assert said(stored, SOUND) == [(fault, None, None, f"7 {name} stand beside 9 tokens")]


def test_turns_of_other_places():
    for number, name, value, right in ((1, "prompt_start", 4, 5), (0, "end", 4, 5), (1, "summary", True, False)):
        told = f"{name} is stored as {value}, the replay gives {right}"
        assert said(turned(SOUND_TEXT, number, **{name: value}), SOUND) == [("wrong turn", number, None, told)]
    later = replace(SOUND, turns=(SOUND.turns[0], replace(SOUND.turns[1], context_start=5)))
    told = "the prompt is stored to begin at token 5, it began at 0"
    assert said(later, SOUND) == [("left truncation", 1, None, told)]
    told = "context_start is stored as 0, the replay gives 5"
    assert said(SOUND, later) == [("wrong turn", 1, None, told)]
    told = "the reply's tokens read as the action '2', stored is the action '7'"
    assert said(turned(SOUND_TEXT, 1, action="7"), SOUND) == [("re-encoded action", 1, None, told)]


def test_a_turn_where_no_reply_begins():
    moved = turned(SOUND_TEXT, 1, action_start=6)
    assert said(moved, SOUND) == [
        ("missing turn", 1, None, "no turn is stored for the reply '2.'"),
        ("wrong turn", None, None, "a turn is stored at token 6, where no reply begins"),
    ]


def test_a_reply_that_outgrew_its_turn_moves_the_later_ones():
    first, second = SOUND.turns
    moved = (replace(first, end=4), replace(second, prompt_start=4, action_start=6, end=8))
    told = "the reply has 2 tokens where its turn has 1: later turns stand 1 off"
    assert said(replace(SOUND, turns=moved), SOUND) == [("re-encoded action", 0, None, told)]
    assert _outgrown(moved, SOUND.turns) == 0
    assert _outgrown((first, replace(second, end=8)), SOUND.turns) == 1
    assert _outgrown(SOUND.turns, SOUND.turns) is None
    assert _outgrown(moved[:1], SOUND.turns) is None  # another number of turns
    assert _outgrown((replace(first, end=4), second), SOUND.turns) is None  # the later ones did not move
    assert _outgrown((replace(first, action_start=2, end=4), moved[1]), SOUND.turns) is None  # it moved itself


@pytest.mark.parametrize(
    ("text", "room", "fault", "told"),
    [
        (">ab1.", 1, "re-encoded action", "the reply has 2 tokens, but only 1 could be sampled"),
        (">ab1.23", 4, "re-encoded action", "2 tokens stand behind the reply's end"),
        (">ab12", 3, "unseen truncation", "the reply breaks off after 2 tokens, but no limit was reached before 3"),
        (">ab12", 2, None, None),  # the limit cut it off
        (">ab1.", 9, None, None),
    ],
)
def test_replies_of_a_length_that_was_not_sampled(text, room, fault, told):
    assert said(episode(text), episode(text), room=(room,)) == ([(fault, 0, None, told)] if fault else [])


def test_other_authors_are_counted():
    stored = replace(SOUND, authors=np.where(SOUND.authors == Author.ENVIRONMENT, 9, SOUND.authors))
    told = "'a' was written by environment, stored is author 9, which there is not (and 3 more tokens)"
    assert said(stored, SOUND) == [("wrong author", None, 1, told)]
    assert said(SOUND, stored)[0][3].startswith(
        "'a' was written by author 9, which there is not, stored is environment"
    )


def test_other_rewards_and_endings():
    told = "the turn is rewarded with 2.25, the environment gives 0.5"
    assert said(turned(SOUND_TEXT, 1, reward=2.25), SOUND) == [("swapped reward", 1, None, told)]
    lost = replace(SOUND, outcome=Outcome.LOSS, illegal=2, error="it broke")
    assert said(lost, SOUND) == [
        ("wrong ending", None, None, "outcome is stored as loss, the replay gives win"),
        ("wrong ending", None, None, "illegal is stored as 2, the replay gives 0"),
        ("wrong ending", None, None, "error is stored as it broke, the replay gives None"),
    ]
    assert said(replace(SOUND, error="one"), replace(SOUND, error="other")) == []  # faults have many words
    for one, other, fault in (
        (StopReason.TURN_LIMIT, StopReason.FINISHED, "wrong ending"),
        (StopReason.CONTEXT_LIMIT, StopReason.FINISHED, "unseen truncation"),
        (StopReason.FINISHED, StopReason.TRUNCATED_TURN, "unseen truncation"),
    ):
        told = f"the episode is stored as {one}, the replay ends as {other}"
        assert said(replace(SOUND, stop=one), replace(SOUND, stop=other)) == [(fault, None, None, told)]


def test_the_distance_weighs_tokens_before_all_else():
    longer, moved = episode(">ab1.cd22."), turned(SOUND_TEXT, 1, reward=1.0)
    marked = replace(SOUND, authors=np.where(SOUND.authors == Author.TEMPLATE, Author.TOOL, SOUND.authors))
    cut = replace(SOUND, authors=SOUND.authors[:-3])
    distances = {
        (0, 0, 0): replay_of(SOUND, SOUND),
        (0, 0, 1): replay_of(moved, SOUND),
        (0, 0, 2): replay_of(moved, SOUND, waiting=True),
        (0, 1, 0): replay_of(marked, SOUND),
        (0, 3, 0): replay_of(cut, SOUND),
        (2, 0, 0): replay_of(SOUND, longer),  # one token more, counted from 1
        (2, 0, 1): replay_of(longer, SOUND, waiting=True),
        (1 << 40, 0, 0): replay_of(SOUND, SOUND, fault="it broke"),
    }
    for distance, replay in distances.items():
        assert replay.distance == distance
    timed = replace(SOUND, turns=tuple(replace(turn, seconds=9.0) for turn in SOUND.turns), error=None)
    assert not any(replay_of(timed, SOUND).distance)  # a replay takes its own time
    assert replay_of(replace(SOUND, error="x"), SOUND).distance == (0, 0, 1)


def test_a_stretch_in_which_two_sequences_differ():
    assert edit([1, 2, 3], [1, 2, 3]) == (3, 3, 3)
    assert edit([1, 9, 3], [1, 2, 3]) == (1, 2, 2)
    assert edit([1, 3], [1, 2, 2, 3]) == (1, 1, 3)
    assert edit([1, 1, 1], [1, 1]) == (2, 3, 2)  # the head takes what both ends could
    assert edit([], [4, 5]) == (0, 0, 2)
    assert edit([5, 4], [6, 4]) == (0, 1, 1)


def test_runs_of_set_places():
    assert runs(np.array([True, True, False, True])) == [(0, 2), (3, 4)]
    assert runs(np.array([False, True, False])) == [(1, 2)]
    assert runs(np.zeros(3, bool)) == []


def test_quotations():
    replay = replay_of(SOUND, SOUND)
    assert replay.quote([]) == "nothing"
    assert replay.quote([ord("a")] * 58) == f"'{'a' * 58}'"  # 60 characters
    assert replay.quote([ord("a")] * 59) == f"'{'a' * 59}…"
    assert replay.quote([ord("a"), -5]) == "tokens 97, -5"  # no characters


def test_replies_are_read_by_turns_by_versions_and_by_actions():
    """By its versions the first reply has a third token; its turn stores an action that its tokens do not show."""
    stored = replace(turned(SOUND_TEXT, 0, action="7"), versions=np.array([-1, -1, 2, 2, 2, -1, -1, 3, 3], np.int32))
    by_turns, by_versions, by_actions = readings(CHAT, stored)
    codes = [[ord(letter) for letter in reply] for reply in ("1.", "2.", "b1.", "7.")]
    assert by_turns == [Completion(codes[0], [0.0] * 2, [2, 2], True), Completion(codes[1], [0.0] * 2, [3, 3], True)]
    assert by_versions[0] == Completion(codes[2], [0.0] * 3, [2, 2, 2], True)
    assert by_actions == [Completion(codes[3], [0.0] * 2, [0, 0], True), by_turns[1]]
    assert len(list(readings(CHAT, SOUND))) == 2  # turns and versions agree
    unread = turned(SOUND_TEXT, 0, action=None)
    assert list(readings(CHAT, unread))[-1] == next(readings(CHAT, SOUND))
    cut = replace(SOUND, tokens=SOUND.tokens[:8], versions=SOUND.versions[:3])
    assert next(readings(CHAT, cut)) == [
        Completion(codes[0], [0.0] * 2, [0, 0], True),
        Completion(codes[1][:1], [0.0], [0], False),
    ]


def test_a_missing_action_is_the_first_with_which_all_fits():
    tried = []

    class Guess(SimpleNamespace):
        def play(self, slot, replies):
            texts = ["".join(map(chr, reply.tokens)) for reply in replies]
            tried.append(texts)
            played = episode("".join(f">{letter}{text}" for letter, text in zip("abc", texts, strict=False)))
            return SimpleNamespace(played=played, waiting=len(texts) < 2, fault=None)

    stored = episode(">a1.>b2.", turns=episode(">a1.").turns, versions=np.full(8, -1, np.int32))
    guess = Guess(world=SimpleNamespace(chat=CHAT), stored=stored, slot=None)
    assert _missing_action(guess, 1, ["5", "2", "9"]) == "2"
    assert tried == [["1.", "5."], ["1.", "2."]]
    assert _missing_action(guess, 0, ["5", "9"]) is None


def mask(text):
    return np.array([letter == "x" for letter in text])


def test_masks_that_are_shifted():
    expected = mask("....xx......xxx.....")
    assert _shift(expected, expected) == 0
    for shift in (1, 2, 3, 4, -1, -3, -4):
        assert _shift(np.roll(expected, shift), expected) == shift
    assert _shift(mask(".....xx.....xxx....."), expected) == 1  # one of two
    assert _shift(mask("....xx...xxx........"), expected) == -3
    assert _shift(mask("....xx.....xxxx....."), expected) == 0  # longer
    assert _shift(mask("...................."), expected) == 0
    assert _shift(mask("....xx.............."), expected) == 0  # one is missing, and none has moved
    # A shift by 2 pushed one out at the end, and it came in at the beginning. A shift by 1 lets in 1 and a run of 2.
    assert _shift(mask("xx...xx......."), mask("...xx......xxx")) == 2
    assert _shift(mask("...xx........xxx"), mask("..xx............")) == 1
    assert _shift(mask("...xx.......xxxx"), mask("..xx............")) == 0
    # A run one place from an end was not cut off there.
    assert _shift(mask(".x......"), mask("...x....")) == -2
    assert _shift(mask("......x."), mask("....x...")) == 2
    far = mask("." * 5 + "x" + "." * 40)
    assert _shift(np.roll(far, MAX_SHIFT), far) == MAX_SHIFT
    assert _shift(np.roll(far, MAX_SHIFT + 1), far) == 0
