"""`earl cluster` where it cannot work: what is missing and what mends it, with exit code 2, and nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--rate", "fast"], "'fast' is no rate; write a whole number and kbit, mbit or gbit, such as 500mbit"),
        (["--name", "My cluster"], "a cluster cannot be called 'My cluster'"),
        (["--hosts", "0"], "0 is not in the range 1<=x<=64"),
        (["--cpus", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_built(earl, home: Path, options: list[str], word: str) -> None:
    said = earl("cluster", "up", *options)
    assert (said.code, said.out) == (2, "")
    assert word in said.err
    assert not (home / "state").exists()


@pytest.mark.parametrize(
    "command", [["status"], ["down"], ["fail", "--host", 1, "--how", "kill"], ["heal", "--host", 1]]
)
def test_no_cluster_is_up(earl, command: list[object]) -> None:
    said = earl("cluster", *command, "--name", "ghost")
    assert (said.code, said.out) == (2, "")
    assert said.err == "error: no cluster 'ghost' is up; start it with: earl cluster up --name ghost\n"


def test_programs_that_are_missing_are_named(earl, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    said = earl("cluster", "up")
    assert said.code == 2
    assert "not installed: ip, tc, unshare, nsenter, umount, sysctl" in said.err
    assert "apt-get install iproute2 mount procps util-linux" in said.err


def test_a_user_without_the_privileges_is_told_so(home: Path) -> None:
    drop = ["setpriv", "--bounding-set=-net_admin,-sys_admin"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-m", "earl.cli.main", "cluster", "up"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "not permitted: network namespaces need CAP_NET_ADMIN and CAP_SYS_ADMIN; run it as root" in line
    assert not (home / "state").exists()
