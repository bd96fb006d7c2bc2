"""A run's folder: its layout, creation and lock.

runs/<name>/  config.toml   run.db   trajectories/step-000012.parquet   checkpoints/step-000010/
              report.html   log.txt   lock
"""

import difflib
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.errors import EarlError
from earl.recipe import recipe_of
from earl.runs import storage as disk

_NAME = re.compile(r"\w[\w.-]{0,99}")
NAME_BYTES = 200
_WRITTEN_NAMES = (
    *("run.db", "run.db-wal", "run.db-shm", "run.db-journal", "log.txt", "report.html", "trackers.json"),
    *("tensorboard", "wandb", "mlflow.db", "config.toml", "lock"),
)  # files and folders that a process writes at the top of its run
FORMER_OPTIONS = {"grpo": ("clip",), "reinforce++": ("clip",), "ppo": ("clip", "gamma", "gae_lambda", "value_weight")}
"""What each algorithm used of the options that were once keys of [algorithm]; PPO used all of them."""
_held: set[int] = set()  # descriptors of the locks this process holds


@dataclass(unsafe_hash=True)
class RunFolder:
    path: Path

    def __post_init__(self) -> None:
        path = self.path
        self.name = path.name
        self.config = path / "config.toml"  # the resolved recipe; a folder that has it is a run
        self.database = path / "run.db"  # metrics, timings, events and matches: `earl.runs.store`
        self.trajectories = path / "trajectories"  # a Parquet file for each kept step: `earl.runs.trajectories`
        self.checkpoints = path / "checkpoints"  # a folder for each kept checkpoint: `earl.runs.checkpoint`
        self.report = path / "report.html"
        self.log = path / "log.txt"
        self.lock = path / "lock"  # held by the one process that writes

    def recipe(self) -> dict[str, Any]:
        """Parse config.toml. Raises EarlError when it cannot be read or is not TOML."""
        with disk.storage(self.config):
            recipe = recipe_of(disk.read_below(self.path, self.config), self.config)
        _update_keys(recipe)
        return recipe


def _update_keys(recipe: dict[str, Any]) -> None:
    """Runs of earlier versions do not say the edition of their environment, chose how rows are sent, preferred hard
    opponents by an exponent, and had the options of all algorithms beside each other."""
    if isinstance(env := recipe.get("env"), dict):
        others = env.get("others")
        for one in (env, *(others if isinstance(others, list) else ())):
            if isinstance(one, dict) and one.pop("prefer_hard", 0):
                one["prefer"] = "hard"
        recipe["env"] = {"edition": 1, **env}
    if isinstance(placement := recipe.get("placement"), dict):
        placement.pop("transport", None)
    algorithm = recipe.get("algorithm")
    if isinstance(algorithm, dict) and "clip" in algorithm and "options" not in algorithm:
        former = {key: algorithm.pop(key, None) for key in FORMER_OPTIONS["ppo"]}
        used = FORMER_OPTIONS.get(str(algorithm.get("name")), ())
        algorithm["options"] = {key: former[key] for key in used if former[key] is not None}


def create(root: Path, name: str, config: str = "") -> RunFolder:
    """Create the folder of a new run with its resolved recipe (TOML text) atomically.
    Raises EarlError when the name is taken or invalid, or when the disk refuses."""
    folder = free(root, name)
    with disk.storage(folder.path, then="start the run again"):
        root.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # leftovers of other users stay
            disk.remove_abandoned(root)
        with disk.new_folder(folder.path) as path:
            partial = RunFolder(path)
            partial.trajectories.mkdir()
            partial.checkpoints.mkdir()
            partial.config.write_text(config, encoding="utf-8")
            disk.sync(partial.config)
            try:
                partial.path.rename(folder.path)
            except OSError as error:
                if os.path.lexists(folder.path):  # another process was faster
                    raise _taken(folder) from error
                raise
            disk.sync(root)
    return folder


def rewrite(folder: RunFolder, config: str) -> None:
    """Replace a run's resolved recipe (TOML text) atomically; the caller holds the run's lock."""
    disk.write_text(folder.config, config, folder.path)


