"""`earl bench`: runs the benchmarks on this machine and prints their results. bench.toml lists them."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from earl.cli.options import json_option, print_json
from earl.cli.text import console, one_line, table

SPREAD = {"median", "min", "max"}


@click.group()
def command() -> None:
    """Measure rollouts, samplers, steps, learners, placements, transfers, forecasts, and contexts' limits.

    Repeats take turns, so that whatever else the machine does falls on both sides alike. Wherever a number is repeated,
    its median, min and max are told.
    """


def _option(flag: str, declared: Mapping[str, Any]) -> click.Option:
    rest = dict(declared)
    name, least, most = rest.pop("name", flag.replace("-", "_")), rest.pop("min", 1), rest.pop("max", None)
    kind = rest.pop("type", type(rest.get("default", "")).__name__)
    types = {"int": click.IntRange(least, most), "path": click.Path(path_type=Path), "bool": click.BOOL}
    return click.Option([f"--{flag}", name], type=types.get(kind), is_flag=kind == "bool", show_default=True, **rest)


def _run(call: str, columns: Sequence[str], *, as_json: bool, **arguments: Any) -> None:
    module, _, function = call.partition(":")
    result = getattr(import_module(f"earl.benchmarks.{module}"), function)(**arguments)
    if as_json:
        print_json(result)
    else:
        show(result, columns)


def show(result: Mapping[str, Any], columns: Sequence[str]) -> None:
    for name, value in _flat(result):
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            rows = [dict(_flat(row)) for row in value]
            shown = columns or list(rows[0])
            console().print(table(shown, [[_shown(row.get(column)) for column in shown] for row in rows]))
        else:
            click.echo(f"{one_line(name):<31} {_shown(value)}")


def _flat(result: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers by their paths; the three of a spread stay together."""
    for name, value in result.items():
        if isinstance(value, Mapping) and value.keys() != SPREAD:
            yield from _flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{_shown(value['median'])}  ({_shown(value['min'])} … {_shown(value['max'])})"
    if not isinstance(value, float):
        return "-" if value is None else one_line(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _commands() -> Iterator[click.Command]:
    declared = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for name, own in declared["commands"].items():
        shared = declared["options"]
        options: list[click.Parameter] = [
            _option(flag, shared.get(flag, {}) | option) for flag, option in own["options"].items()
        ]
        run = partial(_run, own.get("call", f"{name}:run"), own.get("columns", ()))
        yield json_option(click.Command(name, callback=run, params=options, help=own["help"]))


for benchmark in _commands():
    command.add_command(benchmark)
