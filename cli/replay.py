"""`earl replay`: shows a stored episode turn by turn."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from earl.cli.options import json_option, print_json, runs_option
from earl.cli.text import console, one_line

if TYPE_CHECKING:
    from earl.cli.stage import Scene
    from earl.runs.folder import RunFolder
    from earl.trajectory import TrainingRecord, Trajectory


@click.command()
@click.argument("run")
@click.argument("episode", metavar="EPISODE")
@click.option("--step", type=click.IntRange(min=0), help="The step; the last one that is stored unless given.")
@click.option("--logprobs", is_flag=True, help="Show the log-prob of every token; `l` does so while stepping.")
@runs_option
@json_option
def command(run: str, episode: str, step: int | None, logprobs: bool, root: Path, as_json: bool) -> None:
    """Step through a stored episode.

    RUN is a name in --runs or a path, EPISODE a number within the step's file, from 0, or STEP/NUMBER. Every turn shows
    what the model was given, its reply, both coloured by who wrote them, the board, the reward and the advantage. In a
    terminal n or Enter goes on, p goes back, l shows log-probs and q leaves; elsewhere all turns are printed.
    """
    from earl.cli.players import need_run
    from earl.cli.stage import scenes
    from earl.recipe import build
    from earl.report.data import model_facts
    from earl.report.decoding import Decoder

    folder = need_run(root, run)
    step, number = _place(episode, step)
    step, trajectory, experience = _stored(folder, step, number)
    config, facts = build(folder.recipe()), model_facts(folder.checkpoints)
    played = scenes(trajectory, experience, Decoder(facts.tokenizer if facts else None), config.env.options)
    head = _head(folder.name, step, number, trajectory)
    if as_json:
        print_json(_object(folder.name, step, number, trajectory, played))
        return
    from earl.cli import stage

    out = console()
    if sys.stdin.isatty() and sys.stdout.isatty() and not out.is_dumb_terminal:
        stage.step_through(head, played, out, logprobs, click.getchar)
    else:
        stage.print_all(head, played, out, logprobs)


def _place(episode: str, step: int | None) -> tuple[int | None, int]:
    before, slash, number = episode.rpartition("/")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in ([before] if slash else []) + [number]):
        raise click.UsageError(f"EPISODE {episode!r} is neither a number nor STEP/NUMBER, such as 3 or 60/3.")
    if slash and step is not None and step != int(before):
        raise click.UsageError(f"EPISODE {episode!r} and --step {step} name two steps; give one.")
    return (int(before) if slash else step), int(number)


def _stored(folder: "RunFolder", step: int | None, number: int) -> "tuple[int, Trajectory, TrainingRecord | None]":
    """Read an episode. Raises EarlError if it is not stored."""
    from earl.errors import EarlError
    from earl.runs import trajectories
    from earl.runs.storage import step_of

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


def _head(run: str, step: int, number: int, trajectory: "Trajectory") -> str:
    task = trajectory.task
    met = f" against {task.opponent}, seat {task.seat}" if task.opponent else ""
    error = f": {trajectory.error}" if trajectory.error else ""
    ended = f"{trajectory.outcome}, {trajectory.stop}{error}, reward {trajectory.reward:g}"
    return one_line(f"{run}, step {step}, episode {number}: {task.env}{met}: {ended}")


def _object(run: str, step: int, number: int, trajectory: "Trajectory", played: "list[Scene]") -> dict[str, Any]:
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
