"""One seed under every layout: the losses of a distributed learner against those of a single process.

The processes of a layout are started once for all variants, and for each part of one run through many layouts.
"""

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed
from transformers import AutoConfig, AutoModelForCausalLM

from earl.algorithms.registry import algorithm
from earl.batch import Batch, offsets_of
from earl.benchmarks import processes
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.attention import ATTENTION
from earl.engine.learner import Learner, Update
from earl.engine.model import Policy, character_tokenizer
from earl.engine.ranks import Ranks
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.sharding.shards import Shards
from earl.parallel.layout import Layout
from earl.placement.peers import Peers
from earl.recipe import load_toml

LAYOUTS = [
    *(Layout(), Layout(2), Layout(1, 2), Layout(2, 2), Layout(cp=2), Layout(2, 1, 2), Layout(1, 2, 2)),
    *(Layout(2, replicas=2), Layout(2, 2, replicas=2), Layout(8, replicas=4)),
]
SPREAD = [
    *(Layout(), Layout(2), Layout(2, ep=2), Layout(4, ep=2), Layout(2, 2, ep=4), Layout(1, 2, 2, ep=2)),
    *(Layout(2, 2), Layout(4, ep=2, replicas=2), Layout(2, 4, ep=4, replicas=2)),
]
"""Of a mixture of experts."""
HANDED = [
    *(Layout(4), Layout(2, 2), Layout(1, 4), Layout(), Layout(4), Layout(1, 4), Layout(2, 2), Layout(cp=4)),
    *(Layout(2, 1, 2), Layout(1, 2, 2), Layout(4, replicas=2)),
]
"""The layouts of one run in turn: it is resumed under another one each time."""
SPREAD_HANDED = [Layout(2, ep=2), Layout(2), Layout(4, ep=2, replicas=2), Layout(1, 2, ep=2)]
STAGE = 3
MODEL, EXPERTS = (load_toml(Path(__file__).with_suffix(".toml"))[name] for name in ("model", "experts"))


VARIANTS: dict[str, Mapping[str, Any]] = {
    "untied": {},
    "tied": {"tied": True},
    "recompute": {"recompute": True},
    "lora": {"lora_rank": 4},
    "reference": {"reference": True},
    "experts": {"experts": True},
    "experts, recompute": {"experts": True, "recompute": True},
}
"""Settings of the learner, whether the output layer shares the embeddings' weights, whether the model is a mixture of
experts, and whether the reference is a wider model."""


def run(updates: int = 20, variants: Sequence[str] = tuple(VARIANTS)) -> dict[str, Any]:
    """Train a small model with PPO under every layout. For the result see `earl bench layouts --help`."""
    torch.set_num_threads(1)
    alone = {variant: trained(_alone(VARIANTS[variant]), range(updates)) for variant in variants}
    losses = []
    for layout in dict.fromkeys([*LAYOUTS, *SPREAD]):
        own = [variant for variant in variants if layout in (SPREAD if "experts" in variant else LAYOUTS)]
        for variant, ours in zip(own, _distributed(layout, own, range(updates)) if own else [], strict=True):
            losses.append({"variant": variant, **asdict(layout), "difference": _away(ours, alone[variant])})
    resumed = []
    for variant, handed in (("untied", HANDED), ("experts", SPREAD_HANDED)):
        with tempfile.TemporaryDirectory() as folder:
            resumed += [*_resumed(variant, handed, Path(folder))] if variant in variants else []
    return {"updates": updates, "losses": losses, "resumed": resumed}


def _resumed(variant: str, handed: Sequence[Layout], folder: Path) -> Iterator[dict[str, Any]]:
    """Go on under each layout from the last one's checkpoint, and at last in one process."""
    last, before = _alone(VARIANTS[variant]), ""
    uninterrupted = trained(_alone(VARIANTS[variant]), range((len(handed) + 1) * STAGE))
    for stage, layout in enumerate([*handed, None]):
        updates = range(stage * STAGE, (stage + 1) * STAGE)
        if layout:
            name = ", ".join(f"{axis} {size}" for axis, size in asdict(layout).items())
            [own] = _distributed(layout, [variant], updates, folder)
        else:
            name = "one process"
            last.restore(folder / str(updates.start))
            own = trained(last, updates)
        if before:
            difference = _away(own, uninterrupted[updates.start : updates.stop])
            yield {"variant": variant, "from": before, "to": name, "difference": difference}
        before = name


