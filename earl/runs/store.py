"""A run's numbers in SQLite: one transaction per step, so that a killed run holds whole steps only.

WAL lets readers (`earl report`, `earl watch`) open it while the run is being written.
"""

import math
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar

from earl.errors import EarlError
from earl.matches import BOTH_SEATS, FRACTIONS, MEASURES, MatchResult
from earl.runs.storage import DAMAGED, RESUME, checked_database, storage
from earl.trajectory import Author, ContextTokens

FORMAT = 4  # version of the tables, in the database's `user_version`

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
    "measures": """CREATE TABLE measures (
        step INTEGER, phase TEXT, opponent TEXT, seat INTEGER, exact INTEGER, distinct_games INTEGER,
        distinct_win REAL, distinct_draw REAL, distinct_loss REAL, forfeit REAL, turn_tokens REAL, optimal REAL,
        value_lost REAL, PRIMARY KEY (step, phase, opponent, seat, exact)
    ) WITHOUT ROWID""",
}
ADDED = {"contexts": 2, "decisions": 3, "measures": 4}
"""Format that introduced a table; a writer adds it to older databases."""

_COUNT, _SHARE, _NAME, _TEXT = (int, 0, 1 << 53), (float, -1e-6, 1 + 1e-6), (str, 0, 1000), (str, 0, 1 << 20)
_SHARES = (*FRACTIONS, "distinct_win", "distinct_draw", "distinct_loss", "forfeit", "optimal")
_BOUNDS: dict[str, tuple[type, float, float]] = {
    **dict.fromkeys(("episodes", "tokens", "distinct_games"), _COUNT),
    "id": (int, -(1 << 63), 1 << 63),
    "step": (int, 0, 10**9),
    "turn": (int, 0, 1000),
    "author": (int, min(Author), max(Author)),
    "seat": (int, BOTH_SEATS, 1000),
    "exact": (int, 0, 1),
    "value": (float, -math.inf, math.inf),
    "seconds": (float, 0, 1e12),
    "time": (float, 0, 1e11),
    **dict.fromkeys(_SHARES, _SHARE),
    "turn_tokens": (float, 0, 1 << 53),
    "value_lost": (float, 0, 2),
    **dict.fromkeys(("name", "stage", "kind", "phase", "env", "opponent", "choice", "before", "reason"), _NAME),
    **dict.fromkeys(("message", "why", "inputs"), _TEXT),
}
"""Type and range of each column's values, or the length of text: SQLite enforces neither."""
_ABSENT = {"before", "value", "seconds", "turn_tokens", "value_lost", *_SHARES}
"""Columns that may hold NULL: a NaN, no earlier choice, or what was not measured."""
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


@dataclass(frozen=True, slots=True)
class Numbers:
    """A snapshot of a run's numbers; the tokens by turn and author are read separately."""

    metrics: Series = field(default_factory=dict)
    timings: Series = field(default_factory=dict)
    matches: list[RecordedMatch] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    last_step: int | None = None


def number(value: float | None) -> float:
    """SQLite keeps infinities but turns NaN into NULL."""
    return math.nan if value is None else value


MATCH_COLUMNS = 10
"""Fields of a result that the table `matches` has, the first ones."""
MEASURED = ("distinct_games", *MEASURES)
"""Those that the table `measures` has."""
_measures_of = attrgetter("opponent", "seat", "exact", *MEASURED)


LONGEST, SHORT = 1 << 20, 1 << 13
"""Most bytes of a text column such as messages, and of any other value."""
CHUNK_BYTES = 1 << 25
WORK, MOST_WORK = 1_000_000, 300
"""Progress check every WORK instructions of SQLite, at most MOST_WORK times per query: a row takes about 10."""


