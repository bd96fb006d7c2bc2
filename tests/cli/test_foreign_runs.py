"""Run folders that somebody else made: whatever is in them, a command says so and ends.

Every mutation of a sound run is given to every command, in a forked process with a limit of time and memory.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from earl.cli.main import run
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.selector.selector import Selector, inputs_to_json
from earl.recipe import build, dump, load_toml
from earl.runs.store import RecordedDecision, Store
from tests.sampling import sampled

SECONDS = 60
"""Longest that a command may take; a hang takes for ever."""
BYTES = 1 << 30
"""Memory that a command may take above what the process has when it begins."""
CRASHED = 70
COMMANDS = {
    "runs": ("runs", "--json"),
    "report": ("report", "{run}"),
    "audit": ("audit", "{run}"),
    "replay": ("replay", "{run}", "0"),
    "watch": ("watch", "{run}", "--once"),
    "eval": ("eval", "{run}", "--opponent", "random", "--episodes", "2"),
    "resume": ("train", "--resume", "{run}", "--dry-run"),
}
FIRST = {
    "database": ("runs", "watch"),
    "trajectories": ("replay",),
    "recipe": ("runs", "resume"),
    "checkpoints": ("eval",),
}
"""The commands that show a fault of each part soonest."""
MODULES = (
    "earl.audit",
    "earl.cli.contestants",
    "earl.cli.replay",
    "earl.cli.training",
    "earl.cli.watch",
    "earl.evaluation",
    "earl.planner.plan",
    "earl.planner.sheet",
    "earl.reports",
    "rich.status",
)
ALLOWED = {"runs": {0}, "report": {0, 2}, "audit": {0, 1, 2}}

Mutation = Callable[[Path], object]


class Flat:
    """Every choice takes a second."""

    def seconds(self, choice: Choice, load: Load) -> float:
        del choice, load
        return 1.0

    def obstacle(self, choice: Choice, load: Load) -> str:
        del choice, load
        return ""


@pytest.fixture(scope="module")
def sound(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run that has a step to go and two decisions, and of a second one that nobody touches."""
    root = tmp_path_factory.mktemp("foreign")
    folder = root / "victim"
    shutil.copytree(trained, folder)
    config = build(load_toml(folder / "config.toml"))
    longer = config.model_copy(update={"run": config.run.model_copy(update={"steps": 3})})
    (folder / "config.toml").write_text(dump(longer))
    sql("DELETE FROM matches WHERE phase = 'final'")(folder)
    selector = Selector(
        {"update": [Choice("update", Layout(4)), Choice("update", Layout(2, 2))]}, Flat(), {"update": 3.0}
    )
    with Store(folder / "run.db") as store:
        for step in (1, 2):
            selector.record_load(step, Load(64, 100.0, 200, 10_000))
            one = selector.decide("update", step)
            row = (step, one.stage, str(one.choice), None, one.reason, one.why, inputs_to_json(one))
            store.decision(RecordedDecision(*row))
    shutil.copytree(folder, root / "bystander")
    for name in (*MODULES, "tokenizers", "transformers"):  # what they take is not the mutation's
        import_module(name)
    return root


