"""What crosses the link of the driver while rows are dispatched: numbers of rows, never the rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A process of its own: Ray reads the cluster's token once, when it is imported.
PROGRAM = """
import json
from earl.benchmarks.faults import RECIPE
from earl.benchmarks.processes import Seat
from earl.placement.backend import on_cluster
from earl.recipe import build, override
from earl.rehearsal.cluster import down, up

EPISODES = 2000
cluster = up("traffic", 4, "500mbit", cpus=1, memory_mib=128, say=lambda _: None)  # one process of the run on each host
try:
    link = Seat(0, "", cluster.interface, ())
    changes = [f'placement.address="{cluster.address}"', f"warm_start.episodes={EPISODES}"]
    with on_cluster(build(override(RECIPE, changes))) as place:
        stages = place.open(None)
        for step in (1, 2):  # all meet in the first one
            rows = stages.demonstrations(step)
            before = sum(link.carried)
            stages.dispatch_taught(rows, step)
            crossed = sum(link.carried) - before
        print(json.dumps({"rows": len(rows.lengths), "crossed": crossed, **stages.costs}))
finally:
    down("traffic")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
def test_rows_of_a_run_on_four_hosts_do_not_cross_the_link_of_the_driver(tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    print(found)
    # Workers and ranks are on hosts of their own: all of a row crosses a link, once, but never the driver's.
    assert found["dispatch/bytes_across"] == found["dispatch/bytes_least"] > 500 * found["rows"]
    assert found["crossed"] < 200 * found["rows"]
