"""Bounded parsing of TOML and JSON from untrusted files, and fingerprints of files.

Both parsers recurse and accept integers of any length. The TOML parser takes time quadratic in the longest key.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from io import BufferedReader
from typing import Any

MOST_TOML_BYTES = 16 << 10
"""A resolved recipe has 2 KB."""
MOST_JSON_BYTES = 16 << 20
"""A tokenizer's file is the largest; states and profiles are far smaller."""
DEEPEST = 32
TOO_DEEP = f"nested more than {DEEPEST} deep"
LARGEST = 1 << 128
"""Above any state, seed or count that earl writes; still finite as a float."""

Fingerprints = Mapping[str, Mapping[str, str | int]]
"""By a file's path inside of a folder."""


def fingerprint(file: BufferedReader) -> dict[str, str | int]:
    """SHA-256 and length of a file that is open at its start."""
    return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": os.fstat(file.fileno()).st_size}


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML. Raises ValueError if it is invalid, or larger or deeper than a recipe can be."""
    tree: dict[str, Any] = _parsed(data, MOST_TOML_BYTES, lambda data: tomllib.loads(data.decode()))
    return tree


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises ValueError if it is invalid, too large, too deep, or contains lone surrogates."""
    return _parsed(data, MOST_JSON_BYTES, _json)


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError as `parse_json` does."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def _parsed(data: bytes, most: int, parse: Callable[[bytes], Any]) -> Any:
    if len(data) > most:
        raise ValueError(f"too long: {len(data):,} bytes, at most {most:,} are read")
    try:
        value = parse(data)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    _check(value)
    return value


def _check(value: Any) -> None:
    """Check integers, strings and depth level by level, without recursion."""
    level = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += [*one, *one.values()]
            elif isinstance(one, list):
                below += one
            elif isinstance(one, int) and not -LARGEST <= one < LARGEST:
                raise ValueError("not what earl writes: a whole number has more than 128 bits")
            elif isinstance(one, str) and not one.isascii():
                one.encode()  # a lone surrogate can be neither stored nor shown
        if not below:
            return
        level = below
    raise ValueError(TOO_DEEP)
