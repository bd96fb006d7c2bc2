"""What a dead process left is found by its owner; nothing of a living one, or of nobody known, is taken for that."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from earl.rehearsal import owner as owners
from earl.rehearsal.owner import Owner, owner_of, session_folder

pytestmark = [pytest.mark.cold, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")]
PREFIX = "earl-test-"

# Makes a folder, and a process that writes there and does not end with this one, as some of Ray's.
MAKE = """
import subprocess, sys, time
from pathlib import Path
from earl.rehearsal import owner
owner.SHORT = Path(sys.argv[1])
with owner.session_folder(sys.argv[2]) as folder:
    log = (folder / "log").open("w")
    writer = subprocess.Popen(["sleep", "600"], stdout=log, start_new_session=True)
    print(folder, writer.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(owners, "SHORT", tmp_path)
    return tmp_path


def test_a_process_that_runs_is_not_gone_and_one_that_ended_is() -> None:
    child = subprocess.Popen(["sleep", "600"])
    own = Owner(child.pid, owners._started(child.pid), Owner.this().boot, Owner.this().space)
    assert not own.gone and not Owner.this().gone
    child.kill()
    child.wait()
    assert own.gone


def test_another_process_with_the_number_of_a_dead_one_is_not_its_owner() -> None:
    assert replace(Owner.this(), started=Owner.this().started - 1).gone


def test_a_process_of_another_container_is_not_taken_for_dead() -> None:
    assert not replace(Owner.this(), process=2**22 - 1, space="pid:[1]").gone


def test_after_a_restart_of_the_machine_nobody_is_there() -> None:
    assert replace(Owner.this(), boot="another").gone
    assert replace(Owner.this(), boot="another").rebooted


def test_what_belongs_to_nobody_stays() -> None:
    assert not replace(Owner.this(), process=0).gone


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": 1}', '{"process": 1, "started": 1, "boot": "x"}'])
def test_a_spoiled_note_makes_nobody_the_owner(tmp_path: Path, text: str) -> None:
    (tmp_path / owners.FILE).write_text(text)
    assert owner_of(tmp_path) is None


def test_a_folder_goes_with_its_context(short: Path) -> None:
    with session_folder(PREFIX) as folder:
        assert (folder.parent, folder.stat().st_mode & 0o777) == (short, 0o700)
        with session_folder(PREFIX):
            assert folder.is_dir()  # its owner lives
    assert not folder.exists()


def test_only_folders_of_dead_owners_are_swept(short: Path) -> None:
    dead = replace(Owner.this(), started=1)
    for name in ("dead", "foreign", "nobody", "spoiled"):
        (short / f"{PREFIX}{name}").mkdir()
        (short / f"{PREFIX}{name}" / "kept").touch()
    dead.write(short / f"{PREFIX}dead")
    replace(dead, space="pid:[1]").write(short / f"{PREFIX}foreign")
    replace(dead, process=0).write(short / f"{PREFIX}nobody")
    (short / f"{PREFIX}spoiled" / owners.FILE).write_text("{")
    victim = short / "victim"
    victim.mkdir()
    dead.write(victim)
    (short / f"{PREFIX}link").symlink_to(victim)
    (short / f"{PREFIX}file").write_text(json.dumps({}))
    with session_folder(PREFIX):
        pass
    assert {path.name.removeprefix(PREFIX) for path in short.iterdir()} == {
        *("foreign", "nobody", "spoiled", "victim", "link", "file")
    }
    assert (victim / owners.FILE).exists()


def test_what_a_killed_process_left_is_removed_without_another_start(short: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, str(short), PREFIX], stdout=subprocess.PIPE, text=True
    ) as process:
        folder, writer = process.stdout.readline().split()
        owners.sweep(PREFIX)
        assert Path(folder).is_dir()  # its owner lives
        os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 120
    while Path(folder).exists() or Path(f"/proc/{writer}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_next_start_removes_it_too_and_nothing_that_others_write(short: Path) -> None:
    for name in ("dead", "lives"):
        (short / f"{PREFIX}{name}").mkdir()
    replace(Owner.this(), started=1).write(short / f"{PREFIX}dead")
    Owner.this().write(short / f"{PREFIX}lives")
    writers = {
        name: subprocess.Popen(["sleep", "600"], stdout=(short / f"{PREFIX}{name}" / "log").open("w"))
        for name in ("dead", "lives")
    }
    owners.sweep(PREFIX)
    assert writers["dead"].wait() == -signal.SIGKILL
    assert writers["lives"].poll() is None
    writers["lives"].kill()
    writers["lives"].wait()
    assert [path.name for path in short.iterdir()] == [f"{PREFIX}lives"]
