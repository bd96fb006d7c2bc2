"""The tables of a run's database, and how a row becomes a value and back."""

import math
from dataclasses import dataclass

from earl.matches import MatchResult

FORMAT = 3
"""Version of the tables, in the database's `user_version`."""

TABLES = """
CREATE TABLE metrics (step INTEGER, name TEXT, value REAL, PRIMARY KEY (step, name)) WITHOUT ROWID;
CREATE TABLE timings (step INTEGER, stage TEXT, seconds REAL, PRIMARY KEY (step, stage)) WITHOUT ROWID;
CREATE TABLE events (id INTEGER PRIMARY KEY, step INTEGER, time REAL, kind TEXT, message TEXT);
CREATE TABLE matches (
    step INTEGER, phase TEXT, env TEXT, opponent TEXT, seat INTEGER, exact INTEGER, episodes INTEGER,
    win REAL, draw REAL, loss REAL, illegal REAL, truncated REAL,
    PRIMARY KEY (step, phase, opponent, seat, exact)
) WITHOUT ROWID;
"""

CONTEXTS = """
CREATE TABLE IF NOT EXISTS contexts (
    step INTEGER, turn INTEGER, author INTEGER, tokens INTEGER, episodes INTEGER, PRIMARY KEY (step, turn, author)
) WITHOUT ROWID
"""
"""The table that format 2 added; a writer adds it to older databases."""

DECISIONS = """
CREATE TABLE IF NOT EXISTS decisions (
    id INTEGER PRIMARY KEY, step INTEGER, stage TEXT, choice TEXT, before TEXT, reason TEXT, why TEXT, inputs TEXT
)
"""
"""The table that format 3 added, likewise."""

Series = dict[str, list[tuple[int, float]]]
"""(step, value) pairs in order of step, by name."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a step."""

    step: int
    time: float
    """Seconds since the epoch."""
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """What a stage ran in at a step, and what that was decided from: whoever decides knows how to read it."""

    step: int
    stage: str
    choice: str
    """In words."""
    before: str | None
    """What the stage ran in until then; None at its first decision."""
    reason: str
    """One word."""
    why: str
    """The reason with its numbers."""
    inputs: str
    """As JSON."""


@dataclass(frozen=True, slots=True)
class RecordedMatch:
    """A match result and when it was played."""

    step: int
    phase: str
    """Part of the run, such as "train" or "eval"."""
    result: MatchResult


def to_real(value: float) -> float | None:
    """SQLite keeps infinities but turns NaN into NULL; so NULL is how a NaN is written here."""
    value = float(value)
    return None if math.isnan(value) else value


def from_real(value: float | None) -> float:
    """What `to_real` took."""
    return math.nan if value is None else value


def match_row(step: int, phase: str, result: MatchResult) -> tuple[object, ...]:
    """A row of the table `matches`."""
    fractions = (result.win, result.draw, result.loss, result.illegal, result.truncated)
    head = (step, phase, result.env, result.opponent, result.seat, int(result.exact), result.episodes)
    return (*head, *map(to_real, fractions))


def recorded_match(
    step: int,
    phase: str,
    env: str,
    opponent: str,
    seat: int,
    exact: int,
    episodes: int,
    *fractions: float | None,
) -> RecordedMatch:
    """What `match_row` took."""
    win, draw, loss, illegal, truncated = map(from_real, fractions)
    result = MatchResult(env, opponent, seat, bool(exact), episodes, win, draw, loss, illegal, truncated)
    return RecordedMatch(step, phase, result)
