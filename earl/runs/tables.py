"""The tables of a run's database, and the conversion between rows and values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from earl.matches import BOTH_SEATS, MatchResult
from earl.trajectory import Author

FORMAT = 3  # version of the tables, in the database's `user_version`

TABLES = {
    "metrics": "CREATE TABLE metrics (step INTEGER, name TEXT, value REAL, PRIMARY KEY (step, name)) WITHOUT ROWID",
    "timings": "CREATE TABLE timings (step INTEGER, stage TEXT, seconds REAL, PRIMARY KEY (step, stage)) WITHOUT ROWID",
    "events": "CREATE TABLE events (id INTEGER PRIMARY KEY, step INTEGER, time REAL, kind TEXT, message TEXT)",
    "matches": """CREATE TABLE matches (
        step INTEGER, phase TEXT, env TEXT, opponent TEXT, seat INTEGER, exact INTEGER, episodes INTEGER,
        win REAL, draw REAL, loss REAL, illegal REAL, truncated REAL,
        PRIMARY KEY (step, phase, opponent, seat, exact)
    ) WITHOUT ROWID""",
    "contexts": """CREATE TABLE contexts (
        step INTEGER, turn INTEGER, author INTEGER, tokens INTEGER, episodes INTEGER, PRIMARY KEY (step, turn, author)
    ) WITHOUT ROWID""",
    "decisions": """CREATE TABLE decisions (
        id INTEGER PRIMARY KEY, step INTEGER, stage TEXT, choice TEXT, before TEXT, reason TEXT, why TEXT, inputs TEXT
    )""",
}
ADDED = {"contexts": 2, "decisions": 3}  # format that introduced a table; a writer adds it to older databases

_COUNT, _SHARE, _NAME, _TEXT = (int, 0, 1 << 53), (float, -1e-6, 1 + 1e-6), (str, 0, 1000), (str, 0, 1 << 20)
_BOUNDS: dict[str, tuple[type, float, float]] = {
    **dict.fromkeys(("episodes", "tokens"), _COUNT),
    "id": (int, -(1 << 63), 1 << 63),
    "step": (int, 0, 10**9),
    "turn": (int, 0, 1000),
    "author": (int, min(Author), max(Author)),
    "seat": (int, BOTH_SEATS, 1000),
    "exact": (int, 0, 1),
    "value": (float, -math.inf, math.inf),
    "seconds": (float, 0, 1e12),
    "time": (float, 0, 1e11),
    **dict.fromkeys(("win", "draw", "loss", "illegal", "truncated"), _SHARE),
    **dict.fromkeys(("name", "stage", "kind", "phase", "env", "opponent", "choice", "before", "reason"), _NAME),
    **dict.fromkeys(("message", "why", "inputs"), _TEXT),
}
"""Type and range of each column's values, or the length of text: SQLite enforces neither."""
_ABSENT = {"before", "value", "seconds", "win", "draw", "loss", "illegal", "truncated"}
"""Columns that may hold NULL: a NaN, or no earlier choice."""
LEAST_ROW_BYTES = 4


def schema(form: int) -> dict[str, str]:
    """The CREATE statements of a format's tables, as SQLite keeps them except for white space."""
    return {name: " ".join(made.split()) for name, made in TABLES.items() if ADDED.get(name, 1) <= form}


def checked_bytes(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
    """Check the values of some rows, column by column; return the fewest bytes that they take in a file.
    Raises ValueError that names the first fault."""
    least = LEAST_ROW_BYTES * len(rows)
    for name, values in zip(columns, zip(*rows, strict=True), strict=True):
        kind, low, high = _BOUNDS[name]
        known = [value for value in values if value is not None] if name in _ABSENT else values
        if others := set(map(type, known)) - {kind}:
            raise ValueError(f"a {name} is of the type {others.pop().__name__}")
        sizes = [*map(len, known)] if kind is str else known
        if sizes and not (min(sizes) >= low and max(sizes) <= high):
            raise ValueError(f"a {name} is {'longer than' if kind is str else 'outside of what'} earl writes")
        least += sum(sizes) if kind is str else 0
    return least


Series = dict[str, list[tuple[int, float]]]
"""(step, value) pairs in order of step, by name."""


@dataclass(frozen=True, slots=True)
class Event:
    step: int
    time: float  # seconds since the epoch
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """The selector's choice for a stage at a step, and its inputs."""

    step: int
    stage: str
    choice: str
    before: str | None  # the earlier choice; None at the first decision
    reason: str  # one word
    why: str  # the reason with its numbers
    inputs: str  # JSON


@dataclass(frozen=True, slots=True)
class RecordedMatch:
    step: int
    phase: str  # part of the run, such as "train" or "final"
    result: MatchResult


def number(value: float | None) -> float:
    """SQLite keeps infinities but turns NaN into NULL."""
    return math.nan if value is None else value


def recorded_match(step: int, phase: str, env: str, opponent: str, seat: int, exact: int, *rest: Any) -> RecordedMatch:
    """A row of the table `matches`."""
    episodes, *fractions = rest
    values: list[Any] = [number(value) for value in fractions]
    return RecordedMatch(step, phase, MatchResult(env, opponent, seat, bool(exact), episodes, *values))
