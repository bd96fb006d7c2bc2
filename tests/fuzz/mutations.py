"""What a hostile or broken run folder may hold: files changed by their kind or in their bytes, or something else there.

`mutate(random, run, canary)` is the way in. Everything is drawn from `random`, so a seed names a mutation.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import stat
import struct
import tomllib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

HUGE = "9" * 5000
TEXTS = [
    "", "\0", "\x1b]0;title\x07\x1b[2J\x1b[31mred", "\u202egnp.exe\u2066", "\x85\u2028\u200b\ufeff",
    "<script>window.harmed=1</script>", "</script><script>window.harmed=2</script>",
    "<img src=x onerror='window.harmed=3'>", '"><svg onload="window.harmed=4">',
    "{{ 7 * 7 }}{% for i in range(9) %}", "../../../canary/key", "/dev/zero", "/dev/stdin", "%s%n{0}{x!r}", "nan",
    "-1", "1e999", "alphabeta:9999999@0.5", "perfect@nan", "last_turns:999999", "tictactoe\n", "calculator(((((",
    "漢" * 400, "x" * 20_000, "e\u0301" * 50, "[link=file:///etc/passwd]click[/link]",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 10**12]
REALS = [float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324, -0.0, 0.5, 1e18]
LARGER = [2**63, 2**64, 10**30, -(10**400)]
PLANTED = [
    ".report.html.tmp", ".config.toml.tmp", "lock", "log.txt", "report.html", "run.db-wal", "run.db-shm", "run.db",
    "run.db-journal", "config.toml", "checkpoints/.step-000003.tmp", "checkpoints/step-000009",
    "trajectories/.step-000003.parquet.tmp", "trajectories/step-000009.parquet",
    "checkpoints/step-000003/adapter_config.json",
]  # fmt: skip
"""Names that earl itself uses, or may take for its own."""
ODD = [
    "a\nb", "\x1b[31mred", "\u202eevil", "<img src=x onerror=harmed>", "x" * 255, b"\xff\xfe\x80", "-rf", "~", "$HOME",
    "step-99999999999999999999", "step--1", "step-1e3", "step-000003 ", "step-٣", "step-", "step-000003.old", "...",
]  # fmt: skip


def value(random: Random, depth: int = 0) -> Any:
    """Something odd, of any type that JSON knows."""
    kind = random.randrange(10 if depth < 3 else 8)
    if kind < 3:
        return random.choice(TEXTS)
    if kind < 5:
        return random.choice(NUMBERS + LARGER) if random.random() < 0.8 else random.getrandbits(70)
    if kind < 7:
        return random.choice(REALS)
    if kind == 7:
        return random.choice([True, False, None])
    if kind == 8:
        return [value(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice(["", "a", "step", "name", *TEXTS[:6]]): value(random, depth + 1) for _ in range(2)}


def in_tree(random: Random, tree: Any) -> Any:
    """The tree with one to three of its places changed."""
    tree = {"root": json.loads(json.dumps(tree))}
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        places = [place for place in _places(tree) if place[0] is not tree or random.random() < 0.02]
        if not places:
            continue
        holder, key = random.choice(places)
        how = random.randrange(8)
        if how < 4:
            holder[key] = _like(random, holder[key]) if how < 2 else value(random)
        elif how == 4:
            del holder[key]
        elif how == 5 and isinstance(holder, dict):
            holder[random.choice([*TEXTS[:8], "unknown", f"{key}s"])] = value(random)
        elif how == 6:
            holder[key] = [holder[key]] if random.random() < 0.5 else {"a": holder[key]}
        else:
            other, name = random.choice(places)
            with suppress(LookupError):
                holder[key] = json.loads(json.dumps(other[name]))
        if "root" not in tree:
            tree["root"] = {}
    return tree["root"]


def _like(random: Random, old: Any) -> Any:
    """Another value of the same type, so that it is not refused for its type."""
    if isinstance(old, bool) or old is None:
        return not old
    if isinstance(old, int):
        return random.choice([*NUMBERS, *LARGER, old + 1, old - 1, old * 1000])
    if isinstance(old, float):
        return random.choice([*REALS, -old, old * 1e9])
    if isinstance(old, str):
        return random.choice([*TEXTS, old + random.choice(TEXTS), old[: len(old) // 2], old.upper()])
    return type(old)()


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    left = [tree]
    while left:
        holder = left.pop()
        items = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
        found += [(holder, key) for key, _ in items]
        left += [inner for _, inner in items if isinstance(inner, (dict, list))]
    return found


def in_bytes(random: Random, data: bytes) -> bytes:
    """Bytes flipped, zeroed, cut, repeated, moved or added."""
    if not data:
        return random.randbytes(random.randrange(1, 200))
    changed = bytearray(data)
    start = random.randrange(len(data))
    length = min(random.choice([1, 4, 16, 100, 4096]), len(data) - start)
    how = random.randrange(8)
    if how < 3:
        for _ in range(random.choice([1, 1, 2, 8, 64])):
            changed[random.randrange(len(data))] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
    elif how == 3:
        del changed[start:]
    elif how == 4:
        changed[start : start + length] = bytes(length)
    elif how == 5:
        changed[start:start] = changed[start : start + length] * random.choice([1, 2, 50])
    elif how == 6:
        changed += random.choice([b"\0", b"\xff" * 8, random.randbytes(500), data])
    else:
        changed[start : start + length] = random.randbytes(length)
    return bytes(changed)


TOML_VALUES = [
    "1979-05-27T07:32:00Z", "07:32:00", "inf", "nan", "-nan", "'''a\nb'''", '"\\u202e\\u001b[2J"', "0b11", "1_0", "[]",
    "{}", HUGE, "0x" + "f" * 9000, "[" * 5000 + "]" * 5000, "{a=" * 3000 + "1" + "}" * 3000, f'"{"x" * 500_000}"',
]  # fmt: skip
NOT_TOML = [
    "[env]\nname = 'connect4'\n", f"[{'.'.join('a' * 3000)}]\n", f"#{'c' * 2_000_000}\n", "\ufeff", "\0", "\r",
    "[[run]]\n", "[track]\n" + "".join(f"k{number} = 1\n" for number in range(20_000)), f"x = {HUGE}\n",
    f"x = {'[' * 5000}{']' * 5000}\n",
]  # fmt: skip


def toml_text(random: Random, text: str) -> str | bytes:
    """A recipe's text, mostly still TOML."""
    how = random.randrange(12)
    if how < 8:
        with suppress(tomllib.TOMLDecodeError, TypeError, ValueError, OverflowError, AttributeError):
            return tomli_w.dumps(in_tree(random, tomllib.loads(text)))
    if how == 8:
        other = random.choice(NOT_TOML)
        return other + text if random.random() < 0.5 else text + "\n" + other
    lines = text.splitlines()
    line = random.randrange(len(lines) or 1)
    if how == 9:
        del lines[line : line + 1]
    elif how == 10:
        lines[line : line + 1] = [f"{(lines or [''])[line].partition('=')[0]}= {random.choice(TOML_VALUES)}"]
    else:
        return in_bytes(random, text.encode())
    return "\n".join(lines) + "\n"


