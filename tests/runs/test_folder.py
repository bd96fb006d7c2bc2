import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from earl.algorithms.registry import algorithm
from earl.errors import EarlError
from earl.recipe import build
from earl.runs.folder import (
    RunFolder,
    create,
    discard,
    fresh_name,
    listing,
    lock,
    open_existing,
)
from earl.runs.store import Store

pytestmark = pytest.mark.cold

HOLD = """
import sys, time
from pathlib import Path
from earl.runs.folder import RunFolder, lock
with lock(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_holder(folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_new_run_has_its_recipe_and_empty_folders(tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", "tictactoe-1", "seed = 7\n")
    assert folder.path == tmp_path / "runs" / "tictactoe-1"
    assert folder.config.read_text() == "seed = 7\n"
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoints",
        "config.toml",
        "trajectories",
    ]
    assert open_existing(folder.path) == folder
    assert [path.name for path in folder.path.parent.iterdir()] == ["tictactoe-1"]  # nothing temporary left


def test_a_taken_name_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = create(tmp_path, "a", "first")
    with pytest.raises(EarlError, match=r"run 'a' exists already.*another --name.*--resume"):
        create(tmp_path, "a", "second")
    assert folder.config.read_text() == "first"
    (tmp_path / "b").write_text("a file")
    with pytest.raises(EarlError, match="run 'b' exists already"):
        create(tmp_path, "b")
    (tmp_path / "c").symlink_to(tmp_path / "nowhere")
    with pytest.raises(EarlError, match="run 'c' exists already"):
        create(tmp_path, "c")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/a", "a b", "-a", ".a", "🎲", "a\n", "a\0", "x" * 101, "数" * 67]
)
def test_a_name_that_is_no_plain_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(EarlError, match="is not a plain name: use"):
        create(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["a", "A-1", "run_2.5", "x" * 100, "0", "Müllers-Läufe", "数" * 66])
def test_plain_names(tmp_path: Path, name: str) -> None:
    assert create(tmp_path, name).name == name


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        create(tmp_path, "a", "\ud800")  # half a surrogate pair cannot be written as UTF-8
    assert list(tmp_path.iterdir()) == []


STOPPED = """
import os, signal, sys
from pathlib import Path
from earl.runs.folder import create
sys.addaudithook(lambda event, _: event == "os.rename" and os.kill(os.getpid(), signal.SIGSTOP))
create(Path(sys.argv[1]), "killed")
"""


def test_a_creation_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    others = {".0123456789ABCDEF.tmp", ".0123456789abcde.tmp", ".mine.tmp", "0123456789abcdef.tmp"}
    for name in others:
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / ".ffffffffffffffff.tmp").symlink_to(tmp_path / ".mine.tmp")
    before = {path.name for path in tmp_path.iterdir()}
    with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)]) as process:
        try:
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            (partial,) = {path.name for path in tmp_path.iterdir()} - before
            create(tmp_path, "a")
            assert (tmp_path / partial / "config.toml").is_file(), "a living process holds it"
        finally:
            process.kill()
    assert (tmp_path / partial).exists()
    assert [run.name for run in listing(tmp_path)] == ["a"]
    create(tmp_path, "b")
    assert {path.name for path in tmp_path.iterdir()} == before | {"a", "b"}


def test_a_discarded_run_loses_what_earl_wrote_and_nothing_else(tmp_path: Path) -> None:
    folder = create(tmp_path, "a", "x")
    with lock(folder), Store(folder.database):
        (folder.checkpoints / ".0123456789abcdef.tmp").mkdir()
        assert discard(folder)
    assert list(tmp_path.iterdir()) == []
    folder = create(tmp_path, "a", "x")
    for name in ("notes.txt", "trajectories/mine.parquet", "checkpoints/mine/weights"):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("mine")
    assert not discard(folder)
    left = sorted(path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file())
    assert left == ["checkpoints/mine/weights", "notes.txt", "trajectories/mine.parquet"]


def test_of_many_that_create_one_run_at_once_one_does(tmp_path: Path) -> None:
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                create(tmp_path / "runs", "a", f"number = {number}")
            except EarlError as error:
                os._exit(1 if "exists already" in str(error) else 2)
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 2)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1, 1, 1]
    assert open_existing(tmp_path / "runs" / "a").config.read_text() == f"number = {codes.index(0)}"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(EarlError, match="choose another folder"):
        create(tmp_path / "runs", "a")
    with pytest.raises(EarlError, match="choose another folder"):
        create(tmp_path / "runs" / "deeper", "a")


def test_what_is_not_a_run_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    create(tmp_path, "tictactoe-1")
    create(tmp_path, "connect4-1")
    with pytest.raises(EarlError, match=r"no such folder; did you mean 'tictactoe-1'\?"):
        open_existing(tmp_path / "tictacto-1")
    with pytest.raises(EarlError, match=r"runs in .*: tictactoe-1, connect4-1"):
        open_existing(tmp_path / "zzz")
    (tmp_path / "zzz").mkdir()
    with pytest.raises(EarlError, match=r"it has no config\.toml"):
        open_existing(tmp_path / "zzz")
    with pytest.raises(EarlError, match="none yet; start one with `earl train`"):
        open_existing(tmp_path / "nowhere" / "a")


def test_listing_is_oldest_first_and_sees_runs_only(tmp_path: Path) -> None:
    assert listing(tmp_path / "nowhere") == []
    for age, name in enumerate(["b", "a", "c"]):
        os.utime(create(tmp_path, name).config, ns=(0, age))
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    assert [run.name for run in listing(tmp_path)] == ["b", "a", "c"]


def test_fresh_names_count_on(tmp_path: Path) -> None:
    assert fresh_name(tmp_path / "nowhere", "tictactoe") == "tictactoe-1"
    for name in ["tictactoe-1", "tictactoe-10", "tictactoe-x", "connect4-99", "tictactoe-1-2"]:
        (tmp_path / name).mkdir()
    assert fresh_name(tmp_path, "tictactoe") == "tictactoe-11"


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    folder = create(tmp_path, "a")
    with another_holder(folder) as holder:
        with (
            pytest.raises(EarlError, match=f"'a' is being written by process {holder.pid}; .* one writer"),
            lock(folder),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with lock(folder):
            assert folder.lock.read_text() == f"{os.getpid()}\n"


def test_the_lock_is_for_one_holder_within_a_process_too(tmp_path: Path) -> None:
    folder = create(tmp_path, "a")
    with lock(folder):
        with pytest.raises(EarlError, match=f"process {os.getpid()}"), lock(folder):
            pass
        with pytest.raises(EarlError, match=f"process {os.getpid()}"), lock(folder):  # still held
            pass
    with lock(folder):
        pass


ORPHAN = """
import os, sys, time
from pathlib import Path
from earl.runs.folder import RunFolder, lock
with lock(RunFolder(Path(sys.argv[1]))):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # it has given up the lock
    time.sleep(60)
