"""Finds a model in a folder, in the catalogue, or on the hub, from where it is downloaded once.

Models are untrusted: their files are checked here before any library reads them.
"""

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download, try_to_load_from_cache

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.parallel.memory import ModelShape, known, nearest

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
DESCRIPTION = ["*.json", "*.jinja", "*.txt", "*.model"]
WEIGHTS = ["*.safetensors"]
PATIENCE_SECONDS = 10
_fetches: ContextVar[bool] = ContextVar("fetches", default=True)

FILE_BYTES = 64 << 20
"""Limit of a file that a library reads whole, such as a tokenizer."""
CONFIG_BYTES = 1 << 20
SHARD = re.compile(r"[^/\\]+\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
REFUSED = {
    "auto_map": "names Python code of the model's own, and earl runs none; choose a model that transformers knows",
    "quantization_config": "asks for quantized weights, and earl trains whole numbers only; choose the original model",
    "compression_config": "asks for compressed weights, and earl trains whole numbers only; choose the original model",
    "speculators_config": "names another model to load; choose a model that stands alone",
    "configuration_files": "names another configuration; keep one config.json",
    "transformers_weights": "names other weights; keep them in model.safetensors or its shards",
}
"""Settings by which a library would load data from outside of the folder, or that cannot be trained."""
LIMITS = {"layer": 1_000, "expert": 10_000, "head": 100_000, "vocab": 1 << 24, "position": 1 << 26}
"""Limits of integers in config.json, by a part of their name; others are at most OTHERS."""
OTHERS = 1 << 31


def folder_of(path: str | Path, weights: bool = True) -> Path:
    """The local folder of a model: `path` is a folder (tried first), a catalogue name, or a hub id, downloaded when
    missing. Raises EarlError when there is no such model, no answer from the hub, or a file is unsafe to read."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        folder = _downloaded(path, weights)
    try:
        _check(folder, weights)
    except OSError as error:
        raise EarlError(f"{error.filename} cannot be read: {error.strerror}; check the folder") from error
    return folder


def _downloaded(path: str | Path, weights: bool) -> Path:
    folder = Path(path)
    if folder.exists():
        saved = max(folder.glob("checkpoints/step-*"), default=None)
        cure = f"give {saved}, a checkpoint of this run" if saved else "give a folder written by save_pretrained"
        raise EarlError(f"{folder} holds no model: there is no config.json; {cure}")
    hub = hub_id(str(path))
    patterns = DESCRIPTION + (WEIGHTS if weights else [])
    here = not _fetches.get()
    try:
        return Path(
            snapshot_download(hub, allow_patterns=patterns, etag_timeout=PATIENCE_SECONDS, local_files_only=here)
        )
    except (OSError, ValueError) as error:
        if here:
            raise EarlError(
                f"model {str(path)!r} is not on this machine, and is not fetched by a dry run or for an "
                f"opponent; fetch it with: hf download {hub}"
            ) from None
        what = repr(str(path)) if hub == str(path) else f"{str(path)!r}, which is {hub}"
        raise EarlError(
            f"no model at {what}: there is no such folder, and the hub gives none "
            f"({type(error).__name__}: {_first_line(error)}); check name and connection, or give a folder"
        ) from error


@contextmanager
def fetching(may: bool) -> Iterator[None]:
    """Whether the hub may be contacted until the context ends."""
    before = _fetches.set(may)
    try:
        yield
    finally:
        _fetches.reset(before)


def is_here(path: str | Path) -> bool:
    """Whether a model's description can be read without the hub."""
    if (Path(path) / "config.json").is_file():
        return True
    return isinstance(try_to_load_from_cache(hub_id(str(path)), "tokenizer_config.json"), str)


def hub_id(name: str) -> str:
    """The hub id of a catalogue name, or the hub id itself. Raises EarlError with the nearest name for others."""
    if model := known(name):
        return model.hub
    if HUB_ID.fullmatch(name):
        return name
    near = nearest(name)
    hint = f"did you mean {near!r}?" if near else "check the path"
    raise EarlError(f"no model at {name!r}: there is no such folder, and a hub id reads ORGANISATION/NAME; {hint}")


def known_shape(path: str | Path) -> ModelShape | None:
    """The shape of a model of the catalogue, unless a folder of that name exists; None otherwise."""
    model = None if Path(path).exists() else known(str(path))
    return model.shape if model else None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given").rstrip(".")


def _check(folder: Path, weights: bool) -> None:
    """Raises EarlError for files that no library should read. Links are followed: the hub's cache consists of them."""
    for path in [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]:
        if not path.exists():  # a link to a file that was not downloaded
            continue
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise EarlError(f"{path} is no regular file; remove it from the model's folder")
        limit = CONFIG_BYTES if path.name.endswith("config.json") or path.suffix == ".jinja" else FILE_BYTES
        if path.suffix in (".json", ".jinja", ".txt", ".model") and found.st_size > limit:
            raise EarlError(f"{path} has {found.st_size} bytes, and earl reads up to {limit}; is it the right file?")
    if (folder / "adapter_config.json").exists():
        raise EarlError(
            f"{folder} holds an adapter of another model; merge them (peft's merge_and_unload) and save that"
        )
    for path in sorted(folder.glob("*config.json")):
        _check_config(path)
    if weights:
        _check_weights(folder)


def _check_config(path: Path) -> None:
    for name, value in _pairs(_object(path)):
        if name in REFUSED and value:
            raise EarlError(f"{path}: {name!r} {REFUSED[name]}")
        if name.endswith("_implementation") and "/" in str(value):
            raise EarlError(f"{path}: {name!r} is {value!r:.99}, code from the hub, and earl runs none; remove it")
        if name.endswith(("_file", "_files")) and value and name != "special_tokens_map_file":
            raise EarlError(
                f"{path}: {name!r} names other files, {value!r:.99}; remove it, and keep them in the folder"
            )
        limit = next((limit for part, limit in LIMITS.items() if part in name), OTHERS)
        if path.name == "config.json" and isinstance(value, int) and value > limit:
            raise EarlError(f"{path}: {name!r} is {value:.3e}, and earl takes up to {limit}; is it the right file?")


def _check_weights(folder: Path) -> None:
    """Weights are read from safetensors only: other formats can run code."""
    for path in sorted(folder.glob("*.safetensors.index.json")):
        places = _object(path).get("weight_map")
        names = [*places.values()] if isinstance(places, dict) else [None]
        if other := [name for name in names if not (isinstance(name, str) and SHARD.fullmatch(name))]:
            raise EarlError(f"{path}: 'weight_map' names {other[0]!r:.99}, no .safetensors of the folder; save it anew")
    if any(folder.glob("*.safetensors")):
        return
    pickled = next((path for path in sorted(folder.iterdir()) if path.suffix in PICKLES), None)
    if pickled is not None:
        raise EarlError(
            f"{pickled} can run code when it is loaded, and earl loads safetensors only; take a model that has them, "
            "or convert this one where you trust it (transformers: from_pretrained, then save_pretrained)"
        )
    raise EarlError(f"no model can be loaded from {folder}: it has no .safetensors file; give one of save_pretrained")


def _object(path: Path) -> dict[str, Any]:
    try:
        return parse_json_object(path.read_bytes())
    except ValueError as error:
        raise EarlError(f"no model can be loaded: {path} is {_first_line(error)}; restore it") from error


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
