"""Options that several commands share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def runs_option(command: F) -> F:
    """--runs, passed as `root`."""
    return click.option(
        "--runs",
        "root",
        type=click.Path(path_type=Path),
        default=Path("runs"),
        show_default=True,
        help="Folder that the runs lie in.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")(command)


def recipe_options(command: F) -> F:
    """--config and --set, passed as `config` and `assignments`."""
    command = click.option(
        "--set",
        "assignments",
        metavar="SECTION.KEY=VALUE",
        multiple=True,
        help="Set one key of the recipe; may be repeated, and comes after every other option.",
    )(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A recipe in TOML in place of the one that earl brings for ENV.",
    )(command)


def print_json(value: object) -> None:
    """Print one JSON value in ASCII, so that it cannot contain terminal control sequences."""
    click.echo(json.dumps(value, indent=2))
