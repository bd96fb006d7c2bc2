"""The package: links, the lock, and what an import may load."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import hatchling.build
import pytest

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[1]
LINKED = ("agents", "benchmarks", "cli", "configs", "envs")
HEAVY = ("torch", "ray", "vllm", "transformers")


def package_files() -> set[str]:
    """What a built package must hold: "earl/envs/base.py" and all the others, caches aside."""
    own = {path.relative_to(ROOT) for path in (ROOT / "earl").rglob("*") if path.is_file()}
    linked = {
        Path("earl") / path.relative_to(ROOT) for name in LINKED for path in (ROOT / name).rglob("*") if path.is_file()
    }
    return {str(path) for path in own | linked if path.suffix in (".py", ".toml")}


def modules_after(code: str) -> set[str]:
    """Names in sys.modules of a fresh interpreter once it has run `code`."""
    report = "import atexit, sys; atexit.register(lambda: print('\\n', *sys.modules, file=sys.stderr))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{report}\n{code}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(ran.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("name", LINKED)
def test_links_are_relative_and_point_to_the_folders_at_the_root(name: str) -> None:
    link = ROOT / "earl" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.is_dir()
    assert not (ROOT / name / "__init__.py").exists()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, built from this folder."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = hatchling.build.build_wheel(str(folder))
        sdist = hatchling.build.build_sdist(str(folder))
    return folder / wheel, folder / sdist


def test_wheel_holds_the_linked_folders_as_real_files(packages: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(packages[0])
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"earl"}
    assert package_files() <= names
    assert all(wheel.getinfo(name).file_size == (ROOT / name).stat().st_size for name in names)
    assert "earl = earl.cli.main:main" in wheel.read("earl-0.1.0.dist-info/entry_points.txt").decode()


def test_sdist_holds_the_same_and_builds_the_same_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = packages
    with tarfile.open(sdist) as archive:
        names = {member.name for member in archive.getmembers() if member.isfile()}
        archive.extractall(tmp_path, filter="data")
    assert {f"earl-0.1.0/{name}" for name in package_files()} <= names
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "earl-0.1.0")
        again = hatchling.build.build_wheel(str(tmp_path))
    assert set(zipfile.ZipFile(tmp_path / again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_importing_all_of_earl_loads_no_bare_envs_agents_cli_or_configs() -> None:
    names = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in package_files()
        if name.endswith(".py")
    )
    loaded = modules_after(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert set(names) <= loaded
    assert not loaded & set(LINKED)


def test_importing_the_environments_loads_nothing_heavy() -> None:
    assert not modules_after("import earl.envs.registry") & set(HEAVY)


def test_the_help_page_loads_nothing_heavy() -> None:
    loaded = modules_after("import sys; sys.argv = ['earl', '--help']; import earl.cli.main as cli; cli.main()")
    assert "earl.cli.main" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize(
    "line",
    [
        "train tictactoe --set rollout.nope=1",
        "train tictactoe --set algorithm.name=gppo",
        "train tictactoe --model no/such/folder",
        "train tictactoe --set env.opponents.perfct=1",
        "train tictactoe --set warm_start.teacher=perfct",
        "train --resume nope-1",
        "eval nope-1",
        "play tictactoe --against perfct",
        "play tictactoe --against alphabeta:0",
        "exploit nope-1",
        "audit nope-1",
    ],
)
def test_a_mistake_in_a_recipe_or_a_name_is_told_before_torch_is_loaded(line: str) -> None:
    loaded = modules_after(f"from earl.cli.main import run\nassert run({line.split()!r}) == 2")
    assert not {"torch", "transformers", "pyarrow"} & loaded


@pytest.mark.slow
def test_a_training_imports_ray_only_once_its_placement_needs_it() -> None:
    # Importing Ray fixes how a process identifies itself to a cluster; the placement sets that first.
    names = ("earl.trainer", "earl.preflight", "earl.cli.training", "earl.cli.contestants", "earl.profiling.campaign")
    loaded = modules_after(f"import {', '.join(names)}")
    assert "earl.placement.backend" in loaded
    assert "ray" not in loaded
