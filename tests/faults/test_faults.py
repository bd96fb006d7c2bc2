"""A sample of `make faults` and `make kills`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs seccomp")]


def campaign(*arguments):
    """Try them in a process of its own, which has no threads before it forks."""
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_fault_of_a_disk_makes_a_silent_difference_and_one_under_weights_is_told_in_a_sentence(tmp_path):
    log = tmp_path / "cases.txt"
    said = campaign("tests.faults.injected", "--sample", 6, "--weights", 3, "--log", log)
    assert "9 of 9 cases" in said
    cases = [line.split("\t") for line in log.read_text().splitlines()]
    told = {outcome for outcome, mode, where, *_ in cases if mode == "eio" and ".safetensors" in where}
    assert "clear error, then the same" in told


def test_runs_killed_at_random_moments_end_as_if_nothing_had_happened():
    others = [part for kind in ("command", "two", "colocated", "disaggregated") for part in (f"--{kind}", 0)]
    said = campaign("tests.faults.kills", "--forked", 5, *others)  # of two processes: tests/train/test_kill.py
    assert "forked: 5 kills" in said
