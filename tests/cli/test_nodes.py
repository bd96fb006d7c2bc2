"""Two nodes of a Ray cluster, of which the second lacks what a run's environment needs."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from earl.placement.ray.inventory import installed
from tests.sampling import sampled

pytestmark = [pytest.mark.cold, pytest.mark.slow, pytest.mark.skipif(not installed("ray"), reason="no Ray")]
ROOT = Path(__file__).parents[2]
SHORT = [
    *("--steps", "1", "--set", "rollout.episodes=4", "--set", "rollout.group_size=2", "--set", "warm_start.steps=0"),
    *("--set", "evaluate.episodes=2", "--set", "evaluate.final_episodes=2", "--set", "agent.max_turns=2"),
]
APART = ["--placement", "disaggregated", "--set", "placement.samplers=2"]
PACKAGE = {
    "gast.dist-info/METADATA": "Metadata-Version: 2.1\nName: gast\nVersion: 1\n",
    "gast.dist-info/entry_points.txt": "[earl.environments]\nraten = gast:Raten\n",
    "gast.py": """
class Raten:
    def reset(self, seed=None):
        return "?"
    def step(self, action):
        return ".", float(action == "7"), True, False, {}
    def random_action(self, rng):
        return str(rng.randint(0, 9))
""",
}


@contextmanager
def node(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run `ray start … --block` until the context ends; entered when it says that it is up."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as ray:
        assert ray.stdout is not None
        said = ""
        for line in ray.stdout:
            said += line
            if "--block" in line:
                break
        assert ray.poll() is None, said
        reader = threading.Thread(target=ray.stdout.read, daemon=True)
        reader.start()
        yield
        ray.terminate()
        ray.wait(60)
        reader.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster of two nodes, and the variables of a process that sees the package as the first of them
    does; to the second its folder is empty. A learner and two samplers fill the processors, one and two."""
    hidden, user = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("user")
    for name, text in PACKAGE.items():
        (hidden / name).parent.mkdir(parents=True, exist_ok=True)
        (hidden / name).write_text(text)
    mount = f"mount -t tmpfs none {shlex.quote(str(hidden))}"
    if subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("a folder is hidden from a node by mount namespaces, which are refused here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path = os.pathsep.join((str(ROOT), str(hidden)))
    own = {**os.environ, "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    folder = tempfile.mkdtemp(dir="/tmp")  # the path of a Unix socket ends at 107 bytes
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--object-store-memory=100000000"]
    first = [*ray, "--num-cpus=1", "--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
    second = f"{mount} && cd / && exec {shlex.join([*ray, '--num-cpus=2', f'--address=127.0.0.1:{port}'])}"
    with ExitStack() as nodes:
        nodes.enter_context(node(first, own))
        nodes.enter_context(node(["unshare", "--mount", "sh", "-c", second], own))
        yield f"127.0.0.1:{port}", {**own, "XDG_CONFIG_HOME": str(user)}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("env", sampled(["raten", "gast:Raten"], every=2))
def test_what_a_node_lacks_is_said_before_the_run_begins(
    start: Callable, cluster: tuple[str, dict[str, str]], tmp_path: Path, env: str
) -> None:
    address, own = cluster
    line = ["train", env, "--runs", tmp_path / "runs", *SHORT, *APART, "--address", address]
    with start(*line, env=own) as process:
        _, err = process.communicate()
    assert process.returncode == 2, err
    [said] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert said.startswith("error: the node ")
    assert repr(env) in said
    assert "; install it there as here" in said
    assert not [*(tmp_path / "runs").iterdir()]
