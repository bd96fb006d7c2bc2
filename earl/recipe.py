"""Reading and writing recipes: TOML files, `a.b=value` assignments, and errors that name the nearest key."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from earl.config import Config
from earl.documents import MOST_TOML_BYTES, parse_toml
from earl.errors import EarlError

SHOWN = 200
"""Characters of a value that an error quotes."""


def load_toml(path: Path) -> dict[str, Any]:
    """Read a recipe file. Raises EarlError when the file cannot be read or is not TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_TOML_BYTES + 1)
    except OSError as error:
        raise EarlError(f"recipe {path} cannot be read: {error.strerror}; check the path") from error
    return recipe_of(data, path)


def recipe_of(data: bytes, path: Path) -> dict[str, Any]:
    """Parse the contents of a recipe file. Raises EarlError when it is not TOML."""
    try:
        return parse_toml(data)
    except ValueError as error:
        raise EarlError(f"recipe {path} is not TOML: {error}; see configs/ for examples") from error


def override(tree: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Apply `a.b=value` assignments; values are TOML values, or plain strings if they do not parse.

    Example:
        >>> override({"run": {"steps": 5}}, ["run.steps=9", "algorithm.name=rloo"])
        {'run': {'steps': 9}, 'algorithm': {'name': 'rloo'}}
        >>> override({}, ['env.opponents."perfect@0.25"=1'])
        {'env': {'opponents': {'perfect@0.25': 1}}}
    """
    result: dict[str, Any] = {key: dict(table) if isinstance(table, dict) else table for key, table in tree.items()}
    for assignment in assignments:
        keys, text = _split(assignment)
        table = result
        for key in keys[:-1]:
            inner = table.get(key)
            table[key] = dict(inner) if isinstance(inner, dict) else {}
            table = table[key]
        table[keys[-1]] = _toml_value(text)
    return result


def build(tree: Mapping[str, Any]) -> Config:
    """Validate a recipe. Raises EarlError for an unknown key (with the nearest one) or an invalid value."""
    try:
        return Config.model_validate(dict(tree))
    except ValidationError as error:
        raise EarlError(explained(error)) from None


def explained(error: ValidationError, *section: str) -> str:
    """All faults of a recipe, or of a section of it, in one line."""
    return "; ".join(_explain({**item, "loc": (*section, *item["loc"])}) for item in error.errors())


def made_by_earl(model: str) -> bool:
    """Whether a model's path leads to a folder with the tokenizer of earl's own new models."""
    try:
        named = json.loads((Path(model) / "tokenizer_config.json").read_text(encoding="utf-8"))
        return bool(named["eos_token"] == "<|end|>" and named["pad_token"] == "<|pad|>")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def dump(config: Config) -> str:
    """The whole recipe as TOML with every default; read back, it builds the same recipe."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def _split(assignment: str) -> tuple[list[str], str]:
    """Split into keys and value; quoted keys may contain dots and "="."""
    match = _ASSIGNMENT.fullmatch(assignment)
    if match is None:
        raise EarlError(f"--set {assignment!r} is not of the form section.key=value, such as run.steps=50")
    return [key.strip('"') for key in _KEY.findall(match["path"])], match["value"]


_KEY = re.compile(r'"[^"]+"|[^".=\s]+')
_ASSIGNMENT = re.compile(rf"\s*(?P<path>(?:{_KEY.pattern})(?:\.(?:{_KEY.pattern}))+)\s*=(?P<value>.*)", re.DOTALL)


def _toml_value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}".encode())["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
    except ValueError as error:
        raise EarlError(f"--set …={text.strip()[:SHOWN]}: {error}; give another value") from error


def _explain(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "recipe"
    if item["type"] == "extra_forbidden":
        *section, key = map(str, item["loc"])
        keys, where = _keys(item["loc"][:-1]), ".".join(section)
        if near := difflib.get_close_matches(key, keys, n=1):
            return f"unknown key {path!r}; did you mean {'.'.join([*section, near[0]])!r}?"
        option = f"; an option of one {section[-1]} is set as '{where}.options.{key}'" if "options" in keys else ""
        return f"unknown key {path!r}; known here: {', '.join(keys)}{option}"
    if item["type"] == "value_error":
        return f"{path}: {item['ctx']['error']}"
    if item["type"] == "missing":
        return f"{path} is missing; every recipe needs it"
    value, rule = repr(item["input"]), item["msg"]
    return f"{path} = {value if len(value) < SHOWN else f'{value[:SHOWN]}…'}: {rule[:1].lower()}{rule[1:]}"


def _keys(section: Iterable[Any]) -> list[str]:
    model: Any = Config
    for part in section:
        model = model.model_fields[part].annotation
    return list(model.model_fields)
