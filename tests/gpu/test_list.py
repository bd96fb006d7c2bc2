"""docs/design/gpu.md lists all code that only CUDA runs, and the tests that it names are there."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/gpu.md").read_text(encoding="utf-8")
MENTION = re.compile(r"cuda|nccl|device\.type", re.IGNORECASE)
HOLDERS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FOLDERS = ("earl", "benchmarks", "cli", "agents", "envs")


def mentions(path: Path) -> set[str]:
    """The functions of a file whose code mentions CUDA, as the page names them; a module's own lines by the file."""
    source = path.read_text(encoding="utf-8")
    if not MENTION.search(source):
        return set()
    tree, named = ast.parse(source), path.relative_to(ROOT).as_posix()
    return {f"{named}{_within(tree, line)}" for line in set(_code(source)) - set(_documentation(tree))}


def _code(source: str):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT and MENTION.search(token.line.partition("  # ")[0]):
            yield token.start[0]


def _documentation(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, node.end_lineno + 1)


def _within(tree: ast.AST, line: int) -> str:
    """`:Class.method` around a line; empty for a line of the module itself."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, HOLDERS) and node.lineno <= line <= node.end_lineno:
            names.append(node.name)
    return f":{'.'.join(names[:2])}" if names else ""


def test_every_line_that_mentions_cuda_is_in_a_function_of_the_list():
    found = {name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") for name in mentions(path)}
    listed = set(re.findall(r"`([\w/]+\.py(?::[\w.]+)?)`", PAGE.partition("| code |")[2]))
    listed = {name for name in listed if not name.startswith("tests/")}
    assert found - listed == set(), "add these to docs/design/gpu.md, each with its tests"
    assert listed - found == set(), "these mention CUDA no longer"


def test_the_tests_that_the_list_names_are_there():
    named = re.findall(r"`(test_\w+)`", PAGE)
    there = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 20 and not [name for name in named if f"def {name}(" not in there]


def test_the_page_stays_short():
    assert len(PAGE.split()) <= 600
