"""`earl envs`: list, show and check environments."""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

import click

from earl.cli.options import declared, declared_group, print_json
from earl.cli.text import clean, one_line, print_table
from earl.envs import registry
from earl.errors import EarlError, boundary


@click.pass_context
def listed(ctx: click.Context, as_json: bool, library: str | None) -> None:
    if ctx.invoked_subcommand is not None:
        if as_json or library:
            raise click.UsageError(f"Write --json after {ctx.invoked_subcommand}, and --library alone.")
        return None
    if library:
        offered = registry.offered(library)
        if as_json or offered:
            return print_json(offered) if as_json else click.echo("\n".join(map(one_line, offered)))
        return click.echo(f"{library} has no list of names; write {library}:NAME")
    found: list[dict[str, Any]] = []
    for name in registry.names():  # an installed package's environment may fail
        with boundary() as fault:
            found.append(asdict(registry.spec(name)))
        if fault.message:
            found.append({"name": name, "error": fault.message})
    if as_json:
        return print_json(found)
    rows = [
        (spec["name"], "-", "-", one_line(f"cannot be made: {spec['error']}"))
        if "error" in spec
        else (spec["name"], spec["seats"], spec["max_turns"], _options(spec["options"]))
        for spec in found
    ]
    print_table(("name", "seats", "turns at most", "options"), rows)
    for library, module in registry.ADAPTERS.items():
        if find_spec(module):  # importing all of them takes long
            click.echo(f"{library} is installed; its environments: earl envs --library {library}")
    return None


command = declared_group("envs", listed)


@declared("show", command)
def show(name: str, as_json: bool) -> None:
    from earl.agents.scripted.registry import names

    registry.remember(name)
    spec = registry.spec(name)
    if as_json:
        return print_json({**asdict(spec), "scripted": names(name)})
    scripted = "opponents and teachers" if spec.seats > 1 else "teachers"
    facts = [
        ("name", f"{spec.name} ({spec.target})"),
        ("seats", spec.seats),
        ("turns at most", spec.max_turns),
        ("options", _options(spec.options)),
        (scripted, ", ".join(names(name))),
        ("rules", spec.instructions),
        ("first observation", f"\n{spec.observation}"),
    ]
    return click.echo("\n".join(f"{fact}: {clean(value)}" for fact, value in facts))


@declared("new", command)
def new(name: str) -> None:
    from earl.cli.recipes import FOLDER

    if not name.isidentifier() or not name.islower():
        raise EarlError(f"{name!r} cannot name a module; write a word of small letters, digits and _, such as guess")
    files = {f"{name}.py": "environment", f"test_{name}.py": "test", f"{name}.toml": "recipe"}
    if there := [file for file in files if Path(file).exists()]:
        raise EarlError(f"{there[0]} is here already; move it away, or choose another name")
    title = "".join(part.capitalize() for part in name.split("_"))
    for file, kind in files.items():
        text = Template((FOLDER / "new" / f"{kind}.txt").read_text(encoding="utf-8"))
        Path(file).write_text(text.substitute(name=name, title=title), encoding="utf-8")
    click.echo(f"{', '.join(files)}; then: earl train {name}:{title} --config {name}.toml")


@declared("check", command)
@click.pass_context
def check(ctx: click.Context, name: str | None, as_json: bool) -> None:
    from earl.envs import check as contract

    if name:
        registry.remember(name)
    findings = {env: contract.check(env) for env in ([name] if name else registry.names())}
    if as_json:
        print_json({env: [asdict(finding) for finding in found] for env, found in findings.items()})
    else:
        rows = [
            (env, "ok" if found.passed else "BROKEN", found.rule, one_line(found.detail))
            for env, of_env in findings.items()
            for found in of_env
        ]
        print_table(("name", "", "rule", "seen"), rows)
    if not all(finding.passed for found in findings.values() for finding in found):
        ctx.exit(1)


def _options(options: dict[str, object]) -> str:
    given_by_episodes = ("seat", "opponent")
    shown = (f"{name} = {value}" for name, value in options.items() if name not in given_by_episodes)
    return one_line(", ".join(shown)) or "none"
