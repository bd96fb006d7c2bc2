"""Checkpoints that are written in the background: one at a time, whole or not there, and nothing fails in silence."""

import errno
import threading

import pytest

from earl.errors import EarlError
from earl.runs import checkpoint
from earl.runs.folder import create
from earl.runs.journal import Journal

LONGEST = 60


class Slow:
    """A snapshot that is written when it is let."""

    def __init__(self):
        self.may = threading.Event()

    def __call__(self):
        return self.write

    def write(self, folder):
        assert self.may.wait(LONGEST)
        (folder / "weights").write_bytes(b"1")


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path, "run")


@pytest.fixture
def journal(folder):
    journal = Journal(folder, keeps=True)
    yield journal
    journal.close()


def full_disk():
    def write(folder):
        (folder / "weights").write_bytes(b"1")
        raise OSError(errno.ENOSPC, "No space left on device")

    return write


def test_a_checkpoint_is_there_once_it_is_settled_and_not_before(folder, journal):
    slow = Slow()
    journal.checkpoint(1, slow, {"step": 1}, best=1)
    assert checkpoint.all_steps(folder.checkpoints) == []
    slow.may.set()
    journal.settle()
    assert checkpoint.load(folder.checkpoints / "step-000001").state == {"step": 1}


def test_the_next_one_is_copied_when_the_one_before_is_there(folder, journal):
    found = []

    def look():
        found.append(checkpoint.all_steps(folder.checkpoints))
        return lambda _: None

    slow = Slow()
    journal.checkpoint(1, slow, {}, best=1)
    threading.Timer(0.1, slow.may.set).start()
    for step in (2, 3, 4):
        journal.checkpoint(step, look, {}, best=1)
    journal.settle()
    assert found == [[1], [1, 2], [1, 2, 3]]
    assert checkpoint.all_steps(folder.checkpoints) == [1, 3, 4]  # the best and the last two


@pytest.mark.parametrize("meet", ["settle", "checkpoint"])
def test_what_befell_a_checkpoint_is_raised_once(folder, journal, meet):
    journal.checkpoint(1, lambda: lambda _: None, {}, best=1)
    journal.checkpoint(2, full_disk, {}, best=1)
    with pytest.raises(EarlError, match=r"no space left at .*step-000002"):
        journal.settle() if meet == "settle" else journal.checkpoint(3, full_disk, {}, best=1)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000001"]
    journal.settle()
    journal.checkpoint(3, lambda: lambda _: None, {}, best=1)
    journal.settle()
    assert checkpoint.all_steps(folder.checkpoints) == [1, 3]


def test_whoever_breaks_off_waits_for_what_is_being_written(folder):
    journal, slow = Journal(folder, keeps=True), Slow()
    journal.checkpoint(1, slow, {}, best=1)
    threading.Timer(0.1, slow.may.set).start()
    journal.close()
    assert checkpoint.all_steps(folder.checkpoints) == [1]


def test_who_keeps_nothing_copies_nothing(folder):
    journal = Journal(folder, keeps=False)
    journal.checkpoint(1, lambda: pytest.fail("a copy was made"), {}, best=1)
    journal.settle()
    journal.close()
    assert not list(folder.checkpoints.iterdir())


def test_old_checkpoints_that_a_killed_process_had_no_time_to_remove_go_when_the_run_goes_on(folder, journal):
    for step in (0, 2, 4, 6):
        checkpoint.save(folder.checkpoints, step, lambda path: None, {})
    journal.forget_after(6, best=0)
    assert checkpoint.all_steps(folder.checkpoints) == [0, 4, 6]  # the best and the last two