def ended_by(lines: list[list[str]], output: Path) -> int:
    """How a forked process ends that runs command lines, each with an output of its own."""
    child = os.fork()
    if not child:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number, line in enumerate(lines):
            code = CRASHED
            try:
                with output.with_suffix(f".{number}").open("w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                sys.stdout, sys.stderr = (open(number, "w", closefd=False, errors="replace") for number in (1, 2))  # noqa: SIM115
                signal.alarm(SECONDS)
                code = run(line)
            except BaseException:
                os.write(2, traceback.format_exc().encode(errors="replace"))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                output.with_suffix(f".code-{number}").write_text(str(code))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def said_by(lines: list[list[str]], output: Path) -> Iterator[tuple[int, str]]:
    """Exit code and output of each command line; negative: the signal that ended it."""
    ended = ended_by(lines, output)
    for number in range(len(lines)):
        code = output.with_suffix(f".code-{number}")
        said = output.with_suffix(f".{number}").read_text(errors="replace")
        yield int(code.read_text()) if code.exists() else ended, said
        if not code.exists():
            return


def faults(root: Path, output: Path, commands: tuple[str, ...] = tuple(COMMANDS)) -> Iterator[str]:
    """What each command did that it must not."""
    lines = [[*(part.format(run="victim") for part in COMMANDS[name]), "--runs", str(root)] for name in commands]
    for name, (code, said) in zip(commands, said_by(lines, output), strict=False):
        if code not in ALLOWED.get(name, {0, 2}) or "Traceback" in said or "\x1b" in said:
            yield f"{name}: code {code}: {said[-1500:]}"
        elif code == 2 and "error: " not in said:
            yield f"{name}: says nothing: {said[-500:]}"
        elif name == "runs" and '"run": "bystander",\n    "path"' not in said:
            yield f"runs: the other run is not listed: {said[-500:]}"


# ------------------------------------------------------------------------------------------------ the database


def sql(*statements: str, writable_schema: bool = False) -> Mutation:
    """Statements that SQLite takes."""

    def mutate(folder: Path) -> None:
        connection = sqlite3.connect(folder / "run.db", isolation_level=None)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        if writable_schema:
            connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    return mutate


def row(table: str, column: str, value: str) -> Mutation:
    """One value of all rows of a table, as an SQL expression."""
    return sql(f"UPDATE OR REPLACE {table} SET {column} = {value}")


def replaced(name: str, data: bytes) -> Mutation:
    """Other bytes in the place of a file."""

    def mutate(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    return mutate


def flipped(name: str, start: float, count: int = 64) -> Mutation:
    """Bytes of a file inverted from a share of its length on."""

    def mutate(folder: Path) -> None:
        path = next(folder.glob(name))
        data = bytearray(path.read_bytes())
        first = int(start * len(data))
        data[first : first + count] = bytes(255 - byte for byte in data[first : first + count])
        path.write_bytes(data)

    return mutate


def cut(name: str, share: float) -> Mutation:
    """Only the first part of a file."""

    def mutate(folder: Path) -> None:
        path = next(folder.glob(name))
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])

    return mutate


