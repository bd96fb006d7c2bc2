"""A real Ray cluster asked what it has, and a run that begins in this process and goes on over Ray."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.placement.ray.inventory import installed
from earl.recipe import build, load_toml
from earl.runs.folder import RunFolder
from earl.runs.store import Store
from earl.runs.summary import summarize

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")]

APART = ["--placement", "disaggregated"]


@pytest.fixture
def head() -> Iterator[str]:
    """The address of a Ray cluster of one node with two processors, of this test alone."""
    # Only of that node: Ray reads its mode once in a process, and this process starts a cluster of its own below.
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    folder = tempfile.mkdtemp(dir="/tmp")  # the path of a Unix socket ends at 107 bytes
    program = Path(sys.executable).with_name("ray")
    command = [program, "start", "--head", "--block", "--num-cpus=2", f"--port={port}", f"--temp-dir={folder}"]
    command += ["--include-dashboard=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            if "--block" in line:
                break
        yield f"127.0.0.1:{port}"
        process.terminate()
        process.communicate(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


def test_what_a_cluster_has_is_asked_before_a_run(earl, tiny: Path, head: str, tmp_path: Path) -> None:
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--address", head, *APART]
    said = earl(*line, "--set", "placement.dp=2")
    assert said.code == 2
    assert f"= 3 CPUs, the Ray cluster at {head} has 2 CPUs and no GPU; lower placement.dp" in said.err
    said = earl(*line, "--gpus", "8xH100")
    assert said.code == 2
    assert f"placement.gpus asks for 1 x 8 = 8 GPUs, the Ray cluster at {head} has 2 CPUs and no GPU" in said.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.exhaustive
def test_a_run_goes_on_over_ray(earl, start, tiny: Path, tmp_path: Path) -> None:
    line = [
        "train",
        "tictactoe",
        "--config",
        tiny,
        "--runs",
        tmp_path,
        "--name",
        "moves",
        "--steps",
        8,
        "--set",
        "evaluate.every=4",
        "--set",
        "env.delay_seconds=0.05",
    ]
    with start(*line, start_new_session=True) as process:
        for said in process.stderr:
            if "step 4/9" in said:
                os.killpg(process.pid, signal.SIGINT)
                break
        process.communicate()
    assert process.returncode == 130
    run = RunFolder(tmp_path / "moves")
    before = summarize(run).step
    assert before < 9
    said = earl(
        "train", "--resume", "moves", "--runs", tmp_path, "--placement", "disaggregated", "--set", "placement.dp=2"
    )
    assert said.code == 0, said.err
    config = build(load_toml(run.config))
    assert (config.placement.kind, config.placement.dp, config.run.steps) == ("disaggregated", 2, 8)
    assert (summarize(run).state, summarize(run).step) == ("finished", 9)
    with Store(run.database, read_only=True) as store:
        told = [(event.step, event.message) for event in store.events() if event.kind == "moved"]
    assert told == [(before, "continued with placement.kind = 'disaggregated', placement.dp = 2")]
