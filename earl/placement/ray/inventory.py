"""The resources of this machine or of a Ray cluster, queried within seconds before a run.

Ray waits a minute and more for a cluster that does not answer, and then ends the process. So it is queried last, in a
child process, after the TCP port and the HTTP/2 handshake. This process must not import Ray for that: the import fixes
how it identifies itself to a cluster, before the placement has set it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from ipaddress import ip_address

import torch

from earl.errors import EarlError
from earl.parallel.hardware import ClusterSpec, Device, device_of
from earl.rehearsal.plan import attach, known

PATIENCE_SECONDS = 3.0  # for a port to answer
RAY_SECONDS = 30.0  # for a cluster to list its nodes
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "5"}  # seconds that Ray tries to connect, instead of 20
MIB = 1 << 20
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The start of an HTTP/2 connection: preface, and an empty settings frame."""
SETTINGS = 0x04
WHERE = "from ray._private.utils import read_ray_address; print(read_ray_address() or '')"
QUESTION = """
import json, ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", configure_logging=False)
print(json.dumps([node["Resources"] for node in ray.nodes() if node["Alive"]]))
"""


@dataclass(frozen=True, slots=True)
class Node:
    cpus: int
    gpus: int
    memory_bytes: int | None
    kind: str  # Ray's name of its GPUs; empty: none, or unknown


def installed(name: str) -> bool:
    """Whether a library is installed, without importing it."""
    return find_spec(name) is not None


def here(memory_bytes: int) -> ClusterSpec:
    count = torch.cuda.device_count()
    device = _device_here() if count else None
    return ClusterSpec("this machine", 1, os.cpu_count(), memory_bytes, count, count, device)


def on_this_machine(address: str) -> bool:
    """Whether a recipe alone may have an address queried: its own cluster, loopback, or a rehearsal here."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return address == "auto" or loopback or address in {cluster.address for cluster in known()}


def inventory(address: str) -> ClusterSpec:
    """The resources of the Ray cluster at `address`: HOST:PORT, or "auto" for the cluster that this machine belongs to.
    Raises EarlError when nothing answers there within seconds, or something that is not Ray."""
    environment = {**os.environ, **attach(address), **IMPATIENT}
    found = _own(environment) if address == "auto" else address
    _knock(found)
    return of_nodes(f"the Ray cluster at {found}", _nodes(found, environment))


def _own(environment: Mapping[str, str]) -> str:
    if named := environment.get("RAY_ADDRESS"):
        return named
    found = _run_python(WHERE, environment).stdout.strip()
    if not found:
        raise EarlError(
            "placement.address = 'auto', but this machine is part of no Ray cluster; start one with "
            "`ray start --head`, name HOST:PORT, or leave the address out"
        )
    return found


def _run_python(code: str, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-c", code, *arguments], {**environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=RAY_SECONDS, check=False, env=env)


def _knock(address: str) -> None:
    """Raises EarlError unless an HTTP/2 server, as Ray is one, answers at HOST:PORT."""
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
    try:
        said = _run_python(QUESTION, environment, address)
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
    """The sum over all nodes; where they differ, the least memory and the smallest kind of GPU count."""
    with_gpus = [node for node in nodes if node.gpus]
    memories = [node.memory_bytes for node in nodes if node.memory_bytes]
    return ClusterSpec(
        where,
        len(with_gpus or nodes),
        sum(node.cpus for node in nodes),
        min(memories, default=None),
        sum(node.gpus for node in nodes),
        max((node.gpus for node in nodes), default=0),
        _smallest([device_of(node.kind) for node in with_gpus]),
    )


def _smallest(kinds: Sequence[Device | None]) -> Device | None:
    """The kind of GPU with the least memory; None unless all are known."""
    known = [device for device in kinds if device]
    return min(known, key=lambda device: device.memory_bytes) if known and len(known) == len(kinds) else None


def _device_here() -> Device | None:
    """The smallest of this machine's GPUs by nvidia-smi, with the memory that CUDA reports. Neither allocates memory
    there."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line.rpartition(",") for line in said.stdout.splitlines() if "," in line]
    kind = _smallest([device_of(name, int(size) * MIB) for name, _, size in rows if size.strip().isdecimal()])
    found = [torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count())]
    return replace(kind, memory_bytes=min(found)) if kind and found else kind