"""


def test_a_forked_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = create(tmp_path, "a")
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(folder.path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        with pytest.raises(EarlError, match=f"process {holder.pid}"), lock(folder):
            pass
        holder.kill()
        holder.wait()
        try:
            with lock(folder):
                os.kill(worker, 0)  # it is still there
        finally:
            os.kill(worker, signal.SIGKILL)


def test_the_lock_sweeps_what_a_killed_process_left(tmp_path: Path) -> None:
    folder = create(tmp_path, "a")
    (folder.checkpoints / ".step-000010.tmp" / "deep").mkdir(parents=True)
    (folder.trajectories / ".step-000010.parquet.tmp").write_text("half")
    (folder.path / ".report.html.tmp").write_text("half")
    (folder.checkpoints / "step-000005").mkdir()
    with lock(folder):
        left = sorted(path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*"))
    assert left == ["checkpoints", "checkpoints/step-000005", "config.toml", "lock", "trajectories"]


def test_a_run_that_does_not_say_the_edition_of_its_environment_has_the_first(tmp_path: Path) -> None:
    for config, edition in (('[env]\nname = "arithmetic"\n', 1), ("[env]\nedition = 2\n", 2)):
        folder = create(tmp_path, f"edition-{edition}", config)
        assert folder.recipe()["env"]["edition"] == edition


def test_settings_of_earlier_runs_that_are_gone_are_read(tmp_path: Path) -> None:
    text = '[env]\nedition = 2\nprefer_hard = {}\n\n[placement]\nkind = "colocated"\ntransport = "objects"\n'
    known = {"env": {"edition": 2}, "placement": {"kind": "colocated"}}
    assert create(tmp_path, "evenly", text.format(0.0)).recipe() == known
    assert create(tmp_path, "hard", text.format(1.0)).recipe()["env"] == {"edition": 2, "prefer": "hard"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"clip": 0.3}),
        ("reinforce++", {"clip": 0.3}),
        ("rloo", {}),
        ("ppo", {"clip": 0.3, "gamma": 0.9, "gae_lambda": 0.8, "value_weight": 0.4}),
    ],
)
def test_earlier_runs_have_the_options_of_all_algorithms_beside_each_other(
    tmp_path: Path, name: str, options: dict[str, float]
) -> None:
    settings = "clip = 0.3\nkl = 0.1\ngamma = 0.9\ngae_lambda = 0.8\nvalue_weight = 0.4\n"
    recipe = create(tmp_path, "early", f'[algorithm]\nname = "{name}"\n{settings}').recipe()
    assert recipe["algorithm"] == {"name": name, "kl": 0.1, "options": options}
    made = algorithm(
        name, **build({**recipe, "env": {"name": "tictactoe", "opponents": {"random": 1}}}).algorithm.options
    )
    assert all(getattr(made, key) == value for key, value in options.items())
