"""The cost of a context limit where better play makes longer games, and whether an automatic limit avoids it.

Tic-Tac-Toe with full history against strong opponents: a draw as first player takes five rounds, and 72 tokens hold
four. Three arms differ only in the limit: 72, 120, and "auto" that begins at 72.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from earl.benchmarks.rollout import intervals, recipe
from earl.config import Config
from earl.errors import EarlError
from earl.recipe import dump, load_toml
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import Store
from earl.runs.summary import FINAL
from earl.train import run as train


def run(root: Path, seeds: int = 3, steps: int = 100, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm, seed by seed; existing runs are continued. For the result see `earl bench ceiling --help`."""
    runs = by_arm(root, "ceiling", seeds, steps, assignments)
    seen = {arm: [_measured(folder) for folder in folders] for arm, folders in runs.items()}
    means = {arm: mean(result["not_lost"] for result in results) for arm, results in seen.items()}
    return {
        "seeds": seeds,
        "steps": steps,
        "runs": str(root),
        **{arm: intervals(results) for arm, results in seen.items()},
        "auto_minus_120": means["auto"] - means["120"],
        "auto_minus_72": means["auto"] - means["72"],
    }


ARMS = load_toml(Path(__file__).with_name("arms.toml"))


def by_arm(
    root: Path, benchmark: str, seeds: int, steps: int, assignments: Sequence[str]
) -> dict[str, list[RunFolder]]:
    """Train every arm of a benchmark, seed by seed."""
    arms: dict[str, list[str]] = ARMS[benchmark]["arms"]
    folders: dict[str, list[RunFolder]] = {arm: [] for arm in arms}
    for seed in range(seeds):
        for arm, settings in arms.items():
            config = shared(benchmark, [f"run.steps={steps}", f"run.seed={seed}", *settings, *assignments])
            folders[arm].append(trained(root, f"{arm}-seed{seed}", config))
    return folders


def shared(benchmark: str, assignments: Sequence[str]) -> Config:
    """What all arms of a benchmark have in common, with the assignments of `--set`."""
    return recipe(ARMS[benchmark]["env"], [*ARMS[benchmark]["shared"], *assignments])


def trained(root: Path, name: str, config: Config) -> RunFolder:
    """Train or continue a run to its end. Raises EarlError if it has another recipe or was stopped."""
    folder = RunFolder(root / name)
    if not folder.config.is_file():
        folder = create(root, name, dump(config))
    elif folder.config.read_text(encoding="utf-8") != dump(config):
        raise EarlError(f"{folder.path} holds a run of another recipe; give another folder with --runs")
    with lock(folder):
        progress = train(folder, config)
    if not progress.finished:
        raise EarlError(f"{folder.path} was stopped at step {progress.step}; the same command goes on from there")
    return folder


def _measured(folder: RunFolder) -> dict[str, float]:
    with Store(folder.database, read_only=True) as store:
        matches = [match.result for match in store.matches() if match.phase == FINAL]
        metrics = store.metrics()
    perfect = [result for result in matches if result.opponent == "perfect"]
    last = {name: points[-1][1] for name, points in metrics.items()}
    return {
        "not_lost": mean(result.win + result.draw for result in perfect),
        "cut": last["truncation/prompt"] + last["truncation/reply"],
        "limit": last["context/limit"],
    }