def shared_pages(folder: Path) -> None:
    """A table of 60 KB with 400 ** 4 rows: every child of an interior page is the same page."""
    sql("DELETE FROM events", "INSERT INTO events VALUES (1, 0, 0.0, 'k', 'm')")(folder)
    path = folder / "run.db"
    connection = sqlite3.connect(path)
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'events'").fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    data = bytearray(path.read_bytes())
    leaf, count, levels = bytes(data[(root - 1) * size : root * size]), 400, 4

    def interior(child: int) -> bytes:
        page = bytearray(size)
        cells = [child.to_bytes(4, "big") + bytes([number % 128]) for number in range(count)]
        start = size - 5 * count
        page[0:12] = (
            b"\x05\0\0" + count.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0" + child.to_bytes(4, "big")
        )
        for number, cell in enumerate(cells):
            page[12 + 2 * number : 14 + 2 * number] = (start + 5 * number).to_bytes(2, "big")
            page[start + 5 * number : start + 5 * number + 5] = cell
        return bytes(page)

    first = len(data) // size + 1
    data[(root - 1) * size : root * size] = interior(first)
    for level in range(1, levels):
        data += interior(first + level)
    data += leaf
    data[28:32] = (len(data) // size).to_bytes(4, "big")
    path.write_bytes(data)


def forecast(tokens: float, limit: float, step: float) -> Mutation:
    """Contexts of so many tokens, and a forecast that they reach the limit at that step."""
    metrics = {f"context/window/{name}": tokens for name in ("p50", "p95", "p99", "max")}
    metrics |= {"context/limit": limit} | {f"forecast/p99/{end}": step for end in ("early", "median", "late")}
    rows = [f"({at}, '{name}', {value})" for at in (1, 2, 3) for name, value in metrics.items()]
    return sql(f"INSERT OR REPLACE INTO metrics VALUES {', '.join(rows)}")


ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS step, 'a' AS name, 1.0 AS value FROM n"
)
DATABASE: dict[str, Mutation] = {
    "an endless view as metrics": sql("DROP TABLE metrics", f"CREATE VIEW metrics AS {ENDLESS}"),
    "a view as matches": sql("DROP TABLE matches", "CREATE VIEW matches AS SELECT 1"),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM metrics; END"),
    "an index over an expression": sql("CREATE INDEX i ON events (abs(step))"),
    "one more table": sql("CREATE TABLE extra (a)"),
    "a table less": sql("DROP TABLE timings"),
    "a generated column": sql(
        "DROP TABLE metrics",
        "CREATE TABLE metrics (step INTEGER, name TEXT, value REAL AS (length(zeroblob(900000000))))",
        "INSERT INTO metrics (step, name) VALUES (1, 'a')",
    ),
    "a check constraint": sql(
        "DROP TABLE timings",
        "CREATE TABLE timings (step INTEGER, stage TEXT, seconds REAL CHECK (seconds < 0), "
        "PRIMARY KEY (step, stage)) WITHOUT ROWID",
    ),
    "a schema that is no SQL": sql("UPDATE sqlite_schema SET sql = 'CREATE nothing'", writable_schema=True),
    "tables that share a root page": sql("UPDATE sqlite_schema SET rootpage = 2", writable_schema=True),
    "a root page beyond the file": sql("UPDATE sqlite_schema SET rootpage = 99999", writable_schema=True),
    "pages that are shared": shared_pages,
    "a step that is text": row("metrics", "step", "'one'"),
    "a step that is a blob": row("timings", "step", "x'00ff'"),
    "a step beyond 2 ** 53": row("metrics", "step", str(2**62)),
    "a step below zero": row("metrics", "step", "-5"),
    "a step that is nothing": row("events", "step", "NULL"),
    "a name that is a blob": row("metrics", "name", "x'00'"),
    "a name that is not UTF-8": row("timings", "stage", "CAST(x'ff' AS TEXT)"),
    "a name of a megabyte": sql("INSERT INTO metrics VALUES (1, hex(zeroblob(500000)), 1.0)"),
    "a name that steers the terminal": row("timings", "stage", "char(27) || '[31m' || char(10)"),
    "a value that is text": row("metrics", "value", "'much'"),
    "a value that is infinite": row("metrics", "value", "9e999"),
    "the largest value": row("metrics", "value", "1.7e308"),
    "the largest values of either sign": sql(
        "UPDATE metrics SET value = CASE step % 2 WHEN 0 THEN 1.7e308 ELSE -1.7e308 END"
    ),
    "a forecast quadrillions of steps ahead": forecast(tokens=50.0, limit=100.0, step=1e15),
    "a forecast beyond all numbers": forecast(tokens=1.7e308, limit=1.7e308, step=1.7e308),
    "seconds that cancel out": sql("UPDATE timings SET seconds = CASE step % 2 WHEN 0 THEN 1e299 ELSE -1e299 END"),
    "seconds that are a blob": row("timings", "seconds", "x'ff'"),
    "seconds that are infinite": row("timings", "seconds", "9e999"),
    "the time of an event beyond all years": row("events", "time", "1e300"),
    "the time of an event as text": row("events", "time", "'noon'"),
    "an event's message of 2 MB": row("events", "message", "hex(zeroblob(1000000))"),
    "an event's kind that is nothing": row("events", "kind", "NULL"),
    "a match from a seat of another world": row("matches", "seat", "99999999999"),
    "a match of fewer than no games": row("matches", "episodes", "-3"),
    "a match that was won more than always": row("matches", "win", "1e300"),
    "a match whose share is text": row("matches", "win", "'x'"),
    "a match in another environment": row("matches", "env", "'no/such'"),
    "a match against a blob": row("matches", "opponent", "x'00'"),
    "a match that is exact seven times": row("matches", "exact", "7"),
    "turns beyond counting": row("contexts", "turn", str(10**18)),
    "an author that nobody is": row("contexts", "author", "99"),
    "tokens beyond counting": row("contexts", "tokens", str(2**62)),
    "tokens of no episode": row("contexts", "episodes", "0"),
    "a decision from nothing": row("decisions", "inputs", "NULL"),
    "a decision from no JSON": row("decisions", "inputs", "'{'"),
    "a decision from a list": row("decisions", "inputs", "'[]'"),
    "a decision from a deep list": row("decisions", "inputs", "replace(hex(zeroblob(50000)), '0', '[')"),
    "a decision from odd fields": row("decisions", "inputs", '\'{"inputs": 1, "state": {}}\''),
    "a decision from huge numbers": row("decisions", "inputs", "replace(inputs, '200', '1' || hex(zeroblob(5000)))"),
    "a decision from text for numbers": row("decisions", "inputs", "replace(inputs, '1.0', '\"x\"')"),
    "a decision without candidates": row("decisions", "inputs", "json_set(inputs, '$.inputs.candidates', json('[]'))"),
    "a decision of no known stage": row("decisions", "stage", "'sleep'"),
    "a decision for nothing": row("decisions", "choice", "NULL"),
    "a format to come": sql("PRAGMA user_version = 99"),
    "a format below zero": sql("PRAGMA user_version = -1"),
    "an older format than its tables": sql("PRAGMA user_version = 1"),
    "another encoding": lambda folder: ((folder / "run.db").unlink(), _utf16(folder / "run.db")),
    "half a database": cut("run.db", 0.5),
    "an empty database": replaced("run.db", b""),
    "a database that is text": replaced("run.db", b"not a database" * 100),
    "a database that is a folder": lambda folder: ((folder / "run.db").unlink(), (folder / "run.db").mkdir()),
    "inverted bytes in the first page": flipped("run.db", 0.003),
    "inverted bytes in a page": flipped("run.db", 0.3, 2000),
    "inverted bytes at the end": flipped("run.db", 0.9, 2000),
    "a log of noise": replaced("run.db-wal", bytes(range(256)) * 64),
    "a shared memory of noise": replaced("run.db-shm", bytes(range(256)) * 128),
    "another run's log": lambda folder: shutil.copyfile(folder / "config.toml", folder / "run.db-wal"),
}


