"""What actors begin with: their devices, their budget, the other processes that they compute together with."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import ray
import torch
from torch import distributed

from earl.algorithms.registry import algorithm
from earl.config import Config
from earl.dispatch.transports.base import Late, ProcessLost
from earl.dispatch.transports.rendezvous import Rendezvous, Sealed
from earl.engine.checkpoint_tensors import Stored, TensorSource
from earl.engine.learner import Learner
from earl.engine.model import Policy, make, outline
from earl.engine.sharding.mesh import Mesh, join
from earl.engine.sharding.shards import Shards
from earl.engine.sharding.tp_group import Band, Meeting
from earl.engine.source import folder_of
from earl.errors import OutOfMemory
from earl.parallel.layout import Layout
from earl.placement.ray.memory_budget import Budget, of_memory, thin_threads

# One process of a sharded learner: it joins the others, and builds its part.
#
# with joined_mesh(rank, layout, address, port) as mesh:
# learner = sharded_learner(config, mesh)
# …                                    # every process calls the same methods with the same arguments


def sharded_learner(
    config: Config, mesh: Mesh, model: Path | None = None, carried: TensorSource | None = None
) -> Learner:
    """This process's part of the learner of a recipe.

    Weights of an existing model are read slice by slice: no process ever holds all of them.

    Args:
        model: a Hugging Face folder to begin from instead of the recipe's model, such as a checkpoint.
        carried: all that the processes of another layout had, to go on from instead.

    Raises:
        EarlError: when there is no such model, or the layout does not fit it.
    """
    if mesh.device.type == "cpu":
        torch.set_num_threads(1)  # processes share the cores
    path = model or config.model.path
    described = config.model.model_copy(update={"path": path and str(path)})
    if carried is not None:
        policy, ranks = outline(described), Shards(mesh, carried)
    elif path is None:
        policy, ranks = make(config.model, config.run.seed), Shards(mesh)
    else:
        policy, ranks = outline(described), Shards(mesh, Stored(folder_of(path)))
    values = algorithm(config.algorithm.name).needs_values
    learner = Learner(policy, config.algorithm, config.learner, config.rollout.temperature, ranks, values)
    if carried is not None:
        learner.take_over(carried)
    return learner


# Addresses and interfaces: by which of its names a host is reached by the others.

SIOCGIFADDR = 0x8915
"""Linux's request for the address of an interface."""


def interface_of(host: str) -> str | None:
    """The interface that has an IPv4 address, which gloo and NCCL have to be told; None when there is none."""
    for _, name in socket.if_nameindex():
        if _address(name) == host:
            return name
    return None


def _address(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(packed[20:24])


WARM_BYTES = 1 << 23
"""Of an object that Ray copies by several threads."""
WARM_WIDTH = 256
"""Of a product for which libraries take their buffers."""


def show(devices: Sequence[str]) -> None:
    """Let this process compute on these GPUs; none: on those that Ray gave it."""
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)


def begun(config: Config, who: str = "") -> Budget:
    """The budget of a process that has begun: what Ray needs to copy large objects is there already, and the buffers
    that numpy and torch reserve for products."""
    if config.placement.memory_bytes is not None:
        thin_threads()
        ray.put(np.zeros(WARM_BYTES, np.uint8))
        square = np.ones((WARM_WIDTH, WARM_WIDTH), np.float32)
        torch.from_numpy(square @ square).mm(torch.from_numpy(square))
    return Budget(config.placement.memory_bytes, who)


def joined_band(config: Config, meeting: Meeting | None, store: Sealed | None) -> Band | None:
    """Join the other processes of a copy; None: there are none."""
    if meeting is None:
        return None
    torch.set_num_threads(1)  # processes share the cores
    _between_hosts()
    return Band(meeting, store, config.placement.stage_seconds)


def outline_of(config: Config, source: str | None) -> Policy:
    """The policy of a checkpoint, or the one that the recipe starts from, without weights: the learner gives them."""
    return outline(config.model.model_copy(update={"path": source}) if source else config.model)


def joined(config: Config, rank: int, place: Rendezvous, store: Sealed | None) -> Mesh:
    """Meet the other ranks; they stay joined until they leave, or the process ends."""
    _between_hosts()
    placement = config.placement
    device = "cuda:0" if torch.cuda.is_available() else "cpu"  # Ray shows a rank its own device alone
    layout = Layout(placement.dp, placement.tp, placement.cp)
    return join(rank, layout, place, store, device, placement.stage_seconds)


