"""Checkpoints: a folder of files and a state.json that vouches for every byte of them.

    checkpoints/step-000010/  state.json   …whatever the caller wrote (safetensors, JSON; nothing pickled)

A checkpoint is written under a hidden name, hashed, synced and renamed: a visible one is whole.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from earl.errors import EarlError
from earl.runs.storage import remove, step_name, step_of, storage, sweep, sync, temporary

FORMAT = 1
"""Version of state.json."""

STATE = "state.json"

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every byte has been verified."""

    step: int
    state: dict[str, Any]
    """What `save` was given, as JSON gives it back (tuples are lists)."""
    path: Path
    """The folder with the caller's files."""


def save(folder: Path, step: int, write: Callable[[Path], None], state: Mapping[str, JSON]) -> Path:
    """Let `write` put files into a folder, then make it the checkpoint of `step`, whole or not at all.

    Only for who holds the run's lock: leftovers of a killed process are removed first. A checkpoint of the
    same step is replaced. Raises EarlError when the disk refuses.
    """
    path = folder / step_name(step)
    partial = temporary(path)
    with storage(path):
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        try:
            partial.mkdir()
            write(partial)
            _seal(partial, step, state)
            if path.exists():
                remove(path)
            partial.rename(path)
            sync(folder)
        finally:
            if partial.exists():
                remove(partial)
    return path


def _seal(folder: Path, step: int, state: Mapping[str, JSON]) -> None:
    """Hash and sync what the caller wrote, then vouch for it in state.json."""
    files = {name: _fingerprint(folder / name) for name in _names(folder)}
    assert STATE not in files, "state.json is written by save itself"
    document: dict[str, JSON] = {"format": FORMAT, "step": step, "state": state, "files": {**files}}
    text = json.dumps({"sha256": _digest_of(document), **document}, indent=1)
    (folder / STATE).write_text(text, encoding="utf-8")
    for path in (*folder.rglob("*"), folder):
        sync(path)


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _fingerprint(path: Path) -> dict[str, JSON]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": path.stat().st_size}


def _digest_of(document: Mapping[str, JSON]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def all_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    paths = folder.glob("step-*") if folder.is_dir() else ()
    return sorted(step for path in paths if path.is_dir() and (step := step_of(path)) is not None)


def latest(folder: Path) -> Path | None:
    """The checkpoint of the last step; None when there is none. Changes nothing, so readers may call it."""
    steps = all_steps(folder)
    return folder / step_name(steps[-1]) if steps else None


def load(path: Path) -> Checkpoint:
    """Verify every file of a checkpoint. Raises EarlError that names the first bad file and the cure."""
    if not path.is_dir():
        raise EarlError(f"no checkpoint at {path}: the folder is missing")
    with storage(path):
        document = _document(path)
        present = set(_names(path)) - {STATE}
        for name, expected in document["files"].items():
            if name not in present:
                raise _damaged(path, f"{name} is missing")
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                raise _damaged(path, f"{name} has {size} bytes, {expected['bytes']} were saved")
            if _fingerprint(path / name) != expected:
                raise _damaged(path, f"{name} has changed since it was saved (its SHA-256 differs)")
        if extra := sorted(present - set(document["files"])):
            raise _damaged(path, f"{extra[0]} was not saved with it")
    return Checkpoint(document["step"], document["state"], path)


def _document(path: Path) -> dict[str, Any]:
    """state.json, once its own checksum has been verified."""
    if not (path / STATE).is_file():
        raise _damaged(path, f"{STATE} is missing")
    try:
        document = json.loads((path / STATE).read_bytes())
    except ValueError as error:
        raise _damaged(path, f"{STATE} is not JSON") from error
    if not isinstance(document, dict):
        raise _damaged(path, f"{STATE} is not a JSON object")
    if document.get("format") != FORMAT:
        raise EarlError(
            f"checkpoint {path} has format {document.get('format')!r}, this earl reads {FORMAT}: "
            "use the earl that wrote it"
        )
    if document.pop("sha256", None) != _digest_of(document):
        raise _damaged(path, f"{STATE} has changed since it was saved (its SHA-256 differs)")
    return document


def _damaged(path: Path, fault: str) -> EarlError:
    earlier = [step for step in all_steps(path.parent) if step < (step_of(path) or 0)]
    if earlier:
        cure = f"delete {path}, then --resume continues from {path.parent / step_name(earlier[-1])}"
    else:
        cure = "there is no earlier checkpoint: start a new run"
    return EarlError(f"checkpoint {path} is damaged: {fault}; {cure}")


def prune(folder: Path, keep: int, also: set[int]) -> None:
    """Remove all but the last `keep` checkpoints and those of the steps in `also`."""
    assert keep >= 1, "the last checkpoint is what a run resumes from"
    with storage(folder):
        for step in all_steps(folder)[:-keep]:
            if step not in also:
                remove(folder / step_name(step))
