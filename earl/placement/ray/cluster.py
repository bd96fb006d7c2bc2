"""What there is to run on: this machine, or a Ray cluster. Asked before a run begins, and answered within seconds.

Ray itself waits a minute and more for a cluster that does not answer and then ends the process, so it is asked last, in
a process of its own: name ─▶ TCP port ─▶ whether HTTP/2 is spoken there, as Ray does ─▶ the nodes. This process must
not import Ray here: that would fix how it shows itself to a cluster before the placement has said it.
"""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any

import ray
import torch
from ray._private import ray_constants
from ray._private import worker as ray_worker

from earl.errors import LONGEST_MESSAGE, EarlError
from earl.parallel.hardware import ClusterSpec, Device, device_of
from earl.rehearsal.owner import session_folder
from earl.rehearsal.state import attach, known

PATIENCE_SECONDS = 3.0
"""For a port to answer."""
RAY_SECONDS = 30.0
"""For a cluster that answers to say what it has."""
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "5"}
"""Seconds that Ray tries to be let in, instead of 20."""
MIB = 1 << 20
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""With which an HTTP/2 connection begins: the preface, and settings without a single one."""
SETTINGS = 0x04
WHERE = "from ray._private.utils import read_ray_address; print(read_ray_address() or '')"
QUESTION = """
import json, ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", configure_logging=False)
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


@dataclass(frozen=True, slots=True)
class Node:
    """What one machine of a Ray cluster offers."""

    cpus: int
    gpus: int
    memory_bytes: int | None
    kind: str
    """Of its GPUs, as Ray calls it; empty: none, or not known."""


def installed(name: str) -> bool:
    """Whether a library can be imported, without importing it."""
    return find_spec(name) is not None


def here(memory_bytes: int) -> ClusterSpec:
    """This machine.

    Args:
        memory_bytes: its main memory.
    """
    count = torch.cuda.device_count()
    device = _device_here() if count else None
    return ClusterSpec("this machine", 1, os.cpu_count(), memory_bytes, count, count, device)


def on_this_machine(address: str) -> bool:
    """Whether a recipe alone may have an address asked: its own cluster, loopback, or a rehearsal that is up here."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return address == "auto" or loopback or address in {cluster.address for cluster in known()}


def inventory(address: str) -> ClusterSpec:
    """What the Ray cluster at `address` has.

    Args:
        address: HOST:PORT, or "auto" for the cluster that this machine is part of.

    Raises:
        EarlError: when nothing answers there within seconds, or something that is not Ray.
    """
    environment = {**os.environ, **attach(address), **IMPATIENT}
    found = _own(environment) if address == "auto" else address
    _knock(found)
    return of_nodes(f"the Ray cluster at {found}", _nodes(found, environment))


def _own(environment: Mapping[str, str]) -> str:
    """Where the cluster that this machine is part of answers."""
    if named := environment.get("RAY_ADDRESS"):
        return named
    said = subprocess.run(
        [sys.executable, "-c", WHERE], capture_output=True, text=True, check=False, env={**environment}
    )
    found = said.stdout.strip()
    if not found:
        raise EarlError(
            "placement.address = 'auto', but this machine is part of no Ray cluster; start one with "
            "`ray start --head`, name HOST:PORT, or leave the address out"
        )
    return found


def _knock(address: str) -> None:
    """Raises EarlError unless something answers at HOST:PORT as Ray does."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise EarlError(f"placement.address = {address!r} is not HOST:PORT; give one such as 10.0.0.1:6379, or auto")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            connection.sendall(GREETING)
            answer = connection.recv(9)
    except OSError as error:
        reason = error.strerror or f"no answer within {PATIENCE_SECONDS:.0f} s"
        raise EarlError(
            f"placement.address = {address!r}: no Ray cluster answers there ({reason}); check host and port "
            "(6379 unless `ray start --port` said otherwise), and that `ray start --head` runs on that host"
        ) from error
    if len(answer) < 4 or answer[3] != SETTINGS:
        raise EarlError(
            f"placement.address = {address!r}: what answers there is not Ray; name the port of `ray start --head`, "
            "which is 6379 unless --port said otherwise"
        )


