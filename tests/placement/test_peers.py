"""Processes that share a run, really started: what they exchange, and what is left when one ends."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from earl.placement.peers import Peers, WorkerLost, start_peers

ROOT = Path(__file__).parents[2]


@pytest.fixture
def child(tmp_path):
    """Writes a program for the other processes; `body` sees `peers`. Returns the command that runs it."""

    def write(body, before=""):
        program = f"""
import os, sys, time, torch
from pathlib import Path
from earl.placement.peers import end_with_parent, join_peers
rank, size, rendezvous = sys.argv[1:]
end_with_parent()
{before}
with join_peers(int(rank), int(size), Path(rendezvous)) as peers:
{textwrap.indent(textwrap.dedent(body), "    ")}
"""
        (tmp_path / "child.py").write_text(program)
        return [str(tmp_path / "child.py")]

    return write


def test_alone_every_exchange_is_the_identity():
    peers = Peers()
    assert peers.gather(b"mine") == [b"mine"]
    assert peers.add(torch.tensor([2.0])).tolist() == [2.0]
    assert peers.agree(True)
    assert not peers.agree(False)


def test_one_process_starts_no_other(tmp_path):
    with start_peers(1, tmp_path / "meet", ["no such program"]) as peers:
        assert (peers.rank, peers.size) == (0, 1)
    assert not (tmp_path / "meet").exists()


@pytest.mark.slow
def test_three_processes_add_gather_and_agree(child, tmp_path):
    command = child("""
        peers.add(torch.tensor([1.0, 10.0]) * (peers.rank + 1))
        peers.gather(b"x" * peers.rank * 1000)
        peers.gather(b"")
        peers.agree(peers.rank == 2)
        peers.agree(False)
    """)
    with start_peers(3, tmp_path / "meet", command) as peers:
        assert (peers.rank, peers.size) == (0, 3)
        # 1 + 2 + 3 = 6.
        assert peers.add(torch.tensor([1.0, 10.0])).tolist() == [6.0, 60.0]
        assert peers.gather(b"first") == [b"first", b"x" * 1000, b"x" * 2000]
        assert peers.gather(b"") == [b"", b"", b""]
        assert peers.agree(False)
        assert not peers.agree(False)
    assert not (tmp_path / "meet").exists()


@pytest.mark.slow
def test_an_ended_process_is_noticed_at_once(child, tmp_path):
    command = child("os._exit(3)")
    began = time.monotonic()
    with pytest.raises(WorkerLost, match="continue with --resume"), start_peers(2, tmp_path / "meet", command) as peers:
        while time.monotonic() < began + 120:
            peers.agree(False)
    assert not (tmp_path / "meet").exists()


@pytest.mark.slow
def test_a_process_that_ends_before_it_joins_is_not_waited_for(child, tmp_path):
    command = child("pass", before="sys.exit('no luck today')")
    with pytest.raises(WorkerLost, match="before it had joined"), start_peers(2, tmp_path / "meet", command):
        raise AssertionError("nobody joined")


@pytest.mark.slow
def test_the_others_end_when_the_first_fails(child, tmp_path):
    command = child(f"""
        Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
        peers.agree(False)
        time.sleep(600)
    """)
    with pytest.raises(ValueError, match="mine"), start_peers(2, tmp_path / "meet", command) as peers:
        peers.agree(False)
        raise ValueError("mine")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.slow
def test_the_others_end_when_the_first_is_killed(child, tmp_path):
    command = child(f"""
        Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
        peers.agree(False)
        time.sleep(600)
    """)
    program = f"""
import os, signal
from pathlib import Path
from earl.placement.peers import start_peers
with start_peers(2, Path({str(tmp_path / "meet")!r}), {command!r}) as peers:
    peers.agree(False)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert ran.returncode == -9
    orphan = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and runs(orphan):
        time.sleep(0.05)
    assert not runs(orphan)


def runs(process):
    """Whether a process exists and is not merely waiting to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_what_the_others_print_does_not_mix_with_results(child, tmp_path):
    command = child("print('noise', flush=True)\npeers.agree(False)")
    program = f"""
from pathlib import Path
from earl.placement.peers import start_peers
with start_peers(2, Path({str(tmp_path / "meet")!r}), {command!r}) as peers:
    peers.agree(False)
print("result")
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout == "result\n"
    assert "noise" in ran.stderr
