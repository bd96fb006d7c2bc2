"""A run's numbers in SQLite: one transaction per step, so that a killed run holds whole steps only.

Readers (`earl report`, `earl watch`) open it while the run is being written: WAL lets them.
"""

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, Self

from earl.errors import EarlError
from earl.growth import ContextTokens
from earl.matches import MatchResult
from earl.runs.storage import storage
from earl.runs.tables import (
    CONTEXTS,
    DECISIONS,
    FORMAT,
    TABLES,
    Event,
    RecordedDecision,
    RecordedMatch,
    Series,
    from_real,
    match_row,
    recorded_match,
    to_real,
)


class Store:
    """The open database of one run. Use it as a context manager, or close it."""

    def __init__(self, path: Path, read_only: bool = False):
        """Open the database; a writer makes it when it is missing.

        Raises EarlError when it is missing (reader), damaged, from a newer earl, or the disk refuses.
        """
        self._path = path
        if read_only and not path.is_file():
            raise _nothing_at(path)
        with storage(path):
            self._connection = sqlite3.connect(_address(path, read_only), uri=True, isolation_level=None)
            try:
                self._prepare(read_only)
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self, read_only: bool) -> None:
        self._connection.execute("PRAGMA busy_timeout = 10000")
        version = self._format = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise EarlError(f"{self._path} has format {version}, this earl reads up to {FORMAT}: use a newer earl")
        if read_only:
            if version == 0:
                raise _nothing_at(self._path)
            return
        self._connection.execute("PRAGMA journal_mode = WAL")
        # One sync per commit: after a power failure the numbers are never behind the checkpoint either.
        self._connection.execute("PRAGMA synchronous = FULL")
        verdict = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        with self._transaction() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in filter(str.strip, TABLES.split(";")):
                    connection.execute(statement)
            connection.execute(CONTEXTS)
            connection.execute(DECISIONS)
            connection.execute(f"PRAGMA user_version = {FORMAT}")  # always, so that a read-only disk shows now
        self._format = FORMAT

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: what the block writes is committed together, or not at all when it raises."""
        with storage(self._path):
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
        """Keep the numbers of one step, all or none; those recorded before are replaced.

        Timings are seconds by stage; `phase` says in which part of the run the matches were played; `contexts` are
        the tokens by turn and author.
        """
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?)",
                [(step, name, to_real(value)) for name, value in metrics.items()],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO timings VALUES (?, ?, ?)",
                [(step, stage, to_real(seconds)) for stage, seconds in timings.items()],
            )
            connection.executemany(
                f"INSERT OR REPLACE INTO matches VALUES ({', '.join('?' * 12)})",
                [match_row(step, phase, result) for result in matches],
            )
            connection.executemany("INSERT OR REPLACE INTO contexts VALUES (?, ?, ?, ?, ?)", map(astuple, contexts))

    def event(self, step: int, kind: str, message: str) -> None:
        """Note that something happened now."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO events (step, time, kind, message) VALUES (?, ?, ?, ?)",
                (step, time.time(), kind, message),
            )

    def decision(self, decision: RecordedDecision) -> None:
        """Note what a stage runs in; a step that was begun again has several."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO decisions (step, stage, choice, before, reason, why, inputs) VALUES (?, ?, ?, ?, ?, ?, ?)",
                astuple(decision),
            )

    def forget_after(self, step: int) -> None:
        """Drop every row of a later step: a run resumed from `step` does them again, identically."""
        with self._transaction() as connection:
            for table in ("metrics", "timings", "events", "matches", "contexts", "decisions"):
                connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

    def metrics(self, names: Sequence[str] | None = None, since: int = 0) -> Series:
        """The metrics with these names (all when None) from step `since` on, in order of step."""
        if names is None:
            return self._series("SELECT name, step, value FROM metrics WHERE step >= ? ORDER BY step, name", (since,))
        places = ", ".join("?" * len(names))
        return self._series(
            f"SELECT name, step, value FROM metrics WHERE step >= ? AND name IN ({places}) ORDER BY step, name",
            (since, *names),
        )

    def timings(self, since: int = 0) -> Series:
        """Seconds by stage from step `since` on, in order of step."""
        return self._series("SELECT stage, step, seconds FROM timings WHERE step >= ? ORDER BY step, stage", (since,))

    def matches(self) -> list[RecordedMatch]:
        """Every match result, in order of step."""
        rows = self._rows("SELECT * FROM matches ORDER BY step, phase, opponent, seat, exact")
        return [recorded_match(*row) for row in rows]

    def contexts(self) -> list[ContextTokens]:
        """Tokens by step, turn and author; empty for a run of an earl that did not keep them."""
        if self._format < 2:
            return []
        return [ContextTokens(*row) for row in self._rows("SELECT * FROM contexts ORDER BY step, turn, author")]

    def events(self) -> list[Event]:
        """Every event, in the order in which they happened."""
        return [Event(*row) for row in self._rows("SELECT step, time, kind, message FROM events ORDER BY id")]

    def decisions(self) -> list[RecordedDecision]:
        """Every decision, in the order in which they were made; empty for a run of an earl that made none."""
        if self._format < 3:
            return []
        columns = "step, stage, choice, before, reason, why, inputs"
        return [RecordedDecision(*row) for row in self._rows(f"SELECT {columns} FROM decisions ORDER BY id")]

    def last_step(self) -> int | None:
        """The last step with numbers; None when there is none yet."""
        query = "SELECT max(step) FROM (SELECT max(step) AS step FROM metrics UNION ALL SELECT max(step) FROM timings)"
        step: int | None = self._rows(query)[0][0]
        return step

    def _series(self, query: str, parameters: Sequence[str | int] = ()) -> Series:
        series: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for name, step, value in self._rows(query, parameters):
            series[name].append((step, from_real(value)))
        return dict(series)

    def _rows(self, query: str, parameters: Sequence[str | int] = ()) -> list[tuple[Any, ...]]:
        with storage(self._path):
            return self._connection.execute(query, parameters).fetchall()

    def close(self) -> None:
        """Close the database; the write-ahead log is folded into it."""
        with storage(self._path):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _address(path: Path, read_only: bool) -> str:
    """The URI that SQLite opens."""
    uri = path.absolute().as_uri()
    if not read_only:
        return uri + "?mode=rwc"
    # A reader of a closed database would still make the log's files; on a read-only medium it need not.
    settled = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    return uri + ("?immutable=1" if settled else "?mode=ro")


def _nothing_at(path: Path) -> EarlError:
    return EarlError(f"no numbers at {path}: the run has not recorded a step yet; wait for its first")
