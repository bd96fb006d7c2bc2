"""Where an existing model lies: in a folder, or on the hub, from where it is copied once."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download

from earl.errors import EarlError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""ORGANISATION/NAME."""
DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model"]
WEIGHTS = ["*.safetensors"]
PATIENCE_SECONDS = 10


def folder_of(path: str | Path, weights: bool = True) -> Path:
    """The local folder of a model; a hub id is downloaded when it is not here yet.

    Args:
        path: a folder or a hub id; a folder of that name comes first.
        weights: whether the weights are needed too, or only what describes them.

    Raises:
        EarlError: when there is no such folder or hub id, or the hub does not answer.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists():
        raise EarlError(f"{folder} holds no model: there is no config.json; give a folder written by save_pretrained")
    if not HUB_ID.fullmatch(str(path)):
        raise EarlError(
            f"no model at {str(path)!r}: there is no such folder, and a hub id reads ORGANISATION/NAME; check the path"
        )
    try:
        patterns = DESCRIPTION + (WEIGHTS if weights else [])
        return Path(snapshot_download(str(path), allow_patterns=patterns, etag_timeout=PATIENCE_SECONDS))
    except (OSError, ValueError) as error:
        raise EarlError(
            f"no model at {str(path)!r}: there is no such folder, and the hub gives none "
            f"({type(error).__name__}: {_first_line(error)}); check name and connection, or give a folder"
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given").rstrip(".")