def _utf16(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA encoding = 'UTF-16le'")
    connection.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL)")
    connection.execute("PRAGMA user_version = 3")
    connection.commit()
    connection.close()


# --------------------------------------------------------------------------------------------- the trajectories


def parquet(folder: Path) -> Path:
    return next((folder / "trajectories").glob("*.parquet"))


def table(change: Callable[[pa.Table], pa.Table], **options: Any) -> Mutation:
    """Another table in the place of the stored one, its seal taken off."""

    def mutate(folder: Path) -> None:
        path = parquet(folder)
        before = pq.read_table(path)
        kept = {key: value for key, value in before.schema.metadata.items() if key != b"earl.seal"}
        pq.write_table(change(before.replace_schema_metadata(kept)), path, **options)

    return mutate


def column(name: str, change: Callable[[list[Any]], list[Any]]) -> Mutation:
    """Other values in a column, of its own type."""

    def changed(before: pa.Table) -> pa.Table:
        place = before.schema.get_field_index(name)
        field = before.schema.field(name)
        return before.set_column(place, field, pa.array(change(before[name].to_pylist()), field.type))

    return table(changed)


def every(value: Any) -> Callable[[list[Any]], list[Any]]:
    """The same value in each row."""
    return lambda values: [value] * len(values)


def in_turns(**fields: Any) -> Mutation:
    """Other fields in every turn."""
    return column("turns", lambda rows: [[{**turn, **fields} for turn in turns] for turns in rows])


def noted(key: bytes, value: bytes | None) -> Mutation:
    """Another value in the file's metadata; None: the key is missing."""

    def changed(before: pa.Table) -> pa.Table:
        kept = {other: held for other, held in before.schema.metadata.items() if other != key}
        return before.replace_schema_metadata({**kept, **({} if value is None else {key: value})})

    return table(changed)


def retyped(name: str, kind: pa.DataType) -> Mutation:
    """A column of another type."""

    def changed(before: pa.Table) -> pa.Table:
        place = before.schema.get_field_index(name)
        return before.set_column(place, pa.field(name, kind), pa.nulls(len(before), kind))

    return table(changed)


