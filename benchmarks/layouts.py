"""One seed under every layout: the losses of a distributed learner against those of a single process.

parent ─┬─ the same updates in one process, without communication
        └─ ranks 0 … 3 (this file as a program, joined by gloo): every layout in turn, then one run through many layouts
"""

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, Qwen3Config

from earl.algorithms.registry import algorithm
from earl.batch import Batch, offsets_of
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.attention import ATTENTION
from earl.engine.learner import Learner, Update
from earl.engine.model import Policy, character_tokenizer
from earl.engine.ranks import Replicas
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.sharding.shards import Shards
from earl.parallel.layout import Layout
from earl.placement.peers import Peers

LAYOUTS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2))
"""dp, tp, cp."""
HANDED = ((4, 1, 1), (2, 2, 1), (1, 4, 1), (1, 1, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1), (1, 1, 4), (2, 1, 2), (1, 2, 2))
"""The layouts of one run in turn: it is resumed nine times under another one."""
STAGE = 3
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LearnerCase:
    tied: bool = False
    """Whether the output layer shares the embeddings' weights."""
    learner: tuple[tuple[str, Any], ...] = ()


VARIANTS = {
    "untied": LearnerCase(),
    "tied": LearnerCase(tied=True),
    "recompute": LearnerCase(learner=(("recompute", True),)),
    "lora": LearnerCase(learner=(("lora_rank", 4),)),
}


def run(updates: int = 20, variants: Sequence[str] = tuple(VARIANTS)) -> dict[str, Any]:
    """Train a small model with PPO under every layout. For the result see `earl bench layouts --help`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _ranks(folder, updates, variants) as results:
            alone = {variant: trained(_alone(VARIANTS[variant]), range(updates)) for variant in variants}
            uninterrupted = trained(_alone(LearnerCase()), range((len(HANDED) + 1) * STAGE))
            measured = results()
        handed = [np.array(part) for part in measured["handed"]]
        last = _alone(LearnerCase())
        last.restore(folder / str(len(HANDED) - 1))
        handed.append(trained(last, range(len(HANDED) * STAGE, (len(HANDED) + 1) * STAGE)))
    names = [f"dp {dp}, tp {tp}, cp {cp}" for dp, tp, cp in HANDED] + ["one process"]
    return {
        "updates": updates,
        "losses": [
            {**row["case"], "difference": _away(np.array(row["losses"]), alone[row["case"]["variant"]])}
            for row in measured["losses"]
        ],
        "resumed": [
            {
                "from": names[stage - 1],
                "to": names[stage],
                "difference": _away(handed[stage], uninterrupted[stage * STAGE : (stage + 1) * STAGE]),
            }
            for stage in range(1, len(handed))
        ],
    }


def trained(learner: Learner, updates: range) -> NDArray[np.float64]:
    """Statistics of updates, [updates, 4]."""
    rows = []
    for number in updates:
        drawn = batch(number)
        reference = learner.logprobs(drawn, reference=True)
        drawn.reference[drawn.mask] = reference[drawn.mask]
        update = Update(1e-3, entropy=0.01, kl=0.1, minibatches=1, epochs=1, seed=number)
        stats = learner.update(drawn, algorithm("ppo"), update)
        rows.append([stats[name] for name in ("loss", "value_loss", "entropy", "kl_to_reference")])
    return np.array(rows)


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, 40, 16)
    offsets, size = offsets_of(lengths), int(lengths.sum())
    mask, ends, turns = np.zeros(size, bool), np.zeros(size, bool), np.full(size, -1, np.int32)
    for row, (start, length) in enumerate(zip(offsets, lengths, strict=False)):
        ends[start + 3], mask[start + 4 : start + length], turns[start + 4 : start + length] = True, True, row
    tokens = rng.integers(0, 100, size).astype(np.int32)
    noise, worth, returns = rng.normal(size=(3, size)).astype(np.float32)
    return Batch(
        offsets, tokens, mask, tokens, (-4.6 + 0.1 * noise) * mask, turns, ends, worth * mask, worth * 0, returns * ends
    )


def policy(tied: bool) -> Policy:
    """A model with seed 0 and four key-value heads, so that four processes can split them."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=106,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.15,
    )
    return Policy(AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION), character_tokenizer())


def _alone(case: LearnerCase) -> Learner:
    return _learner(case, Replicas(Peers()))


def _learner(case: LearnerCase, ranks: Any) -> Learner:
    settings = LearnerConfig(micro_batch_tokens=150, **dict(case.learner))
    return Learner(policy(case.tied), AlgorithmConfig(), settings, 1.0, ranks, True)


def _away(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    return float(np.abs(ours - theirs).max())


@contextmanager
def _ranks(folder: Path, updates: int, variants: Sequence[str]) -> Iterator[Any]:
    """Start four processes; the context's value waits for their results."""
    plan = {"updates": updates, "variants": [*variants]}
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "earl.benchmarks.layouts", str(folder)]
    ranks = [subprocess.Popen([*command, str(rank)], env=environment, stdout=2) for rank in range(4)]

    def results() -> Any:
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            time.sleep(POLL_SECONDS)  # if one process has failed, the others would wait for a long time
        ended = [rank.poll() or 0 for rank in ranks]
        if any(ended):
            raise RuntimeError(f"a process of the benchmark ended with {max(ended, key=abs)}; its message stands above")
        return json.loads((folder / "results.json").read_text())

    try:
        yield results
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]


def _port(folder: Path, rank: int, number: int) -> int:
    """The port of layout number `number`: rank 0 chooses it just before it listens."""
    said = folder / f"port-{number}"
    if rank == 0:
        said.with_suffix(".new").write_text(str(free_ports(1)[0]))
        said.with_suffix(".new").rename(said)
    while not said.exists():
        time.sleep(POLL_SECONDS)
    return int(said.read_text())


def _rank(folder: Path, rank: int) -> None:
    """One process: it takes part in every layout that is large enough for it."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    plan = json.loads((folder / "plan.json").read_text())
    numbers = itertools.count()
    results: dict[str, list[Any]] = {"losses": [], "handed": []}
    for variant in plan["variants"]:
        for layout, number in zip([Layout(*shape) for shape in LAYOUTS], numbers, strict=False):
            if rank < layout.size:
                with joined_mesh(rank, layout, "127.0.0.1", _port(folder, rank, number)) as mesh:
                    losses = trained(_learner(VARIANTS[variant], Shards(mesh)), range(plan["updates"]))
                results["losses"].append({"case": {"variant": variant, **asdict(layout)}, "losses": losses.tolist()})
    for stage, (shape, number) in enumerate(zip(HANDED, numbers, strict=False)):
        results["handed"].append(_stage(folder, rank, Layout(*shape), number, stage))
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))


def _stage(folder: Path, rank: int, layout: Layout, number: int, stage: int) -> Any:
    """Resume the last stage's checkpoint and write the next one. An unneeded rank skips the stage."""
    if rank >= layout.size:
        return None
    with joined_mesh(rank, layout, "127.0.0.1", _port(folder, rank, number)) as mesh:
        learner = _learner(LearnerCase(), Shards(mesh))
        if stage:
            learner.restore(folder / str(stage - 1))
        losses = trained(learner, range(stage * STAGE, (stage + 1) * STAGE))
        learner.snapshot()(folder / str(stage))
        mesh.wait()
    return losses.tolist()


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), int(sys.argv[2]))
