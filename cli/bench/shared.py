"""What benchmarks take, and how they show their results."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from earl.cli.options import F, json_option, print_json

SPREAD = {"median", "min", "max"}


def recipe_options(command: F) -> F:
    """What every benchmark takes."""
    command = json_option(command)
    command = click.option(
        "--set", "assignments", metavar="SECTION.KEY=VALUE", multiple=True, help="Set one key of the recipe."
    )(command)
    return click.option("--env", default="tictactoe", show_default=True, help="Whose packaged recipe is used.")(command)


def training_options(name: str, steps: int, seeds: int = 3) -> Callable[[F], F]:
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
        return click.option("--seeds", type=click.IntRange(min=1), default=seeds, show_default=True)(command)

    return take


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result, as JSON or line by line."""
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
