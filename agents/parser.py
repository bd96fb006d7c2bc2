"""Parses a reply's text into an action: strictly, so that an ambiguous reply is refused and never guessed at.

`agent.parser` says where in a reply the action stands:

    exact           the reply is the action
    last_line       its last line that is not blank, without the white space around it
    tag:NAME        between <NAME> and </NAME>
    boxed           between the braces of \\boxed{}, which may hold braces
    regex:PATTERN   what the pattern's first group matches, or all of it where it has none
    json:FIELD      a text or number in that field of a JSON object
    tool_call       a <tool_call>…</tool_call> with its tags; in a reply without one, the reply, stripped
    MODULE:NAME     what this function of yours returns for the reply, None where it has no action. What it raises ends
                    the episode as a fault. Its attribute `format`, such as "answer: {}", shows where the action stands.

Two places with the same action are one; with different ones the reply is refused.
"""

import json
import re
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from earl.envs import registry
from earl.errors import EarlError

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
CALLS = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
MATCH_SECONDS = 1.0
"""What a pattern may take for a reply."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`parse("<think>centre</think>5", thinking=True)` gives `Reply("<think>centre</think>", "5")`."""

    thinking: str
    action: str


def parse(text: str, *, thinking: bool, opened: bool = False) -> Reply:
    """Split one leading thinking span from the rest; whitespace around the rest of a thinking reply is dropped.

    opened: whether the chat template has opened the span before the reply. If thinking is not allowed, or the span is
    not closed, the whole text is the rest, which then breaks the environment's rule.
    """
    if not (thinking and (opened or text.startswith(THINK_OPEN)) and THINK_CLOSE in text):
        return Reply("", text)
    end = text.index(THINK_CLOSE) + len(THINK_CLOSE)
    return Reply(text[:end], text[end:].strip())


def unclosed(text: str, opened: bool = False) -> bool:
    """Whether a text is in a thinking span and does not end it, for example because a limit cut the reply."""
    return (opened or text.startswith(THINK_OPEN)) and THINK_CLOSE not in text


class Unreadable(ValueError):
    """A reply without an action, or with several; the message is told to the agent."""


@dataclass(frozen=True, slots=True)
class ActionParser:
    """Finds the action in a reply without its thinking."""

    places: Callable[[str], Iterator[str]]
    format: str
    """Told to an agent that did not keep to it, with `{}` where the action stands."""

    def action(self, reply: str) -> str:
        """Raises Unreadable."""
        found = dict.fromkeys(self.places(reply))
        if len(found) != 1:
            wrong = f"illegal: {len(found)} answers" if found else "illegal: no answer"
            raise Unreadable(f"{wrong}; write {self.format.format('your action')} once")
        return next(iter(found))

    def written(self, action: str) -> str:
        """A reply with this action."""
        return self.format.format(action)

    def phrased(self, reply: str, *, thinking: bool) -> str:
        """A scripted agent's reply with its action in this form; what it thinks stays as it is."""
        action = parse(reply, thinking=thinking).action
        if not action:
            return reply
        before, _, after = reply.rpartition(action)
        return before + self.written(action) + after


def _boxed(text: str) -> Iterator[str]:
    opened: list[int] = []
    found: list[tuple[int, int]] = []
    for brace in re.finditer("[{}]", text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and text.endswith("\\boxed{", 0, start := opened.pop()):
            while found and found[-1][0] > start:  # boxes in this box
                found.pop()
            found.append((start, brace.start()))
    yield from (text[start:end].strip() for start, end in found)


def _by_tag(tag: str) -> Callable[[str], Iterator[str]]:
    pattern = re.compile(f"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", re.DOTALL)
    return lambda text: (found.strip() for found in pattern.findall(text))


def _by_pattern(pattern: str) -> Callable[[str], Iterator[str]]:
    import regex  # unlike re, it can be stopped

    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise EarlError(f"{pattern!r} is no regular expression: {error}") from None

    def places(text: str) -> Iterator[str]:
        try:
            for found in compiled.finditer(text, timeout=MATCH_SECONDS):
                yield found[1 if compiled.groups else 0] or ""
        except TimeoutError:
            rule = (
                f"{MATCH_SECONDS:g} s for a reply of {len(text)} characters; write one without repeats inside repeats"
            )
            raise EarlError(f"agent.parser regex:{pattern} took more than {rule}") from None

    return places


def _by_field(field: str) -> Callable[[str], Iterator[str]]:
    decoder = json.JSONDecoder()

    def places(text: str) -> Iterator[str]:
        start = 0
        while (start := text.find("{", start)) >= 0:
            try:
                value, start = decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                start += 1
                continue
            if isinstance(own := value.get(field), str | int | float) and not isinstance(own, bool):
                yield str(own)

    return places


def _plugin_parser(name: str) -> ActionParser:
    function = registry.plugin("parser", name)

    def places(text: str) -> Iterator[str]:
        found = function(text)
        if not isinstance(found, str | None):
            raise EarlError(f"agent.parser {name} returned {reprlib.repr(found)}; return the action as a str, or None")
        yield from () if found is None else (found,)

    return ActionParser(places, str(getattr(function, "format", "{}")))


PLAIN = {
    "exact": ActionParser(lambda text: iter([text]), "{}"),
    "last_line": ActionParser(lambda text: iter([(text.strip().splitlines() or [""])[-1].strip()]), "{}"),
    "boxed": ActionParser(_boxed, "\\boxed{{{}}}"),
    "tool_call": ActionParser(lambda text: iter(CALLS.findall(text) or [text.strip()]), "{}"),
}
KINDS = (*PLAIN, "tag:NAME", "regex:PATTERN", "json:FIELD", "MODULE:NAME")


@cache
def parser(name: str) -> ActionParser:
    """The parser of a name. Raises EarlError for one that is none of KINDS."""
    if name in PLAIN:
        return PLAIN[name]
    kind, _, rest = name.partition(":")
    if kind == "tag" and re.fullmatch(r"\w+", rest):
        return ActionParser(_by_tag(rest), f"<{rest}>{{}}</{rest}>")
    if kind == "regex" and rest:
        return ActionParser(_by_pattern(rest), "{}")
    if kind == "json" and re.fullmatch(r"\w+", rest):
        return ActionParser(_by_field(rest), f'{{{{"{rest}": "{{}}"}}}}')
    if kind not in ("tag", "regex", "json") and registry.is_path(name):
        return _plugin_parser(name)
    raise EarlError(f"{name!r} is none of {', '.join(KINDS)}")
