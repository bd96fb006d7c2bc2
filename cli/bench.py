"""`earl bench`: runs the benchmarks on this machine and prints their results. bench.toml lists them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click

from earl.cli.options import SHARED, declarations, declared_group, keywords, print_json
from earl.cli.text import one_line, print_table

SPREAD = {"median", "min", "max"}


command = declared_group("bench")


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
            print_table(shown, [[_shown(row.get(column)) for column in shown] for row in rows])
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


_DECLARED = declarations("bench.toml")
for benchmark, own in _DECLARED["commands"].items():
    own["options"]["json"] = SHARED["json"]
    needed = [f" --{name} runs/{benchmark}" for name, option in own["options"].items() if option.get("required")]
    own.setdefault("examples", [f"earl bench {benchmark}{''.join(needed)} --json"])
    run = partial(_run, own.get("call", f"{benchmark}:run"), own.get("columns", ()))
    command.add_command(click.Command(callback=run, **keywords(benchmark, own, _DECLARED["options"])))
