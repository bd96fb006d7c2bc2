"""Checksums of a stored table's numbers, so that a change behind earl's back shows, and in which column."""

import hashlib
import json
from typing import Any

import pyarrow as pa

from earl.documents import parse_json_object

_KEY = b"earl.seal"


def sealed(table: pa.Table) -> pa.Table:
    """The table with a checksum of each column of lists of numbers in its metadata."""
    digests = {field.name: _digest(table[field.name]) for field in table.schema if _numeric(field.type)}
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _KEY: json.dumps(digests).encode()})


def changed(table: pa.Table) -> list[str]:
    """Columns of a stored table that are not as they were sealed; none for a table without a seal."""
    try:
        digests = parse_json_object((table.schema.metadata or {}).get(_KEY, b"{}"))
    except ValueError:
        return [_KEY.decode()]
    columns = {field.name: table[field.name] for field in table.schema if _numeric(field.type)}
    return [name for name, digest in digests.items() if name not in columns or _digest(columns[name]) != digest]


def _numeric(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type))


def _digest(column: Any) -> str:
    """Of lengths and values, however the column is cut into chunks; a missing list differs from an empty one."""
    lists = column.combine_chunks()
    lengths = lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False).astype("<i8")
    values = lists.flatten().to_numpy(zero_copy_only=False)
    digest = hashlib.blake2b(lengths.tobytes(), digest_size=16)
    digest.update(values.tobytes())
    return digest.hexdigest()