def _distributed(layout: Layout, *arguments: Any) -> list[NDArray[np.float64]]:
    losses, *_ = processes.run(None, (0,) * layout.size, _rank, layout, free_port(), *arguments)
    return list(losses)


def _rank(
    seat: processes.Seat, layout: Layout, port: int, variants: Sequence[str], updates: range, folder: Path | None = None
) -> list[NDArray[np.float64]]:
    """One process of a layout: the statistics of each variant. It resumes the checkpoint of its first update in
    `folder`, and leaves the next one."""
    torch.set_num_threads(1)
    _wider()  # of processes that have joined, transformers lets one alone save a model
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    with joined_mesh(seat.process, layout, seat.address, port) as mesh:
        losses = []
        for variant in variants:
            learner = _learner(VARIANTS[variant], Shards(mesh))
            if folder and updates.start:
                learner.restore(folder / str(updates.start))
            losses.append(trained(learner, updates))
            if folder:
                learner.snapshot()(folder / str(updates.stop))
                distributed.barrier()
    return losses


def trained(learner: Learner, updates: range) -> NDArray[np.float64]:
    """Statistics of updates, [updates, 4]."""
    losses = []
    for number in updates:
        rows = drawn(number)
        reference = learner.logprobs(rows, reference=True)
        rows.reference[rows.mask] = reference[rows.mask]
        update = Update(1e-3, entropy=0.01, minibatches=1, epochs=1, seed=number, config=AlgorithmConfig(kl=0.1))
        stats = learner.update(rows, algorithm("ppo"), update)
        losses.append([stats[name] for name in ("loss", "value_loss", "entropy", "kl_to_reference")])
    return np.array(losses)


def batch(lengths: Sequence[int], prompt: int, seed: int = 0) -> Batch:
    """Made-up rows whose first `prompt` tokens are not learned from, one turn each."""
    rng, offsets, size = np.random.default_rng(seed), offsets_of(lengths), sum(lengths)
    mask, ends, turns = np.zeros(size, bool), np.zeros(size, bool), np.full(size, -1, np.int32)
    for row, (start, stop) in enumerate(pairwise(offsets)):
        ends[start + prompt - 1], mask[start + prompt : stop], turns[start + prompt : stop] = True, True, row
    tokens = rng.integers(0, 100, size).astype(np.int32)
    noise, worth, returns = rng.normal(size=(3, size)).astype(np.float32)
    return Batch(
        *(offsets, tokens, mask, tokens, (-4.6 + 0.1 * noise) * mask, turns, ends),
        *(worth * mask, worth * 0, returns * ends, worth * 0),
    )


def drawn(seed: int) -> Batch:
    """16 rows of 8 to 39 tokens."""
    return batch(np.random.default_rng(seed).integers(8, 40, 16).tolist(), 4, seed)


def model_config(model: Mapping[str, Any]) -> Any:
    """Of a model in the words of `transformers`."""
    return AutoConfig.for_model(**{"max_position_embeddings": 1 << 17, **model})


def policy(model: Mapping[str, Any]) -> Policy:
    made = AutoModelForCausalLM.from_config(model_config(model), attn_implementation=ATTENTION)
    return Policy(made, character_tokenizer())


def _alone(variant: Mapping[str, Any]) -> Learner:
    return _learner(variant, Ranks(Peers()))


def _learner(variant: Mapping[str, Any], ranks: Ranks) -> Learner:
    own = dict(variant)
    torch.manual_seed(0)
    experts = EXPERTS if own.pop("experts", False) else {}
    made = policy({**MODEL, **experts, "tie_word_embeddings": own.pop("tied", False)})
    wider = ranks.frozen(_wider().name, LearnerConfig()) if own.pop("reference", False) else None
    learner = Learner(made, LearnerConfig(micro_batch_tokens=150, **own), 1.0, ranks, True)
    learner.state.named_reference = wider
    return learner


@cache
def _wider() -> tempfile.TemporaryDirectory[str]:
    """A folder with a wider model."""
    folder = tempfile.TemporaryDirectory()
    torch.manual_seed(1)
    policy({**MODEL, "hidden_size": 2 * MODEL["hidden_size"]}).save(Path(folder.name))
    return folder


def _away(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    return float(np.abs(ours - theirs).max())


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
