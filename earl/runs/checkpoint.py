"""Checkpoints: a folder of the caller's files and a state.json with their checksums.

    checkpoints/step-000010/  state.json   …the caller's files (safetensors, JSON; nothing pickled)

A checkpoint is written under a hidden name, hashed, synced and renamed, so a visible one is whole. If it is damaged
later, a run that continues from an earlier one renames it to damaged-step-000010 and ignores it.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from earl.documents import Fingerprints, fingerprint, parse_json_object
from earl.errors import EarlError
from earl.runs import signing
from earl.runs import storage as disk
from earl.runs.storage import OddFile, step_name, step_of, storage

FORMAT = 1  # version of state.json

STATE = "state.json"

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every byte has been verified."""

    step: int
    state: dict[str, Any]  # the argument of `save` after JSON (tuples are lists)
    path: Path  # the folder with the caller's files
    signed: signing.Signer


class Damaged(EarlError):
    def __init__(self, path: Path, fault: str, cure: str = "") -> None:
        super().__init__(f"checkpoint {path} is damaged: {fault}{cure}")
        self.path, self.fault = path, fault


Write: TypeAlias = Callable[[Path], Fingerprints | None]
"""Puts files into a folder; returns fingerprints of those that other processes have hashed."""


def save(folder: Path, step: int, write: Write, state: Mapping[str, JSON]) -> Path:
    """Let `write` put files into a folder, then make it the checkpoint of `step` atomically. The caller holds the run's
    lock: leftovers of killed processes are removed. Raises EarlError when the disk refuses."""
    path = folder / step_name(step)
    partial = disk.temporary(path)
    with storage(path):
        folder.mkdir(parents=True, exist_ok=True)
        disk.sweep(folder.parent, folder)
        with disk.folder_below(folder.parent, folder) as inside:
            try:
                os.mkdir(partial.name, dir_fd=inside)
                hashed = write(partial) or {}
                _seal(partial, step, state, hashed)
                disk.remove(path.name, inside)
                os.rename(partial.name, path.name, src_dir_fd=inside, dst_dir_fd=inside)
                os.fsync(inside)
            finally:
                disk.remove(partial.name, inside)
    return path


def _seal(folder: Path, step: int, state: Mapping[str, JSON], hashed: Fingerprints) -> None:
    """Sync the caller's files, hash those that nobody has, then write state.json."""
    _check_shared(folder, hashed)
    files = {name: hashed.get(name) or _fingerprint(folder, name) for name in _names(folder)}
    assert STATE not in files, "state.json is written by save itself"
    document: dict[str, JSON] = {"format": FORMAT, "step": step, "state": state, "files": {**files}}
    signature = signing.signature(lambda: _statement(folder, step, document))
    text = json.dumps({"sha256": _digest_of(document), "signature": signature, **document}, indent=1)
    (folder / STATE).write_text(text, encoding="utf-8")
    for path in (*folder.rglob("*"), folder):
        disk.sync(path)


def _statement(folder: Path, step: int, document: Mapping[str, JSON]) -> signing.Digests:
    """The digests that a signature covers; run and step are included, so a checkpoint cannot pass for another."""
    return {"run": folder.resolve().parent.parent.name, "step": str(step), STATE: _digest_of(document)}


def _names(folder: Path) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _fingerprint(folder: Path, name: str) -> Mapping[str, JSON]:
    with disk.opened(folder.parent.parent, folder / name) as file:
        return fingerprint(file)


def _check_shared(folder: Path, hashed: Fingerprints) -> None:
    """Raises EarlError when a file that another process has hashed is not here, or of another length."""
    for name, expected in hashed.items():
        path = folder / name
        size = path.lstat().st_size if path.exists() else 0
        if size != expected["bytes"]:
            fault = f"{path} has {size} bytes here, and {expected['bytes']} where it was written"
            raise EarlError(f"{fault}: move the run's folder to storage that all its hosts share, then use --resume")


