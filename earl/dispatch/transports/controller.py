"""The baseline: everything through one process, as verl and ROLL do it.

gather: one copy of every data-parallel group ─▶ controller: all rows ─▶ scatter: a group's rows to each of its ranks

Every rank gets a copy of its own, also where several are on one host, and ranks of a context-parallel group get whole
rows and cut them. Both ways are plans in which every process is a host of its own, so that nothing is fanned out.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from earl.dispatch.execute import execute, room
from earl.dispatch.plan import Leg, TransferPlan, plan
from earl.dispatch.rows import Axis, Shard, Spread, spread
from earl.dispatch.transports.base import Transport
from earl.parallel.layout import Layout

CONTROLLER = 0
"""The process that everything goes through."""


def gather_and_scatter(
    plan: TransferPlan, process: int, held: Sequence[Shard], transport: Transport, checksums: bool = False
) -> dict[Axis, Shard]:
    """What `execute` does, and the same result to the bit, through the controller."""
    gathering, scattering = ways(plan)
    gathered = execute(gathering, process, held, transport, checksums)
    whole = execute(scattering, process, [gathered[leg.axis] for leg in plan.legs], transport, checksums)
    return cut(plan, process, whole)


def ways(through: TransferPlan) -> tuple[TransferPlan, TransferPlan]:
    """The plans of a transfer to the controller, and from it."""
    lengths, apart = through.lengths, np.arange(len(through.hosts))
    middle = spread(Layout(), [CONTROLLER], np.zeros(len(lengths), np.int64))
    firsts = [Leg(leg.columns, _first_ranks(leg.source)) for leg in through.legs]
    wholes = [Leg(leg.columns, middle) for leg in through.legs]
    return plan(lengths, firsts, middle, apart), plan(lengths, wholes, through.target.flat(), apart)


def _first_ranks(source: Spread) -> Spread:
    """Of every tp group the first rank alone."""
    return Spread(source.processes[:, :, :1], source.parts)


def cut(plan: TransferPlan, process: int, whole: Mapping[Axis, Shard]) -> dict[Axis, Shard]:
    """A rank's own ranges of whole rows."""
    target = room(plan, process)
    for axis, shard in target.items():
        begins = whole[axis].begins(shard.rows, shard.starts)
        for name, column in shard.columns.items():
            for begin, start, end in zip(begins, shard.offsets, shard.offsets[1:], strict=False):
                column[start:end] = whole[axis].columns[name][begin : begin + end - start]
    return target
