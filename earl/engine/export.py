"""Exports the model of a checkpoint as a plain Hugging Face folder."""

import json
import secrets
import shutil
from pathlib import Path

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
    try:
        for path in sorted(checkpoint.iterdir()):
            if path.is_symlink():
                raise EarlError(
                    f"{path} is a link, and a checkpoint has none: it may lead to a file of yours; remove it"
                )
            if path.is_file() and path.name != NOT_OF_THE_MODEL:
                _copy(path, partial / path.name, getattr(torch, dtype))
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(folder.iterdir())


def _copy(path: Path, to: Path, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    if path.name == "config.json":
        config = json.loads(path.read_text(encoding="utf-8"))
        to.write_text(json.dumps({**config, "dtype": name}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    elif path.suffix == ".safetensors" and dtype != torch.float32:
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key).to(dtype) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise EarlError(f"{path} cannot be read ({error}): export another checkpoint") from error
        save_file(tensors, to, metadata={"format": "pt"})
    elif path.name.endswith(".index.json"):
        index = json.loads(path.read_text(encoding="utf-8"))
        try:
            total = int(index["metadata"]["total_size"]) * dtype.itemsize // torch.float32.itemsize
        except (LookupError, TypeError, ValueError) as error:
            raise EarlError(f"{path} says no total_size of the weights; export another checkpoint") from error
        to.write_text(json.dumps({**index, "metadata": {"total_size": total}}, indent=2, sort_keys=True) + "\n")
    else:
        shutil.copyfile(path, to)
