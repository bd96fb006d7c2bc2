"""Where the stages are: what opens a cluster, in a process that knows nothing of one yet."""

import os
import subprocess
import sys

import pytest

TWICE = """
from earl.placement.backend import on_cluster
from earl.recipe import build
for _ in range(2):
    with on_cluster(build({"env": {"name": "tictactoe"}, "placement": {"kind": "disaggregated"}})):
        print("opened")
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_opens_one_cluster_after_the_other():
    # Ray reads its token once in a process, so a second cluster with another one would be out of reach.
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    bare["PYTHONPATH"] = os.pathsep.join(sys.path)
    ended = subprocess.run([sys.executable, "-c", TWICE], env=bare, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout.split()) == (0, ["opened", "opened"]), ended.stderr
