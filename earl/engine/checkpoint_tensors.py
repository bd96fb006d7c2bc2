"""Tensors in safetensors files, written in parts by several processes and read in any other partition.

A file's metadata says where its parts lie: {"places": {"exp_avg/model.norm.weight": {shape, offset}, …}}. A tensor
without a place is whole, so the weights of a Hugging Face folder are read by the same code.
"""

import copy
import json
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from earl.batch import bundles
from earl.dispatch.rows import balance
from earl.documents import Fingerprints, fingerprint
from earl.errors import EarlError
from earl.parallel.layout import Box

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


def check_finite(name: str, tensor: Tensor, cure: str) -> None:
    """Raises EarlError when a tensor holds NaN or infinity."""
    extremes = torch.stack(tensor.aminmax()) if tensor.numel() else tensor  # NaN propagates; one pass, no copies
    if not bool(extremes.isfinite().all()):
        raise EarlError(f"{name} holds numbers that are NaN or infinite; {cure}")


KINDS = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool, "U8": torch.uint8},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
}
LENGTH_BYTES = 8  # of the number at a file's start: how long the header is that follows


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a tensor in a file. It is mapped read-only while it is read: safetensors would map the whole file as
    memory of its own, which a limit on memory counts, or read the whole tensor."""

    path: Path
    begin: int  # in the file, in bytes
    kind: torch.dtype
    box: Box

    def read(self, wanted: Box) -> Tensor:
        """A copy of what lies in a box that is inside this part's."""
        if not self.path.is_file():  # reading a pipe would block forever
            raise _unreadable(self.path, "it is no regular file")
        shape = (*self.box.shape, self.kind.itemsize)
        try:
            mapped = np.memmap(self.path, np.uint8, "r", self.begin, shape)
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, str(error)) from error
        return torch.from_numpy(np.array(mapped[wanted.inside(self.box)])).view(self.kind).view(wanted.shape)


class Stored:
    """Tensors of a folder's safetensors files, and of further folders with a prefix to their names. Raises EarlError on
    reading missing, partial or non-finite data."""

    def __init__(self, folder: Path, *more: tuple[Path, str]) -> None:
        self._folder = folder
        self._parts: dict[str, list[StoredPart]] = defaultdict(list)
        self.shapes: dict[str, tuple[int, ...]] = {}
        for own, prefix in ((folder, ""), *more):
            for path in sorted(own.glob("*.safetensors")):
                for name, shape, part in parts_of(path):
                    self._parts[prefix + name].append(part)
                    self.shapes[prefix + name] = shape

    @property
    def numbers(self) -> int:
        return sum(part.box.numbers for parts in self._parts.values() for part in parts)

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor; only overlapping parts of files are read."""
        pieces = [(part, common) for part in self._parts[name] if (common := part.box.common(wanted))]
        if sum(common.numbers for _, common in pieces) != wanted.numbers:
            raise EarlError(f"{self._folder} lacks {name!r}, or a part of it; was every process's file copied?")
        result: Tensor | None = None
        for part, common in pieces:
            numbers = part.read(common)
            check_finite(f"{name} in {part.path}", numbers, "use an earlier checkpoint or another model")
            if common == wanted:
                return numbers
            result = torch.empty(wanted.shape, dtype=part.kind) if result is None else result
            result[common.inside(wanted)] = numbers
        assert result is not None
        return result


def parts_of(path: Path) -> Iterator[tuple[str, tuple[int, ...], StoredPart]]:
    """The tensors of a file: name, shape of the whole, and the part that is here."""
    with _opened(path) as file:  # sees to it that the header is sound
        places = _places((file.metadata() or {}).get(PLACES, "{}"), path)
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(LENGTH_BYTES), "little")
        header = json.loads(raw.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        own = tuple(entry["shape"])
        shape, offset = places.get(name, (own, (0,) * len(own)))
        ends = map(operator.add, offset, own)
        if not len(own) == len(offset) == len(shape) or any(map(operator.gt, ends, shape)):
            raise _unreadable(path, f"{name!r} lies outside of its tensor")
        if entry["dtype"] not in KINDS:
            raise _unreadable(path, f"{name!r} has numbers of the kind {entry['dtype']!r}")
        begin = LENGTH_BYTES + length + entry["data_offsets"][0]
        yield name, shape, StoredPart(path, begin, KINDS[entry["dtype"]], Box(offset, own))


def _opened(path: Path) -> "safe_open":
    if not path.is_file():  # reading a pipe would block forever
        raise _unreadable(path, "it is no regular file")
    try:
        return safe_open(path, framework="pt", backend="pread")
    except SafetensorError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, reason: str) -> EarlError:
    return EarlError(f"{path} cannot be read as safetensors: {reason}; restore it, or start anew")


def _places(text: str, path: Path) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    try:
        places = {name: (tuple(entry["shape"]), tuple(entry["offset"])) for name, entry in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, f"its places are malformed ({type(error).__name__})") from error
    if any(type(number) is not int or number < 0 for place in places.values() for part in place for number in part):
        raise _unreadable(path, "its places are no whole numbers from 0")
    return places


# A checkpoint's weights are a Hugging Face folder: whole tensors, in files that the ranks write at the same time.

FILE_BYTES = 5_000_000_000
"""The largest weight file, as in `save_pretrained`, unless one tensor is larger."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    name: str
    rank: int  # that writes it
    tensors: Mapping[str, int]  # their bytes