def bomb(count: int, **options: Any) -> Mutation:
    """One episode with as many tokens, all alike: a small file that is large once it is decoded."""

    def changed(before: pa.Table) -> pa.Table:
        one = before.slice(0, 1)
        for name, kind in (
            ("tokens", np.int32),
            ("authors", np.uint8),
            ("logprobs", np.float32),
            ("versions", np.int32),
        ):
            field = before.schema.field(name)
            values = pa.array(np.zeros(count, kind))
            lists = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values, type=field.type)
            one = one.set_column(before.schema.get_field_index(name), field, lists)
        return one

    return table(changed, **options)


def rows(count: int) -> Mutation:
    """The same episode as many times: 20 row groups of a run-length encoded file."""
    return table(lambda before: pa.concat_tables([before.slice(0, 1)] * count).combine_chunks(), compression="zstd")


TRAJECTORIES: dict[str, Mutation] = {
    "a file cut in half": cut("trajectories/*.parquet", 0.5),
    "an empty file": lambda folder: parquet(folder).write_bytes(b""),
    "a file of noise": lambda folder: parquet(folder).write_bytes(bytes(range(256)) * 40),
    "inverted bytes in the data": flipped("trajectories/*.parquet", 0.1),
    "inverted bytes in the footer": flipped("trajectories/*.parquet", 0.8),
    "a footer that is longer than the file": lambda folder: parquet(folder).write_bytes(
        parquet(folder).read_bytes()[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1"
    ),
    "a step beyond all steps": lambda folder: parquet(folder).rename(
        folder / "trajectories" / f"step-{'9' * 30}.parquet"
    ),
    "a step of 5,000 digits": noted(b"earl.step", b"9" * 5000),
    "a step that is a word": noted(b"earl.step", b"\xff\x00one"),
    "another step than its name": lambda folder: parquet(folder).rename(folder / "trajectories/step-000001.parquet"),
    "rows of another step": column("step", every(7)),
    "a file without a format": noted(b"earl.format", None),
    "a file of format 1": noted(b"earl.format", b"1"),
    "a seal that is a list": noted(b"earl.seal", b"[1]"),
    "a seal that is deep": noted(b"earl.seal", b"[" * 100_000),
    "a seal of numbers": noted(b"earl.seal", b'{"tokens": 5, "turns": "x", "env": "y"}'),
    "no rows": table(lambda before: before.slice(0, 0)),
    "a column less": table(lambda before: before.drop_columns(["seat"])),
    "a column more": table(lambda before: before.append_column("more", pa.nulls(len(before)))),
    "a column twice": table(lambda before: before.append_column("seat", before["seat"])),
    "seeds that are text": retyped("seed", pa.string()),
    "tokens that are dictionaries": retyped("tokens", pa.dictionary(pa.int32(), pa.string())),
    "tokens that are lists of lists": retyped("tokens", pa.list_(pa.list_(pa.int32()))),
    "a null for a row's list": retyped("tokens", pa.list_(pa.int32())),
    "fewer authors than tokens": column("authors", lambda rows: [row[:-1] for row in rows]),
    "no log-probs": column("logprobs", every([])),
    "more versions than tokens": column("versions", lambda rows: [[*row, 1] for row in rows]),
    "an author that is nobody": column("authors", lambda rows: [[250] * len(row) for row in rows]),
    "tokens that are no tokens": column("tokens", lambda rows: [[2**31 - 1] * len(row) for row in rows]),
    "tokens below zero": column("tokens", lambda rows: [[-7] * len(row) for row in rows]),
    "versions beyond all steps": column("versions", lambda rows: [[2**31 - 1] * len(row) for row in rows]),
    "versions below none": column("versions", lambda rows: [[-(2**31)] * len(row) for row in rows]),
    "log-probs that are no numbers": column("logprobs", lambda rows: [[float("nan")] * len(row) for row in rows]),
    "log-probs that are infinite": column("logprobs", lambda rows: [[float("inf")] * len(row) for row in rows]),
    "an outcome that is unknown": column("outcome", every("glory")),
    "a reason to stop that is unknown": column("stop", every("boredom")),
    "fewer illegal replies than none": column("illegal", every(-4)),
    "an environment that is unknown": column("env", every("no/such")),
    "an environment of 10 MB": column("env", every("x" * 10_000_000)),
    "an opponent that steers the terminal": column("opponent", every("\x1b]0;title\x07\x1b[2J\u202e")),
    "a seat of another world": column("seat", every(2**31 - 1)),
    "a seat below zero": column("seat", every(-2)),
    "a seed below zero": column("task_seed", every(-(2**63))),
    "the largest seed": column("seed", every(2**63 - 1)),
    "groups below zero": column("group", every(-(2**31))),
    "groups in disorder": column("group", lambda rows: [place % 2 for place in range(len(rows))]),
    "an error of 10 MB": column("error", every("e" * 10_000_000)),
    "turns beyond the tokens": in_turns(end=2**31 - 1),
    "turns before the tokens": in_turns(context_start=-5, prompt_start=-5),
    "turns that end before they begin": in_turns(end=0),
    "turns that overlap": in_turns(context_start=0, prompt_start=0, action_start=0),
    "turns in disorder": column("turns", lambda rows: [turns[::-1] for turns in rows]),
    "rewards that are no numbers": in_turns(reward=float("nan")),
    "rewards that are infinite": in_turns(reward=float("inf")),
    "rewards without bound": in_turns(reward=1.7e308),
    "seconds below none": in_turns(seconds=-1e300),
    "an action of a megabyte": in_turns(action="a" * 1_000_000),
    "a turn repeated without end": column("turns", lambda rows: [turns[:1] * 200_000 for turns in rows]),
    "no turns": column("turns", every([])),
    "no tokens": column("tokens", every([])),
    "a mask of another length": column("mask", every([True])),
    "advantages of another length": column("advantages", every([1.0] * 50)),
    "advantages that are no numbers": column("advantages", lambda rows: [[float("nan")] * len(row) for row in rows]),
    "new log-probs of another length": column("new_logprobs", every([])),
    "only some of what was learned": column("mask", lambda rows: [None, *rows[1:]]),
    "20 million tokens alike": bomb(20_000_000, compression="zstd"),
    "8 million tokens alike in a dictionary": bomb(8_000_000, use_dictionary=True, compression="none"),
    "200,000 rows alike": rows(200_000),
}

# ------------------------------------------------------------------------------------- the recipe and checkpoints


def recipe(*assignments: tuple[str, str]) -> Mutation:
    """Lines of the recipe replaced: (line begins with, line)."""

    def mutate(folder: Path) -> None:
        lines = (folder / "config.toml").read_text().splitlines()
        for head, line in assignments:
            assert any(old.startswith(head) for old in lines), head
            lines = [line if old.startswith(head) else old for old in lines]
        (folder / "config.toml").write_text("\n".join(lines))

    return mutate


def appended(data: bytes) -> Mutation:
    """More at the end of the recipe."""
    return lambda folder: (folder / "config.toml").write_bytes((folder / "config.toml").read_bytes() + data)


RECIPE: dict[str, Mutation] = {
    "an empty recipe": replaced("config.toml", b""),
    "a recipe that is deep": appended(b"\nx = " + b"[" * 100_000),
    "a recipe of deep tables": appended(b"\n[" + b".".join([b"a"] * 5_000) + b"]\n"),
    "a recipe of deep inline tables": appended(b"\nx = " + b"{a=" * 5000 + b"1" + b"}" * 5000),
    "a recipe of 10 MB": appended(b"\n# " + b"x" * 10_000_000),
    "a recipe that is not UTF-8": appended(b"\nx = '\xff'"),
    "a recipe with a NUL": appended(b"\nx = '\0'"),
    "a recipe of noise": replaced("config.toml", bytes(range(256)) * 10),
    "a recipe with an unknown key that steers the terminal": appended(b'\n["\\u001b[31m\\u202e"]\na = 1\n'),
    "a number of 5,000 digits": recipe(("seed", f"seed = {'9' * 5000}")),
    "a number of 5,000 hexadecimal digits": recipe(("seed", f"seed = 0x{'f' * 5000}")),
    "steps without end": recipe(("steps", f"steps = {10**30}")),
    "episodes without end": recipe(("episodes", f"episodes = {10**18}"), ("group_size", f"group_size = {10**18}")),
    "processes without end": recipe(("processes", f"processes = {10**9}")),
    "minibatches without end": recipe(("minibatches", f"minibatches = {10**40}")),
    "epochs without end": recipe(("epochs", f"epochs = {10**40}")),
    "evaluations without end": recipe(("final_episodes", f"final_episodes = {10**40}")),
    "a context without end": recipe(("limit", f"limit = {10**40}")),
    "a reply without end": recipe(("max_turn_tokens", f"max_turn_tokens = {10**40}")),
    "positions without end": recipe(("max_positions", f"max_positions = {10**40}")),
    "the largest model": recipe(
        ("hidden", "hidden = 65536"), ("layers", "layers = 256"), ("intermediate", "intermediate = 1048576")
    ),
    "a model of a billion layers": recipe(("layers", f"layers = {10**9}")),
    "a penalty beyond all floats": recipe(("forfeit_reward", f"forfeit_reward = {'9' * 400}.0")),
    "a moment for a number": recipe(("seed", "seed = 2020-01-01T00:00:00Z")),
    "a table for a number": recipe(("seed", "seed = {a = 1}")),
    "an environment that is unknown": recipe(('name = "tic', 'name = "no/such"')),
    "an environment by its module": recipe(('name = "tic', 'name = "os:system"')),
    "another environment": recipe(('name = "tic', 'name = "arithmetic"')),
    "opponents that steer the terminal": recipe(("random = ", '"\\u001b[31mrandom" = 1.0')),
    "an opponent with an endless share": recipe(("random = ", "random = 1e308")),
    "no opponents": recipe(("random = ", ""), ("perfect = ", "")),
}


def state(change: Callable[[dict[str, Any]], object]) -> Mutation:
    """Another state.json in every checkpoint, sealed anew as anybody can."""

    def mutate(folder: Path) -> None:
        for path in folder.glob("checkpoints/*/state.json"):
            document = json.loads(path.read_text())
            change(document)
            _seal(path, document)

    return mutate


def _seal(path: Path, document: dict[str, Any]) -> None:
    document.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest, **document}))


