"""What a shell completes: `eval "$(_EARL_COMPLETE=bash_source earl)"`, also with zsh_source and fish_source."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from earl.agents.scripted import registry as scripted
from earl.config import Config
from earl.envs import registry
from earl.errors import boundary
from earl.runs.folder import listing

Given = Mapping[str, Any]
"""The values of a command line so far."""


def _runs(given: Given) -> list[str]:
    return [run.name for run in listing(Path(given.get("root") or "runs"))]


def _environments(_given: Given) -> list[str]:
    return [*registry.names(), *(f"{library}:" for library in registry.ADAPTERS)]


def _opponents(given: Given) -> list[str]:
    found: tuple[str, ...] = ()
    with boundary():
        found = scripted.names(given["env"])
    return [*(found or scripted.BOARD_PLAYERS), "model:", *_runs(given)]


def _keys(_given: Given) -> list[str]:
    sections = Config.model_fields.items()
    return [f"{name}.{key}=" for name, section in sections for key in section.annotation.model_fields]  # type: ignore[union-attr]


OFFERS: dict[str, Callable[[Given], Iterable[str]]] = {
    **dict.fromkeys(("run", "runs", "player", "players", "resume", "replay"), _runs),
    **dict.fromkeys(("against", "opponents"), _opponents),
    "env": _environments,
    "assignments": _keys,
}
"""What values are offered, by the name of an argument or option."""