def weight_files(parts: Mapping[str, TensorPart], ranks: int) -> list[WeightFile]:
    """The files of a model. The largest tensors are dealt out first, each to the rank with the fewest bytes so far; one
    rank alone writes what `save_pretrained` writes.

    Example: tensors of 9, 6, 1 and 4 bytes over 2 ranks: 9 + 1 and 6 + 4.
    """
    sizes = {name: prod(part.shape) * part.numbers.dtype.itemsize for name, part in parts.items()}
    owned: list[list[str]] = [[] for _ in range(ranks)]
    for name, rank in zip(sizes, balance(np.array([*sizes.values()], np.float64), ranks), strict=True):
        owned[rank].append(name)  # in the model's order
    cuts = [(rank, cut) for rank, names in enumerate(owned) for cut in bundles(names, sizes.__getitem__, FILE_BYTES)]
    whole = len(cuts) == 1
    return [
        WeightFile(
            "model.safetensors" if whole else f"model-{number:05}-of-{len(cuts):05}.safetensors",
            rank,
            {name: sizes[name] for name in cut},
        )
        for number, (rank, cut) in enumerate(cuts, 1)
    ]


def describe(folder: Path, model: Any, files: Sequence[WeightFile]) -> None:
    """Write what makes files of weights a model: its configuration and, of several files, the index."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__.removeprefix("FSDP")], "float32"
    config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    if len(files) > 1:
        places = {name: file.name for file in files for name in file.tensors}
        total = sum(sum(file.tensors.values()) for file in files)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


class TensorFile:
    """A file to be written, relative to a snapshot's folder. Tensors of a device are copied to host memory at once;
    those in host memory, if the learner goes on to use them (`shared`), when `keep` is called."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor], shared: bool, places: str = "") -> None:
        # `transformers` asks for the format; of several keys of metadata the order would be random.
        self.name, self._metadata = name, {PLACES: places} if places else {"format": "pt"}
        self._shared = {name for name, tensor in tensors.items() if shared and tensor.device.type == "cpu"}
        self.tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    @classmethod
    def of_parts(cls, name: str, parts: Mapping[str, TensorPart]) -> "TensorFile":
        places = {name: {"shape": part.shape, "offset": part.box.offset} for name, part in parts.items()}
        return cls(name, {name: part.numbers for name, part in parts.items()}, shared=True, places=json.dumps(places))

    def keep(self) -> None:
        for name in self._shared:
            self.tensors[name] = self.tensors[name].clone()
        self._shared.clear()

    def write(self, folder: Path) -> dict[str, str | int]:
        """Returns the file's fingerprint."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, path, metadata=self._metadata)
        with path.open("rb") as file:
            return fingerprint(file)


class Snapshot:
    """What one process saves of a moment; other processes may write into the same folder at the same time. Tensors in
    host memory are not copied as long as they stay as they are: who changes them calls `keep` before.

    Args:
        files: of this process.
        describe: writes the rest; the first process's alone does something.
    """

    def __init__(self, files: Sequence[TensorFile], describe: Callable[[Path], None]) -> None:
        self._files, self._describe, self._lock = files, describe, Lock()

    def keep(self) -> None:
        """Copy the tensors that may change, or wait until they are written if that has begun."""
        with self._lock:
            for file in self._files:
                file.keep()

    def __call__(self, folder: Path) -> Fingerprints:
        """Write into a folder, from any thread; returns the fingerprints of this process's files of tensors. Raises
        EarlError, before writing, when a number is not finite."""
        with self._lock:
            for file in self._files:
                for name, tensor in file.tensors.items():
                    check_finite(name, tensor, f"{folder} is not saved, earlier checkpoints stay: resume from them")
            written = {file.name: file.write(folder) for file in self._files}
        self._describe(folder)
        return written
