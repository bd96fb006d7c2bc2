"""One GPU measured: rollout with vLLM, updates in bfloat16, weight hand-over, sleep and wake, memory against the model.

for each shape: a process with an engine ─▶ a process with a learner ─▶ a row of the table

Weights are random and made on the device. A shape whose update does not fit keeps as many of its layers as do. Never
run on a GPU; tests/gpu/test_benchmark.py runs its parts on a CPU.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from earl.algorithms.registry import algorithm
from earl.benchmarks.footprint import MemoryCase, predicted, shape_made
from earl.benchmarks.layouts import batch, free_port, model_config
from earl.config import LearnerConfig, SamplerConfig
from earl.engine.learner import Learner, Update
from earl.engine.model import Policy, character_tokenizer, meta_model, tensors_once
from earl.engine.sampler import Sampler
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.sharding.shards import Shards
from earl.engine.trace import catalogue_config
from earl.engine.vllm.device import device as vllm_device
from earl.engine.vllm.device import require_vllm
from earl.errors import EarlError
from earl.parallel.hardware import GIB, device_of
from earl.parallel.layout import Box, Layout, whole
from earl.parallel.memory import ModelShape, known
from earl.trajectory import Prompt

SHAPES = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B")
ROWS, TOKENS, MICRO_BATCHES, PROMPT = 4, 8192, 2, 512
"""Of a micro-batch: rows, and tokens of all; micro-batches of an update; tokens of a prompt."""
CONTEXTS, NEW_TOKENS = 256, 256
UPDATES = 3  # that count, after one that does not
FULLEST = 0.9  # share of the device's memory that a learner is predicted to take at most
SHARE = 0.6  # of the device's memory for the engine: beside it lie the weights that it is handed
STD = 0.02


def run(shapes: Sequence[str] = (), table: Path | None = None) -> dict[str, Any]:
    """Measure each shape. For the result see `earl bench gpu --help`. Raises EarlError without GPU or vLLM."""
    if not torch.cuda.is_available():
        raise EarlError("earl bench gpu measures a GPU, and torch finds no CUDA device here; run it where there is one")
    require_vllm()
    rows = [{"shape": name, **_apart(engine_row, name), **_apart(learner_row, name)} for name in shapes or SHAPES]
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    if table:
        table.write_text(markdown(result), encoding="utf-8")
    return result


def _apart(measure: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    """Measure in a process of its own, which gives all memory of the device back."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, name).result()


