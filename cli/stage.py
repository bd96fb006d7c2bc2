"""An episode's scenes on the terminal: all of them, or one at a time by keys."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from earl.cli.scenes import Scene, Token
from earl.cli.text import clean

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {
    "template": "dim",
    "environment": "cyan",
    "tool": "magenta",
    "thinking": "yellow",
    "action": "bold green",
}
LEGEND = "template environment tool thinking action"
NEXT, BACK, LEAVE, CHANCES = ("n", "\r", "\n", " ", "\x1b[C"), ("p", "\x1b[D"), ("q", "\x04", "\x1b"), ("l",)
KEYS = "n or Enter: next   p: back   l: log-probs   q: leave"


def print_all(head: str, played: Sequence[Scene], console: Console, logprobs: bool) -> None:
    """Print every turn."""
    console.print(_head(head))
    for number, scene in enumerate(played):
        console.print(_scene(scene, number, len(played), logprobs))


def step_through(head: str, played: Sequence[Scene], console: Console, logprobs: bool, key: Callable[[], str]) -> None:
    """Show one turn at a time until somebody leaves, or goes on behind the last.

    Args:
        key: waits for a key.
    """
    place = 0
    while place < len(played):
        console.clear()
        console.print(_head(head))
        console.print(_scene(played[place], place, len(played), logprobs))
        console.print(Text(KEYS, "dim"))
        pressed = key()
        if pressed in LEAVE:
            return
        if pressed in CHANCES:
            logprobs = not logprobs
        elif pressed in BACK:
            place = max(0, place - 1)
        elif pressed in NEXT:
            place += 1


def _head(text: str) -> Text:
    legend = Text.assemble(*((f"{author} ", STYLES[author]) for author in LEGEND.split()))
    return Text(clean(text), "bold").append("\n").append_text(legend)


def _scene(scene: Scene, number: int, count: int, logprobs: bool) -> "RenderableType":
    title = f"turn {number} of {count}" if scene.reply else "after the last turn"
    parts: list[RenderableType] = [Text(f"\n── {title} ──"), Text.assemble(*(_inked(*said) for said in scene.given))]
    if scene.reply:
        written = [_inked(token.author, token.text) for token in scene.reply]
        parts.append(Text.assemble(("reply  ", "dim"), *written))
        if logprobs:
            parts.append(_chances(scene.reply))
        if scene.board:
            parts.append(Text("\n".join(" ".join(clean(cell) or "·" for cell in row) for row in scene.board)))
        parts.append(Text(_result(scene)))
    return Group(*parts)


def _inked(author: str, text: str) -> tuple[str, str]:
    """Text in its author's style."""
    return clean(text), STYLES.get(author, "red")


def _chances(reply: Sequence[Token]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("token", "log-prob", "probability", "after the update", "learned from"):
        table.add_column(title, justify="left" if title == "token" else "right")
    for token in reply:
        new = "" if token.new_logprob is None else f"{token.new_logprob:.4f}"
        learned = {True: "yes", False: "no", None: "not stored"}[token.learned]
        chance = math.exp(min(0.0, token.logprob))
        shown = Text(*_inked(token.author, repr(token.text)))
        table.add_row(shown, f"{token.logprob:.4f}", f"{chance:.1%}", new, learned)
    return table


def _result(scene: Scene) -> str:
    kind = "no legal action" if scene.action is None else f"action {clean(scene.action)!r}"
    kind = "a summary" if scene.summary else kind
    advantage = "" if scene.advantage is None else f"   advantage {scene.advantage:+.4f}"
    return f"{kind}   reward {scene.reward:g}{advantage}"
