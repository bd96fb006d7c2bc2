"""From a reply's text to an action: strict, so that an ambiguous reply is an error reply and never a guess."""

from dataclasses import dataclass

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply taken apart.

    Example:
        parse("<think>centre</think>5", thinking=True) == Reply(thinking="<think>centre</think>", action="5")
    """

    thinking: str
    """The thinking span with its tags; empty when there is none."""
    action: str


def parse(text: str, *, thinking: bool) -> Reply:
    """Split one leading thinking span from the action.

    Where thinking is not allowed, and where the span is not closed, the whole text is the action, which then
    breaks the environment's rule. Whitespace around the action of a thinking reply belongs to neither.
    """
    if not (thinking and text.startswith(THINK_OPEN) and THINK_CLOSE in text):
        return Reply("", text)
    end = text.index(THINK_CLOSE) + len(THINK_CLOSE)
    return Reply(text[:end], text[end:].strip())


def unclosed(text: str) -> bool:
    """Whether a text begins a thinking span and does not end it, as where a limit cut the reply."""
    return text.startswith(THINK_OPEN) and THINK_CLOSE not in text
