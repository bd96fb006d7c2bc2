"""Parses a reply's text into an action: strictly, so that an ambiguous reply is an error and never a guess."""

from dataclasses import dataclass

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Reply:
    """`parse("<think>centre</think>5", thinking=True)` gives `Reply("<think>centre</think>", "5")`."""

    thinking: str
    action: str


def parse(text: str, *, thinking: bool) -> Reply:
    """Split one leading thinking span from the action; whitespace around the action of a thinking reply is dropped.

    If thinking is not allowed, or the span is not closed, the whole text is the action, which then breaks the
    environment's rule.
    """
    if not (thinking and text.startswith(THINK_OPEN) and THINK_CLOSE in text):
        return Reply("", text)
    end = text.index(THINK_CLOSE) + len(THINK_CLOSE)
    return Reply(text[:end], text[end:].strip())


def unclosed(text: str) -> bool:
    """Whether a text begins a thinking span and does not end it, for example because a limit cut the reply."""
    return text.startswith(THINK_OPEN) and THINK_CLOSE not in text
