"""Calls in the formats of five families: each that is well formed is read, and whatever else is said to the agent."""

import asyncio
import json
from random import Random
from typing import Annotated, Literal

import pytest
from pydantic import Field

from earl.envs.tools.tool import MOST_CALLS, RESULT_CHARACTERS, CallError, format_result, read_calls, run_calls, tool_of
from earl.errors import EarlError


def add(a: int, b: Annotated[float, Field(description="Added to it.")] = 2.0) -> float:
    """Add two numbers."""
    return a + b


def say(words: list[str], how: Literal["loud", "low"] = "low", sure: bool = True, more: dict[str, int] | None = None):
    """Say words."""
    return " ".join(words) if how == "low" else " ".join(words).upper()


async def late(seconds: float) -> str:
    """Answer later."""
    await asyncio.sleep(seconds)
    return "now"


def fail(why: str) -> str:
    """Fail."""
    if why == "value":
        raise ValueError("no such thing")
    raise KeyError(why)


TOOLS = {tool.name: tool for tool in map(tool_of, (add, say, late, fail))}


def hermes(calls):
    return "\n".join(f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)


def llama(calls):
    return "<|python_tag|>" + "; ".join(json.dumps({"name": n, "parameters": a}) for n, a in calls)


def mistral(calls):
    return "[TOOL_CALLS]" + json.dumps([{"name": n, "arguments": a} for n, a in calls])


def mistral_named(calls):
    return "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a)}" for n, a in calls)


def pythonic(calls):
    return f"[{', '.join(plain([call]) for call in calls)}]"


def plain(calls):
    [(name, arguments)] = calls
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


FAMILIES = (hermes, llama, mistral, mistral_named, pythonic, plain)
NASTY = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    '"',
    "\\",
    "\n",
    "{",
    "}",
    "]",
    ";",
    "é",
    "a",
    " ",
    "(",
    "'",
]


def drawn(rng, many):
    """Some well-formed calls, with whatever a format uses for itself inside of their texts; no two are the same."""
    calls = []
    for number in range(many):
        if rng.random() < 0.5:
            calls.append(("add", {"a": number, "b": rng.uniform(-9, 9)}))
        else:
            words = ["".join(rng.choices(NASTY, k=rng.randrange(9))) for _ in range(3)]
            calls.append(("say", {"words": [str(number), *words], "how": rng.choice(["loud", "low"]), "sure": False}))
    return calls


@pytest.mark.slow
def test_every_well_formed_call_of_each_family_is_read():
    rng = Random(0)
    for _ in range(2000):
        for family in FAMILIES:
            calls = drawn(rng, 1 if family is plain else rng.randint(1, MOST_CALLS))
            found = read_calls(family(calls), TOOLS)
            given = [{key: one.arguments[key] for key in sent} for one, (_, sent) in zip(found, calls, strict=True)]
            assert [(one.tool.name, own) for one, own in zip(found, given, strict=True)] == calls


