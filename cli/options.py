"""Options that several commands share."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator of several options, listed in their order."""

    def declare(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return declare


runs_option = click.option(
    "--runs",
    "root",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Folder that the runs lie in.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")


recipe_options = together(
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A recipe in TOML in place of the one that earl brings for ENV.",
    ),
    click.option(
        "--set",
        "assignments",
        metavar="SECTION.KEY=VALUE",
        multiple=True,
        help="Set one key of the recipe; may be repeated, and comes after every other option.",
    ),
)
"""--config and --set, passed as `config` and `assignments`."""
SETTINGS = {
    "model": "model.path",
    "placement": "placement.kind",
    "address": "placement.address",
    "gpus": "placement.gpus",
    "steps": "run.steps",
    "seed": "run.seed",
}
"""Option -> the key of the recipe that it sets."""


def settings(flags: Mapping[str, object]) -> dict[str, object]:
    return {SETTINGS[name]: value for name, value in flags.items()}


def placement_options(*kinds: str) -> Callable[[F], F]:
    """--model, --placement, --address and --gpus, passed by these names."""
    return together(
        click.option(
            "--model",
            metavar="FOLDER_OR_NAME",
            help="This model instead of a new small one: a folder, a hub id, or a name such as Qwen2.5-7B.",
        ),
        click.option(
            "--placement",
            type=click.Choice(kinds),
            help="Where the fragments of a step run: embedded, here in a few processes; on Ray in turns on the same "
            "devices, or apart.",
        ),
        click.option(
            "--address", metavar="HOST:PORT", help="Run on this Ray cluster; auto: on the one this machine is part of."
        ),
        click.option("--gpus", metavar="16x8xH100", help="Hosts x GPUs x kind that may be used; 8xH100 is one host."),
    )


def print_json(value: object) -> None:
    """Print one JSON value in ASCII, so that it cannot contain terminal control sequences."""
    click.echo(json.dumps(value, indent=2))
