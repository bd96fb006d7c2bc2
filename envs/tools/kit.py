"""Bundled tools: a calculator, a search over passages, and Python, a shell and files in a sandbox."""

import re
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from earl.config import SandboxConfig
from earl.envs.tools.arithmetic import calculate
from earl.sandbox.local import LocalSandbox


def calculator(expression: str) -> int:
    """Evaluate whole numbers with +, -, * and parentheses."""
    return calculate(expression)


class Workspace:
    """Tools of an environment that run programs; all of an episode share one scratch folder. `ToolEnv.close` is called
    at the end of an episode, and removes it. A program that fails or takes too long has that as its result."""

    def __init__(self, sandbox: Mapping[str, Any] | None = None) -> None:
        self.sandbox = LocalSandbox(SandboxConfig(**(sandbox or {})))

    def close(self) -> None:
        self.sandbox.terminate()

    def python(self, code: str) -> str:
        """Run a Python program; the result is what it prints."""
        return self.sandbox.exec(["python", "-c", code]).text

    def shell(self, command: str) -> str:
        """Run a shell command in the scratch folder."""
        return self.sandbox.exec(["sh", "-c", command]).text

    def read_file(self, path: str) -> str:
        """Read a file of the scratch folder."""
        return self.sandbox.exec(["cat", "--", path]).text

    def write_file(self, path: str, content: str) -> str:
        """Write a file of the scratch folder."""
        return self.sandbox.write_file(path, content.encode("utf-8", "replace")).text or "written"


class Passages:
    """Texts that are found by their words, the best matches first (BM25 of SQLite's FTS5)."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE VIRTUAL TABLE passages USING fts5(text, tokenize = 'porter')")
        self._database.executemany("INSERT INTO passages VALUES (?)", ((text,) for text in texts))

    def search(self, query: str, most: int = 3) -> list[str]:
        """At most so many texts that have any of a query's words."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query)[:32])
        order = "SELECT text FROM passages WHERE passages MATCH ? ORDER BY rank, rowid LIMIT ?"
        return [text for (text,) in self._database.execute(order, (words, most))] if words else []
