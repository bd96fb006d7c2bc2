"""Exports the model of a checkpoint as a plain Hugging Face folder."""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from earl.engine.source import folder_of
from earl.errors import EarlError

NOT_OF_THE_MODEL = "state.json"
"""The only file at the top of a checkpoint that is not part of the model; its folders are the learner's."""


def export(checkpoint: Path, folder: Path, dtype: str = "float32") -> list[Path]:
    """Copy a checkpoint's model, tokenizer and configuration into a new folder, as "float32" (as trained) or
    "bfloat16". Raises EarlError when the folder is not empty, or the checkpoint holds a link or is malformed."""
    folder_of(checkpoint)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EarlError(f"{folder} is there already; name a new or an empty folder")
    partial = folder.parent / f".{folder.name}-{secrets.token_hex(8)}.tmp"  # not a name of `earl.runs.storage`'s
    partial.mkdir(parents=True)
    size = 0
    try:
        for path in sorted(checkpoint.iterdir()):
            if path.is_symlink():
                raise EarlError(
                    f"{path} is a link, and a checkpoint has none: it may lead to a file of yours; remove it"
                )
            if not path.is_file() or path.name == NOT_OF_THE_MODEL:
                continue
            if path.suffix == ".safetensors" and dtype != "float32":
                size += _narrowed(path, partial / path.name, getattr(torch, dtype))
            else:
                shutil.copyfile(path, partial / path.name)
        if dtype != "float32":
            _update(partial / "config.json", dtype=dtype)
            for index in partial.glob("*.index.json"):
                _update(index, metadata={"total_size": size})
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(folder.iterdir())


def _narrowed(path: Path, to: Path, dtype: torch.dtype) -> int:
    """Write a file's tensors with another dtype; returns their bytes."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key).to(dtype) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise EarlError(f"{path} cannot be read ({error}): export another checkpoint") from error
    save_file(tensors, to, metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())


def _update(path: Path, **fields: Any) -> None:
    known = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**known, **fields}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
