"""Trajectories as columns: list[Group] <-> one Arrow table <-> Parquet file or bytes for another rank.

One row per trajectory; tokens, authors, log-probabilities, versions and turns are list columns, made from concatenated
numpy arrays and offsets. Nullable columns hold the training records: mask, advantages, log-probabilities after the
update. Also here: column checksums, and match results as JSON.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.matches import NOT_KEPT, MatchResult
from earl.runs.folder import RunFolder
from earl.runs.parquet import read_table
from earl.runs.storage import OddFile, folder_below, opened, remove, replace_file, step_name, step_of, storage
from earl.trajectory import Author, Group, Outcome, StopReason, Task, ToolCall, TrainingRecord, Trajectory, Turn

_KEY, _CALLS = b"earl.seal", b"earl.tool_calls"
_calls_of_rows = TypeAdapter(list[tuple[ToolCall, ...]])


def sealed(table: pa.Table) -> pa.Table:
    """The table with a checksum of each numeric list column in its metadata, so that later changes are detected."""
    seal = json.dumps(_digests(table)).encode()
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: seal})


def changed(table: pa.Table) -> list[str]:
    """Columns of a stored table that differ from their checksums; none for a table without checksums."""
    try:
        stored = parse_json_object((table.schema.metadata or {}).get(_KEY, b"{}"))
    except ValueError:
        return [_KEY.decode()]
    present = _digests(table)
    return [name for name, digest in stored.items() if present.get(name) != digest]


def _digests(table: pa.Table) -> dict[str, str]:
    return {field.name: _digest(table[field.name]) for field in table.schema if _numeric(field.type)}


def _numeric(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type))


def _digest(column: Any) -> str:
    """Checksum of lengths and values, independent of chunks; a missing list differs from an empty one."""
    digest = hashlib.blake2b(_lengths(column).astype("<i8").tobytes(), digest_size=16)
    digest.update(_parts(column)[1].to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()


def matches_to_bytes(results: Iterable[MatchResult]) -> bytes:
    """Match results as JSON (nothing is unpickled); floats survive to the bit."""
    return json.dumps([asdict(result) for result in results]).encode()


def matches_from_bytes(data: bytes) -> list[MatchResult]:
    return [MatchResult(**fields | {name: tuple(fields[name]) for name in NOT_KEPT}) for fields in json.loads(data)]


FORMAT = b"2"  # version of the columns, in the table's metadata


def _list_of(kind: Any) -> Any:
    return pa.list_(pa.field("element", kind, nullable=False))


_PLACES = ("context_start", "prompt_start", "action_start", "end")
_TURN = [
    *(pa.field(name, pa.int32(), nullable=False) for name in _PLACES),
    pa.field("action", pa.string()),
    pa.field("reward", pa.float64(), nullable=False),
    pa.field("seconds", pa.float64(), nullable=False),
    pa.field("summary", pa.bool_(), nullable=False),
]
_SCALARS = {
    "step": pa.int64(),
    "group": pa.int32(),
    "env": pa.string(),
    "task_seed": pa.int64(),
    "seat": pa.int32(),
    "opponent": pa.string(),
    "seed": pa.int64(),
    "stop": pa.string(),
    "outcome": pa.string(),
    "illegal": pa.int32(),
    "error": pa.string(),
}
_ARRAYS = {"tokens": pa.int32(), "authors": pa.uint8(), "logprobs": pa.float32(), "versions": pa.int32()}
_LEARNED = {"mask": pa.bool_(), "advantages": pa.float32(), "new_logprobs": pa.float32()}
_LISTS = {name: _list_of(kind) for name, kind in {**_ARRAYS, "turns": pa.struct(_TURN), **_LEARNED}.items()}
_NULLABLE = {"error", *_LEARNED}
SCHEMA = pa.schema([pa.field(name, kind, name in _NULLABLE) for name, kind in {**_SCALARS, **_LISTS}.items()])
"""The columns, in order. Seeds are 64-bit signed."""
_LONGEST = {"env": 1000, "opponent": 1000, "error": 1 << 20}  # bytes of a text
ACTION_BYTES = 1000  # of an action, for each token of its reply and one more


def to_table(groups: Sequence[Group], step: int, experiences: Sequence[TrainingRecord] | None = None) -> pa.Table:
    """The groups of one step as a table. A group has at least one trajectory.
    `experiences` are the training records of all trajectories, group after group; None: unknown."""
    rows = [trajectory for group in groups for trajectory in group.trajectories]
    assert all(group.trajectories for group in groups), "a group without trajectories has no task"
    assert not experiences or len(experiences) == len(rows), "an experience for every trajectory"
    tasks = [row.task for row in rows]
    scalars: dict[str, Sequence[Any]] = {
        "step": [step] * len(rows),
        "group": [number for number, group in enumerate(groups) for _ in group.trajectories],
        "task_seed": [task.seed for task in tasks],
    }
    scalars |= {name: [getattr(task, name) for task in tasks] for name in ("env", "seat", "opponent")}
    scalars |= {name: [getattr(row, name) for row in rows] for name in ("seed", "stop", "outcome", "illegal", "error")}
    arrays = [pa.array(scalars[name], kind) for name, kind in _SCALARS.items()]
    arrays += [_list_column(name, [getattr(row, name) for row in rows]) for name in (*_ARRAYS, "turns")]
    for name in _LEARNED:
        known = [getattr(experience, name.removeprefix("new_")) for experience in experiences or ()]
        arrays.append(_list_column(name, known) if known else pa.nulls(len(rows), _LISTS[name]))
    metadata = {b"earl.format": FORMAT, b"earl.step": str(step).encode()}
    if any(row.tools for row in rows):
        metadata[_CALLS] = _calls_of_rows.dump_json([row.tools for row in rows])
    return pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(metadata))


def _list_column(name: str, parts: Sequence[Any]) -> Any:
    offsets = pa.array(np.fromiter(accumulate(map(len, parts), initial=0), np.int32))
    kind = _LISTS[name].value_type
    if name == "turns":
        turns = list(chain.from_iterable(parts))
        children = [pa.array([getattr(turn, field.name) for turn in turns], field.type) for field in _TURN]
        values = pa.StructArray.from_arrays(children, fields=_TURN)
    else:
        values = pa.array(np.concatenate([np.empty(0, kind.to_pandas_dtype()), *parts]), kind)
    return pa.ListArray.from_arrays(offsets, values, type=_LISTS[name])


def from_table(table: pa.Table, strict: bool = True) -> list[Group]:
    """Inverse of `to_table`, equal in every bit. Arrays are views into one copy of their column.

    `strict` requires tokens, turns and training records to agree; an audit turns it off, to report where they do not.
    Raises ValueError for a table that no episodes can have made.
    """
    _check(table, strict)
    scalars = {name: table[name].to_pylist() for name in _SCALARS}
    tasks = map(Task, scalars["env"], scalars["task_seed"], scalars["seat"], scalars["opponent"])
    lists = [_split(table[name]) for name in (*_ARRAYS, "turns")]
    ends = map(StopReason, scalars["stop"]), map(Outcome, scalars["outcome"]), scalars["illegal"], scalars["error"]
    trajectories = map(Trajectory, tasks, scalars["seed"], *lists, *ends, _calls(table))
    numbered = zip(scalars["group"], trajectories, strict=True)
    return [Group(tuple(row for _, row in rows)) for _, rows in groupby(numbered, key=lambda pair: pair[0])]


def _calls(table: pa.Table) -> list[tuple[ToolCall, ...]]:
    """The calls of tools of each row. Raises ValueError for what earl did not write."""
    stored = (table.schema.metadata or {}).get(_CALLS)
    if stored is None:
        return [()] * len(table)
    calls: list[tuple[ToolCall, ...]] = _calls_of_rows.validate_json(stored)
    if len(calls) != len(table):
        raise ValueError("tool calls do not have one entry for each trajectory")
    return calls


def _check(table: pa.Table, strict: bool) -> None:
    """Raises ValueError for impossible values, and when `strict` for lists and offsets that do not agree."""
    turns = _parts(table["turns"])[1]
    whole = [*_SCALARS.keys() - _NULLABLE, *_ARRAYS, "turns"]
    inner = [_parts(table[name])[1] for name in _LISTS]
    inner += [turns.field(field.name) for field in _TURN if not field.nullable]
    if any(table[name].null_count for name in whole) or any(values.null_count for values in inner):
        raise ValueError("a value is missing")
    for name, most in _LONGEST.items():
        if _text_bytes(table[name].combine_chunks()).max(initial=0) > most:
            raise ValueError(f"{name} holds a text of more than {most:,} bytes")
    if _parts(table["authors"])[1].to_numpy().max(initial=0) > max(Author):
        raise ValueError("authors holds a number that is no author's")
    starts, ends = _numbers(turns, "action_start"), _numbers(turns, "end")
    spoken = _text_bytes(turns.field("action"))
    if (spoken > ACTION_BYTES * (1 + np.maximum(0, ends - starts))).any():
        raise ValueError("turns holds an action that is far longer than its reply")
    if strict:
        _check_places(table, turns)


def _check_places(table: pa.Table, turns: Any) -> None:
    """Lists that belong together have equal lengths; a turn's offsets are in order, and after the turn before."""
    lengths = {name: _lengths(table[name]) for name in _LISTS}
    recorded = np.all([lengths[name] >= 0 for name in _LEARNED], 0)
    for name in (*_ARRAYS, *_LEARNED):
        here = recorded if name in _LEARNED else slice(None)
        other = "turns" if name == "advantages" else "tokens"
        if (lengths[name][here] != lengths[other][here]).any():
            raise ValueError(f"{name} does not have one value for each of {other}")
    counts = lengths["turns"]
    before = np.concatenate([[0], _numbers(turns, "end")])[: len(turns)]
    before[(np.cumsum(counts) - counts)[counts > 0]] = 0  # the first turns of their episodes
    places = [_numbers(turns, name) for name in _PLACES]
    in_order = pairwise([np.zeros_like(before), *places, np.repeat(lengths["tokens"], counts)])
    if any((left > right).any() for left, right in in_order) or (before > places[2]).any():
        raise ValueError("turns holds places that are out of order or outside of the tokens")