def free(root: Path, name: str) -> RunFolder:
    """The folder for a new run of that name. Raises EarlError when the name is taken or invalid."""
    if not _NAME.fullmatch(name) or len(name.encode(errors="replace")) > NAME_BYTES:
        rule = "use up to 100 letters (200 bytes), digits, '.', '_' and '-', not starting with '.' or '-'"
        raise EarlError(f"run name {name!r} is not a plain name: {rule}")
    folder = RunFolder(root / name)
    if os.path.lexists(folder.path):
        raise _taken(folder)
    return folder


def _taken(folder: RunFolder) -> EarlError:
    cure = "choose another --name, or continue it with --resume"
    return EarlError(f"run {folder.name!r} exists already at {folder.path}; a new run needs a new name: {cure}")


def discard(folder: RunFolder) -> bool:
    """Undo `create`, for the process that called it, before the first checkpoint. Returns whether the folder is gone.
    Removes only what earl and its trackers write; other files stay, and the folder with them."""
    with suppress(OSError, EarlError):  # the error that ended the run is the one to report
        for inside in (folder.trajectories, folder.checkpoints, folder.path):
            disk.sweep(folder.path, inside)
        with disk.folder_below(folder.path, folder.path) as own:
            for name in ("trajectories", "checkpoints"):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=own)
            for name in _WRITTEN_NAMES:
                disk.remove(name, own)
        folder.path.rmdir()
    return not folder.path.exists()


def open_existing(path: Path) -> RunFolder:
    """The run at `path`. Raises EarlError with the nearest names when there is none."""
    folder = RunFolder(path)
    if folder.config.is_file():
        return folder
    names = [run.name for run in listing(path.parent)]
    near = difflib.get_close_matches(path.name, names, n=3)
    rule = "it has no config.toml" if path.exists() else "there is no such folder"
    if near:
        cure = "did you mean " + " or ".join(repr(name) for name in near) + "?"
    else:
        cure = f"runs in {path.parent}: {', '.join(names) or 'none yet; start one with `earl train`'}"
    raise EarlError(f"{path} is not a run: {rule}; {cure}")


def find_run(root: Path, name: str) -> RunFolder | None:
    """The run of that name in `root`, else at that path; None if there is none."""
    found = [folder for folder in (RunFolder(root / name), RunFolder(Path(name))) if folder.config.is_file()]
    return found[0] if found else None


def open_run(root: Path, name: str) -> RunFolder:
    """As `find_run`. Raises EarlError with the nearest names when there is none."""
    return find_run(root, name) or open_existing(root / name)


def listing(root: Path) -> list[RunFolder]:
    """Every run in `root`, the oldest first; empty when `root` is missing."""
    if not root.is_dir():
        return []
    runs = [RunFolder(path) for path in root.iterdir() if not path.name.startswith(".")]
    runs = [run for run in runs if run.config.is_file()]
    return sorted(runs, key=lambda run: (run.config.stat().st_mtime_ns, run.name))


def fresh_name(root: Path, prefix: str) -> str:
    """The next free name with this prefix: tictactoe-1, then tictactoe-2."""
    pattern = re.compile(re.escape(prefix) + r"-([0-9]{1,9})")
    taken = [pattern.fullmatch(path.name) for path in root.iterdir()] if root.is_dir() else []
    return f"{prefix}-{max((int(match[1]) for match in taken if match), default=0) + 1}"


@contextmanager
def lock(folder: RunFolder) -> Iterator[None]:
    """Hold a run's write lock; also removes what a killed predecessor left half-written. The kernel drops the lock when
    the process ends. Raises EarlError with the holder's process id when the run is locked."""
    with disk.storage(folder.lock):
        descriptor = disk.open_below(folder.path, folder.lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        rule = "a run has one writer: wait for that process or end it, then try again"
        raise EarlError(f"run {folder.name!r} is being written by process {holder}; {rule}") from error
    _held.add(descriptor)
    try:
        with disk.storage(folder.lock):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        for inside in (folder.path, folder.trajectories, folder.checkpoints):
            disk.sweep(folder.path, inside)
        yield
    finally:
        _release(descriptor)


def _release(descriptor: int) -> None:
    if descriptor in _held:  # false in a forked child, which gave it up after the fork
        _held.discard(descriptor)
        os.close(descriptor)


def _release_all() -> None:
    for descriptor in tuple(_held):
        _release(descriptor)


# A forked worker shares its parent's lock and would keep the run locked after the parent was killed.
os.register_at_fork(after_in_child=_release_all)
