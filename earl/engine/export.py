"""Exports the model of a checkpoint as a plain Hugging Face folder."""

import secrets
import shutil
from glob import escape
from pathlib import Path

import torch

from earl.engine.model import load
from earl.errors import EarlError


def export(checkpoint: Path, folder: Path, dtype: str = "float32") -> list[Path]:
    """Write a checkpoint's model, tokenizer and configuration into a new folder, as "float32" (as trained) or
    "bfloat16". Raises EarlError when the folder is not empty, or the checkpoint holds a link or is malformed."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EarlError(f"{folder} is there already; name a new or an empty folder")
    if link := next((path for path in sorted(checkpoint.iterdir()) if path.is_symlink()), None):
        raise EarlError(f"{link} is a link, and a checkpoint has none: it may lead to a file of yours; remove it")
    policy = load(checkpoint)
    policy.model.to(getattr(torch, dtype))
    for left in folder.parent.glob(f".{escape(folder.name)}-{'[0-9a-f]' * 16}.tmp"):  # by an export that was killed
        shutil.rmtree(left, ignore_errors=True)
    partial = folder.parent / f".{folder.name}-{secrets.token_hex(8)}.tmp"  # not a name of `earl.runs.storage`'s
    partial.mkdir(parents=True)
    try:
        policy.save(partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except ValueError as error:  # such as generation settings that transformers does not write
        raise EarlError(f"the model of {checkpoint} cannot be written ({error}): export another checkpoint") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(folder.iterdir())
