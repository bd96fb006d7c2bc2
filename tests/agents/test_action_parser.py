"""Where in a reply the action stands, and what becomes of replies that hold none or two."""

from random import Random

import pytest

from earl.agents.parser import KINDS, Unreadable, parse, parser, unclosed
from earl.agents.scripted.registry import agent, player
from earl.envs import registry
from earl.envs.registry import make
from earl.errors import EarlError

NAMES = ["exact", "last_line", "boxed", "tool_call", "tag:answer", "regex:[0-9]", "regex:move ([0-9])", "json:move"]


@pytest.mark.parametrize(
    ("name", "reply", "action"),
    [
        ("exact", "5", "5"),
        ("exact", " 5", " 5"),  # which no game knows: it is refused there
        ("exact", "I play 5.", "I play 5."),
        ("last_line", " 5", "5"),
        ("last_line", "The centre is free.\n\n 5 \n", "5"),
        ("last_line", "I play 5.", "I play 5."),
        ("last_line", "", ""),
        ("boxed", r"so it is \boxed{5}.", "5"),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"\boxed{5} and again \boxed{ 5 }", "5"),
        ("tag:answer", "I play <answer> 5\n</answer>.", "5"),
        ("tag:answer", "<answer>\n1\n2\n</answer>", "1\n2"),
        ("regex:[0-9]", "I play 5.", "5"),
        ("regex:move ([0-9])", "after 3 I move 5", "5"),
        ("json:move", '{"move": 5}', "5"),
        ("json:move", 'Here: ```json\n{"why": {"move": 3}, "move": "5"}\n```', "5"),
        ("tool_call", "First <tool_call>2+3</tool_call>", "<tool_call>2+3</tool_call>"),
        ("tool_call", " 42\n", "42"),
    ],
)
def test_the_action_of_a_reply(name, reply, action):
    assert parser(name).action(reply) == action


@pytest.mark.parametrize(
    ("name", "reply", "said"),
    [
        ("boxed", "5", r"illegal: no answer; write \boxed{your action} once"),
        ("boxed", r"\boxed{5", r"illegal: no answer; write \boxed{your action} once"),
        ("boxed", r"\boxed{5} or \boxed{6}", r"illegal: 2 answers; write \boxed{your action} once"),
        (
            "tag:answer",
            "<answer>5</answer><answer>6</answer>",
            "illegal: 2 answers; write <answer>your action</answer> once",
        ),
        ("tag:answer", "<answer>5", "illegal: no answer; write <answer>your action</answer> once"),
        ("regex:[0-9]", "5 or 6", "illegal: 2 answers; write your action once"),
        ("json:move", '{"move": 5} {"move": 6}', 'illegal: 2 answers; write {"move": "your action"} once'),
        ("json:move", '{"move": true}', 'illegal: no answer; write {"move": "your action"} once'),
        ("json:move", '[{"mov": 5}]', 'illegal: no answer; write {"move": "your action"} once'),
        (
            "tool_call",
            "<tool_call>1</tool_call><tool_call>2</tool_call>",
            "illegal: 2 answers; write your action once",
        ),
    ],
)
def test_no_answer_and_two_are_refused_with_the_form(name, reply, said):
    with pytest.raises(Unreadable) as refused:
        parser(name).action(reply)
    assert str(refused.value) == said


def test_an_answer_inside_the_thinking_span_does_not_count():
    reply = parse("<think><answer>3</answer></think>\n<answer>5</answer>", thinking=True)
    assert parser("tag:answer").action(reply.action) == "5"
    opened = parse("<answer>3</answer></think>5", thinking=True, opened=True)
    assert (opened.thinking, opened.action) == ("<answer>3</answer></think>", "5")
    assert unclosed("still thinking", opened=True)
    assert not unclosed("still thinking")
    # An agent that may not think is taken at its word, and has said two things.
    with pytest.raises(Unreadable, match="2 answers"):
        parser("tag:answer").action(parse("<think><answer>3</answer></think><answer>5</answer>", thinking=False).action)


@pytest.mark.parametrize("name", ["", "exact:", "tag:", "tag:a b", "regex:", "json:", "first_line", "boxed:5"])
def test_a_name_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(EarlError, match="is none of exact, last_line, boxed, tool_call, tag:NAME"):
        parser(name)
    assert len(KINDS) == 8


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(EarlError, match="no regular expression: unterminated character set"):
        parser("regex:[0-9")


def test_a_pattern_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr("earl.agents.parser.MATCH_SECONDS", 0.05)
    with pytest.raises(EarlError, match=r"took more than 0.05 s for a reply of 61 characters; write"):
        parser("regex:(a|aa)+$").action("a" * 60 + "b")


PIECES = [*"59 x\n{}[]\"':,.\\", "I play ", "5.", "<think>", "</think>", "<answer>", "</answer>", "\\boxed{"]
PIECES += [
    "<tool_call>",
    "</tool_call>",
    "move 7",
    "é",
    "界",
    "🙂",
    "\x00",
    "\u202e",
    '{"move":',
    '{"move": 5}',
    "\u2028",
]


@pytest.mark.slow
def test_a_hundred_thousand_replies_each_have_one_action_or_a_reason():
    rng = Random(4)
    for number in range(100_000):
        text = "".join(rng.choices(PIECES, k=rng.randrange(12)))
        reply = parse(text, thinking=bool(number % 2), opened=number % 4 == 1)
        assert reply.thinking + reply.action == text or reply.action == reply.action.strip()
        try:
            action = parser(NAMES[number % len(NAMES)]).action(reply.action)
        except Unreadable as refused:
            assert str(refused).startswith("illegal: ")
        else:
            assert isinstance(action, str)


def test_boxes_that_never_close_are_read_in_one_pass():
    nested = "\\boxed{" * 50_000
    with pytest.raises(Unreadable, match="no answer"):
        parser("boxed").action(nested)
    assert parser("boxed").action(nested + "5}") == "5"
    assert parser("boxed").action(r"\boxed{a\boxed{b}}") == r"a\boxed{b}"


OWN = """
class Speaker:
    def act(self, env, rng):
        return env.instructions[:1]

class Corner:
    def move(self, game, state, rng):
        return game.legal(state)[0]

def action(reply):
    if "explode" in reply:
        raise RuntimeError("boom")
    return 5 if "number" in reply else reply.partition("move: ")[2] or None

action.format = "move: {}"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "plugged_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    registry.allow("plugged_parts:action", "plugged_parts:Speaker", "plugged_parts:Corner")


def test_a_parser_of_ones_own(own):
    mine = parser("plugged_parts:action")
    assert mine.action("well, move: 5") == "5"
    assert mine.written("7") == "move: 7"
    with pytest.raises(Unreadable, match=r"no answer; write move: your action once"):
        mine.action("5")
    with pytest.raises(EarlError, match="returned 5; return the action as a str, or None"):
        mine.action("number")
    with pytest.raises(EarlError, match="you never named it yourself"):
        parser("somebody_elses:action")


def test_teachers_and_opponents_of_ones_own(own):
    assert agent("plugged_parts:Speaker", "arithmetic").act(make("arithmetic"), Random(0))
    env = make("tictactoe", seat=1, opponent=player("plugged_parts:Corner", "tictactoe"))
    assert env.reset(seed=3)[0] == "O X23\n456\n789"
    with pytest.raises(EarlError, match=r"teacher 'plugged_parts:Corner' has no method act\(\)"):
        agent("plugged_parts:Corner", "tictactoe")
    with pytest.raises(EarlError, match="you never named it yourself"):
        player("somebody_elses:Player", "tictactoe")