NOT_JSON = [
    "[" * 100_000, '{"a":' * 20_000 + "1" + "}" * 20_000, HUGE, "null", "[]", '"text"', "NaN", "-Infinity", "{}",
    "", "1e400", '{"a": "\\ud800"}',
]  # fmt: skip


def json_text(random: Random, text: str) -> str | bytes:
    """A document's text, mostly still JSON."""
    how = random.randrange(10)
    if how < 8:
        with suppress(ValueError):
            return json.dumps(in_tree(random, json.loads(text)))
    if how == 8:
        return random.choice(
            [*NOT_JSON, "\ufeff" + text, text.replace('": ', f'": {random.choice(NOT_JSON)}, "x": ', 1)]
        )
    return in_bytes(random, text.encode())


TEMPLATES = [
    "{{ messages }}", "", "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{{ m.missing.field }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{% for i in range(99999999) %}{% for j in range(99999999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}{{ messages[0].content }}",
    "{{ 'x' * 3000000000 }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages | tojson }}<|end|>",
    "{{ cycler.__init__.__globals__.os.system('touch /tmp/harmed') }}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "{% set ns = namespace(a='x') %}{% for i in range(40) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
    "{{ '%0999999999d' % 1 }}", "{{ messages[-1].content | center(999999999) }}", "{{ 9 ** 9 ** 9 }}",
    "{{ messages[99].content }}", "{% include '/etc/passwd' %}{% import 'x' as y %}",
    "{{ strftime_now('%Y') }}{{ messages[0].content }}<|end|>", "{{ (range(99999999) | list | string) }}",
    "{% if messages[0].role == 'system' %}{{ 1 / 0 }}{% endif %}{{ 1 // 0 }}",
]  # fmt: skip


def template(random: Random) -> str:
    """A chat template: hostile as it stands, or put together from parts."""
    if random.random() < 0.4:
        return random.choice(TEMPLATES)
    parts = [
        "{% for message in messages %}", "{% endfor %}", "<|{{ message.role }}|>", "{{ message.content }}",
        "<|end|>", "{% if add_generation_prompt %}", "<|assistant|>", "{% endif %}", "{% if loop.last %}",
        "{{ messages[0].content }}", "{{ message['content'] | trim }}",
        "{{ message.content.split('</think>')[-1] }}", "{{ message.content | upper }}", "{% else %}",
        "{%- set x = messages | length %}{{ x }}", "{{ '\\x02' }}", "{{ message.content * 2 }}", "{{ '{{' }}",
        "\x03", "{{ message.content[::-1] }}", "{{ eos_token }}", "{{ bos_token }}",
        "{% raw %}{{ x }}{% endraw %}", "é漢\u202e", "{{ message.content | replace('o', '<|end|>') }}",
        "{{ tools }}", "{{ raise_exception(message.role) }}", "{% break %}",
    ]  # fmt: skip
    return "".join(random.choice(parts) for _ in range(random.randrange(1, 12)))


TABLES = ("metrics", "timings", "events", "matches", "contexts", "decisions")


def in_database(random: Random, path: Path) -> None:
    """One to three statements that a stranger may have run on a database."""
    path.with_name("run.db-wal").unlink(missing_ok=True)
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for setting in ("writable_schema = 1", "synchronous = 0", "journal_mode = DELETE"):
            connection.execute(f"PRAGMA {setting}")
        patience = iter(range(30))
        connection.set_progress_handler(lambda: next(patience, None) is None, 100_000)
        for _ in range(random.choice([1, 1, 2, 3])):
            table = random.choice(TABLES)
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] or ["step"]
            with suppress(sqlite3.Error, OverflowError, UnicodeError):
                connection.execute(*_statement(random, table, names))


