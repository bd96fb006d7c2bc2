"""The memory model against measured processes: predicted and measured peaks of training, scoring and sampling.

Cases (footprint.toml) are small enough for a laptop, but larger than what libraries allocate: 100 to 700 MB a process.
For each in turn, the parent starts its ranks as fresh processes; several are joined by gloo.

Results repeat to within a percent: a small model goes through the stage first, and the memory after it is the baseline;
the kernel's high-water mark is reset before the stage and then read; and glibc returns every freed block of 64 KiB or
more (GIVE_BACK in `earl/engine/heap.py`). By default it keeps blocks of up to 32 MiB in an unpredictable order: 413 MiB
where tensors were 245 MiB (the case "qwen3, kept").
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from earl.algorithms.registry import algorithm
from earl.benchmarks.layouts import batch, free_port, model_config, policy
from earl.config import LearnerConfig
from earl.engine.heap import GIVE_BACK
from earl.engine.learner import Learner, Update
from earl.engine.local import LocalSampler
from earl.engine.model import shape_of
from earl.engine.ranks import Ranks
from earl.engine.sharding.expert_parallel import expert_layers
from earl.engine.sharding.mesh import Mesh, joined_mesh
from earl.engine.sharding.shards import Shards
from earl.errors import EarlError
from earl.parallel.footprint import LearnerBytes, Training, forward_bytes, learner_bytes
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape, Sampling, SlotBytes, slot_bytes
from earl.placement.peers import Peers
from earl.placement.ray.memory_budget import OWN, RESET_PEAK, status_bytes, trim
from earl.recipe import load_toml
from earl.trajectory import Prompt

Stage = Literal["update", "forward", "reference", "sample"]


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
    ep: int = 1
    replicas: int = 1
    prompt: int = 0
    """Tokens at the start of the one row that are not learned from."""

    @property
    def layout(self) -> Layout:
        return Layout(max(1, self.dp), self.tp, self.cp, self.ep, self.replicas)

    @property
    def learned(self) -> int:
        return self.tokens - max(self.rows, self.prompt)


PACKAGED = load_toml(Path(__file__).with_suffix(".toml"))


def model(kind: str = "qwen3", **changes: Any) -> dict[str, Any]:
    """A model configuration with four heads, with the keys of `transformers`."""
    made = {"model_type": kind, **PACKAGED["model"], **changes}
    return {"head_dim": made["hidden_size"] // 4, **({"sliding_window": None} if kind == "mistral" else {}), **made}


CASES = [MemoryCase(**{**one, "model": model(**one["model"])}) for one in PACKAGED["cases"]]


def cases_of(only: str | None, path: Path | None) -> list[MemoryCase]:
    """The benchmark's cases, or those in a JSON file, filtered by name. Raises EarlError if none is left or valid."""
    try:
        cases = [MemoryCase(**one) for one in json.loads(path.read_text())] if path else CASES
    except (TypeError, ValueError) as error:
        raise EarlError(f"{str(path)!r} is not a JSON list of configurations: {error}; see `case` of a row") from error
    chosen = [case for case in cases if only is None or only in case.name]
    if torch.cuda.is_available():  # sharded cases of one process only; on GPUs the sampler is vLLM
        chosen = [case for case in chosen if case.dp and case.layout.size == 1 and case.stage != "sample"]
    if not chosen:
        raise EarlError(f"no configuration's name has {only!r} in it; leave --only out to see all of them")
    return chosen


def run(only: str | None, cases: Path | None) -> dict[str, Any]:
    """Measure each case of `cases_of` in separate processes. For the result see `earl bench footprint --help`.

    Bytes are beyond those of a process before it makes a model; `error` is relative to the measured peak.
    """
    rows = [row_of(case) for case in cases_of(only, cases)]
    errors = [row["error"] for row in rows]
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "rows": rows,
        "configurations": len(rows),
        "under": min(0.0, *errors),
        "over": max(0.0, *errors),
        "mean": sum(map(abs, errors)) / len(errors),
    }


def predicted(case: MemoryCase) -> LearnerBytes | SlotBytes:
    shape, host = shape_made(case.model), not torch.cuda.is_available()
    if case.stage == "sample":
        longest = case.tokens + case.new_tokens - 1  # the last token of a reply is not fed
        return slot_bytes(shape, Sampling(case.contexts, case.tokens, longest, on_host=host))
    training = Training(
        case.layout,
        case.tokens,
        float_bytes=2 if case.learner.get("dtype") == "bfloat16" else 4,
        recompute=case.learner.get("recompute", False),
        offload=case.learner.get("offload", False),
        lora_rank=case.learner.get("lora_rank", 0),
        reference=case.reference,
        whole=not case.dp,
        on_host=host,
        learned=case.learned,
        accumulated=case.micro_batches > 1,
        ragged=case.rows > 1,
    )
    return (learner_bytes if case.stage == "update" else forward_bytes)(shape, training)