def within(name: str, change: Callable[[bytes], bytes]) -> Mutation:
    """Other bytes in a file of every checkpoint, which state.json vouches for."""

    def mutate(folder: Path) -> None:
        for path in folder.glob("checkpoints/*/state.json"):
            data = change((path.parent / name).read_bytes())
            (path.parent / name).write_bytes(data)
            document = json.loads(path.read_text())
            document["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            _seal(path, document)

    return mutate


def fields(**values: Any) -> Mutation:
    """Other fields in a checkpoint's state."""
    return state(lambda document: document["state"].update(values))


def header(document: dict[str, Any]) -> bytes:
    """A file of safetensors with this header and no data."""
    text = json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


CHECKPOINTS: dict[str, Mutation] = {
    "a state that is deep": lambda folder: [
        path.write_bytes(b"[" * 100_000) for path in folder.glob("checkpoints/*/state.json")
    ],
    "a state that is a list": lambda folder: [
        path.write_bytes(b"[]") for path in folder.glob("checkpoints/*/state.json")
    ],
    "a state of huge numbers": lambda folder: [
        path.write_bytes(b'{"format": 1, "step": ' + b"9" * 5000 + b"}")
        for path in folder.glob("checkpoints/*/state.json")
    ],
    "a state that is not UTF-8": lambda folder: [
        path.write_bytes(b'{"\xff": 1}') for path in folder.glob("checkpoints/*/state.json")
    ],
    "a state without files": state(lambda document: document.pop("files")),
    "files that are a list": state(lambda document: document.update(files=[1, 2])),
    "files without checksums": state(lambda document: document.update(files=dict.fromkeys(document["files"], 5))),
    "files elsewhere": state(lambda document: document["files"].update({"../../config.toml": {}})),
    "a state of another step": state(lambda document: document.update(step=10**20)),
    "a step that is text": state(lambda document: document.update(step="one")),
    "a state without a state": state(lambda document: document.pop("state")),
    "a state that is empty": state(lambda document: document.update(state={})),
    "a state that is null": state(lambda document: document.update(state=None)),
    "a best step that is text": fields(best_step="x"),
    "a best step that is huge": fields(best_step=10**40),
    "a best step below zero": fields(best_step=-5),
    "a best step that is a list": fields(best_step=[1]),
    "the best result of text": fields(best=["x", {}]),
    "the best result that is null": fields(best=None),
    "a context that is text": fields(context="x"),
    "a context that is empty": fields(context={}),
    "a context limit that is a list": fields(context={"limit": [1]}),
    "a context limit that is huge": fields(context={"limit": 10**40}),
    "a checkpoint beyond all steps": lambda folder: shutil.copytree(
        next(folder.glob("checkpoints/*")), folder / "checkpoints" / f"step-{'9' * 40}"
    ),
    "a checkpoint of 5,000 digits": lambda folder: [
        path.rename(path.with_name(f"step-{'9' * 250}")) for path in sorted(folder.glob("checkpoints/*"))[-1:]
    ],
    "a model that is no model": within("config.json", lambda _: b"{}"),
    "a model that is deep": within("config.json", lambda _: b"[" * 100_000),
    "a model that is a list": within("config.json", lambda _: b"[]"),
    "a model of huge layers": within(
        "config.json", lambda data: json.dumps({**json.loads(data), "hidden_size": 10**30}).encode()
    ),
    "a model of text": within(
        "config.json", lambda data: json.dumps({**json.loads(data), "num_hidden_layers": "x"}).encode()
    ),
    "weights of noise": within("model.safetensors", lambda _: bytes(range(256)) * 10),
    "weights without tensors": within("model.safetensors", lambda _: header({})),
    "weights with a huge header": within("model.safetensors", lambda _: (1 << 62).to_bytes(8, "little") + b"{"),
    "weights of a huge shape": within(
        "model.safetensors", lambda _: header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}})
    ),
    "a tokenizer of noise": within("tokenizer.json", lambda _: b"\xff" * 100),
    "a tokenizer that is deep": within("tokenizer.json", lambda _: b"[" * 100_000),
    "a tokenizer that is empty": within("tokenizer.json", lambda _: b"{}"),
    "a tokenizer that maps to noise": within(
        "tokenizer_config.json", lambda _: b'{"tokenizer_class": "os.system", "eos_token": 5}'
    ),
    "trackers that are deep": replaced("trackers.json", b"[" * 100_000),
    "trackers that are odd": replaced("trackers.json", b'{"wandb": 5}'),
    "no checkpoints": lambda folder: shutil.rmtree(folder / "checkpoints"),
}

