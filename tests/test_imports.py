"""The contracts in pyproject.toml really watch every module: what breaks them is planted and found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[1]
LINT = Path(sys.executable).parent / "lint-imports"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the code, links kept as links."""
    for name in ("earl", "envs", "agents", "cli", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("envs/planted.py", "import earl.agents.chat", "earl.envs is not allowed to import earl.agents"),
        ("envs/games/planted.py", "from earl import trainer", "earl.envs is not allowed to import earl.trainer"),
        (
            "earl/rollout/planted.py",
            "import earl.engine",
            "earl.rollout is not allowed to import earl.engine",
        ),
        ("earl/runs/planted.py", "import earl.envs.base", "earl.runs is not allowed to import earl.envs"),
        ("earl/rollout/planted.py", "import torch", "earl.rollout.planted -> torch"),
        ("cli/planted.py", "import torch", "earl.cli.planted -> torch"),
        ("agents/planted.py", "def late():\n    import rich.table", "earl.agents.planted -> rich"),
        ("earl/planted.py", "", "planted"),  # a module that has no place in the order
    ],
)
def test_a_planted_violation_is_found(package: Path, module: str, line: str, complaint: str) -> None:
    (package / module).write_text(f"{line}\n")
    ran = subprocess.run([LINT, "--no-cache"], cwd=package, capture_output=True, text=True)
    assert ran.returncode == 1
    assert complaint in " ".join(ran.stdout.split())


def test_every_folder_of_earl_is_seen() -> None:
    """The contracts look only into folders with an __init__.py, and those that root_packages names."""
    own = [path for path in (ROOT / "earl").iterdir() if path.is_dir() and not path.is_symlink()]
    assert not [path.name for path in own if list(path.glob("*.py")) and not (path / "__init__.py").exists()]
