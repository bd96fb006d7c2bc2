"""The baseline transport: everything goes through one process, as in verl and ROLL.

Gather one copy of every data-parallel group to the controller, then scatter to each rank the rows of its group. Every
rank gets its own copy, even on one host; ranks of a context-parallel group get whole rows and cut them. In both plans
every process counts as its own host, so that nothing is fanned out.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.rows import Shard, empty, ranges, spread
from earl.dispatch.transports.base import Transport, execute
from earl.parallel.layout import Layout

CONTROLLER = 0


def gather_and_scatter(
    plan: TransferPlan, process: int, held: Shard, transport: Transport, checksums: bool = False
) -> Shard:
    """The same result as `execute`, bit for bit, through the controller."""
    gathering, scattering = ways(plan)
    gathered = execute(gathering, process, held, transport, checksums)
    return cut(plan, process, execute(scattering, process, gathered, transport, checksums))


@lru_cache(maxsize=4)
def ways(through: TransferPlan) -> tuple[TransferPlan, TransferPlan]:
    lengths, columns, apart = through.lengths, through.columns, np.arange(len(through.hosts))
    firsts = replace(through.source, processes=through.source.processes[:, :, :1])
    middle = spread(Layout(), [CONTROLLER], np.zeros(len(lengths), np.int64))
    dp = len(through.target.processes)
    wholes = replace(through.target, processes=through.target.processes.reshape(dp, 1, -1))
    return plan(lengths, columns, firsts, middle, apart), plan(lengths, columns, middle, wholes, apart)


def cut(plan: TransferPlan, process: int, whole: Shard) -> Shard:
    target = empty(plan.target, process, plan.lengths, plan.columns)
    at = ranges(whole.begins(target.rows, target.starts), np.diff(target.offsets))
    for name, column in target.columns.items():
        column[:] = whole.columns[name][at]
    return target
