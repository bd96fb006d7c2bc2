"""`earl bench`: measure on this machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from earl.cli.options import F, json_option, print_json

SPREAD = {"median", "min", "max"}


def _options(command: F) -> F:
    """What every benchmark takes."""
    command = json_option(command)
    command = click.option(
        "--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one key of the recipe."
    )(command)
    return click.option("--env", default="tictactoe", show_default=True, help="Whose packaged recipe is used.")(command)


def _training(name: str, steps: int) -> Callable[[F], F]:
    """What every benchmark takes that trains its own runs."""

    def take(command: F) -> F:
        command = json_option(command)
        command = click.option(
            "--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one key of the recipe."
        )(command)
        command = click.option(
            "--runs",
            "root",
            type=click.Path(path_type=Path),
            default=Path("runs") / name,
            show_default=True,
            help="Where the runs lie; those that are there already are taken up.",
        )(command)
        command = click.option(
            "--steps", type=click.IntRange(min=1), default=steps, show_default=True, help="Of reinforcement learning."
        )(command)
        return click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)(command)

    return take


@click.group()
def command() -> None:
    """Measure rollouts, training steps, forecasts, and what context limits cost.

    Repeats take turns, so that whatever else the machine does falls on both sides alike. Wherever a number is repeated,
    its median, min and max are told.
    """


@command.command()
@click.option("--episodes", type=click.IntRange(min=1), default=256, show_default=True, help="Episodes of one repeat.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@_options
def rollout(env: str, episodes: int, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure the embedded sampler against transformers.generate.

    Both play the same games with the same model, after a short warm start so that games last. `generate` is called once
    per turn for all episodes, padded on the left, and keeps nothing between turns.

    \b
    embedded, generate   episodes_per_second and (sampled) tokens_per_second
    ratio                of their episodes per second, pair by pair of repeats
    seconds              where one embedded repeat spends its time: setup (making
                         environments and first prompts), sampler, environment
                         (rule and step), chat (templates, decoding), python (the rest)
    parameters           of the model; threads: that torch uses
    turns_per_episode    in the median repeat
    """
    from earl.benchmarks.rollout import run

    _show(run(env, episodes, repeats, assignments), as_json)


@command.command()
@click.option("--steps", type=click.IntRange(min=3), default=10, show_default=True, help="Steps of one repeat.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@_options
def step(env: str, steps: int, repeats: int, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure training steps with one process and with two.

    Steps of reinforcement learning after a short warm start; the first and the last do not count.

    \b
    one, two   processes: seconds of a whole step, the median seconds of its stages,
               and the shares of all time that tracking contexts and storing
               episodes took
    speedup    of two processes over one, pair by pair of repeats
    episodes   of one step
    """
    from earl.benchmarks.step import run

    _show(run(env, steps, repeats, assignments), as_json)


@command.command()
@_training("ceiling", steps=100)
def ceiling(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure what a context limit costs, and whether an automatic one avoids it.

    Tic-Tac-Toe with full history against heuristic and perfect play, where better play makes longer games. Three arms
    that differ in the limit alone: 72 tokens, 120, and "auto" that begins at 72.

    \b
    not_lost         share of games not lost against perfect play, exactly evaluated
    cut              share of the last step's training episodes that met the limit
    limit            at the end, in tokens
    auto_minus_120   difference of the means of not_lost; auto_minus_72 alike
    """
    from earl.benchmarks.ceiling import run

    _show(run(root, seeds, steps, assignments), as_json)


@command.command()
@_training("collapse", steps=100)
def collapse(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure whether learning collapses when thinking that pays grows into the context limit.

    Figure 1 of the EARL paper (arXiv 2510.05943) at small scale: chains of 4 to 16 operations are worked out in
    writing, and reward is to be had by thinking longer. Arms that differ in the limit alone: fixed at 60 tokens, where
    16 operations need 72; the same with episodes that were cut off left out of learning; "auto" that begins at 60; and
    96, which cuts nothing.

    \b
    reward     of training episodes: first, best and last; means over 5 steps
    best_step  at which the best began
    fallen     how far the last reward lies below the best
    solved     share of the chains, first and last
    reply      tokens that the model wrote in an episode, first and last
    cut        last: share of the episodes that met the limit; steps: in which at least
               a tenth did
    limit      last, in tokens
    """
    from earl.benchmarks.collapse import run

    _show(run(root, seeds, steps, assignments), as_json)


@command.command()
@click.option("--histories", type=click.IntRange(min=1), default=10, show_default=True, help="Histories per family.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated histories.")
@click.option("--calibration", is_flag=True, help="Those that chose the forecast's constants in place of fresh ones.")
@click.option(
    "--runs", "root", type=click.Path(path_type=Path), metavar="FOLDER", help="Forecast the runs in a folder too."
)
@json_option
def forecast(histories: int, seed: int, calibration: bool, root: Path | None, as_json: bool) -> None:
    """Measure how often the forecast of context growth is right.

    Histories of 14 shapes under six kinds of noise, of which five and two did not choose the forecast's constants. Each
    is forecast at four points in time, and step by step until a warning is due.

    \b
    coverage     how often the limit was reached within the 80 % interval: over all; of
                 those that were reached, or were not, within 200 steps; by family, by noise
    misses       early: reached before the interval; late: after it, or never
    interval     open: share without an end; width and error of the median: relative to
                 the steps that remained, medians
    warning      in_time: share warned at least 5 steps ahead; lead: median steps ahead;
                 false: warnings whose limit was not reached within 50 steps; needless:
                 share warned of those that do not reach it within 200
    expected     how often the value 10 steps ahead was at most the upper 90 %
    recorded     the same of recorded runs, with limits at levels that they came to
    """
    from earl.benchmarks.forecast import run

    _show(run(histories, seed, calibration, root), as_json)


def _show(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        return print_json(result)
    for name, value in _flat(result):
        click.echo(f"{name:<31} {value}")
    return None


def _flat(result: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Every number under its path; of repeated ones all three in one line."""
    lines: list[tuple[str, str]] = []
    for name, value in result.items():
        if not isinstance(value, Mapping):
            lines.append((path + name, _number(value)))
        elif value.keys() == SPREAD:
            low, high = _number(value["min"]), _number(value["max"])
            lines.append((path + name, f"{_number(value['median'])}  ({low} … {high})"))
        else:
            lines += _flat(value, f"{path}{name}.")
    return lines


def _number(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