def _between_hosts() -> None:
    """Let gloo, and NCCL where nobody has said otherwise, listen at the address by which Ray knows this node."""
    interface = interface_of(ray.util.get_node_ip_address()) or "lo"
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # "=": this name, and not all that begin so


# What surrounds every call to an actor's work: its budget of memory, and one line for a process that is gone.

Method = TypeVar("Method", bound=Callable[..., Any])
OWN_FILES = Path("/proc/self/fd")
BROKEN = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Timed out waiting")
"""What a collective says when another process is gone; torch has no class of errors for it."""


class Alive:
    """What every actor answers."""

    _budget: Budget | None = None
    _lines: "Lines | None" = None
    """To those that it computes together with."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def ping(self) -> None:
        """A sign of life, given beside whatever the actor computes."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def whereabouts(self) -> tuple[int, str]:
        """Process id and node id."""
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def peaks(self) -> dict[str, int]:
        """See `Budget.peaks`."""
        return self._budget.peaks() if self._budget else {}

    def sever(self) -> None:
        """Let those that it computes together with know that it does not come to their next exchange."""
        if torch.cuda.is_available() and distributed.is_initialized():
            distributed.distributed_c10d._abort_process_group()
        elif self._lines:
            self._lines.cut()


def bounded(stage: str) -> Callable[[Method], Method]:
    """Have a method keep to the actor's budget."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def called(self: Alive, *arguments: Any) -> Any:
            assert self._budget is not None, "it was set up"
            with self._budget.stage(stage):
                return _severing(self, method, arguments)

        return cast(Method, called)

    return decorate


def _severing(self: Alive, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a method; where there is no memory, others hear of it before anything else is tried."""
    try:
        return method(self, *arguments)
    except (MemoryError, RuntimeError) as error:
        if of_memory(error):
            self.sever()
        raise


def losing_others(method: Method) -> Method:
    """Say in one line that it was another process that failed."""

    @wraps(method)
    def called(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except OutOfMemory:
            raise
        except (Late, ProcessLost) as error:
            raise ConnectionError(str(error)) from None
        except RuntimeError as error:
            if any(word in str(error) for word in BROKEN):
                raise ConnectionError("another rank is gone") from None
            raise

    return cast(Method, called)


def together(stage: str) -> Callable[[Method], Method]:
    """A call of all actors of a copy: the first one does it, the others compute with it until it is done."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def called(self: Any, *arguments: Any) -> Any:
            work = partial(_severing, self, method, arguments)
            with self._budget.stage(stage):
                return self._split.together(work) if self._split else work()

        return losing_others(cast(Method, called))

    return decorate


class Lines:
    """The connections that are opened within a context: gloo has no way to let the others know, but to close them."""

    def __enter__(self) -> "Lines":
        self._known = _sockets()
        return self

    def __exit__(self, *_: object) -> None:
        self._own = {number: name for number, name in _sockets().items() if self._known.get(number) != name}

    def cut(self) -> None:
        """Shut those down that are still the same: whoever waits at the other end hears of it at once."""
        for number, name in _sockets().items():
            if self._own.get(number) == name:
                _shut(number, name)


def _shut(number: int, name: str) -> None:
    """Shut a socket down, unless it was closed meanwhile: gloo's threads go on closing theirs."""
    try:
        copy = os.dup(number)
    except OSError:
        return
    if str((OWN_FILES / str(copy)).readlink()) != name:
        os.close(copy)
        return
    with socket.socket(fileno=copy) as line:
        if _has_peer(line):
            with suppress(OSError):  # the other end has left in this very moment
                line.shutdown(socket.SHUT_RDWR)


def _has_peer(line: socket.socket) -> bool:
    """Whether it is connected: who listens must not be disturbed, gloo would end the process."""
    try:
        line.getpeername()
    except OSError:
        return False
    return True


def _sockets() -> dict[int, str]:
    """This process's sockets: number and name, which no later one has."""
    found = {}
    for line in OWN_FILES.iterdir():
        try:
            name = str(line.readlink())
        except OSError:
            continue  # it was closed meanwhile
        if name.startswith("socket:"):
            found[int(line.name)] = name
    return found
