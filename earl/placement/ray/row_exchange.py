"""The Data Dispatcher of a cluster: rows go from the workers that played them to the ranks; see `LearnerGroup.take`.

Workers count their rows; the driver balances them and makes a manifest, from which every process makes the same plan.
Rows then go from process to process in one group. The driver sees counts, never a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from earl.batch import Rows, offsets_of
from earl.dispatch.plan import TransferPlan, plan, volume
from earl.dispatch.rows import Shard, Work, balance, columns, spread
from earl.dispatch.transports.base import Transport, execute
from earl.dispatch.transports.peers import join
from earl.dispatch.transports.rendezvous import Rendezvous, join_store
from earl.engine.learner import RowShare, minibatches
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.placement.episode_store import Counts, RowTable, shift_turns
from earl.placement.ray.actor_group import Member
from earl.placement.ray.memory_budget import of_memory


@dataclass(frozen=True, slots=True)
class CallResult:
    """One process's result of a collective call."""

    fault: str = ""  # why it failed; empty on success
    result: Any = None


class ExchangeMember:
    """An actor that is one process of an exchange group."""

    _transport: Transport | None = None

    def depart(self) -> None:
        if self._transport:
            self._transport.close()
        self._transport = None

    def enter(self, where: Rendezvous, process: int, hosts: Counts, seconds: float, device: str) -> CallResult:
        """Join the others; see `join`."""
        self.depart()

        def joined() -> None:
            self._store, address = join_store(where), ray.util.get_node_ip_address()
            self._transport = join(self._store, process, hosts.astype(np.int64), address, seconds, torch.device(device))

        return call_result(joined)

    def exchanged(self, through: TransferPlan, process: int, held: Shard, checksums: bool) -> CallResult:
        """Carry out a plan with the others; the result is this process's rows."""
        assert self._transport is not None, "all have met"
        try:
            return CallResult(result=execute(through, process, held, self._transport, checksums))
        except (EarlError, RuntimeError, MemoryError) as error:
            self.depart()  # the others need not wait for this process
            if of_memory(error):
                raise
            return CallResult(_line(error))


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def call_result(work: Callable[[], Any]) -> CallResult:
    """The result of work with other processes, or the fault."""
    try:
        return CallResult(result=work())
    except (EarlError, RuntimeError) as error:
        return CallResult(_line(error))


@dataclass(frozen=True, slots=True)
class EpisodeTable(RowTable):
    """The rows of all workers, in the order of their episodes."""

    worker: Counts  # [N], the worker that holds each row
    columns: tuple[str, ...]

    @classmethod
    def joined(cls, tables: Sequence[RowTable], names: tuple[str, ...]) -> Self:
        kinds = ("lengths", "learned", "turns", "order")
        whole = {kind: np.concatenate([getattr(table, kind) for table in tables]) for kind in kinds}
        sorting = np.argsort(whole["order"], kind="stable")
        worker = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table.order) for table in tables])
        return cls(**{kind: whole[kind][sorting] for kind in kinds}, worker=worker[sorting], columns=names)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A table, the process layout, and the destination of each row: 24 bytes per row, and a few per process. Processes:
    first the learner ranks, then the workers."""

    table: EpisodeTable
    part: Counts  # [N], the learner's data-parallel part that each row goes to
    layout: Layout  # of the learner
    hosts: Counts  # [P], the host of each process

    def plan(self) -> TransferPlan:
        """The same on every process."""
        workers = len(self.hosts) - self.layout.size
        source = spread(Layout(workers), range(self.layout.size, len(self.hosts)), self.table.worker.astype(np.int64))
        target = spread(self.layout, range(self.layout.size), self.part.astype(np.int64))
        lengths, hosts = self.table.lengths.astype(np.int64), self.hosts.astype(np.int64)
        return plan(lengths, columns(self.table.columns), source, target, hosts)

    def numbers(self, worker: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.table.worker == worker)

    def taken(self, shard: Shard) -> tuple[Rows, RowShare]:
        given: dict[str, Any] = dict(shard.columns)
        lengths = np.diff(shard.offsets)
        given["turns"] = shift_turns(given["turns"], lengths, self.table.first_turns[shard.rows])
        given.setdefault("targets", given["tokens"])
        given.setdefault("logprobs", np.zeros(len(given["tokens"]), np.float32))
        rows = Rows(offsets=offsets_of(lengths), **given)
        counts = (self.table.learned.astype(np.int64), self.table.turns.astype(np.int64))
        return rows, RowShare(shard.rows, *counts, alone=True)


def traffic(plan: TransferPlan) -> dict[str, float]:
    """Costs of a dispatch by metric name: the bytes that consumers lacked, those of them between hosts, the lower bound
    of these, and the ratio."""
    moved = volume(plan)
    least = int(moved.least.sum())
    return {
        "dispatch/bytes": float(moved.across + int(moved.inside.sum())),
        "dispatch/bytes_across": float(moved.across),
        "dispatch/bytes_least": float(least),
        "dispatch/ratio": moved.across / least if least else 1.0,
    }


def shares(table: RowTable, work: Work, parts: int, seed: int, count: int) -> Counts:
    """The part of each row, so that all parts have equal work in every minibatch of the first epoch. seed, count: order
    and number of minibatches of the update."""
    part = np.zeros(len(table.lengths), np.int32)
    costs = work.of(table.lengths.astype(np.int64))
    for rows in minibatches(np.random.default_rng(seed), len(part), count):
        part[rows] = balance(costs[rows], parts)
    return part


TRIES = 3
"""How often a step's rows, or a message of weights that arrives damaged, are sent at most."""
MESSAGE_HEARTBEATS = 6
"""Heartbeats that a message between peers may take; a dead process is noticed within one."""


class ExchangeFailed(EarlError):
    """An exchange failed, and all processes are alive again."""


def row_device(members: Sequence[Member]) -> str:
    """The device through which rows pass between members: a GPU where each has its own, as NCCL demands; samplers that
    take turns with learner ranks, and environments, have none."""
    return "cuda:0" if all(member.devices for member in members) else "cpu"


def hosts_of(members: Sequence[Member]) -> Counts:
    """[P], the host of each process."""
    return np.unique([member.node for member in members], return_inverse=True)[1].astype(np.int32)