def _digest_of(document: Mapping[str, JSON]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def all_steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    with storage(folder), disk.folder_below(folder.parent, folder) as inside, os.scandir(inside) as entries:
        named = {entry.name: step_of(Path(entry.name)) for entry in entries if entry.is_dir()}
    return sorted(step for name, step in named.items() if step is not None and step_name(step) == name)


def latest(folder: Path) -> Path | None:
    """The checkpoint of the last step; None when there is none. Read-only."""
    steps = all_steps(folder)
    return folder / step_name(steps[-1]) if steps else None


def load(path: Path) -> Checkpoint:
    """Verify every file of a checkpoint, the absence of links, and its signature.
    Raises Damaged with the first bad file; EarlError if it is missing, of another format, or has a bad signature."""
    if not path.is_dir():
        raise EarlError(f"no checkpoint at {path}: the folder is missing")
    with storage(path):
        try:
            document, signed = _document(path)
            present = set(_names(path)) - {STATE}
            for name, expected in document["files"].items():
                if name not in present:
                    raise Damaged(path, f"{name} is missing")
                _verify(path, name, expected)
        except OddFile as error:
            raise Damaged(path, str(error)) from error
        if extra := sorted(present - set(document["files"])):
            raise Damaged(path, f"{extra[0]} was not saved with it")
    return Checkpoint(document["step"], document["state"], path, signed)


def signer(path: Path) -> signing.Signer:
    """The signer of a checkpoint's state.json; its other files are not read. Raises EarlError for a bad signature."""
    return _document(path)[1]


def _verify(path: Path, name: str, expected: Mapping[str, Any]) -> None:
    with disk.opened(path.parent.parent, path / name) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected["bytes"]:
            raise Damaged(path, f"{name} has {size} bytes, {expected['bytes']} were saved")
        if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
            raise Damaged(path, f"{name} has changed since it was saved (its SHA-256 differs)")


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[Damaged]]:
    """The last checkpoint that is not damaged, and the errors of those after it. Read-only.
    Raises Damaged when there are checkpoints and none is whole."""
    damaged: list[Damaged] = []
    for step in reversed(all_steps(folder)):
        try:
            return load(folder / step_name(step)), damaged
        except Damaged as error:
            damaged.append(error)
    if damaged:
        cure = "; no other checkpoint is whole: put the file back from a copy, or start a new run"
        raise Damaged(damaged[0].path, damaged[0].fault, cure)
    return None, []


def fall_back(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Rename damaged checkpoints after the last whole one, which is returned with messages. The caller holds the run's
    lock. Raises Damaged when there are checkpoints and none is whole; nothing is changed then."""
    whole, damaged = newest_whole(folder)
    messages = []
    if whole and damaged:
        with storage(folder), disk.folder_below(folder.parent, folder) as inside:
            for error in damaged:
                name = f"damaged-{error.path.name}"
                while os.path.lexists(folder / name):
                    name += "-again"
                os.rename(error.path.name, name, src_dir_fd=inside, dst_dir_fd=inside)
                messages.append(f"{error}; kept aside as {folder / name}, the run goes on from step {whole.step}")
            os.fsync(inside)
    return whole, messages


def _document(path: Path) -> tuple[dict[str, Any], signing.Signer]:
    """state.json, with its checksum verified, and its signer."""
    try:
        document = parse_json_object(disk.read_below(path.parent.parent, path / STATE))
    except FileNotFoundError as error:
        raise Damaged(path, f"{STATE} is missing") from error
    except OddFile:
        raise
    except ValueError as error:
        raise Damaged(path, f"{STATE} is {error}") from error
    if document.get("format") != FORMAT:
        fault = f"checkpoint {path} has format {document.get('format')!r}, this earl reads {FORMAT}"
        raise EarlError(f"{fault}: use the earl that wrote it")
    signature = document.pop("signature", None)
    if document.pop("sha256", None) != _digest_of(document):
        raise Damaged(path, f"{STATE} has changed since it was saved (its SHA-256 differs)")
    signed = signing.checked(path, signature, lambda: _statement(path, step_of(path) or 0, document))
    if document.get("step") != step_of(path):  # after the signature: a renamed signed step is refused
        raise Damaged(path, f"{STATE} is of another step")
    files = document.get("files")
    if not isinstance(document.get("state"), dict) or not isinstance(files, dict):
        raise Damaged(path, f"{STATE} lacks the run's state or its files")
    if not all(isinstance(file, dict) and file.keys() == {"sha256", "bytes"} for file in files.values()):
        raise Damaged(path, f"{STATE} lacks the checksum of a file")
    return document, signed


def prune(folder: Path, keep: int, also: set[int]) -> None:
    """Remove all but the last `keep` checkpoints, those that their states name as the best or as opponents, today or
    soon, and those in `also`. If the last one is damaged, the run continues from the one before, and needs those of
    that time."""
    assert keep >= 1, "the last checkpoint is what a run resumes from"
    steps = all_steps(folder)
    for step in steps[-keep:]:
        with suppress(EarlError):  # a damaged one names none
            document, _ = _document(folder / step_name(step))
            state = document["state"]
            also = also | {state.get("best_step"), *state.get("pool", ()), *state.get("recent", ())}
    with storage(folder), disk.folder_below(folder.parent, folder) as inside:
        for step in steps[:-keep]:
            if step not in also:
                disk.remove(step_name(step), inside)
