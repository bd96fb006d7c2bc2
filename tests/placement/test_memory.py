"""Memory does not grow with the number of steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from earl.recipe import dump
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]

# Resident memory in MiB after each 24 steps of rollout, update and handing the weights over.
PROGRAM = """
import gc, json, os, sys
from pathlib import Path
from earl.recipe import build, load_toml
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import Peers

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

placement = embedded_pipeline(build(load_toml(Path(sys.argv[1]))), Peers())
for step in range(1, 61):  # so that games last, and boards of all kinds are met
    rows = placement.demonstrations(1 + step % 3)
    placement.imitate(placement.dispatch_taught(rows, 1), rows.num_turns, 1)
seen = []
for step in range(1, 241):
    groups = placement.rollout(step)
    placement.update(placement.prepare(groups, placement.dispatch(groups)), 1)
    placement.sync(step)
    if step % 24 == 0:
        seen.append(resident())
chat = placement.players.fragment.world.chat
caches = chat.opening, chat.reply, chat.decode
tensors = [layer.keys is not None for layer in placement.players.fragment.sampler._contexts._cache.layers]
print(json.dumps({"resident": seen, "pieces": [c.cache_info().currsize for c in caches], "kept": any(tensors)}))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", sampled(["ppo", "grpo"], every=2))
def test_two_hundred_and_forty_steps_take_no_more_memory_than_a_hundred(tiny, tmp_path, name):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        dump(
            tiny(
                warm_start={"steps": 60, "noise": 0.3, "episodes": 64, "minibatches": 4, "learning_rate": 5e-3},
                rollout={"episodes": 8, "group_size": 4},
                learner={"minibatches": 1, "learning_rate": 1e-4},
                algorithm={"name": name, "kl": 0.01},
            )
        )
    )
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(recipe)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    after_96, after_240 = found["resident"][3], found["resident"][-1]
    assert after_240 - after_96 < 3.6, found  # a step that keeps an array of 4,000 floats takes 4.4 more
    assert found["pieces"][1] > 100
    # Tic-Tac-Toe has 5,478 positions, and each is seen with one mark in front: the caches are bounded by that.
    assert found["pieces"][1] < 1 << 14
    assert not found["kept"]  # the last thing was to take new weights, which empties the samplers
