"""`earl replay`: shows a stored episode turn by turn."""

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from earl.cli.options import declared, print_json
from earl.cli.players import need_run
from earl.cli.text import clean, console, one_line, table
from earl.errors import EarlError
from earl.recipe import build
from earl.reports.data import Decoder, model_facts
from earl.reports.episodes import Draw, drawer
from earl.runs import trajectories
from earl.runs.folder import RunFolder
from earl.runs.storage import step_of
from earl.trajectory import Author, TrainingRecord, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a reply, or the few that together make one character."""

    text: str
    author: str
    logprob: float
    """The sampler's."""
    learned: bool | None
    """Whether it was learned from; None if that was not stored."""
    new_logprob: float | None
    """The learner's after the update; None if it was not learned from."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One turn. A last scene without a reply holds what came after the last reply."""

    given: tuple[tuple[str, str], ...]
    """(author, text) of each stretch of the new part of the prompt."""
    reply: tuple[Token, ...]
    action: str | None
    summary: bool
    reward: float | None
    advantage: float | None
    board: tuple[tuple[str, ...], ...] | None
    """The board after the action; None if the environment draws none."""


def scenes(trajectory: Trajectory, experience: TrainingRecord | None, decoder: Decoder, draw: Draw) -> list[Scene]:
    """The turns of an episode."""
    found, reached = [], 0
    sizes = len(trajectory.tokens), len(trajectory.turns)
    if experience and (len(experience.mask), len(experience.advantages)) != sizes:
        experience = None  # it is of another episode
    for number, turn in enumerate(trajectory.turns):
        given = _given(trajectory, reached, turn.action_start, decoder)
        reply = tuple(_reply(trajectory, turn, experience, decoder))
        advantage = float(experience.advantages[number]) if experience else None
        board = draw("".join(text for author, text in given if author == "environment"), turn.action)
        found.append(
            Scene(given, reply, turn.action, turn.summary, turn.reward, advantage, board.cells if board else None)
        )
        reached = turn.end
    rest = _given(trajectory, reached, len(trajectory.tokens), decoder)
    return [*found, Scene(rest, (), None, False, None, None, None)] if rest else found


def _given(trajectory: Trajectory, start: int, end: int, decoder: Decoder) -> tuple[tuple[str, str], ...]:
    runs = trajectory.stretches(max(0, start), max(0, end))
    return tuple((name(author), decoder.whole(trajectory.tokens[first:last].tolist())) for author, first, last in runs)


def _reply(trajectory: Trajectory, turn: Turn, experience: TrainingRecord | None, decoder: Decoder) -> Iterator[Token]:
    for text, first, last in decoder.pieces(trajectory.tokens[turn.action_start : turn.end].tolist()):
        span = slice(turn.action_start + first, turn.action_start + last)
        learned = bool(experience.mask[span].all()) if experience else None
        new = float(experience.logprobs[span].sum()) if experience and learned else None
        author = name(int(trajectory.authors[span.start]))
        yield Token(text, author, float(trajectory.logprobs[span].sum()), learned, new)


def name(author: int) -> str:
    return Author(author).name.lower() if author in list(Author) else f"author {author}"


STYLES = {"template": "dim", "environment": "cyan", "tool": "magenta", "thinking": "yellow", "action": "bold green"}
NEXT, BACK, LEAVE, CHANCES = ("n", "\r", "\n", " ", "\x1b[C"), ("p", "\x1b[D"), ("q", "\x04", "\x1b"), ("l",)
KEYS = "n or Enter: next   p: back   l: log-probs   q: leave"


def step_through(head: str, played: Sequence[Scene], console: Console, logprobs: bool, key: Callable[[], str]) -> None:
    """Show one turn at a time, until the user leaves or goes past the last. `key` waits for a key."""
    place = 0
    while place < len(played):
        console.clear()
        console.print(_legend(head))
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


def _legend(text: str) -> Text:
    legend = Text.assemble(*((f"{author} ", style) for author, style in STYLES.items()))
    return Text(clean(text), "bold").append("\n").append_text(legend)


def _scene(scene: Scene, number: int, count: int, logprobs: bool) -> RenderableType:
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
    return clean(text), STYLES.get(author, "red")


