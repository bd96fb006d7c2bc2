"""The baseline transport: everything goes through one process, as in verl and ROLL.

Gather one copy of every data-parallel group to the controller, then scatter to each rank the rows of its group. Every
rank gets its own copy, even on one host; ranks of a context-parallel group get whole rows and cut them. In both plans
every process counts as its own host, so that nothing is fanned out.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from earl.dispatch.execute import execute, room
from earl.dispatch.plan import Leg, TransferPlan, plan
from earl.dispatch.rows import Axis, Shard, Spread, spread
from earl.dispatch.transports.base import Transport
from earl.parallel.layout import Layout

CONTROLLER = 0


def gather_and_scatter(
    plan: TransferPlan, process: int, held: Sequence[Shard], transport: Transport, checksums: bool = False
) -> dict[Axis, Shard]:
    """The same result as `execute`, bit for bit, through the controller."""
    gathering, scattering = ways(plan)
    gathered = execute(gathering, process, held, transport, checksums)
    whole = execute(scattering, process, [gathered[leg.axis] for leg in plan.legs], transport, checksums)
    return cut(plan, process, whole)


@lru_cache(maxsize=4)
def ways(through: TransferPlan) -> tuple[TransferPlan, TransferPlan]:
    lengths, apart = through.lengths, np.arange(len(through.hosts))
    middle = spread(Layout(), [CONTROLLER], np.zeros(len(lengths), np.int64))
    firsts = [Leg(leg.columns, _first_ranks(leg.source)) for leg in through.legs]
    wholes = [Leg(leg.columns, middle) for leg in through.legs]
    return plan(lengths, firsts, middle, apart), plan(lengths, wholes, through.target.flat(), apart)


def _first_ranks(source: Spread) -> Spread:
    return Spread(source.processes[:, :, :1], source.parts)


def cut(plan: TransferPlan, process: int, whole: Mapping[Axis, Shard]) -> dict[Axis, Shard]:
    target = room(plan, process)
    for axis, shard in target.items():
        begins = whole[axis].begins(shard.rows, shard.starts)
        for name, column in shard.columns.items():
            for begin, start, end in zip(begins, shard.offsets, shard.offsets[1:], strict=False):
                column[start:end] = whole[axis].columns[name][begin : begin + end - start]
    return target