STATEMENTS = """
UPDATE OR REPLACE {table} SET {column} = :c0
UPDATE OR REPLACE {table} SET {column} = :c0 WHERE step % 2
INSERT OR REPLACE INTO {table} VALUES ({cells})
UPDATE OR REPLACE {table} SET {column} = {column} || :text
UPDATE OR REPLACE {table} SET {column} = {column} * 1000000007
UPDATE OR REPLACE {table} SET {column} = zeroblob(1000000)
UPDATE metrics SET value = CASE (step + length(name)) % 4 WHEN 0 THEN 1.7e308 WHEN 1 THEN -1.7e308 ELSE value END
UPDATE timings SET seconds = CASE (step + length(stage)) % 3 WHEN 0 THEN 1.7e308 WHEN 1 THEN -1e299 ELSE 1e299 END
INSERT OR REPLACE INTO metrics SELECT step, 'forecast/p99/' || value, 1e15 FROM timings, json_each('["early","median"]')
UPDATE decisions SET inputs = :json
UPDATE decisions SET inputs = json_set(inputs, '$.' || :key, :c0)
DELETE FROM {table}
DELETE FROM {table} WHERE step > 1
DROP TABLE {table}
ALTER TABLE {table} RENAME TO other
ALTER TABLE {table} ADD COLUMN extra TEXT DEFAULT 'x'
ALTER TABLE {table} DROP COLUMN {column}
ALTER TABLE {table} RENAME COLUMN {column} TO other
VIEW {endless}
VIEW SELECT {bomb}
VIEW SELECT * FROM {table}
VIEW SELECT 1
SCHEMA CREATE TABLE {table} ({blobs})
SCHEMA CREATE TABLE {table} ({columns}, PRIMARY KEY ({column})) WITHOUT ROWID
SCHEMA CREATE VIRTUAL TABLE {table} USING fts5({columns})
SCHEMA CREATE TABLE
UPDATE sqlite_schema SET sql = NULL WHERE name = '{table}'
UPDATE sqlite_schema SET rootpage = :number
UPDATE sqlite_schema SET rootpage = :page WHERE name = '{table}'
CREATE TRIGGER t BEFORE DELETE ON {table} BEGIN {endless}; END
CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; SELECT RAISE(ABORT, 'no'); END
CREATE TRIGGER t AFTER INSERT ON {table} BEGIN UPDATE {table} SET {column} = randomblob(99999999); END
CREATE INDEX i ON {table} (abs({column}))
PRAGMA user_version = {version}
PRAGMA application_id = {version}
PRAGMA journal_mode = WAL
WITH {counted} INSERT OR REPLACE INTO metrics SELECT n % :many, 'name ' || n, n FROM c LIMIT :many
WITH {counted} INSERT OR REPLACE INTO metrics SELECT n, 'reward/mean', n FROM c LIMIT :many
WITH {counted} INSERT INTO events (step, time, kind, message) SELECT n, n, :c0, 'm' FROM c LIMIT :many
WITH {counted} INSERT OR REPLACE INTO contexts SELECT n % 9, n, n % 5, n, 3 FROM c LIMIT :many
""".strip().splitlines()
COUNTED = "RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"


