"""Where in a reply the action stands, and what becomes of replies that hold none or two."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.agents.parser import KINDS, Unreadable, parse, parser, unclosed
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
    assert len(KINDS) == 7


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(EarlError, match="no regular expression: unterminated character set"):
        parser("regex:[0-9")


PIECES = [
    "<answer>",
    "</answer>",
    "\\boxed{",
    "}",
    "{",
    '{"move": ',
    '"5"',
    "5",
    "<tool_call>",
    "</tool_call>",
    "\n",
    "[",
    "é",
    "你",
]
REPLIES = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=20).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300)
@given(reply=REPLIES)
def test_any_reply_has_an_action_or_is_refused(name, reply):
    try:
        action = parser(name).action(reply)
    except Unreadable as refused:
        assert str(refused).startswith("illegal: ")
    else:
        assert action in reply or name.startswith("json:")


WORDS = st.text(string.ascii_letters + string.digits + " ", min_size=1).map(str.strip).filter(bool)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("regex:")])
@given(action=WORDS)
def test_what_is_written_in_a_form_is_read_back(name, action):
    assert parser(name).action(parser(name).written(action)) == action


def test_a_scripted_agents_reply_keeps_what_it_thinks():
    reply = "<think>\nthe centre\n</think>\n\n5\n"
    assert parser("exact").phrased(reply, thinking=True) == reply
    assert parser("boxed").phrased(reply, thinking=True) == "<think>\nthe centre\n</think>\n\n\\boxed{5}\n"
    assert parser("boxed").phrased("", thinking=True) == ""