# Read from the buffers: pyarrow.compute, which has functions for these, takes longer to import than all else.
def _parts(column: Any) -> tuple[Any, Any]:
    """Where the lists of a column begin and end, and their concatenated values."""
    lists = column.combine_chunks()
    bounds = lists.offsets.to_numpy()
    return bounds - bounds[0], lists.values.slice(bounds[0], bounds[-1] - bounds[0])


def _text_bytes(texts: Any) -> Any:
    """Bytes of each text; 0 for a missing one."""
    offsets = np.frombuffer(texts.buffers()[1] or bytes(4), np.int32)
    return np.diff(offsets[texts.offset : texts.offset + len(texts) + 1])


def _lengths(column: Any) -> Any:
    """Length of each list; -1 for a missing one."""
    lists = column.combine_chunks()
    lengths = np.diff(lists.offsets.to_numpy())
    if lists.null_count:
        bits = np.unpackbits(np.frombuffer(lists.buffers()[0], np.uint8), bitorder="little")
        lengths = np.where(bits[lists.offset : lists.offset + len(lists)], lengths, -1)
    return lengths


def _numbers(turns: Any, name: str) -> Any:
    return turns.field(name).to_numpy().astype(np.int64)


def _split(column: Any) -> list[Any]:
    bounds, values = _parts(column)
    if pa.types.is_struct(values.type):
        items = tuple(map(Turn, *(values.field(field.name).to_pylist() for field in _TURN)))
    else:  # Arrow's own memory is read-only, which torch warns about
        items = values.to_numpy(zero_copy_only=False).copy()
    return [items[start:end] for start, end in pairwise(bounds.tolist())]


