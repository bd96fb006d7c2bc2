"""Rows of the published measurements, as engines and workloads."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from earl.parallel.catalogue import catalogue
from earl.parallel.hardware import devices
from earl.parallel.throughput.precision import Precision
from earl.parallel.throughput.rollout import Workload
from earl.parallel.throughput.room import Engine
from earl.parallel.throughput.software import TENSORRT_LLM, TRITON, VLLM_0_5

MODELS = {
    "LLaMA-3.1-8B": "Llama-3.1-8B",
    "LLaMA-3.1-70B": "Llama-3.1-70B",
    "LLaMA-3.1-405B": "Llama-3.1-405B",
    "Mixtral-8x7B": "Mixtral-8x7B",
}
GPUS = {"H100-80GB": "H100", "A100-80GB": "A100-80"}
SOFTWARE = {"trtllm-0.17": TENSORRT_LLM, "trtllm-0.14-online": TRITON, "lambda-vllm-0.5.4": VLLM_0_5}
REQUESTS = {
    (128, 128): 30_000,
    (128, 2048): 3000,
    (128, 4096): 1500,
    (500, 2000): 3000,
    (1000, 1000): 3000,
    (2048, 128): 3000,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (20_000, 2000): 1000,
}
"""Of TensorRT-LLM's benchmark by prompt and reply, as public scripts that make its data sets have them."""
ONLINE_REQUESTS = 500
ONLINE_CHAT_REPLY = 214
"""Tokens: a mean that no setting gives; the other two replies of that table are round."""
CHATS = 320
CHAT_TOKENS = (220.0, 195.0)
"""Of the chat data set: mean prompt and reply as vLLM's benchmark filters it. The page does not tell them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of throughput."""

    source: str
    model: str
    gpu: str
    engine: Engine
    workload: Workload
    tokens_per_second: float
    """Written tokens of all devices."""
    rate: float
    """Requests that arrive in a second; inf: all at once."""
    token_seconds: float | None
    """Between two tokens of a reply, on average; None: not told."""
    chat: bool = False
    """Whether prompts and replies are those of chats, of unlike lengths."""

    @property
    def tp(self) -> int:
        """Devices."""
        return self.engine.tp

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return self.engine.shape.experts > 1

    @property
    def cell(self) -> tuple[object, ...]:
        """What a choice of TP is made for."""
        return self.source, self.model, self.gpu, self.workload, self.rate


@dataclass(frozen=True, slots=True)
class Served:
    """The longest context of 4,096, 32,768 and 131,072 that was served; 0: the model did not load."""

    model: str
    engine: Engine
    tokens: int


@cache
def measured() -> tuple[Measured, ...]:
    """Every measured throughput."""
    return tuple(_measured(row) for row in _rows() if row["metric"] == "output_throughput" and row["value"])


@cache
def served() -> tuple[Served, ...]:
    """Every label of what was served."""
    return tuple(
        Served(MODELS[row["model"]], _engine(row), int(row["value"]))
        for row in _rows()
        if row["metric"] == "max_context_served"
    )


def table(name: str) -> list[dict[str, str]]:
    """The rows of a file of this folder."""
    text = files("earl.parallel.calibration").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _rows() -> Iterator[dict[str, str]]:
    yield from table("serving_throughput.csv")


def _engine(row: dict[str, str]) -> Engine:
    shape = catalogue()[MODELS[row["model"]]].shape
    kv = "auto" if row["kv_dtype"].startswith("auto") else row["kv_dtype"]
    precision = Precision(row["weight_dtype"], kv)
    return Engine(shape, devices()[GPUS[row["gpu"]]], int(row["tp"]), precision, SOFTWARE[row["source_id"]])


def _measured(row: dict[str, str]) -> Measured:
    source, chat = row["source_id"], not row["isl"]
    prompt, reply = CHAT_TOKENS if chat else (float(row["isl"]), float(row["osl"]))
    rate = re.match(r"qps=(\w+)", row["load"])
    count = CHATS if chat else ONLINE_REQUESTS if rate else REQUESTS[int(prompt), int(reply)]
    return Measured(
        source=source,
        model=MODELS[row["model"]],
        gpu=GPUS[row["gpu"]],
        engine=_engine(row),
        workload=Workload(prompt, reply, count),
        tokens_per_second=float(row["value"]),
        rate=float(rate[1]) if rate else float("inf"),
        token_seconds=float(row["itl_ms"]) / 1000 if row["itl_ms"] else None,
        chat=chat or reply == ONLINE_CHAT_REPLY,
    )
