"""`earl recipe`: shows the recipe of an environment, explains keys, and writes a recipe to be changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import tomli_w
from pydantic.fields import FieldInfo

from earl.cli.options import declared, declared_group, print_json, settings
from earl.cli.recipes import layered, resolve
from earl.cli.text import clean, one_line
from earl.config import Config
from earl.errors import EarlError
from earl.recipe import dump

command = declared_group("recipe")


@declared("show", command)
def show(env: str, config: Path | None, assignments: tuple[str, ...], as_json: bool, **flags: str | None) -> None:
    recipe = resolve(env, config, settings(flags), assignments)
    return print_json(recipe.model_dump(mode="json")) if as_json else click.echo(clean(dump(recipe)), nl=False)


@declared("keys", command)
def keys(word: str | None, as_json: bool) -> None:
    found = [row for row in every_key() if word is None or any(word.lower() in part.lower() for part in row)]
    if not found:
        raise EarlError(f"no key has {word!r} in its name or meaning; without a word all are listed")
    if as_json:
        return print_json([dict(zip(("key", "default", "meaning"), row, strict=True)) for row in found])
    return click.echo("\n\n".join(f"{key} = {default}\n    {meaning}" for key, default, meaning in found))


@declared("new", command)
def new(env: str, file: Path, **flags: str | None) -> None:
    paths = settings(flags)
    resolve(env, None, paths)
    text = tomli_w.dumps(layered(env, None, paths))
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(f"# For {env}, by earl recipe new. All other keys: earl recipe keys\n\n{text}")
    except FileExistsError as error:
        raise EarlError(f"{file} is here already; name another file, or move it away") from error
    click.echo(one_line(f"{file}; then: earl train {env} --config {file}"))


def every_key() -> Iterator[tuple[str, str, str]]:
    """SECTION.KEY, default and meaning of every setting."""
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        for key, own in section.model_fields.items():
            yield f"{name}.{key}", default_of(own), one_line(own.description or "")


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "absent" if field.default is None else json.dumps(field.default)