def _statement(random: Random, table: str, names: list[str]) -> tuple[str, dict[str, Any]]:
    line = random.choice(STATEMENTS[:4] if random.random() < 0.3 else STATEMENTS)
    statement = line.format(
        table=table,
        column=random.choice(names),
        columns=", ".join(names),
        blobs=", ".join(f"{name} BLOB" for name in names),
        bomb=", ".join(f"zeroblob(900000000) AS {name}" for name in names),
        endless=f"WITH {COUNTED} SELECT {', '.join(f'n AS {name}' for name in names)} FROM c",
        cells=", ".join(f":c{place}" for place in range(len(names))),
        counted=COUNTED,
        version=random.choice([-1, 0, 1, 2, 4, 2**31 - 1]),
    )
    kind, _, rest = statement.partition(" ")
    if kind in ("VIEW", "SCHEMA"):  # as it stands in the schema, which nobody checks when it is written
        begins = f"type = 'view', rootpage = 0, sql = 'CREATE VIEW {table} AS " if kind == "VIEW" else "sql = '"
        statement = f"UPDATE sqlite_schema SET {begins}{rest}' WHERE name = '{table}'"
    values = {f"c{place}": _cell(random) for place in range(len(names))}
    key = random.choice(["stage", "step", "costs", "load", "settings"])
    numbers = {
        "number": random.choice([0, 1, 2, 2**31, -1]),
        "page": random.randrange(12),
        "many": random.choice([300, 30_000]),
    }
    return statement, {**values, **numbers, "text": random.choice(TEXTS), "json": json.dumps(value(random)), "key": key}


def _cell(random: Random) -> Any:
    return random.choice([*TEXTS, *NUMBERS, *REALS, None, b"", b"\xff\0", b"x" * 3000, "x" * 200_000, 2**62])


