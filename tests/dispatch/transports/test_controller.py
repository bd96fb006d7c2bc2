"""The baseline ends with the same rows as the direct way, and moves as much as it is known to move."""

import numpy as np
from hypothesis import given

from earl.benchmarks.dispatch import gather_and_scatter
from earl.dispatch.plan import plan
from earl.dispatch.rows import columns, spread
from earl.parallel.layout import Layout
from tests.dispatch.simulated import carried_out, transfers


@given(transfers())
def test_the_result_is_that_of_the_direct_way(transfer):
    direct, _ = carried_out(transfer)
    centralised, _ = carried_out(transfer, way=gather_and_scatter)
    for process, shard in direct.items():
        assert shard.rows.tolist() == centralised[process].rows.tolist()
        for name, column in shard.columns.items():
            assert column.tobytes() == centralised[process].columns[name].tobytes()


def test_every_rank_is_sent_its_own_copy():
    # 8 rows of 100 tokens of 4 bytes on dp 4, tp 2 (two copies), to dp 2, tp 4 on the same 8 processes of 2 hosts.
    lengths = np.full(8, 100)
    source = spread(Layout(4, 2), range(8), [0, 0, 1, 1, 2, 2, 3, 3])
    target = spread(Layout(2, 4), range(8), [0, 1] * 4)
    made = plan(lengths, columns(["logprobs"]), source, target, np.arange(8) // 4)
    _, log = carried_out(made, way=gather_and_scatter)
    # One copy of each of three groups comes to process 0, which has the fourth; half of the rows goes to seven others.
    to_controller = sorted((source, size) for source, to, size in log if to == 0)
    from_controller = sorted((to, size) for source, to, size in log if source == 0)
    assert to_controller == [(2, 800), (4, 800), (6, 800)]
    assert from_controller == [(to, 1600) for to in range(1, 8)]
