"""A Ray of this process alone: its session is private, and nothing of it outlives the process, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from earl.placement.ray.inventory import installed
from tests.sampling import sampled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed("ray"), reason="Ray is not installed"),
]

COLD = Path(sys.prefix, "bin", "python")
"""Not a fork of the tests' own, so that what is killed is the driver."""

DRIVER = """
import sys, time
from earl.placement.backend import _in_environment, _ray_environment
with _in_environment(_ray_environment(None)):
    from earl.placement.ray.coordinator import connect_ray
    with connect_ray(None, 2):
        import ray

        @ray.remote
        class Works:
            def address(self):
                return ray.util.get_node_ip_address()

        session = ray._private.worker._global_node.get_session_dir_path()
        print(ray.get(Works.remote().address.remote()), session, flush=True)
        time.sleep(600)
"""


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("number", sampled([signal.SIGKILL, signal.SIGINT], every=2))
def test_nothing_of_a_local_ray_outlives_its_driver(number: signal.Signals, processes_of) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)  # the server of forks is no process of the driver's
    before = {*Path("/dev/shm").iterdir()}
    with subprocess.Popen([COLD, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as process:
        address, session = process.stdout.readline().split()
        members = processes_of(process.pid)
        folder = Path(*Path(session).parts[:3])
        assert address == "127.0.0.1"
        assert len(members) >= 6  # the driver, Ray's head, a node, its two agents, an actor
        assert (folder.parent, folder.stat().st_mode & 0o777) == (
            Path("/tmp"),
            0o700,
        )  # others do not get to Ray's files
        os.kill(process.pid, number)
    end = time.monotonic() + 120
    while folder.exists() or not all(map(ended, members)):
        assert time.monotonic() < end, [member for member in members if not ended(member)]
        time.sleep(0.2)
    left = {path.name for path in {*Path("/dev/shm").iterdir()} - before}
    assert not [name for name in left if name.startswith("plasma")]


UNABLE = """
import resource
from earl.errors import EarlError
from earl.placement.backend import _in_environment, _ray_environment
with _in_environment(_ray_environment(None)):
    from earl.placement.ray.coordinator import connect_ray
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))  # too few for Ray's head: it ends while it starts
    try:
        with connect_ray(None, 2):
            pass
    except EarlError as error:
        print(error)
"""


@pytest.mark.exhaustive
def test_a_ray_that_does_not_start_is_an_error_with_a_cure() -> None:
    environment = {**os.environ, "RAY_gcs_server_port_wait_time_s": "3"}  # Ray gives up after 30 seconds
    command = [sys.executable, "-c", UNABLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    told = done.stdout.strip()
    assert told.startswith("Ray did not start on this machine (") and len(told.splitlines()) == 1
    assert told.endswith("free processors and memory there, then start again")


WAITING = """
from earl.placement.backend import _in_environment, _ray_environment
from earl.stopping import stopping_on_signals
with stopping_on_signals(None), _in_environment(_ray_environment(None)):
    from earl.placement.ray.coordinator import connect_ray
    with connect_ray(None, 2):
        import ray
        [node] = [p.process.pid for p in ray._private.worker._global_node.all_processes["raylet"]]

        @ray.remote
        def never():
            import time
            time.sleep(600)

        waited = never.remote()
        print(node, flush=True)
        ray.wait([waited], timeout=600)
"""


@pytest.mark.exhaustive
def test_a_run_ends_when_its_rays_own_node_dies() -> None:
    environment = {**os.environ, "EARL_GRACE_SECONDS": "3"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, "-c", WAITING], **pipes) as process:
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        said = process.communicate(timeout=300)[1]
    assert process.returncode not in (0, None)
    assert "error: Ray's raylet has died, and the run with it; continue with --resume" in said
