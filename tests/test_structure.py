"""What keeps the package small to take in: no class name twice, no small module with one importer, no circle."""

import ast
import subprocess
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = ("agents", "benchmarks", "cli", "envs")
"""Folders that are imported as `earl.NAME`."""
SMALL = 100
"""Lines: a larger module that one other imports is a file of its own for its size."""
PLUG_INS = (
    *("earl/algorithms/", "earl/dispatch/transports/", "earl/trackers/"),
    *("agents/scripted/", "benchmarks/", "envs/adapters/", "envs/games/", "envs/tools/"),
)
"""Folders of things that are found by name: a registry imports each, or nothing does."""
ALONE = {
    "cli/completion.py": "imports what only a shell's completion needs, no command",
    "earl/engine/export.py": "`earl export` may not import torch, the engine may",
    "earl/engine/kernels.py": "numba takes half a second to import, and is only for those that sample",
    "earl/engine/opponent.py": "the registry of opponents imports it by its name, for torch",
}
"""Small modules with one importer, and why each is a file of its own."""


@cache
def sources() -> dict[str, ast.Module]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [file for file in listed.split() if file.startswith(("earl/", *(f"{name}/" for name in AT_THE_ROOT)))]
    return {file: ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in files if (ROOT / file).is_file()}


def module(file: str) -> str:
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"earl.{name}" if file.startswith(AT_THE_ROOT) else name


def importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The files that import each module."""
    known, found = {module(file) for file in trees}, defaultdict(set)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (f"{node.module}.{alias.name}" for alias in node.names):
                    found[name if name in known else node.module].add(file)
    return found


def test_no_class_name_stands_twice() -> None:
    places = defaultdict(set)
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_small_module_has_more_than_one_importer() -> None:
    trees = sources()
    used = importers(trees)
    crumbs = {
        file
        for file in trees
        if not file.startswith(PLUG_INS)
        and Path(file).name not in ("__init__.py", "registry.py", "base.py")
        and not _is_command(trees[file])
        and len(used[module(file)]) <= 1
        and len((ROOT / file).read_text(encoding="utf-8").splitlines()) < SMALL
    }
    assert crumbs - set(ALONE) == set(), "move each into the module that imports it, or say in ALONE why not"
    assert set(ALONE) - crumbs == set(), "no longer small, or no longer alone: take it out of ALONE"


def test_no_modules_import_each_other() -> None:
    """Not in a circle either, nor for type checking alone. Raises CycleError, which names one."""
    trees = sources()
    used = importers(trees)
    order = [*TopologicalSorter({module(file): {*map(module, used[module(file)])} for file in trees}).static_order()]
    assert len(order) >= len(trees)


def _is_command(tree: ast.Module) -> bool:
    """Whether a module holds a command of the command line, which is loaded by its name."""
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    names += [ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return "command" in names
