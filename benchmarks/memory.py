"""Peak memory of an update on one long sample, in a separate process, compared with the predicted minimum."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from earl.algorithms.registry import algorithm
from earl.batch import Batch
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.attention import ATTENTION
from earl.engine.learner import Learner, Update
from earl.engine.model import Policy, shape_of
from earl.engine.ranks import Replicas
from earl.engine.tokenizer import character_tokenizer
from earl.parallel.footprint import Training, learner_bytes
from earl.placement.peers import Peers

BUDGET_BYTES = 8 << 30
FLOAT_BYTES = 4
ALONE = Training(
    1, 1, 0, FLOAT_BYTES, False, False, 0, False, whole=True, on_host=True, accumulated=False, ragged=False
)


def run(tokens: int = 32_768, vocab: int = 150_000, hidden: int = 128, layers: int = 4) -> dict[str, Any]:
    """Measure an update with activations kept, then recomputed. For the result see `earl bench memory --help`."""
    measured = {name: _measured(tokens, vocab, hidden, layers, name == "recompute") for name in ("kept", "recompute")}
    return {
        "tokens": tokens,
        "vocab": vocab,
        "hidden": hidden,
        "layers": layers,
        **measured,
        "full_logits_bytes": tokens * vocab * FLOAT_BYTES,
        "budget_bytes": BUDGET_BYTES,
    }


def _measured(*arguments: int) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "earl.benchmarks.memory", *(str(int(value)) for value in arguments)]
    result: dict[str, Any] = json.loads(subprocess.run(command, env=environment, check=True, stdout=-1).stdout)
    return result


def _measure(tokens: int, vocab: int, hidden: int, layers: int, *, recompute: bool) -> dict[str, Any]:
    """Runs in a fresh process. Libraries are warmed up, and Adam's moments exist, before the sample comes."""
    _learner(64, 32, 1, False).update(_sample(64), algorithm("grpo"), _update())
    before = _resident("VmRSS")
    learner = _learner(vocab, hidden, layers, recompute)
    learner.update(_sample(64), algorithm("grpo"), _update())
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    learner.update(_sample(tokens), algorithm("grpo"), _update())
    peak = _resident("VmHWM") - before
    shape = shape_of(learner.scorer.model)
    needs = learner_bytes(shape, replace(ALONE, tokens=tokens, recompute=recompute, learned=tokens // 2))
    return {"peak_bytes": peak, "floor_bytes": needs.peak, "ratio": peak / needs.peak, "parts": needs.parts}


def _learner(vocab: int, hidden: int, layers: int, recompute: bool) -> Learner:
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden // 4,
        tie_word_embeddings=True,
        max_position_embeddings=1 << 20,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION)
    settings = LearnerConfig(micro_batch_tokens=1 << 20, recompute=recompute)
    return Learner(Policy(model, character_tokenizer()), AlgorithmConfig(), settings, 1.0, Replicas(Peers()), False)


def _update() -> Update:
    return Update(learning_rate=1e-4, entropy=0.01, kl=0.0, minibatches=1, epochs=1, seed=0)


def _sample(tokens: int) -> Batch:
    rng = np.random.default_rng(0)
    mask = np.arange(tokens) >= tokens // 2
    ids = rng.integers(0, 64, tokens).astype(np.int32)
    zeros, none = np.zeros(tokens, np.float32), np.zeros(tokens, bool)
    row = Batch(np.array([0, tokens]), ids, mask, ids, zeros, np.zeros(tokens, np.int32), none, zeros, zeros, zeros)
    return replace(row, advantages=rng.normal(size=tokens).astype(np.float32) * mask, logprobs=-10 * mask.astype("f4"))


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


if __name__ == "__main__":
    torch.set_num_threads(2)
    numbers = [int(value) for value in sys.argv[1:]]
    sys.stdout.write(json.dumps(_measure(*numbers[:4], recompute=bool(numbers[4]))))
