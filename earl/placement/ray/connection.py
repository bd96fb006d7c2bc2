"""The connection of a run's driver to a Ray cluster, its own on loopback or one at an address, and its end."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._private import worker as ray_worker

from earl.errors import LONGEST_MESSAGE, EarlError
from earl.rehearsal.owner import session_folder

PROMPT = {"free_objects_batch_size": 1}
"""Ray frees unreferenced objects at once, not once a second: weights pass through its store (`weight_sync.py`)."""
PERIOD_SECONDS = 2.0  # interval of the check that Ray's own processes are alive


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Be a driver of the Ray cluster at `address`, or of a new one that ends with this process. Raises EarlError when
    Ray does not start, or does not accept this process."""
    # Ray prints failures of its processes on standard output, which is for results; the actor group reports them.
    ray_worker.print_to_stdstream = lambda *_, **__: None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    # Told that there are no other machines, Ray listens on loopback only. The flag's name comes from macOS.
    ray_constants.ENABLE_RAY_CLUSTER = address is not None
    ours = signal.getsignal(signal.SIGTERM)  # Ray's own handler would end this process in the middle of a step
    with ExitStack() as ended:
        if address is None:
            folder = ended.enter_context(session_folder("earl-ray-"))
            # As many slots as wanted: on one machine the user decides how many processes share the cores.
            slots = max(cpus, os.cpu_count() or 1)
            quiet |= {"include_dashboard": False, "_system_config": PROMPT, "_temp_dir": str(folder / "ray")}
            _join("Ray did not start on this machine", num_cpus=slots, **quiet)
        else:
            _join(f"Ray at {address} did not let this process in", address=address, **quiet)
        ended.callback(ray.shutdown)
        if address is None:
            over = threading.Event()
            ended.callback(over.set)
            threading.Thread(target=_end_with_node, args=(over,), daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
        yield


def _end_with_node(over: threading.Event) -> None:
    """End this process when its own Ray's raylet or GCS dies, which Ray would wait for forever; see stopping.py."""
    vital = {ray_constants.PROCESS_TYPE_RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER}
    while not over.wait(PERIOD_SECONDS):
        if dead := vital & {kind for kind, _ in ray_worker._global_node.dead_processes()}:
            print(f"error: Ray's {min(dead)} has died, and the run with it; continue with --resume", file=sys.stderr)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                over.wait(PERIOD_SECONDS)
            return


def _join(failure: str, **arguments: Any) -> None:
    try:
        ray.init(**arguments)
    except Exception as error:  # Ray raises many kinds, Exception itself among them
        reason = " ".join(str(error).split())[:LONGEST_MESSAGE]
        raise EarlError(f"{failure} ({reason}): free processors and memory there, then start again") from error
