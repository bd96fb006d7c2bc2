"""One process of the memory benchmark: runs one stage of one case and reports its peak resident memory.

Results repeat to within a percent: a small model goes through the stage first, and the memory after it is the baseline;
the kernel's high-water mark is reset before the stage and then read; and glibc returns every freed block of 64 KiB or
more (GIVE_BACK in `earl/engine/heap.py`). By default it keeps blocks of up to 32 MiB in an unpredictable order: 413 MiB
where tensors were 245 MiB (the case "qwen3, kept").
"""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from earl.algorithms.registry import algorithm
from earl.batch import Batch, offsets_of
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.attention import ATTENTION
from earl.engine.learner import Learner, Update
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, character_tokenizer
from earl.engine.ranks import Ranks, Replicas
from earl.engine.sharding.mesh import Mesh, joined_mesh
from earl.engine.sharding.shards import Shards
from earl.parallel.layout import Layout
from earl.placement.peers import Peers
from earl.rollout.prompt import Prompt

Stage = Literal["update", "forward", "reference", "sample"]
WORDS = 64
"""Random token ids are below this, which every vocabulary has."""


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """What is measured."""

    name: str
    stage: Stage
    model: dict[str, Any]
    learner: dict[str, Any] = field(default_factory=dict)
    dp: int = 0
    """0: not sharded, a whole copy as in an embedded run."""
    tp: int = 1
    tokens: int = 2048
    """Tokens of a micro-batch, or of each of a sampler's prompts."""
    rows: int = 1
    """Rows of a micro-batch; several rows have different lengths."""
    micro_batches: int = 1
    """Of each data-parallel rank."""
    reference: bool = False
    """Whether a frozen reference model is held too."""
    contexts: int = 1
    """Contexts that are sampled at once."""
    new_tokens: int = 8
    cp: int = 1
    prompt: int = 0
    """Tokens at the start of the one row that are not learned from."""

    @property
    def processes(self) -> int:
        return max(1, self.dp * self.tp * self.cp)

    @property
    def learned(self) -> int:
        return self.tokens - max(self.rows, self.prompt)


def occupied(case: MemoryCase, mesh: Mesh | None) -> tuple[int, int]:
    """Bytes of this process before it makes the case's model, and additional bytes at the stage's peak."""
    little = replace(case, model=_little(case.model), tokens=64, rows=1, contexts=2, new_tokens=2, prompt=0)
    subject(little, mesh)()
    before = _settled()
    run = subject(case, mesh)
    _settled()
    if mesh and mesh.device.type == "cuda":  # never run on a GPU yet
        torch.cuda.reset_peak_memory_stats()
        run()
        return before, torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark to current memory
    run()
    return before, resident("VmHWM") - before


def subject(case: MemoryCase, mesh: Mesh | None) -> Callable[[], object]:
    """Prepare the stage; the returned call runs it. Everything that persists between stages is allocated before."""
    if case.stage == "sample":
        return _sampling(case)
    learner = _learner(case, Shards(mesh) if mesh else Replicas(Peers()))
    ranks, update = max(1, case.dp), Update(1e-4, entropy=0.01, kl=0.0, minibatches=1, epochs=1, seed=0)
    small, full = _rows([64] * ranks), _rows(_lengths(case) * ranks * case.micro_batches, case.prompt)
    learner.update(small, algorithm("grpo"), update)  # so that Adam's moments exist
    if case.reference:
        learner.logprobs(small, reference=True)
    if case.stage == "update":
        return lambda: learner.update(full, algorithm("grpo"), update)
    return lambda: learner.logprobs(full, reference=case.stage == "reference")


def resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


def _settled() -> int:
    gc.collect()
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    return resident("VmRSS")


def _little(model: dict[str, Any]) -> dict[str, Any]:
    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 16}
    return model | {key: value for key, value in small.items() if key in model}


def _policy(case: MemoryCase) -> Policy:
    keys = dict(case.model)
    config = AutoConfig.for_model(keys.pop("model_type"), max_position_embeddings=1 << 17, **keys)
    return Policy(AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION), character_tokenizer())


def _learner(case: MemoryCase, ranks: Ranks) -> Learner:
    settings = LearnerConfig(micro_batch_tokens=max(64, case.tokens), **case.learner)
    return Learner(_policy(case), AlgorithmConfig(), settings, 1.0, ranks, False)


def _lengths(case: MemoryCase) -> list[int]:
    """Lengths of a micro-batch's rows; every second row is one token shorter."""
    return [case.tokens // case.rows - place % 2 for place in range(case.rows)]


def _rows(lengths: Sequence[int], prompt: int = 0) -> Batch:
    rng, offsets, size = np.random.default_rng(0), offsets_of(np.array(lengths)), sum(lengths)
    mask = np.ones(size, bool)
    mask[offsets[:-1]] = mask[:prompt] = False
    ids = rng.integers(0, WORDS, size).astype(np.int32)
    zeros, none = np.zeros(size, np.float32), np.zeros(size, bool)
    advantages = rng.normal(size=size).astype(np.float32) * mask
    logprobs, versions = -10 * mask.astype(np.float32), np.where(mask, 0, -1).astype(np.int32)
    return Batch(offsets, ids, mask, ids, logprobs, versions, none, advantages, zeros, zeros)


def _sampling(case: MemoryCase) -> Callable[[], object]:
    sampler = LocalSampler(_policy(case))
    rng = np.random.default_rng(0)
    prompts = [
        Prompt(number, rng.integers(0, WORDS, case.tokens).tolist(), number, case.new_tokens)
        for number in range(case.contexts)
    ]
    return lambda: sampler.generate(prompts)


def main(case: MemoryCase, rank: int, port: int) -> dict[str, int]:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    joined: AbstractContextManager[Mesh | None] = nullcontext()
    if case.dp:
        device = f"cuda:{rank}" if torch.cuda.is_available() else "cpu"
        joined = joined_mesh(rank, Layout(case.dp, case.tp, case.cp), "127.0.0.1", port, device)
    with joined as mesh:
        before, peak = occupied(case, mesh)
    return {"before_bytes": before, "peak_bytes": peak}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(MemoryCase(**json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))))