@pytest.mark.slow
def test_no_text_is_an_exception():
    rng, outcomes = Random(1), {"call": 0, "answer": 0, "refused": 0}
    marks = [
        "<|python_tag|>",
        "<|python_start|>",
        "add(",
        "say(",
        "name",
        "arguments",
        "NaN",
        "1e999",
        ":",
        ",",
        "\ud800",
        "0",
    ]
    alphabet = [
        *NASTY,
        *marks,
        "[",
        "add(1)",
        '{"name": "add", "arguments": {"a": 1}}',
        "\x00",
        "**",
        "lambda: 0",
        "9" * 5000,
    ]
    for number in range(20_000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(12)))
        if number % 2:  # a well-formed one with a few characters changed
            family = rng.choice(FAMILIES)
            text = family(drawn(rng, 1 if family is plain else rng.randint(1, 3)))
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(text) + 1)
                text = text[:at] + rng.choice(["", rng.choice(alphabet)]) + text[at + rng.randrange(3) :]
        try:
            outcomes["call" if read_calls(text, TOOLS) else "answer"] += 1
        except CallError as error:
            outcomes["refused"] += 1
            assert str(error).startswith("illegal: ") and len(str(error)) < 500
    assert min(outcomes.values()) > 1000, outcomes  # each happens often, so the mutations are near enough to calls


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sub(1)", "illegal: unknown tool 'sub'; tools: add, say, late, fail"),
        ('add("1")', "illegal: argument a: Input should be a valid integer"),
        ("add(True)", "illegal: argument a: Input should be a valid integer"),
        ("add(1.5)", "illegal: argument a: Input should be a valid integer"),
        ("add()", "illegal: argument a: Missing required keyword only argument"),
        ("add(1, c=2)", "illegal: argument c: Unexpected keyword argument"),
        ("add(1, 2, 3)", "illegal: add takes a, b, each once"),
        ("add(1, a=2)", "illegal: add takes a, b, each once"),
        ("add(a=1, a=2)", "illegal: an argument stands twice"),
        ("add(1)  # one", "illegal: a comment stands beside the call"),
        ("[add(1), # one\n add(2)]", "illegal: a comment stands beside the call"),
        ("add({'x': 1, 'x': 2})", "illegal: a key stands twice in an argument"),
        ("add(1); add(2)", "illegal: cannot read the call: invalid syntax"),
        ("[add(1), add(1)]", "illegal: the same call twice"),
        ("add(open('x'))", "illegal: cannot read the call: malformed node"),
        ("add(1e999)", "illegal: cannot read the call: Out of range float"),
        ('say(["a"], "quiet")', "illegal: argument how: Input should be 'loud' or 'low'"),
        ('say(["a", 1])', "illegal: argument words.1: Input should be a valid string"),
        ('{"name": "add", "parameters": {"a": 1}', "illegal: cannot read the call: Expecting ',' delimiter"),
        ('{"name": "add", "parameters": {"a": 1, "a": 2}}', "illegal: a key stands twice in the JSON of a call"),
        ('{"name": "add", "parameters": {"a": NaN}}', "illegal: NaN is no JSON"),
        ('{"name": "add", "arguments": {"a": 1}}', 'illegal: a call is {"name": ..., "parameters": {...}}'),
        ('{"name": "add", "parameters": {"a": 1}} 42', "illegal: ; is missing before '42'"),
        (
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call> 42',
            "illegal: <tool_call> is missing before '42'",
        ),
        (
            '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
            'illegal: "name" is a text, and "arguments" an object',
        ),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "illegal: </tool_call> is missing"),
        ("42 <tool_call>", "illegal: text stands before <tool_call>; write calls alone, or an answer alone"),
        ("add(" + "[" * 3000, "illegal: cannot read the call: too many nested parentheses"),
        ('{"name": "add", "parameters": {"a": ' + "[" * 30000, "illegal: a call that is nested too deeply"),
        ("add(" + "1" * 70000, "illegal: a call of more than 65536 characters"),
        (f"[{', '.join(f'add({n})' for n in range(17))}]", "illegal: 17 calls; at most 16 at once"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(CallError) as error:
        read_calls(text, TOOLS)
    assert str(error.value).startswith(said)


def test_a_schema_is_of_signature_and_docstring():
    assert tool_of(add).schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "number", "default": 2.0, "description": "Added to it."},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


def test_a_function_without_types_is_no_tool():
    def untyped(a):
        return a

    def many(*numbers: int):
        return numbers

    for function in (untyped, many):
        with pytest.raises(EarlError, match=f"the tool {function.__name__} has a parameter without a type"):
            tool_of(function)


def test_results_stand_in_the_order_of_the_calls_and_a_fault_in_its_place():
    assert run_calls(read_calls("add(1, 2)", TOOLS)) == "3.0"
    records = []
    assert run_calls(read_calls('[late(0.01), fail("value"), fail("key")]', TOOLS), None, records) == (
        "1: now\n2: error: no such thing\n3: error: KeyError: 'key' (line 31 of fail)"
    ).replace("31", str(fail.__code__.co_firstlineno + 4))
    assert [(one.tool, one.fault) for one in records] == [("late", ""), ("fail", "refused"), ("fail", "faults")]


def test_a_cut_says_that_it_cut():
    long = "x" * (RESULT_CHARACTERS + 1)
    assert format_result(long) == long[:-1] + f"\n[cut: {len(long)} characters in all]"
    assert format_result(long[:-1]) == long[:-1]
    assert format_result("\x1b[2J\ttab é \r\n end") == "\\x1b[2J    tab \\xe9 \n end"
