"""A model as a plain Hugging Face folder, in files of a bounded size."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

FILE_BYTES = 5_000_000_000
"""The largest weight file, as `save_pretrained` has it, unless one tensor is larger."""


def write_model(folder: Path, model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write configuration and weights as `save_pretrained` does.

    Args:
        model: for its configuration.
        tensors: by name, in host memory, each of its own memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_description(folder, model)
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    files = _files(sizes)
    if len(files) > 1:
        (folder / "model.safetensors.index.json").write_text(_index(files, sizes), encoding="utf-8")
    for file, names in files.items():
        save_file({name: tensors[name] for name in names}, folder / file, metadata={"format": "pt"})


def _write_description(folder: Path, model: Any) -> None:
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__.removeprefix("FSDP")], "float32"
    config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def _files(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Which tensors each file holds.

    Example:
        >>> _files({"a": 3_000_000_000, "b": 2_000_000_000, "c": 4})
        {'model-00001-of-00002.safetensors': ['a', 'b'], 'model-00002-of-00002.safetensors': ['c']}
    """
    groups: list[list[str]] = [[]]
    room = FILE_BYTES
    for name, size in sizes.items():
        if groups[-1] and size > room:
            groups.append([])
            room = FILE_BYTES
        groups[-1].append(name)
        room -= size
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{n:05}-of-{len(groups):05}.safetensors": names for n, names in enumerate(groups, start=1)}


def _index(files: Mapping[str, list[str]], sizes: Mapping[str, int]) -> str:
    places = {name: file for file, names in files.items() for name in names}
    return json.dumps({"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}, indent=2, sort_keys=True)