def shape_made(model: dict[str, Any]) -> ModelShape:
    with torch.device("meta"):
        return shape_of(AutoModelForCausalLM.from_config(model_config(model)))


def row_of(case: MemoryCase) -> dict[str, Any]:
    before, peaks = zip(*_measured(case), strict=True)
    parts, peak = predicted(case), max(peaks)
    return {
        "name": case.name,
        "case": asdict(case),
        "predicted_bytes": parts.peak,
        "measured_bytes": peak,
        "before_bytes": max(before),
        "error": parts.peak / peak - 1,
        "parts": parts.parts,
        "moment": parts.moment,
    }


def _measured(case: MemoryCase) -> list[tuple[int, int]]:
    """What each process of the case occupied, see `occupied`."""
    environment = patch.dict(os.environ, {**GIVE_BACK, "OMP_NUM_THREADS": "1"})
    with environment, ProcessPoolExecutor(case.layout.size, get_context("spawn")) as pool:
        try:
            return list(pool.map(partial(_process, case, free_port()), range(case.layout.size)))
        except Exception as error:
            raise RuntimeError(f"a process of the case {case.name!r} ended early: {error}") from error


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
    (OWN / "clear_refs").write_text(RESET_PEAK)
    run()
    return before, status_bytes("VmHWM") - before


def subject(case: MemoryCase, mesh: Mesh | None) -> Callable[[], object]:
    """Prepare the stage; the returned call runs it. Everything that persists between stages is allocated before."""
    if case.stage == "sample":
        return _sampling(case)
    learner = _learner(case, Shards(mesh) if mesh else Ranks(Peers()))
    ranks, update = max(1, case.dp), Update(1e-4, entropy=0.01, minibatches=1, epochs=1, seed=0)
    lengths = [case.tokens // case.rows - place % 2 for place in range(case.rows)]  # one token shorter every other time
    small, full = batch([64] * ranks, 1), batch(lengths * ranks * case.micro_batches, max(1, case.prompt))
    learner.update(small, algorithm("grpo"), update)  # so that Adam's moments exist
    if case.reference:
        learner.logprobs(small, reference=True)
    if case.stage == "update":
        return lambda: learner.update(full, algorithm("grpo"), update)
    return lambda: learner.logprobs(full, reference=case.stage == "reference")


def _settled() -> int:
    gc.collect()
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    trim()
    return status_bytes("VmRSS")


def _little(model: dict[str, Any]) -> dict[str, Any]:
    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 16}
    return model | {key: value for key, value in small.items() if key in model}


def _learner(case: MemoryCase, ranks: Ranks) -> Learner:
    settings = LearnerConfig(micro_batch_tokens=max(64, case.tokens), **case.learner)
    learner = Learner(policy(case.model), settings, 1.0, ranks, False)
    for name in expert_layers(learner.scorer.model):
        router = learner.scorer.model.get_submodule(f"{name.removesuffix('experts')}gate")
        router.forward = partial(_in_turns, router.forward, learner.scorer.model.config.num_experts)
    return learner


def _in_turns(route: Callable[[torch.Tensor], Any], experts: int, states: torch.Tensor) -> Any:
    """A router that sends tokens to all experts alike, as memory is predicted: an untrained one prefers a few."""
    logits, weights, chosen = route(states)
    return logits, weights, torch.arange(chosen.numel(), device=chosen.device).view_as(chosen) % experts


def _sampling(case: MemoryCase) -> Callable[[], object]:
    sampler = LocalSampler(policy(case.model))
    rng = np.random.default_rng(0)
    prompts = [
        Prompt(number, rng.integers(0, 100, case.tokens).tolist(), number, case.new_tokens)
        for number in range(case.contexts)
    ]
    return lambda: sampler.generate(prompts)


def _process(case: MemoryCase, port: int, rank: int) -> tuple[int, int]:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    if not case.dp:
        return occupied(case, None)
    device = f"cuda:{rank}" if torch.cuda.is_available() else "cpu"
    with joined_mesh(rank, case.layout, "127.0.0.1", port, device) as mesh:
        return occupied(case, mesh)
