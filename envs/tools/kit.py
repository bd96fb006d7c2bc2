"""Bundled tools: a calculator, a search over passages, and Python, a shell and files in a sandbox."""

import ast
import operator
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from earl.config import SandboxConfig
from earl.envs.tools.tool import parsed
from earl.sandbox.base import SESSION, ExecResult
from earl.sandbox.local import LocalSandbox


def calculator(expression: str) -> int:
    """Evaluate whole numbers with +, -, * and parentheses."""
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"more than {MAX_LENGTH} characters")
    try:
        return _value(parsed(expression.strip()))
    except SyntaxError as error:
        raise ValueError(f"cannot read it: {error.msg}") from None


MAX_LENGTH = 64
"""Bound on the characters of an expression, and so on its depth and on the size of its value."""
OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp() if type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"it takes whole numbers, +, -, * and parentheses, not {ast.unparse(node)}")


class Workspace:
    """Tools of an environment that run programs; all of an episode share one scratch folder. `ToolEnv.close` is called
    at the end of an episode, and removes it. A program that fails or takes too long has that as its result."""

    external = True

    def __init__(self, sandbox: Mapping[str, Any] | None = None) -> None:
        self.sandbox = LocalSandbox(SandboxConfig(**(sandbox or {})))

    def close(self) -> None:
        self.sandbox.terminate()

    def python(self, code: str) -> ExecResult:
        """Run a Python program; the result is what it prints."""
        return self.sandbox.exec(["python", "-c", code])

    def session(self, code: str) -> ExecResult:
        """Run a Python program where those before it ran, with their variables; the result is what it prints."""
        return self.sandbox.exec(SESSION, code.encode("utf-8", "replace"))

    def shell(self, command: str) -> ExecResult:
        """Run a shell command in the scratch folder."""
        return self.sandbox.exec(["sh", "-c", command])

    def read_file(self, path: str) -> ExecResult:
        """Read a file of the scratch folder."""
        return self.sandbox.exec(["cat", "--", path])

    def write_file(self, path: str, content: str) -> ExecResult | str:
        """Write a file of the scratch folder."""
        result = self.sandbox.write_file(path, content.encode("utf-8", "replace"))
        return "written" if result.ok else result


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
