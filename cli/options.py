"""Commands as data: commands.toml and bench.toml declare the help, the arguments and the options of each."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

TYPES = {
    **{"bool": click.BOOL, "float": click.FLOAT, "integer": click.INT, "str": click.STRING},
    "path": click.Path(path_type=Path),
    "file": click.Path(path_type=Path, dir_okay=False),
    "folder": click.Path(path_type=Path, file_okay=False),
}
BOUNDS = ("min", "max", "min_open", "max_open")


def declarations(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


_DECLARED = declarations("commands.toml")
SHARED = _DECLARED["options"]
COMMANDS = {
    name: own["help"].strip().partition("\n")[0] for name, own in _DECLARED["commands"].items() if " " not in name
}
"""The commands of `earl`, each with the first line of its help."""
GROUPS = {name: _DECLARED["commands"][name]["group"] for name in COMMANDS}
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Of every command, not of `earl` alone: click keeps the help option of a command's first context."""
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


def declared(path: str, within: click.Group | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """The decorator of a command of commands.toml: `declared("train")`, `declared("up", cluster)`."""
    path = f"{within.name} {path}" if within else path

    def made(function: Callable[..., Any]) -> click.Command:
        command = click.Command(callback=function, **keywords(path, _DECLARED["commands"][path], SHARED))
        if within:
            within.add_command(command)
        return command

    return made


def declared_group(name: str, function: Callable[..., Any] | None = None) -> click.Group:
    """A group of commands; `function` is called where none of them is named, and before each."""
    spec = keywords(name, _DECLARED["commands"][name], SHARED)
    return click.Group(callback=function, invoke_without_command=function is not None, **spec)


def keywords(path: str, own: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What click takes for a declared command; `shared` has what it leaves out of the options of these names."""
    arguments = [click.Argument([name], **_typed(rest)) for name, rest in own.get("arguments", {}).items()]
    options = [_option(flag, {**shared.get(flag, {}), **rest}) for flag, rest in own.get("options", {}).items()]
    spec = {"name": path.rpartition(" ")[2], "params": [*arguments, *options], "help": own["help"]}
    spec["context_settings"] = CONTEXT
    return {**spec, "epilog": "\n  ".join(["\b\nExamples:", *own["examples"]])} if "examples" in own else spec


def _option(flag: str, spec: dict[str, Any]) -> click.Option:
    names = [f"--{flag}", *spec.pop("short", []), spec.pop("name", flag.replace("-", "_"))]
    return click.Option(names, show_default=True, **_typed(spec))


def _completed(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell offers for a value: environments, runs, opponents and keys, else files where one is asked for."""
    from earl.cli import completion

    offered = completion.OFFERS.get(parameter.name or "")
    if offered is None:
        return parameter.type.shell_complete(ctx, parameter, begun)
    return [CompletionItem(value) for value in offered(ctx.params) if value.startswith(begun)]


def _typed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What click takes for a parameter, its type among it."""
    rest = {key: value for key, value in spec.items() if key not in (*BOUNDS, "choices")}
    rest["shell_complete"] = _completed
    bounds = {key: spec[key] for key in BOUNDS if key in spec}
    kind = rest.pop("type", type(rest.get("default", "")).__name__)
    if "choices" in spec:
        rest["type"] = click.Choice(spec["choices"])
    elif kind == "int":
        rest["type"] = click.IntRange(**{"min": 1, **bounds})
    elif kind == "float" and bounds:
        rest["type"] = click.FloatRange(**bounds)
    else:
        rest["type"] = TYPES[kind]
    return {**rest, "is_flag": True} if kind == "bool" else rest


def print_json(value: object) -> None:
    """Print one JSON value in ASCII, so that it cannot contain terminal control sequences."""
    click.echo(json.dumps(value, indent=2))