def to_bytes(groups: Sequence[Group]) -> bytes:
    """The groups as an Arrow IPC stream, for another process, without pickle."""
    table, sink = to_table(groups, 0), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> list[Group]:
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    table.validate(full=True)  # a stream's offsets are not validated elsewhere
    return from_table(table)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"{step_name(step)}.parquet"


def files(folder: Path) -> list[Path]:
    """The files of the kept steps, in order of step."""
    paths = [path for path in folder.glob("step-*.parquet") if step_of(path) is not None]
    return sorted(paths, key=lambda path: step_of(path) or 0)


def kept_files(folder: RunFolder, step: int | None = None) -> list[Path]:
    """The files of a run's kept steps, or of one of them. Raises EarlError where there is none."""
    kept = {step_of(path): path for path in files(folder.trajectories)}
    if not kept:
        rule = "they are kept every run.keep_trajectories_every steps"
        raise EarlError(f"run {folder.name!r} has no stored episodes yet; {rule}")
    if step not in (None, *kept):
        listed = ", ".join(map(str, kept))
        raise EarlError(f"run {folder.name!r} keeps no episodes of step {step}; kept are the steps {listed}")
    return [*kept.values()] if step is None else [kept[step]]


def write(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically. Raises EarlError when the disk refuses."""
    fill = partial(pq.write_table, sealed(table), compression="zstd", write_page_checksum=True)
    replace_file(path, fill, path.parent.parent)


def read(path: Path) -> tuple[int, list[Group]]:
    """The step and the groups of a file. Raises EarlError when it is missing or damaged."""
    return read_whole(path)[:2]


def read_whole(path: Path, strict: bool = True) -> tuple[int, list[Group], list[TrainingRecord]]:
    """As `read`, with the training records; none if the file has none."""
    if not path.is_file():
        raise EarlError(f"no trajectories at {path}: this step was not kept, or has not been reached")
    try:
        table = stored(path)
        return _checked_step(table), from_table(table, strict), experiences_of(table)
    except OddFile:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, AttributeError) as error:
        fault = (str(error) or type(error).__name__).splitlines()[0]
        raise EarlError(
            f"trajectories {path} cannot be read ({fault}): the file is damaged; delete it, training does not need it"
        ) from error


def experiences_of(table: pa.Table) -> list[TrainingRecord]:
    """The training records in a table; empty if it has none."""
    if any(table[name].null_count for name in _LEARNED):
        return []
    return [TrainingRecord(*parts) for parts in zip(*(_split(table[name]) for name in _LEARNED), strict=True)]


def stored(path: Path) -> pa.Table:
    """A file's table without conversion. Raises pa.ArrowException, OSError or ValueError when it cannot be read."""
    with opened(path.parent.parent, path) as file:
        return read_table(file, frozenset({*_ARRAYS, *_LEARNED}))


def _checked_step(table: pa.Table) -> int:
    """The step, on which metadata and all rows must agree."""
    metadata = table.schema.metadata or {}
    if not table.schema.equals(SCHEMA) or metadata.get(b"earl.format") != FORMAT:
        raise ValueError("its columns are not those of this version of earl")
    step = int(metadata.get(b"earl.step", b""))
    if (table["step"].to_numpy() != step).any():
        raise ValueError("its rows are of another step than the file")
    return step


def forget_after(folder: Path, step: int) -> None:
    """Remove the files of later steps: a run resumed from `step` writes them again."""
    if not folder.is_dir():
        return
    with storage(folder), folder_below(folder.parent, folder) as inside:
        for path in files(folder):
            if (step_of(path) or 0) > step:
                remove(path.name, inside)
