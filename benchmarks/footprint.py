"""The memory model against measured processes: predicted and measured peaks of training, scoring and sampling.

Cases (footprint.toml) are small enough for a laptop, but larger than what libraries allocate: 100 to 700 MB a process.
For each in turn, the parent starts its ranks as fresh processes (memory_use.py); several are joined by gloo.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from earl.benchmarks.layouts import free_ports
from earl.benchmarks.memory_use import MemoryCase
from earl.engine.heap import GIVE_BACK
from earl.engine.model import shape_of
from earl.errors import EarlError
from earl.parallel.footprint import LearnerBytes, Training, forward_bytes, learner_bytes
from earl.parallel.memory import ModelShape, Sampling, SlotBytes, slot_bytes
from earl.recipe import load_toml

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
        chosen = [case for case in chosen if case.dp and case.processes == 1 and case.stage != "sample"]
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
        "device": _device(),
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
        dp=max(1, case.dp),
        tp=case.tp,
        cp=case.cp,
        tokens=case.tokens,
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
    keys = dict(model)
    with torch.device("meta"):
        config = AutoConfig.for_model(keys.pop("model_type"), max_position_embeddings=1 << 17, **keys)
        return shape_of(AutoModelForCausalLM.from_config(config))


def row_of(case: MemoryCase) -> dict[str, Any]:
    ranks, parts = _measured(case), predicted(case)
    peak = max(rank["peak_bytes"] for rank in ranks)
    return {
        "name": case.name,
        "case": asdict(case),
        "predicted_bytes": parts.peak,
        "measured_bytes": peak,
        "before_bytes": max(rank["before_bytes"] for rank in ranks),
        "error": parts.peak / peak - 1,
        "parts": parts.parts,
        "moment": parts.moment,
    }


def _measured(case: MemoryCase) -> list[dict[str, int]]:
    environment = {**os.environ, **GIVE_BACK, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "earl.benchmarks.memory_use", json.dumps(asdict(case))]
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen([*command, str(rank), port], env=environment, stdout=subprocess.PIPE)
        for rank in range(case.processes)
    ]
    try:
        said = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a process of the case {case.name!r} ended early; its message stands above")
    return [json.loads(text) for text in said]


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