def markdown(result: Mapping[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    names = [*result["rows"][0]]
    lines = [[name.replace("_", " ") for name in names], ["---"] * len(names)]
    lines += [[_said(row[name]) for name in names] for row in result["rows"]]
    heading = f"{result['device']}, torch {result['torch']}:"
    return "\n".join([heading, "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def _said(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return "-" if value is None else str(value)


def seconds_of(work: Callable[[], object]) -> float:
    """From an idle device to an idle device."""
    wait: Callable[[], object] = torch.cuda.synchronize if torch.cuda.is_available() else int
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def model_of(name: str) -> dict[str, Any]:
    """A model of the catalogue in the words of `transformers`. Raises EarlError when it is not there."""
    if (found := known(name)) is None:
        raise EarlError(f"{name!r} is no model of the catalogue; take one such as {SHAPES[0]}")
    return catalogue_config(found)


# Rollout, and what it takes to put an engine to sleep and to give it new weights.


def engine_row(name: str) -> dict[str, Any]:
    from earl.engine.vllm.sampler import VllmSampler

    made = Policy(meta_model(model_config(model_of(name))), character_tokenizer())
    settings = SamplerConfig(engine="vllm", compiled=True, memory_share=SHARE)
    sampler = VllmSampler(made, settings, 1.0, PROMPT + NEW_TOKENS)
    drawn = RandomWeights(made.model, torch.device("cuda:0"))
    weights = {key: drawn.read(key, whole(shape)).bfloat16() for key, shape in drawn.shapes.items()}
    # Not `load`: its probe would need the model a second time.
    hand_over = seconds_of(lambda: sampler._exclusively(lambda engine: vllm_device().hand_over(engine, weights)))
    weights.clear()
    rate = rollout_rate(sampler, CONTEXTS, PROMPT, NEW_TOKENS)
    row = {"rollout_tokens_per_second": rate, "hand_over_seconds": hand_over}
    row |= {"sleep_seconds": seconds_of(sampler.sleep), "wake_seconds": seconds_of(sampler.wake)}
    sampler.close()
    return row


def rollout_rate(sampler: Sampler, contexts: int, prompt: int, new_tokens: int) -> float:
    """Tokens per second that are sampled for prompts that begin differently; a first call warms up."""
    prompts = [
        Prompt(number, [number % 97, *(place % 89 for place in range(prompt - 1))], number, new_tokens)
        for number in range(contexts)
    ]
    sampler.generate(prompts[:2])
    replies: list[Any] = []
    seconds = seconds_of(lambda: replies.extend(sampler.generate(prompts)))
    return sum(len(reply.tokens) for reply in replies) / seconds


class RandomWeights:
    """The weights of a model that is nowhere: each part is drawn where it is wanted."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors_once(model).items()}
        self._device = device

    def read(self, name: str, wanted: Box) -> Tensor:
        return torch.randn(wanted.shape, device=self._device) * STD


# Updates, and the memory of a learner.


def learner_row(name: str) -> dict[str, Any]:
    memory = torch.cuda.get_device_properties(0).total_memory
    case = fitting(MemoryCase(name, "update", model_of(name), {"dtype": "bfloat16"}, 1, 1, TOKENS, ROWS), memory)
    case = replace(case, micro_batches=MICRO_BATCHES)
    kind = device_of(torch.cuda.get_device_name(), memory)
    return update_row(case, torch.device("cuda:0"), kind.bf16_flops if kind else None)


def fitting(case: MemoryCase, memory_bytes: int) -> MemoryCase:
    """The case with as many of its layers as are predicted to fit. Raises EarlError when one is too much."""
    for layers in range(case.model["num_hidden_layers"], 0, -1):
        fewer = replace(case, model={**case.model, "num_hidden_layers": layers})
        if predicted(fewer).peak <= FULLEST * memory_bytes:
            return fewer
    raise EarlError(f"not one layer of {case.name} can be updated in {memory_bytes / GIB:.1f} GiB")


def update_row(case: MemoryCase, device: torch.device, peak_flops: float | None) -> dict[str, Any]:
    """Updates of a case on a device. peak_flops: of the device per second, if it is known."""
    model = meta_model(model_config(case.model))
    lengths = [case.tokens // case.rows] * case.rows * case.micro_batches
    rows, update = batch(lengths, 1), Update(1e-5, entropy=0.0, minibatches=1, epochs=1, seed=0)
    with joined_mesh(0, Layout(), "127.0.0.1", free_port(), str(device)) as mesh:
        settings = LearnerConfig(micro_batch_tokens=case.tokens, **case.learner)
        ranks = Shards(mesh, RandomWeights(model, device))
        learner = Learner(Policy(model, character_tokenizer()), settings, 1.0, ranks, False)
        learner.update(rows, algorithm("grpo"), update)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took = [seconds_of(lambda: learner.update(rows, algorithm("grpo"), update)) for _ in range(UPDATES)]
    seconds = median(took)
    flops = update_flops(shape_made(case.model), lengths)
    return {
        "layers": case.model["num_hidden_layers"],
        "update_seconds": seconds,
        "mfu": flops / seconds / peak_flops if peak_flops else None,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if device.type == "cuda" else None,
        "predicted_gib": predicted(case).peak / GIB,
    }


def update_flops(shape: ModelShape, lengths: Sequence[int]) -> float:
    """Arithmetic that an update cannot do without: 6 operations per token and weight of a matrix product, and causal
    attention, whose backward pass is twice its forward pass (PaLM, arXiv 2204.02311, appendix B; there not halved)."""
    tables = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    products = shape.parameters - tables + shape.vocab * shape.hidden  # looking a token up multiplies nothing
    attention = 6 * shape.layers * shape.heads * shape.head_dim
    return float(6 * products * sum(lengths) + attention * sum(length**2 for length in lengths))