def in_parquet(random: Random, path: Path) -> None:
    """A file of trajectories written anew with other columns, values, lengths, types or metadata."""
    with suppress(pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, NotImplementedError):
        table = pq.read_table(path, use_threads=False)
        options: dict[str, Any] = {"compression": random.choice(["zstd", "none", "snappy", "gzip"])}
        for _ in range(random.choice([1, 1, 2])):
            table, more = _other_table(random, table)
            options |= more
            if "store_schema" in more:
                break  # a second change would unpack the bomb here
        made = pa.BufferOutputStream()
        pq.write_table(table, made, **options)
        # A sandbox writes no larger file (`guard.FILE_BYTES`); the front of one is a broken file.
        path.write_bytes(memoryview(made.getvalue())[: 200 << 20])


def _other_table(random: Random, table: Any) -> tuple[Any, dict[str, Any]]:
    name = random.choice(table.column_names)
    place, column, metadata = table.column_names.index(name), table[name], dict(table.schema.metadata or {})
    how = random.randrange(16)
    if how < 7:
        values = column.to_pylist()
        for _ in range(random.choice([1, 1, 3, len(values)])):
            row = random.randrange(len(values))
            values[row] = _other_value(random, values[row], column.type)
        return table.set_column(place, table.schema.field(place), pa.array(values, column.type)), {}
    if how == 7:
        odd = [b"", b"-1", b"\xff\xfe", b"9" * 5000, b"{}", b"[" * 50_000, b"null", b"3", b'{"tokens": 5}']
        return table.replace_schema_metadata({**metadata, random.choice([*metadata, b"new"]): random.choice(odd)}), {}
    if how == 12:
        kinds = ["string", "int8", "float64", "null", "binary", "timestamp[s]", "large_string", "bool"]
        return table.set_column(place, name, pa.nulls(len(table), pa.type_for_alias(random.choice(kinds)))), {}
    rows = pa.array([random.randrange(len(table)) for _ in range(len(table))])
    others = {
        8: lambda: table.replace_schema_metadata(None),
        9: lambda: table.drop_columns([name]),
        10: lambda: table.slice(0, random.randrange(2)),
        11: lambda: pa.concat_tables([table] * random.choice([2, 40])),
        13: lambda: table.append_column(random.choice([name, "extra", TEXTS[5]]), column),
        14: lambda: table.take(rows),
    }
    return (others[how](), {"row_group_size": random.choice([1, 3, 1000])}) if how in others else _bomb(random, table)


def _bomb(random: Random, table: Any) -> tuple[Any, dict[str, Any]]:
    """A few kilobytes that stand for gigabytes: one long text, named by every row."""
    rows = random.choice([20, 1500, 4000])
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["y" * 1_000_000]))
    larger = table.take(pa.array([0] * rows))
    name = random.choice(["env", "opponent", "stop", "outcome", "error"])
    larger = larger.set_column(larger.column_names.index(name), name, texts)
    one_group = {"row_group_size": None}  # smaller ones would each hold the text
    return larger.replace_schema_metadata(table.schema.metadata), {"store_schema": False, **one_group}


