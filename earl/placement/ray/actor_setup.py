"""Set-up and wrappers of actors: devices, memory budget, connections, and the decorators of their methods."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import ray
import torch
from torch import distributed

from earl.config import Config, ModelConfig
from earl.dispatch.transports.rendezvous import Rendezvous, Sealed, open_store
from earl.engine.checkpoint_tensors import Stored, TensorSource
from earl.engine.learner import Learner, make_learner
from earl.engine.local import Meeting, SplitSampler, TpGroup
from earl.engine.model import make, meta_policy
from earl.engine.sharding.mesh import Mesh, join
from earl.engine.sharding.shards import Shards
from earl.engine.source import folder_of
from earl.parallel.layout import learner_layout
from earl.placement.ray.memory_budget import Budget, of_memory, thin_threads

# Each process calls `join`, then `sharded_learner`, then the same learner methods with the same arguments.


def sharded_learner(
    config: Config, mesh: Mesh, model: str | Path | None = None, carried: TensorSource | None = None
) -> Learner:
    """This process's part of the learner of a recipe. Existing weights are read slice by slice: no process ever holds
    all of them. model: a Hugging Face folder to start from instead of the recipe's model; carried: the state of all
    processes of another layout. Raises EarlError when there is no such model, or the layout does not fit it."""
    if mesh.device.type == "cpu":
        torch.set_num_threads(1)  # processes share the cores
    described = model_of(config, model)
    if carried is not None:
        policy, ranks = meta_policy(described), Shards(mesh, carried)
    elif described.path is None:
        policy, ranks = make(config.model, config.run.seed), Shards(mesh)
    else:
        policy, ranks = meta_policy(described), Shards(mesh, Stored(folder_of(described.path)))
    learner = make_learner(config, policy, ranks)
    if carried is not None:
        learner.state.take(carried)
    return learner


# Addresses and interfaces: by which of its names a host is reached by the others.

SIOCGIFADDR = 0x8915
"""Linux's request for the address of an interface."""


def interface_of(host: str) -> str:
    """The interface with an IPv4 address, which gloo and NCCL need; the loopback when there is none."""
    for _, name in socket.if_nameindex():
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            packed = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            if socket.inet_ntoa(packed[20:24]) == host:
                return name
    return "lo"


WARM_BYTES = 1 << 23  # of an object that Ray copies by several threads
WARM_WIDTH = 256  # of a matrix product for which libraries allocate their buffers


def new_budget(config: Config, who: str = "") -> Budget:
    """The budget of a new process. Ray's copy threads, the product buffers of numpy and torch, and the compiled loops
    of the sampler are created first, so that they do not count."""
    if config.placement.memory_bytes is not None:
        import earl.engine.kernels  # noqa: F401

        thin_threads()
        ray.put(np.zeros(WARM_BYTES, np.uint8))
        square = np.ones((WARM_WIDTH, WARM_WIDTH), np.float32)
        torch.from_numpy(square @ square).mm(torch.from_numpy(square))
    return Budget(config.placement.memory_bytes, who)


def join_tp_group(config: Config, meeting: Meeting, store: Sealed | None) -> TpGroup:
    torch.set_num_threads(1)  # processes share the cores
    _between_hosts()
    return TpGroup(meeting, store, config.placement.stage_seconds)


def model_of(config: Config, source: str | Path | None) -> ModelConfig:
    """The recipe's model, or the one at `source`."""
    return config.model.model_copy(update={"path": str(source)}) if source else config.model


def join_mesh(config: Config, rank: int, place: Rendezvous, store: Sealed | None) -> Mesh:
    _between_hosts()
    placement = config.placement
    device = "cuda:0" if torch.cuda.is_available() else "cpu"  # Ray shows a rank only its own device
    return join(rank, learner_layout(placement), place, store, device, placement.stage_seconds)


def _between_hosts() -> None:
    """Make gloo, and NCCL unless configured, listen at the address by which Ray knows this node."""
    interface = interface_of(ray.util.get_node_ip_address())
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": exactly this name, not a prefix


Method = TypeVar("Method", bound=Callable[..., Any])
OWN_FILES = Path("/proc/self/fd")
BROKEN = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Timed out waiting")
"""Texts of a collective's errors when another process is gone; torch has no error class for it."""


class Actor:
    """The base of all actors: heartbeats, and what they need to compute with other processes."""

    _budget: Budget | None = None
    _connections: "Connections | None" = None  # connections to the processes that it computes with
    _meets: Sealed | None = None  # their rendezvous store, on the first one
    _split: SplitSampler | None = None
    """Its part of the sampler, where a copy is split over several actors."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def ping(self) -> None:
        """Heartbeat, answered while the actor computes."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def whereabouts(self) -> tuple[int, str, list[str]]:
        """Process, node, and the GPUs that Ray assigned, as CUDA names them."""
        return os.getpid(), ray.get_runtime_context().get_node_id(), [str(number) for number in ray.get_gpu_ids()]

    def address(self) -> Rendezvous:
        """Open the rendezvous of the processes it computes with: this node's address, a free port, and a secret."""
        self._meets = open_store(Rendezvous(ray.util.get_node_ip_address()))
        return self._meets.place

    def peaks(self) -> dict[str, int]:
        return self._budget.peaks() if self._budget else {}

    def sever(self) -> None:
        """Break the connections to the processes it computes with: it does not take part in their next exchange."""
        if torch.cuda.is_available() and distributed.is_initialized():
            distributed.distributed_c10d._abort_process_group()
        elif self._connections:
            self._connections.cut()


def lost_peers(method: Method) -> Method:
    """Turn errors that another process caused into a one-line ConnectionError."""

    @wraps(method)
    def called(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except RuntimeError as error:
            if any(word in str(error) for word in BROKEN):
                raise ConnectionError("another rank is gone") from None
            raise

    return cast(Method, called)


def stage(name: str, alone: bool = False) -> Callable[[Method], Method]:
    """Run a method within the actor's memory budget. Where a sampler copy is split, all its actors are called: the
    first runs the method, the others follow until it is done; alone: each runs its own."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def called(self: Actor, *arguments: Any) -> Any:
            def work() -> Any:
                try:
                    return method(self, *arguments)
                except (MemoryError, RuntimeError) as error:
                    if of_memory(error):  # the connections to others are broken before anything else
                        self.sever()
                    raise

            assert self._budget is not None, "it was set up"
            with self._budget.stage(name):
                return self._split.together(work) if self._split and not alone else work()

        return lost_peers(cast(Method, called))

    return decorate


class Connections:
    """The connections that are opened within a context: gloo cannot notify other processes except by closing them."""

    def __enter__(self) -> "Connections":
        self._known = _sockets()
        return self

    def __exit__(self, *_: object) -> None:
        self._own = {number: name for number, name in _sockets().items() if self._known.get(number) != name}

    def cut(self) -> None:
        """Shut down the connections that still exist: a process that waits at the other end notices at once. gloo's
        threads may close theirs at any time."""
        now = _sockets()
        for number in (number for number, name in self._own.items() if now.get(number) == name):
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as line:
                if str((OWN_FILES / str(line.fileno())).readlink()) == self._own[number]:
                    line.getpeername()  # fails if it listens: shutting it down would make gloo end the process
                    line.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, str]:
    """This process's sockets by descriptor; names are never reused."""
    found = {}
    for line in OWN_FILES.iterdir():
        with suppress(OSError):  # closed meanwhile
            if (name := str(line.readlink())).startswith("socket:"):
                found[int(line.name)] = name
    return found