def _chances(reply: Sequence[Token]) -> Table:
    columns = ("token", "log-prob", "probability", "after the update", "learned from")
    rows = []
    for token in reply:
        new = "" if token.new_logprob is None else f"{token.new_logprob:.4f}"
        learned = {True: "yes", False: "no", None: "not stored"}[token.learned]
        shown, chance = Text(*_inked(token.author, repr(token.text))), math.exp(min(0.0, token.logprob))
        rows.append((shown, f"{token.logprob:.4f}", f"{chance:.1%}", new, learned))
    return table(columns, rows, right=columns[1:])


def _result(scene: Scene) -> str:
    kind = "no legal action" if scene.action is None else f"action {clean(scene.action)!r}"
    kind = "a summary" if scene.summary else kind
    advantage = "" if scene.advantage is None else f"   advantage {scene.advantage:+.4f}"
    return f"{kind}   reward {scene.reward:g}{advantage}"


@declared("replay")
def command(run: str, episode: str, step: int | None, logprobs: bool, root: Path, as_json: bool) -> None:
    folder = need_run(root, run)
    step, number = _place(episode, step)
    step, trajectory, experience = _stored(folder, step, number)
    draw, facts = drawer(build(folder.recipe()), trajectory.task.env), model_facts(folder.checkpoints)
    played = scenes(trajectory, experience, Decoder(facts.tokenizer if facts else None), draw)
    head = _head(folder.name, step, number, trajectory)
    if as_json:
        print_json(_object(folder.name, step, number, trajectory, played))
        return
    out = console()
    if sys.stdin.isatty() and sys.stdout.isatty() and not out.is_dumb_terminal:
        step_through(head, played, out, logprobs, click.getchar)
    else:
        out.print(Group(_legend(head), *(_scene(one, at, len(played), logprobs) for at, one in enumerate(played))))


def _place(episode: str, step: int | None) -> tuple[int | None, int]:
    found = re.fullmatch("(?:([0-9]{1,9})/)?([0-9]{1,9})", episode)
    if not found:
        raise click.UsageError(f"EPISODE {episode!r} is neither a number nor STEP/NUMBER, such as 3 or 60/3.")
    given = int(found[1]) if found[1] else step
    if step not in (None, given):
        raise click.UsageError(f"EPISODE {episode!r} and --step {step} name two steps; give one.")
    return given, int(found[2])


def _stored(folder: RunFolder, step: int | None, number: int) -> tuple[int, Trajectory, TrainingRecord | None]:
    """Read an episode. Raises EarlError if it is not stored."""
    kept = [found for path in trajectories.files(folder.trajectories) if (found := step_of(path)) is not None]
    if not kept:
        raise EarlError(f"run {folder.name!r} has no stored episodes yet; wait for its first step of learning")
    step = kept[-1] if step is None else step
    if step not in kept:
        listed = ", ".join(map(str, kept))
        raise EarlError(f"run {folder.name!r} keeps no episodes of step {step}; kept are the steps {listed}")
    path = trajectories.path_of(folder.trajectories, step)
    _, groups, learned = trajectories.read_whole(path)
    stored = [episode for group in groups for episode in group.trajectories]
    if number >= len(stored):
        raise EarlError(f"step {step} has no episode {number}; it has the episodes 0 to {len(stored) - 1}")
    return step, stored[number], learned[number] if learned else None


def _head(run: str, step: int, number: int, trajectory: Trajectory) -> str:
    task = trajectory.task
    met = f" against {task.opponent}, seat {task.seat}" if task.opponent else ""
    error = f": {trajectory.error}" if trajectory.error else ""
    ended = f"{trajectory.outcome}, {trajectory.stop}{error}, reward {trajectory.reward:g}"
    return one_line(f"{run}, step {step}, episode {number}: {task.env}{met}: {ended}")


def _object(run: str, step: int, number: int, trajectory: Trajectory, played: Sequence[Scene]) -> dict[str, Any]:
    return {
        "run": run,
        "step": step,
        "episode": number,
        "task": asdict(trajectory.task),
        "seed": trajectory.seed,
        "outcome": trajectory.outcome.value,
        "stop": trajectory.stop.value,
        "reward": trajectory.reward,
        "illegal": trajectory.illegal,
        "error": trajectory.error,
        "turns": [
            {**asdict(scene), "given": [{"author": author, "text": text} for author, text in scene.given]}
            for scene in played
        ],
    }