def _other_value(random: Random, old: Any, kind: Any) -> Any:
    if random.random() < 0.05:
        return None
    if isinstance(old, list):
        if not old or random.random() < 0.5:
            return random.choice([[], old * 2, old * 50, old[: len(old) // 2], old[1:]])
        row = random.randrange(len(old))
        return [*old[:row], _other_value(random, old[row], kind.value_type), *old[row + 1 :]]
    if isinstance(old, dict):
        key = random.choice([*old])
        return {**old, key: _other_value(random, old[key], kind.field(key).type)}
    if pa.types.is_boolean(kind):
        return not old
    if pa.types.is_floating(kind):
        return random.choice([*REALS[:3], 1e30, -1.0, 3.0, 0.0])
    if pa.types.is_integer(kind):
        low, high = (0, 255) if kind == pa.uint8() else (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        return random.choice([n for n in [*NUMBERS, 3, 5, 7, 105, 106, 40, low, high] if low <= n <= high])
    words = ["finished", "env_error", "win", "loss", "illegal_action", "arithmetic", "x" * 300_000]
    return random.choice([*TEXTS, *words])


def in_safetensors(random: Random, data: bytes) -> bytes:
    """Weights with another header or other numbers."""
    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length], data[8 + length :]
    how = random.randrange(6)
    if how == 0:
        return struct.pack("<Q", random.choice([0, 1, length - 1, length + 1, 2**63, 2**64 - 1, 10**9])) + data[8:]
    if how == 1:
        fill = random.choice([b"\xff", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"])  # NaN, infinity, largest
        return data[: 8 + length] + (fill * len(rest))[: len(rest)]
    if how == 2:
        return in_bytes(random, data)
    text = json_text(random, header.decode()) if how > 3 else json.dumps(_other_tensors(random, json.loads(header)))
    other = text.encode(errors="replace") if isinstance(text, str) else text
    return struct.pack("<Q", len(other)) + other + rest


def _other_tensors(random: Random, header: dict[str, Any]) -> dict[str, Any]:
    name = random.choice([*header])
    tensor = header[name]
    if "dtype" not in tensor:
        return in_tree(random, header)
    other = {
        "dtype": ["F64", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "X"],
        "shape": [[], [0], tensor["shape"][::-1], [*tensor["shape"], 1], [2**31, 2**31], [2**64]],
        "data_offsets": [[0, 0], [5, 1], [0, 2**62], [-1, 4], tensor["data_offsets"][::-1]],
        "name": ["other", "", TEXTS[5], f"{name}.x"],
    }
    key = random.choice([*other])
    if key == "name":
        return {random.choice(other[key]) if own == name else own: kept for own, kept in header.items()}
    return {**header, name: {**tensor, key: random.choice(other[key])}}


def in_place(random: Random, path: Path, canary: Path) -> str:
    """Something else where a file or folder is expected."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    targets = ["key", "secret.json", "secret.toml", "page.html", "empty", "new", "victim", "/dev/zero", "/dev/full"]
    targets += [f"victim/{path.name}", "victim/run.db", "victim/config.toml", "victim/trajectories/step-000003.parquet"]
    target = canary / random.choice(targets)
    size = random.choice([1 << 20, 3 << 30, 1 << 40])
    whats: dict[str, Callable[[], Any]] = {
        "link": lambda: path.symlink_to(target),
        "relative link": lambda: path.symlink_to(os.path.relpath(target, path.parent)),
        "another link": lambda: path.symlink_to(target),
        "loop": lambda: path.symlink_to(path.name),
        "hard link": lambda: path.hardlink_to(canary / "copied"),  # as of a backup: it may be read, and not written
        "pipe": lambda: os.mkfifo(path),
        "socket": lambda: os.mknod(path, stat.S_IFSOCK | 0o600),
        "folder": lambda: (path / random.choice(["", "a/b"])).mkdir(parents=True),
        "nothing": lambda: None,
        "empty file": lambda: path.touch(),
        "sparse file": lambda: (path.touch(), os.truncate(path, size)),
        "words": lambda: path.write_text(random.choice(TEXTS) * 10),
    }
    what = random.choice([*whats])
    with suppress(OSError):  # of a size that this file system has not
        whats[what]()
    return f"{what} to {target.name}" if "link" in what else what


def odd_name(random: Random, folder: Path) -> Path:
    """A path below a folder with a name that nobody expects."""
    name = random.choice(ODD)
    return folder / (os.fsdecode(name) if isinstance(name, bytes) else name)


def mutate(random: Random, run: Path, canary: Path) -> list[str]:
    """Change a run's folder in one to three places; says what was done."""
    done = [_one(random, run, canary) for _ in range(random.choice([1, 1, 1, 2, 3]))]
    if random.random() < 0.6:  # what lies behind the checksums is to be reached, too
        for folder in run.glob("checkpoints/step-*"):
            state = folder / "state.json"
            if _ours(state, run) and state.is_file() and not state.is_symlink() and resealed(folder):
                done.append(f"sealed {folder.name} anew")
    return done


def _one(random: Random, run: Path, canary: Path) -> str:
    files = [path for path in sorted(run.rglob("*")) if _ours(path, run) and path.is_file() and not path.is_symlink()]
    if not files:
        return "nothing is left"
    # Each kind of file alike often, however many there are of it; the four that hold most more often.
    kinds = sorted({path.suffix if path.suffix == ".parquet" else path.name for path in files})
    weights = [{"run.db": 8, ".parquet": 8, "config.toml": 4, "state.json": 4}.get(kind, 1) for kind in kinds]
    [kind] = random.choices(kinds, weights)
    chosen = random.choice([path for path in files if kind in (path.name, path.suffix)])
    name, how = str(chosen.relative_to(run)), random.random()
    if how < 0.58:
        return f"{name}: {_by_kind(random, chosen)}"
    if how < 0.68:
        chosen.write_bytes(in_bytes(random, chosen.read_bytes()))
        return f"{name}: bytes"
    if how < 0.86:
        place = random.choice([chosen, chosen.parent, *(run / planted for planted in PLANTED)])
        if place == run or not _ours(place, run):
            return "nothing"
        return f"{place.relative_to(run)}: {in_place(random, place, canary)}"
    if how < 0.92:
        place = odd_name(random, random.choice([run, chosen.parent, chosen.parent.parent]))
        source = chosen if random.random() < 0.7 or chosen.parent == run else chosen.parent
        with suppress(OSError):
            if source == chosen:
                shutil.copyfile(source, place)
            else:
                shutil.copytree(source, place, symlinks=True, ignore=_not_ours)
        return f"{source.name}: as {place.name!r}"
    if how < 0.98:
        other = random.choice(files)
        chosen.write_bytes(other.read_bytes())
        return f"{name}: holds {other.relative_to(run)}"
    chosen.chmod(0)
    return f"{name}: without permissions"


def _not_ours(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not (Path(folder) / name).is_dir() and not _ours(Path(folder, name), Path(folder))
    ]


def _ours(path: Path, run: Path) -> bool:
    """Whether a path may be changed: below the run, no link, and not too large to be read."""
    if not path.parent.is_dir() or run not in (path.parent.resolve(), *path.parent.resolve().parents):
        return False
    return not os.path.lexists(path) or (path.lstat().st_nlink == 1 and path.lstat().st_size < 1 << 24) or path.is_dir()


def _by_kind(random: Random, path: Path) -> str:
    """The mutation that a file's format asks for."""
    if path.name == "run.db":
        in_database(random, path)
        return "statements"
    if path.suffix == ".parquet":
        in_parquet(random, path)
        return "another table"
    if path.suffix == ".safetensors":
        path.write_bytes(in_safetensors(random, path.read_bytes()))
        return "other tensors"
    if path.suffix == ".jinja":
        path.write_text(template(random), errors="replace")
        return "another template"
    text = path.read_text(errors="replace")
    if path.suffix in (".toml", ".json"):
        other = toml_text(random, text) if path.suffix == ".toml" else json_text(random, text)
    else:
        other = random.choice([*TEXTS, "1\n", HUGE]) if random.random() < 0.7 else in_bytes(random, text.encode())
    path.write_bytes(other.encode(errors="surrogatepass") if isinstance(other, str) else other)
    return "another document"


def resealed(folder: Path) -> bool:
    """Vouch for a checkpoint's files as they are now, as anybody can who reads how; false where that cannot be."""
    try:
        document = json.loads((folder / "state.json").read_bytes())
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "state.json"]
        read = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.stat().st_size < 1 << 24
        }
        document["files"] = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in read.items()
        }
        document.pop("sha256", None)
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        (folder / "state.json").write_text(json.dumps({"sha256": digest, **document}, indent=1))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False
    return True
