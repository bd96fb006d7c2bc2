"""One way to files below a run, and files that appear whole or not at all, whatever else goes on there."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.runs import checkpoint, trajectories
from earl.runs.folder import create, lock, rewrite
from earl.runs.storage import (
    OddFile,
    checked,
    checked_database,
    open_below,
    read_below,
    replace_file,
    sweep,
    write_text,
)
from earl.runs.store import Store

pytestmark = pytest.mark.cold


def make_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def make_fifo(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path, victim: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def make_folder(path: Path, victim: Path) -> None:
    path.mkdir()


def make_hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


@pytest.mark.parametrize("make", [make_link, make_fifo, make_socket, make_folder])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, make: Callable[..., None], flags: int) -> None:
    (tmp_path / "victim").write_text("mine")
    make(tmp_path / "odd", tmp_path / "victim")
    for use in (lambda path: open_below(tmp_path, path, flags), lambda path: checked(tmp_path, path)):
        with pytest.raises(OddFile, match=r"odd is no plain file: below a run's folder .* remove it"):
            use(tmp_path / "odd")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_file_with_a_second_name_is_read_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    make_hard_link(tmp_path / "log.txt", tmp_path / "victim")
    assert read_below(tmp_path, tmp_path / "log.txt") == b"mine"
    assert checked(tmp_path, tmp_path / "log.txt") == tmp_path / "log.txt"
    for use in (
        lambda path: open_below(tmp_path, path, os.O_WRONLY | os.O_APPEND),
        lambda path: checked(tmp_path, path, single=True),
    ):
        with pytest.raises(OddFile, match="a file with 2 names"):
            use(tmp_path / "log.txt")


def test_no_folder_on_the_way_may_be_a_link_but_the_way_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "deep" / "file").write_text("x")
    (tmp_path / "run").symlink_to(tmp_path / "other")
    run = tmp_path / "run"
    assert read_below(run, run / "deep" / "file") == b"x"
    (run / "again").symlink_to("deep")
    for use in (read_below, checked, lambda root, path: write_text(path, "y", root)):
        with pytest.raises(OddFile, match=r"(file|again) is a link or no folder"):
            use(run, run / "again" / "file")
    with pytest.raises(FileNotFoundError):
        read_below(run, run / "deep" / "missing")
    assert checked(run, run / "missing") == run / "missing"


def test_looking_at_a_database_leaves_its_locks(tmp_path: Path) -> None:
    """A process that closes any descriptor of a file loses all its locks on it: another would take the log away."""
    database, log = tmp_path / "run.db", tmp_path / "run.db-wal"
    with Store(database) as store:
        store.record_step(0, {"loss": 1.0}, {})
        checked_database(database)
        other = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM metrics'); c.close()"
        subprocess.run([sys.executable, "-c", other, str(database)], check=True)
        assert log.stat().st_size  # the last to close a database removes the log
        store.record_step(1, {"loss": 2.0}, {})
    with Store(database, read_only=True) as store:
        assert store.metrics() == {"loss": [(0, 1.0), (1, 2.0)]}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_two_that_write_one_file_at_once_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "report.html"

    def outer(file: object) -> None:
        write_text(path, "inner", tmp_path)
        assert path.read_text() == "inner"
        file.write(b"outer")  # type: ignore[attr-defined]

    replace_file(path, outer, tmp_path)
    assert path.read_text() == "outer"
    assert hidden(tmp_path) == []


def test_a_lock_holder_leaves_what_another_process_is_writing(tmp_path: Path) -> None:
    folder = create(tmp_path, "a")

    def slowly(file: object) -> None:
        with lock(folder):
            assert len(hidden(folder.path)) == 1
        file.write(b"whole")  # type: ignore[attr-defined]

    replace_file(folder.report, slowly, folder.path)
    assert folder.report.read_text() == "whole"


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        replace_file(tmp_path / "report.html", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    os.waitpid(child, 0)
    assert len(hidden(tmp_path)) == 1
    sweep(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_removes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    (victim / "deep").mkdir(parents=True)
    (victim / "deep" / "file").write_text("mine")
    (folder / ".real.tmp").mkdir(parents=True)
    for name in (".folder.tmp", ".real.tmp/inside"):
        (folder / name).symlink_to(victim)
    (folder / ".file.tmp").symlink_to(victim / "deep" / "file")
    (folder / ".nothing.tmp").symlink_to(tmp_path / "nowhere")
    make_fifo(folder / ".fifo.tmp", victim)
    make_socket(folder / ".socket.tmp", victim)
    sweep(folder, folder)
    assert list(folder.iterdir()) == []
    assert (victim / "deep" / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["trajectories", "checkpoints"])
def test_nothing_is_removed_or_written_through_a_linked_folder(tmp_path: Path, name: str, make_groups) -> None:
    folder, victim = create(tmp_path, "a"), tmp_path / "victim"
    (victim / ".precious.tmp").mkdir(parents=True)
    for step in range(4):
        (victim / f"step-{step:06d}").mkdir()
        (victim / f"step-{step:06d}.parquet").write_text("mine")
    before = sorted(victim.rglob("*"))
    (folder.path / name).rmdir()
    (folder.path / name).symlink_to(victim)
    table = trajectories.to_table(make_groups(), 5)
    uses: dict[str, list[Callable[[], object]]] = {
        "trajectories": [
            lambda: trajectories.forget_after(folder.trajectories, 0),
            lambda: trajectories.write(trajectories.path_of(folder.trajectories, 5), table),
            lambda: trajectories.read(trajectories.path_of(folder.trajectories, 1)),
        ],
        "checkpoints": [
            lambda: checkpoint.prune(folder.checkpoints, 1, set()),
            lambda: checkpoint.save(folder.checkpoints, 5, lambda _: None, {}),
            lambda: checkpoint.latest(folder.checkpoints),
            lambda: checkpoint.load(folder.checkpoints / "step-000001"),
        ],
    }
    for use in [*uses[name], lambda: lock(folder).__enter__()]:
        with pytest.raises(EarlError, match="is a link or no folder, or lies below such"):
            use()
    assert sorted(victim.rglob("*")) == before


@pytest.mark.parametrize("make", [make_link, make_fifo, make_socket, make_hard_link])
def test_a_report_replaces_what_stands_in_its_place(tmp_path: Path, make: Callable[..., None]) -> None:
    folder, victim = create(tmp_path, "a"), tmp_path / "victim"
    victim.write_text("mine")
    make(folder.report, victim)
    make(folder.path / ".report.html.tmp", victim)  # the name under which it was once written
    write_text(folder.report, "page", folder.path)
    assert (folder.report.read_text(), folder.report.is_symlink(), victim.read_text()) == ("page", False, "mine")


def test_a_recipe_is_rewritten_beside_a_planted_link(tmp_path: Path) -> None:
    folder, victim = create(tmp_path, "a", "old = 1"), tmp_path / "victim"
    victim.write_text("mine")
    (folder.path / ".config.toml.tmp").symlink_to(victim)
    rewrite(folder, "new = 1")
    assert (folder.config.read_text(), victim.read_text()) == ("new = 1", "mine")
    assert folder.recipe() == {"new": 1}


@pytest.mark.parametrize("inside", ["learner", "learner/rank-00000.safetensors", "extra", "state.json"])
@pytest.mark.parametrize("make", [make_link, make_fifo])
def test_a_checkpoint_with_a_link_or_an_odd_file_is_damaged(
    tmp_path: Path, inside: str, make: Callable[..., None]
) -> None:
    def write(folder: Path) -> None:
        (folder / "learner").mkdir()
        (folder / "learner" / "rank-00000.safetensors").write_text("moments")

    path = checkpoint.save(tmp_path / "checkpoints", 5, write, {})
    odd, victim = path / inside, tmp_path / "victim"
    if odd.exists():
        odd.rename(victim)
    else:
        victim.mkdir()
    make(odd, victim)
    with pytest.raises(checkpoint.Damaged, match=rf"step-000005 is damaged: .*{inside}"):
        checkpoint.load(path)


def test_a_checkpoint_that_gets_a_link_while_it_is_written_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    with pytest.raises(OddFile, match="weights is no plain file"):
        checkpoint.save(tmp_path, 5, lambda folder: (folder / "weights").symlink_to(tmp_path / "victim"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_a_database_with_a_second_name_is_read_and_not_written(tmp_path: Path) -> None:
    with Store(tmp_path / "victim.db") as store:
        store.record_step(0, {"loss": 1.0}, {})
    (tmp_path / "run.db").hardlink_to(tmp_path / "victim.db")
    with Store(tmp_path / "run.db", read_only=True) as store:
        assert store.metrics() == {"loss": [(0, 1.0)]}
    with pytest.raises(OddFile, match="a file with 2 names"):
        Store(tmp_path / "run.db")


def test_a_file_that_is_read_whole_is_no_terabyte(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room on the disk
    with pytest.raises(OddFile, match="lock is a file of more than 32 MiB"):
        read_below(tmp_path, tmp_path / "lock")
