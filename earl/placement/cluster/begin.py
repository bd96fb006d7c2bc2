"""What actors begin with: their devices, their budget, the other processes that they compute together with."""

import os
from collections.abc import Sequence

import numpy as np
import ray
import torch

from earl.config import Config
from earl.dispatch.transports.rendezvous import Rendezvous, Sealed
from earl.engine.model import Policy, outline
from earl.engine.rank import join
from earl.engine.sharding.band import Band, Meeting
from earl.engine.sharding.mesh import Mesh
from earl.parallel.layout import Layout
from earl.placement.cluster.budget import Budget, thin_threads
from earl.placement.cluster.network import interface_of

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
