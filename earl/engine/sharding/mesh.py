"""The grid of processes that share a learner: data parallel × context parallel × tensor parallel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from earl.dispatch.transports.rendezvous import TIMEOUT_SECONDS, Rendezvous, Sealed, backend_for, join_store, open_store
from earl.errors import EarlError
from earl.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Mesh:
    """A process's place in the grid. Rank = (dp_rank · cp + cp_rank) · tp + tp_rank."""

    layout: Layout
    rank: int
    device: torch.device
    grid: DeviceMesh  # with the axes dp, cp and tp
    shards: DeviceMesh
    """The processes that FSDP2 shards the same tensor-parallel part over; with replicas, these × the processes."""
    store: Sealed | None  # kept alive as long as the processes are joined; None: they are not

    @property
    def tp_group(self) -> ProcessGroup | None:
        """The processes that split layers with this one; None when tp is 1."""
        return self.grid.get_group("tp") if self.layout.tp > 1 else None

    @property
    def cp_group(self) -> ProcessGroup | None:
        """The processes that split the tokens of this one's rows; None when cp is 1."""
        return self.grid.get_group("cp") if self.layout.cp > 1 else None

    def experts(self) -> tuple[DeviceMesh, ProcessGroup]:
        """The processes over which FSDP2 shards the experts of a mixture, and this process's ep group; joined by this
        call."""
        layout = self.layout
        grid, shards = _sharding(self.device, layout, layout.expert_shards, layout.ep)
        return shards, grid.get_group("parts")


def _sharding(device: torch.device, layout: Layout, shards: int, parts: int) -> tuple[DeviceMesh, DeviceMesh]:
    """All processes as replicas × shards × parts, and without the parts; one replica has no axis, over which FSDP2
    would copy."""
    names = ("replicas", "shards", "parts")
    grid = init_device_mesh(device.type, (layout.replicas, shards, parts), mesh_dim_names=names)
    return grid, grid[names[:2]] if layout.replicas > 1 else grid["shards"]


def join(
    rank: int,
    layout: Layout,
    place: Rendezvous,
    store: Sealed | None = None,
    device: str = "cpu",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Mesh:
    """Join `layout.size` processes as a grid; see `join_group`."""
    where = torch.device(device)
    if layout.uneven:
        raise EarlError(f"{layout}: {layout.uneven}")
    return mesh_of(rank, layout, where, join_group(rank, layout.size, place, store, where, timeout_seconds))


def mesh_of(rank: int, layout: Layout, where: torch.device, store: Sealed | None) -> Mesh:
    """The grid of processes that have joined."""
    dp, tp, cp = layout.dp, layout.tp, layout.cp
    grid = init_device_mesh(where.type, (dp, cp, tp), mesh_dim_names=("dp", "cp", "tp"))
    shards = grid["dp"] if dp == layout.shards else _sharding(where, layout, layout.shards, tp)[1]
    return Mesh(layout, rank, where, grid, shards, store)


def join_group(
    rank: int, size: int, place: Rendezvous, store: Sealed | None, device: torch.device, timeout_seconds: float
) -> Sealed:
    """Join `size` processes; see `backend_for` (never run on a GPU). store: on rank 0, an already opened store; None:
    opened now. device: a CPU, or a CUDA device such as "cuda:0"."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    store = (store or open_store(place, timeout_seconds)) if rank == 0 else join_store(place, timeout_seconds)
    distributed.init_process_group(
        backend_for(device),
        store=store.plain if cuda else store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if cuda else None,
    )
    return store


@contextmanager
def joined_mesh(rank: int, layout: Layout, address: str, port: int, device: str = "cpu") -> Iterator[Mesh]:
    try:
        yield join(rank, layout, Rendezvous(address, port, secret="known to all"), device=device)
    finally:
        distributed.destroy_process_group()
