"""`earl replay`: shows a stored episode turn by turn."""

import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from earl.cli.options import declared, print_json
from earl.cli.text import clean, console, one_line, table
from earl.errors import EarlError
from earl.recipe import build
from earl.reports import episodes
from earl.reports.data import Decoder, StoredEpisode, model_facts, stored_in
from earl.reports.episodes import AUTHORS
from earl.runs.folder import RunFolder, open_run
from earl.runs.storage import step_of
from earl.runs.trajectories import kept_files

STYLES = {"template": "dim", "environment": "cyan", "tool": "magenta", "thinking": "yellow", "action": "bold green"}
NEXT, BACK, LEAVE, CHANCES = ("n", "\r", "\n", " ", "\x1b[C"), ("p", "\x1b[D"), ("q", "\x04", "\x1b"), ("l",)
KEYS = "n or Enter: next   p: back   l: log-probs   q: leave"


def step_through(head: str, found: dict[str, Any], console: Console, logprobs: bool, key: Callable[[], str]) -> None:
    """Show one turn at a time, until the user leaves or goes past the last. `key` waits for a key."""
    place = 0
    while place < _count(found):
        console.clear()
        console.print(_legend(head))
        console.print(_scene(found, place, logprobs))
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


def _count(found: dict[str, Any]) -> int:
    """The turns, and what came after the last one."""
    return len(found["turns"]) + bool(found["rest"])


def _legend(text: str) -> Text:
    legend = Text.assemble(*((f"{author} ", style) for author, style in STYLES.items()))
    return Text(clean(text), "bold").append("\n").append_text(legend)


def _scene(found: dict[str, Any], place: int, logprobs: bool) -> RenderableType:
    if place == len(found["turns"]):
        return Group(Text("\n── after the last turn ──"), _inked(found["rest"]))
    turn = found["turns"][place]
    reply, board = turn["reply"], turn["boards"][-1]["cells"] if turn["boards"] else ()
    parts: list[RenderableType] = [Text(f"\n── turn {place} of {_count(found)} ──"), _inked(turn["given"])]
    parts.append(Text("reply  ", "dim") + _inked(zip(reply["authors"], reply["texts"], strict=True)))
    if logprobs:
        parts.append(_chances(reply))
    parts += [Text(" ".join(clean(cell) or "·" for cell in row)) for row in board]
    kind = "a summary   " if turn["summary"] else "no legal action   " if turn["refused"] else ""
    return Group(*parts, Text(f"{kind}reward {_number(turn['reward'])}   advantage {_number(turn['advantage'])}"))


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _inked(said: Iterable[tuple[int, str]]) -> Text:
    return Text.assemble(*((clean(text), STYLES[AUTHORS[author]]) for author, text in said))


def _chances(reply: dict[str, Any]) -> Table:
    columns = ("token", "log-prob", "probability", "ratio after the update")
    tokens = [_inked([(author, repr(text))]) for author, text in zip(reply["authors"], reply["texts"], strict=True)]
    chances = [None if value is None else math.exp(min(0.0, value)) for value in reply["logprobs"]]
    numbers = [map(_number, own) for own in (reply["logprobs"], chances, reply["ratios"] or [None] * len(tokens))]
    return table(columns, zip(tokens, *numbers, strict=True), right=columns[1:])


@declared("replay")
def command(run: str, episode: str, step: int | None, logprobs: bool, root: Path, as_json: bool) -> None:
    folder = open_run(root, run)
    step, number = _place(episode, step)
    stored = _stored(folder, step, number)
    env, facts = stored.trajectory.task.env, model_facts(folder.checkpoints)
    decoder, draw = Decoder(facts.tokenizer if facts else None), episodes.drawer(build(folder.recipe()), env)
    found, head = episodes.episode(stored, decoder, draw, episodes.EVERYTHING), _head(folder.name, stored)
    if as_json:
        return print_json({"run": folder.name, "authors": AUTHORS, **found})
    out = console()
    if sys.stdin.isatty() and sys.stdout.isatty() and not out.is_dumb_terminal:
        return step_through(head, found, out, logprobs, click.getchar)
    return out.print(Group(_legend(head), *(_scene(found, place, logprobs) for place in range(_count(found)))))


def _place(episode: str, step: int | None) -> tuple[int | None, int]:
    found = re.fullmatch("(?:([0-9]{1,9})/)?([0-9]{1,9})", episode)
    if not found:
        raise click.UsageError(f"EPISODE {episode!r} is neither a number nor STEP/NUMBER, such as 3 or 60/3.")
    given = int(found[1]) if found[1] else step
    if step not in (None, given):
        raise click.UsageError(f"EPISODE {episode!r} and --step {step} name two steps; give one.")
    return given, int(found[2])


def _stored(folder: RunFolder, step: int | None, number: int) -> StoredEpisode:
    """Read an episode. Raises EarlError if it is not stored."""
    path = kept_files(folder, step)[-1]
    stored = stored_in(path)
    if number >= len(stored):
        raise EarlError(f"step {step_of(path)} has no episode {number}; it has the episodes 0 to {len(stored) - 1}")
    return stored[number]


def _head(run: str, stored: StoredEpisode) -> str:
    played, task = stored.trajectory, stored.trajectory.task
    met = f" against {task.opponent}, seat {task.seat}" if task.opponent else ""
    error = f": {played.error}" if played.error else ""
    ended = f"{played.outcome}, {played.stop}{error}, reward {played.reward:g}"
    return one_line(f"{run}, step {stored.step}, episode {stored.number}: {task.env}{met}: {ended}")