ALL = {
    f"{part}: {name}": mutation
    for part, mutations in {
        "database": DATABASE,
        "trajectories": TRAJECTORIES,
        "recipe": RECIPE,
        "checkpoints": CHECKPOINTS,
    }.items()
    for name, mutation in mutations.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_mutated_run(name: str, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "runs")
    ALL[name](tmp_path / "runs" / "victim")
    found = list(faults(tmp_path / "runs", tmp_path / "said", FIRST[name.partition(":")[0]]))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(ALL, every=5))
def test_a_mutated_run_and_the_other_commands_in_turns(name: str, sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "runs")
    ALL[name](tmp_path / "runs" / "victim")
    others = tuple(command for command in COMMANDS if command not in FIRST[name.partition(":")[0]])
    turn = list(ALL).index(name) % len(others)
    found = list(faults(tmp_path / "runs", tmp_path / "said", others[turn : turn + 1]))
    assert not found, "\n".join(found)


def test_a_name_that_is_no_plain_name_is_shown_escaped(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "runs")
    (tmp_path / "runs" / "victim").rename(tmp_path / "runs" / "bad\x1b[31m\nbystander\u202e")
    [(code, said)] = said_by([["runs", "--runs", str(tmp_path / "runs")]], tmp_path / "said")
    assert code == 0
    assert "'bad\\x1b[31m\\nbystander\\u202e'" in said
    assert "\x1b" not in said