class Store:
    """The open database of one run. Use it as a context manager, or close it."""

    def __init__(self, path: Path, read_only: bool = False):
        """Open the database; a writer creates it when it is missing.
        Raises EarlError when it is missing (reader), damaged, from a newer earl, or the disk refuses."""
        self._path = path
        if read_only and not path.is_file():
            raise EarlError(f"no numbers at {path}: the run has not recorded a step yet; wait for its first")
        with storage(path):
            checked_database(path, read_only and not _interrupted(path))
            self._connection = sqlite3.connect(_address(path, read_only), uri=True, isolation_level=None)
        with self._guarded():
            try:
                self._prepare(read_only)
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self, read_only: bool) -> None:
        self._distrust()
        if read_only:
            self._connection.execute("PRAGMA query_only = ON")
        self._connection.execute("PRAGMA busy_timeout = 10000")
        self._connection.execute("BEGIN")  # a writer may be creating the tables: read both in one transaction
        version = self._format = self._connection.execute("PRAGMA user_version").fetchone()[0]
        found = self._connection.execute("SELECT name, type, sql FROM sqlite_schema").fetchmany(100)
        self._connection.execute("COMMIT")
        if version > FORMAT:
            raise EarlError(f"{self._path} has format {version}, this earl reads up to {FORMAT}: use a newer earl")
        self._check_schema(version, found)
        if read_only:
            return
        self._connection.execute("PRAGMA journal_mode = WAL")
        # One sync per commit: after a power failure the numbers are never behind the checkpoint either.
        self._connection.execute("PRAGMA synchronous = FULL")
        verdict = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise self._foreign(verdict)
        with self._transaction() as connection:
            present = schema(connection.execute("PRAGMA user_version").fetchone()[0])
            for name, made in TABLES.items():
                if name not in present:
                    connection.execute(made)
            connection.execute(f"PRAGMA user_version = {FORMAT}")  # always, so that a read-only disk shows now
        self._format = FORMAT

    def _distrust(self) -> None:
        """Settings against untrusted files: no code of theirs runs, and memory and time are bounded."""
        connection = self._connection
        connection.set_progress_handler(lambda: next(self._work) > MOST_WORK, WORK)  # true: SQLite interrupts the query
        for limit in (sqlite3.SQLITE_LIMIT_ATTACHED, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH):
            connection.setlimit(limit, 0)
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {setting}")

    def _check_schema(self, version: int, found: Sequence[tuple[str, str, str]]) -> None:
        """Refuse all but the tables that earl made: views, triggers and generated columns are programs."""
        tables = {name: " ".join(str(made).split()) for name, _, made in found}
        expected = schema(version)
        for name, kind, _ in found:
            if tables[name] != expected.get(name):
                raise self._foreign(f"it holds a {kind} {name!r} that earl did not make")
        for name in expected.keys() - tables.keys():
            raise self._foreign(f"the table {name!r} is missing")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Raise faults of the disk or the file as EarlError; each block has its own work limit."""
        self._work = count(1)
        try:
            with storage(self._path):
                yield
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._foreign(str(error)) from error

    def _foreign(self, fault: str) -> EarlError:
        return EarlError(DAMAGED.format(path=self._path, what=f"database of a run ({fault})", then=RESUME))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit the block's writes together, or none when it raises."""
        with self._guarded():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def record_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        matches: Sequence[MatchResult] = (),
        phase: str = "train",
        contexts: Sequence[ContextTokens] = (),
    ) -> None:
        """Record the numbers of one step atomically, replacing earlier ones.
        Timings are seconds by stage; `phase` is that of the matches; `contexts` are the tokens by turn and author."""
        self._write(
            metrics=[(step, name, float(value)) for name, value in metrics.items()],
            timings=[(step, stage, float(seconds)) for stage, seconds in timings.items()],
            matches=[(step, phase, *astuple(result)[:MATCH_COLUMNS]) for result in matches],
            measures=[(step, phase, *_measures_of(result)) for result in matches],
            contexts=[astuple(cell) for cell in contexts],
        )

    def event(self, step: int, kind: str, message: str) -> None:
        self._write(events=[(None, step, time.time(), kind, message)])

    def decision(self, decision: RecordedDecision) -> None:
        """Record a stage's choice; a repeated step has several."""
        self._write(decisions=[(None, *astuple(decision))])

    def _write(self, **tables: list[tuple[Any, ...]]) -> None:
        """Write the rows of some tables together; SQLite keeps a NaN as NULL."""
        with self._transaction() as connection:
            for name, rows in tables.items():
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    connection.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({places})", rows)

    def forget_after(self, step: int) -> None:
        """Delete every row of a later step: a run resumed from `step` repeats them identically."""
        with self._transaction() as connection:
            for table in TABLES:
                connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

    def metrics(self) -> Series:
        """Every metric, in order of step."""
        return self._series("SELECT name, step, value FROM metrics ORDER BY step, name")

    def timings(self) -> Series:
        """Seconds by stage, in order of step."""
        return self._series("SELECT stage, step, seconds FROM timings ORDER BY step, stage")

    def matches(self) -> list[RecordedMatch]:
        key, found = "step, phase, opponent, seat, exact", []
        measured = {row[:5]: dict(zip(MEASURED, row[5:], strict=True)) for row in self._table("measures", key)}
        for step, phase, env, opponent, seat, exact, episodes, *fractions in self._table("matches", key):
            more = measured.get((step, phase, opponent, seat, exact), {})
            values: list[Any] = [number(value) for value in fractions]
            result = MatchResult(env, opponent, seat, bool(exact), episodes, *values, **more)
            found.append(RecordedMatch(step, phase, result))
        return found

    def contexts(self) -> list[ContextTokens]:
        """Tokens by step, turn and author."""
        return [ContextTokens(*row) for row in self._table("contexts", "step, turn, author")]

    def events(self) -> list[Event]:
        return [Event(*row) for _, *row in self._table("events", "id")]

    def decisions(self) -> list[RecordedDecision]:
        return [RecordedDecision(*row) for _, *row in self._table("decisions", "id")]

    def _table(self, name: str, order: str) -> list[tuple[Any, ...]]:
        """Every row of a table, in order; none for a run of an earl that did not keep it."""
        return self._rows(f"SELECT * FROM {name} ORDER BY {order}") if self._format >= ADDED.get(name, 1) else []

    def last_step(self) -> int | None:
        """The last step with numbers; None when there is none yet."""
        ends = [self._rows(f"SELECT step FROM {name} ORDER BY step DESC LIMIT 1") for name in ("metrics", "timings")]
        return max((row[0] for rows in ends for row in rows), default=None)

    def numbers(self) -> Numbers:
        return replace(self.progress(), metrics=self.metrics(), timings=self.timings())

    def progress(self) -> Numbers:
        """As `numbers`, without metrics and timings, which take most of the time."""
        return Numbers(matches=self.matches(), events=self.events(), last_step=self.last_step())

    def _series(self, query: str) -> Series:
        series: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for name, step, value in self._rows(query):
            series[name].append((step, number(value)))
        return dict(series)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, with their values checked."""
        rows: list[tuple[Any, ...]] = []
        if self._format == 0:  # created, but killed before the first commit
            return rows
        longest = LONGEST if "events" in query or "decisions" in query else SHORT
        with self._guarded():
            before = self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            cursor, taken = self._connection.execute(query), 0
            columns = [column[0] for column in cursor.description]
            while some := cursor.fetchmany(CHUNK_BYTES // longest):
                try:
                    taken += checked_bytes(columns, some)
                except ValueError as error:
                    raise self._foreign(str(error)) from None
                if taken > self._bytes():  # pages may be shared: a small file could hold rows without end
                    raise self._foreign("it has more rows than there is room for")
                rows += some
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)  # a writer may store longer values
        return rows

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in files_of(self._path) if path.exists())

    def close(self) -> None:
        """Close the database; the write-ahead log is merged into it."""
        with storage(self._path):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def files_of(path: Path) -> tuple[Path, Path]:
    """A database and its write-ahead log, which may be missing."""
    return path, path.with_name(f"{path.name}-wal")


def _address(path: Path, read_only: bool) -> str:
    uri = path.absolute().as_uri()
    if not read_only:
        return uri + "?mode=rwc"
    # A reader of a closed database would still create the log's files; on a read-only medium it need not.
    settled = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    return uri + ("?immutable=1" if settled else "?mode=rw" if _interrupted(path) else "?mode=ro")


def _interrupted(path: Path) -> bool:
    """Whether a process was killed while it created the database: the transaction is rolled back before a read."""
    return path.with_name(f"{path.name}-journal").exists()


T = TypeVar("T")


def read_from(database: Path, read: Callable[[Store], T]) -> T:
    """Read a run's database. Raises EarlError when it is missing, damaged, or from a newer earl."""
    with Store(database, read_only=True) as store:
        return read(store)


def read_numbers(database: Path) -> Numbers:
    return read_from(database, Store.numbers)
