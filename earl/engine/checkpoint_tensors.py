"""Tensors in safetensors files, written in parts by several processes and read in any other partition.

A file's metadata says where its parts lie: {"places": {"exp_avg/model.norm.weight": {shape, offset}, …}}. A tensor
without a place is whole, so the weights of a Hugging Face folder are read by the same code.
"""

import copy
import json
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from earl.errors import EarlError
from earl.parallel.layout import Box

FILE_BYTES = 5_000_000_000
"""The largest weight file, as in `save_pretrained`, unless one tensor is larger."""


def write_model(folder: Path, model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Write configuration and weights as `save_pretrained` does. tensors: in host memory, none sharing memory."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__.removeprefix("FSDP")], "float32"
    config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    save_torch_state_dict({**tensors}, folder, max_shard_size=FILE_BYTES)


PLACES = "places"  # metadata key of the place of each tensor in a file


@dataclass(frozen=True, slots=True)
class TensorPart:
    numbers: Tensor
    box: Box
    shape: tuple[int, ...]  # of the whole tensor


class TensorSource(Protocol):
    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the whole tensors, by name."""

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor; it may share memory, so copy from it."""


T = TypeVar("T")


def bundles(items: Iterable[T], size: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Neighbouring items that have at least this size together, except for the last ones."""
    bundle: list[T] = []
    total = 0
    for item in items:
        bundle.append(item)
        total += size(item)
        if total >= least:
            yield bundle
            bundle, total = [], 0
    if bundle:
        yield bundle


def check_finite(name: str, tensor: Tensor, cure: str) -> None:
    """Raises EarlError when a tensor holds NaN or infinity."""
    extremes = torch.stack(tensor.aminmax()) if tensor.numel() else tensor  # NaN propagates; one pass, no copies
    if not bool(extremes.isfinite().all()):
        raise EarlError(f"{name} holds numbers that are NaN or infinite; {cure}")


class Stored:
    """Tensors of a folder's safetensors files, and of further folders with a prefix to their names. Raises EarlError on
    reading missing, partial or non-finite data."""

    def __init__(self, folder: Path, *more: tuple[Path, str]) -> None:
        self._folder = folder
        self._places: dict[str, list[tuple[Path, str, Box]]] = defaultdict(list)
        self.shapes: dict[str, tuple[int, ...]] = {}
        found = [(path, prefix) for own, prefix in ((folder, ""), *more) for path in sorted(own.glob("*.safetensors"))]
        for path, prefix in found:
            with _opened(path) as file:
                places = _places((file.metadata() or {}).get(PLACES, "{}"), path)
                for name in file.keys():  # noqa: SIM118
                    own = tuple(file.get_slice(name).get_shape())
                    shape, offset = places.get(name, (own, (0,) * len(own)))
                    ends = map(operator.add, offset, own)
                    if not len(own) == len(offset) == len(shape) or any(map(operator.gt, ends, shape)):
                        raise _unreadable(path, f"{name!r} lies outside of its tensor")
                    self._places[prefix + name].append((path, name, Box(offset, own)))
                    self.shapes[prefix + name] = shape

    @property
    def numbers(self) -> int:
        return sum(box.numbers for boxes in self._places.values() for *_, box in boxes)

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor; only overlapping parts of files are read."""
        pieces = [(*place, common) for place in self._places[name] if (common := place[-1].common(wanted))]
        if sum(common.numbers for *_, common in pieces) != wanted.numbers:
            raise EarlError(f"{self._folder} lacks {name!r}, or a part of it; was every process's file copied?")
        result: Tensor | None = None
        for path, key, box, common in pieces:
            with _opened(path) as file:
                index = common.inside(box)
                part: Tensor = file.get_slice(key)[index] if index else file.get_tensor(key)
            check_finite(f"{name} in {path}", part, "use an earlier checkpoint or another model")
            if common == wanted:
                return part
            result = torch.empty(wanted.shape, dtype=part.dtype) if result is None else result
            result[common.inside(wanted)] = part
        assert result is not None
        return result


def _opened(path: Path) -> "safe_open":
    if not path.is_file():  # reading a pipe would block forever
        raise _unreadable(path, "it is no regular file")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, reason: str) -> EarlError:
    return EarlError(f"{path} cannot be read as safetensors: {reason}; restore it, or start anew")


def _places(text: str, path: Path) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    try:
        places = {name: (tuple(told["shape"]), tuple(told["offset"])) for name, told in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, f"its places are malformed ({type(error).__name__})") from error
    if any(type(number) is not int or number < 0 for place in places.values() for part in place for number in part):
        raise _unreadable(path, "its places are no whole numbers from 0")
    return places


# A learner's snapshot is a copy, so training continues while it is written.

STATE = "learner"
"""Folder of moments, value head and adapters; inference engines would read them as weights beside config.json."""
REFERENCE = "reference"
"""Folder of the reference model, also the base of adapters; missing until there is one."""


def write_snapshot(
    rank: int,
    parts: Mapping[str, TensorPart],
    models: Mapping[str, Mapping[str, Tensor]],
    model: Any,
    tokenizer: Any,
    folder: Path,
) -> None:
    """Write copies in host memory; other processes may write into the same folder at the same time. Raises EarlError
    when a number is not finite; nothing is written then.

    Args:
        parts: moments, value head and adapters of this rank.
        models: whole models by folder; of one process only.
        model: whose configuration they have.
    """
    numbers = {name: part.numbers.contiguous() for name, part in parts.items()}
    for tensors in (*models.values(), numbers):
        for name, tensor in tensors.items():
            check_finite(name, tensor, f"{folder} is not saved, earlier checkpoints stay: resume from them")
    for name, tensors in models.items():
        write_model(folder / name, model, tensors)
    if models:
        tokenizer.save_pretrained(folder)
    (folder / STATE).mkdir(parents=True, exist_ok=True)
    places = {name: {"shape": part.shape, "offset": part.box.offset} for name, part in parts.items()}
    # Only one key of metadata: the order of several is random.
    save_file(numbers, folder / STATE / f"rank-{rank:05}.safetensors", metadata={PLACES: json.dumps(places)})


def copied(tensor: Tensor) -> Tensor:
    """A copy in host memory, independent of the tensor."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
