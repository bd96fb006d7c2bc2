"""Where an existing model lies: in a folder, or on the hub, from where it is copied once. Some go by a short name."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache

from earl.errors import EarlError
from earl.parallel.catalogue import known, nearest
from earl.parallel.memory import ModelShape

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""ORGANISATION/NAME."""
DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model"]
WEIGHTS = ["*.safetensors"]
PATIENCE_SECONDS = 10


def folder_of(path: str | Path, weights: bool = True) -> Path:
    """The local folder of a model; one from the hub is downloaded when it is not here yet.

    Args:
        path: a folder, a hub id or a name of the catalogue; a folder of that name comes first.
        weights: whether the weights are needed too, or only what describes them.

    Raises:
        EarlError: when there is no such folder, hub id or name, or the hub does not answer.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise EarlError(f"{folder} holds no model: there is no config.json; give a folder written by save_pretrained")
    hub = hub_id(str(path))
    try:
        patterns = DESCRIPTION + (WEIGHTS if weights else [])
        return Path(snapshot_download(hub, allow_patterns=patterns, etag_timeout=PATIENCE_SECONDS))
    except (OSError, ValueError) as error:
        what = repr(str(path)) if hub == str(path) else f"{str(path)!r}, which is {hub}"
        raise EarlError(
            f"no model at {what}: there is no such folder, and the hub gives none "
            f"({type(error).__name__}: {_first_line(error)}); check name and connection, or give a folder"
        ) from error


def is_here(path: str | Path) -> bool:
    """Whether what describes a model can be read without asking the hub."""
    if (Path(path) / "config.json").is_file():
        return True
    return isinstance(try_to_load_from_cache(hub_id(str(path)), "tokenizer_config.json"), str)


def hub_id(name: str) -> str:
    """The hub id that is meant: by a name of the catalogue, or by itself.

    Raises:
        EarlError: with the nearest name for what is neither.
    """
    if model := known(name):
        return model.hub
    if HUB_ID.fullmatch(name):
        return name
    near = nearest(name)
    hint = f"did you mean {near!r}?" if near else "check the path"
    raise EarlError(f"no model at {name!r}: there is no such folder, and a hub id reads ORGANISATION/NAME; {hint}")


def known_shape(path: str | Path) -> ModelShape | None:
    """The shape of a model of the catalogue, unless a folder of that name comes first; None: it has to be read."""
    model = None if Path(path).exists() else known(str(path))
    return model.shape if model else None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given").rstrip(".")
