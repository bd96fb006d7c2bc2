"""Bounded reading of untrusted Parquet files: the memory that decoding takes is known before it begins.

A page of a few bytes may stand for billions of values, and the footer may be wrong about pages. So the header of every
page is read first, and for text the dictionary whose entries the pages repeat.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

LEAST_ROOM, RATIO, MOST_ROOM = 256 << 20, 16, 8 << 30
"""Limit of the decoded bytes: LEAST_ROOM + RATIO times the file's size, at most MOST_ROOM. A step of 384 episodes of
Tic-Tac-Toe, 50 KB, is counted as 98 times its size, one of long contexts as 13 times."""
LONGEST_TEXT = 64 << 20  # bytes of a text in the footer
VALUE_BYTES, NUMBER_BYTES, PAGE_BYTES = 100, 16, 1000  # estimated bytes of a Python object, an array element and a page
KINDS = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE", "BYTE_ARRAY")
ENCODINGS = frozenset({0, 2, 3, 8})
"""Plain, run lengths and dictionaries. Others repeat prefixes of text without stating the length."""
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = 5, 7, 8  # fields of a page's header
ZSTD = b"\x28\xb5\x2f\xfd"
MOST_COLUMNS = 100
LONGEST_HEADER = 1 << 14


def read_table(data: BinaryIO, arrays: frozenset[str]) -> pa.Table:
    """Read the table of an open file. Columns in `arrays` become arrays of numbers; values of others become objects.
    Raises pa.ArrowException, OSError or ValueError when it is unreadable or would take too much memory for its size."""
    limits = {"thrift_string_size_limit": LONGEST_TEXT, "thrift_container_size_limit": 1 << 20}
    with pq.ParquetFile(data, page_checksum_verification=True, **limits) as file:
        _examine(data.seek(0, os.SEEK_END), _decoded(data, file.metadata, arrays))
        return file.read(use_threads=False)


def _examine(size: int, decoded: Iterable[int]) -> None:
    """Raises ValueError when the parts of a file will take more memory, in bytes, than its size allows."""
    left = min(LEAST_ROOM + RATIO * size, MOST_ROOM)
    for num_bytes in decoded:
        left -= num_bytes
        if left < 0:
            raise ValueError("it is small but would take far more memory than its size allows")


def _decoded(data: BinaryIO, footer: Any, arrays: frozenset[str]) -> Iterator[int]:
    """The memory that rows and pages will take, in bytes, one by one."""
    if footer.num_columns > MOST_COLUMNS:
        raise ValueError(f"it has {footer.num_columns} columns, at most {MOST_COLUMNS} are read")
    yield VALUE_BYTES * footer.num_rows
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            kind = footer.schema.column(number)
            if kind.physical_type not in KINDS:
                raise ValueError(f"the column {kind.path!r} is of the type {kind.physical_type}")
            size = NUMBER_BYTES if kind.path.partition(".")[0] in arrays else VALUE_BYTES
            text = kind.physical_type == "BYTE_ARRAY"
            for num_values, num_bytes in _pages(data, footer.row_group(group).column(number), kind.path, text):
                yield size * num_values + num_bytes + PAGE_BYTES


def _pages(data: BinaryIO, column: Any, path: str, text: bool) -> Iterator[tuple[int, int]]:
    """Values and decoded bytes of each page of a column, from the page headers."""
    at = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0)
    end, longest = at + column.total_compressed_size, 0
    while at < end:
        data.seek(at)
        header = data.read(LONGEST_HEADER)
        try:
            fields, length = _struct(header, 0)
            kind = next(kind for kind in (DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2) if kind in fields)
            values, encoding = fields[kind][1], fields[kind][4 if kind == DATA_PAGE_2 else 2]
            decompressed, compressed = fields[2], fields[3]
        except (LookupError, TypeError, StopIteration):
            raise ValueError(f"a page of the column {path!r} has no readable header") from None
        if min(values, decompressed, compressed) < 0 or encoding not in ENCODINGS:
            raise ValueError(f"a page of the column {path!r} is not as earl writes it")
        yield values, decompressed + values * longest
        if text and kind == DICTIONARY_PAGE:  # each later value may be as long as the longest of these
            data.seek(at + length)
            longest = _longest(data.read(compressed), decompressed, values)
        at += length + compressed


def _longest(page: bytes, size: int, count: int) -> int:
    """Upper bound of the bytes of one text of a dictionary. Texts are preceded by their lengths, which are read if the
    page is zstd, as earl packs it. The footer's codec is not used, since Arrow aborts on an unknown one."""
    if not page.startswith(ZSTD):
        return size
    page = pa.decompress(page, size, "zstd", asbytes=True)
    at = longest = 0
    for _ in range(count):
        length = int.from_bytes(page[at : at + 4], "little")
        at, longest = at + 4 + length, max(longest, length)
    if at != size:
        raise ValueError("a dictionary is not as long as it says")
    return longest


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Decode a struct of Thrift's compact protocol: numbers and inner structs by field, and the end offset."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        kind = head & 15
        if kind in (5, 6):  # int32, int64
            fields[number], at = _zigzag(data, at)
        elif kind == 8:  # bytes, such as those of a statistic
            length, at = _varint(data, at)
            at += length
        elif kind == 12 and at < LONGEST_HEADER and number:
            fields[number], at = _struct(data, at)
        elif kind not in (1, 2):  # booleans have no bytes of their own
            raise LookupError(kind)
    return fields, at + 1


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = (data[at], at + 1) if data[at] < 128 else _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
