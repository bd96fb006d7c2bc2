"""How well the model meets single operations of layer_times.csv, which its coefficients are not fitted to.

Sums of a layer's four matrix products, and all-reduces within a host that links all of its GPUs. Serving engines use
other kernels, in graphs, so the coefficients' priors were chosen with these times in sight, and no more.
"""

from dataclasses import replace

import numpy as np

from earl.parallel.calibration.tables import table
from earl.parallel.catalogue import catalogue
from earl.parallel.hardware import devices
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.coefficients import Values
from earl.parallel.throughput.room import Engine
from earl.parallel.throughput.step import Batch, all_reduce_seconds, step_seconds

PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
GPUS = {"h100": "H100", "a100": "A100-80", "h100_dgx": "H100", "a100_dgx": "A100-80"}
LLAMA = catalogue()["Llama-3.1-70B"].shape
MODELS = {
    "meta-llama/Llama-2-70b-hf": LLAMA,
    "meta-llama/Meta-Llama-3-70B": LLAMA,
    "Qwen/Qwen-72B": replace(LLAMA, kv_heads=64, intermediate=24_576),
}


def kernels(own: Values) -> dict[str, dict[str, float]]:
    """Mean relative errors, signed and absolute, of both kinds."""
    return {"products": _summary(_products(own)), "all_reduces": _summary(_all_reduces(own))}


def _summary(ratios: list[float]) -> dict[str, float]:
    off = np.array(ratios) - 1
    return {"rows": len(ratios), "mean_error": float(off.mean()), "mean_absolute_error": float(np.abs(off).mean())}


def _products(own: Values) -> list[float]:
    """Predicted by measured time of a layer's products. The time between kernels is not in either."""
    times: dict[tuple[str, str, int, int], float] = {}
    for row in table("layer_times.csv"):
        if row["op"] in PRODUCTS:
            size = int(row["num_tokens_or_size_bytes"])
            key = row["device"], row["model_or_collective"], int(row["tp_or_workers"]), size
            times[key] = times.get(key, 0.0) + float(row["median"]) / 1000
    return [
        _layer_seconds(MODELS[model], GPUS[device], tp, tokens, own) / seconds
        for (device, model, tp, tokens), seconds in times.items()
    ]


def _layer_seconds(shape: ModelShape, gpu: str, tp: int, tokens: int, own: Values) -> float:
    """Of one layer without embeddings: the model's words are left out of its parameters."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    numbers = shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate)
    layer = replace(shape, layers=1, vocab=0, parameters=numbers)
    return step_seconds(Engine(layer, devices()[gpu], tp), Batch(tokens, 0.0), own).weights


def _all_reduces(own: Values) -> list[float]:
    ratios = []
    for row in table("layer_times.csv"):
        workers = int(row["tp_or_workers"])
        if row["device"] in GPUS and row["op"] == f"devices_per_node={workers}" and workers <= 8:
            engine = Engine(LLAMA, devices()[GPUS[row["device"]]], workers)
            guess = all_reduce_seconds(engine, float(row["num_tokens_or_size_bytes"]), own)
            ratios.append(guess / (float(row["median"]) / 1000))
    return ratios