def _nodes(address: str, environment: Mapping[str, str]) -> list[Node]:
    command = [sys.executable, "-c", QUESTION, address]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=RAY_SECONDS, check=False, env={**environment}
        )
    except subprocess.TimeoutExpired as error:
        raise EarlError(
            f"placement.address = {address!r}: the cluster does not say what it has within {RAY_SECONDS:.0f} s; "
            "see `ray status` on its head"
        ) from error
    if "InvalidAuthToken" in said.stderr:
        raise EarlError(
            f"placement.address = {address!r}: the cluster asks for its token; set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what its head was started with"
        )
    if said.returncode != 0:
        lines = [line for line in said.stderr.splitlines() if line.strip()]
        raise EarlError(
            f"placement.address = {address!r}: Ray cannot be joined ({lines[-1] if lines else 'no reason given'}); "
            "start earl on a machine that is part of the cluster, with the same Ray"
        )
    return [_node(resources) for resources in json.loads(said.stdout.splitlines()[-1])]


def _node(resources: dict[str, float]) -> Node:
    kind = next((name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")), "")
    memory = int(resources.get("memory", 0) + resources.get("object_store_memory", 0))
    return Node(int(resources.get("CPU", 0)), int(resources.get("GPU", 0)), memory or None, kind)


def of_nodes(where: str, nodes: list[Node]) -> ClusterSpec:
    """The sum of all nodes; where they differ, the least memory and the smallest kind of GPU count."""
    with_gpus = [node for node in nodes if node.gpus]
    kinds = [device_of(node.kind) for node in with_gpus]
    known = [device for device in kinds if device is not None]
    memories = [node.memory_bytes for node in nodes if node.memory_bytes]
    return ClusterSpec(
        where,
        len(with_gpus or nodes),
        sum(node.cpus for node in nodes),
        min(memories, default=None),
        sum(node.gpus for node in nodes),
        max((node.gpus for node in nodes), default=0),
        min(known, key=lambda device: device.memory_bytes) if len(known) == len(kinds) and known else None,
    )


def _device_here() -> Device | None:
    """The smallest of this machine's GPUs, as their driver calls them; asked so, no memory of theirs is taken."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.rpartition(",") for line in said.stdout.splitlines() if "," in line]
    kinds = [device_of(name, int(size) * MIB) for name, _, size in rows if size.strip().isdecimal()]
    known = [device for device in kinds if device is not None]
    return min(known, key=lambda device: device.memory_bytes) if len(known) == len(kinds) and known else None


# Being the driver of a Ray cluster, whoever's it is.

PROMPT = {"free_objects_batch_size": 1}
"""Ray deletes what nobody refers to at once, instead of once a second: weights pass through its store (stock.py)."""
PERIOD_SECONDS = 2.0
"""After which it is looked again whether Ray's own processes live."""


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Be a driver of the Ray cluster at `address`, or of one of this process alone that ends with it.

    Raises:
        EarlError: when Ray does not start, or does not let this process in.
    """
    # Ray prints what befalls its processes on standard output, which is for results; the crew says it in one line.
    ray_worker.print_to_stdstream = lambda *_, **__: None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    # Where Ray is told that there are no other machines, all of it listens on loopback. Its name for it is of macOS.
    ray_constants.ENABLE_RAY_CLUSTER = address is not None
    ours = signal.getsignal(signal.SIGTERM)  # Ray's own handler would end this process in the middle of a step
    with ExitStack() as ended:
        if address is None:
            folder = ended.enter_context(session_folder("earl-ray-"))
            # As many slots as are asked for: on one machine its owner says how many processes share the cores.
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
    """End this process when its own Ray's node or head dies, for which Ray waits without end; see stopping.py."""
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
    except Exception as error:  # Ray's own are of many kinds, among them Exception itself
        reason = " ".join(str(error).split())[:LONGEST_MESSAGE]
        raise EarlError(f"{failure} ({reason}): free processors and memory there, then start again") from error
