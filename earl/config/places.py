"""Where the fragments of a step run: [sampler], [placement], [selector]."""

from typing import Literal

from pydantic import Field

from earl.config.section import Section

GIB = 1 << 30


class SamplerConfig(Section):
    """[sampler]: what decodes the model's replies."""

    engine: Literal["auto", "local", "vllm"] = "auto"
    """`local`: earl's own, on CPU. `vllm`: vLLM, on GPUs or on CPU. `auto`: the faster one for model and hardware."""
    tp: int = Field(1, ge=1)
    """Devices that one copy of the model is split over. Not set, on GPUs: as few as memory allows."""
    compiled: bool = False
    """vLLM: compile the model; takes longer to start."""
    memory_share: float = Field(0.85, gt=0, lt=1)
    """vLLM on GPUs: share of a device's memory for weights and KV cache."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """On CPU: memory for the KV cache of one process. Not set: vLLM takes 1, earl's own what a step's episodes need."""

    @property
    def cache_bytes(self) -> int | None:
        """Memory for the KV cache; None: not set."""
        return None if self.kv_cache_gib is None else int(self.kv_cache_gib * GIB)

    @property
    def vllm_cache_bytes(self) -> int:
        """What vLLM takes on a CPU."""
        return GIB if self.cache_bytes is None else self.cache_bytes


class PlacementConfig(Section):
    """[placement]: where the fragments of a step run."""

    kind: Literal["auto", "embedded", "colocated", "disaggregated"] = "auto"
    """`embedded`: in `run.processes` processes, without Ray. `colocated`: rollout and learner take turns on the same
    devices. `disaggregated`: each has its own. `auto`: colocated with GPUs and Ray, or where an address or GPUs are
    named; else embedded."""
    address: str | None = None
    """Of a Ray cluster: HOST:PORT, or `auto` for the one that this machine is part of; absent: an own one, here."""
    gpus: str | None = None
    """What of it may be used: HOSTSxGPUSxKIND such as `16x8xH100`, or GPUSxKIND on one host; absent: all GPUs."""
    dp: int = Field(1, ge=1)
    """Learner: data-parallel copies, over which parameters are sharded (FSDP2). Not set, on GPUs: as many as fit."""
    tp: int = Field(1, ge=1)
    """Learner: tensor-parallel devices of one copy. Not set, on GPUs: as few as memory allows."""
    cp: int = Field(1, ge=1)
    """Learner: context-parallel devices, over which the tokens of a micro-batch are split, each with tp neighbours.
    Parameters are sharded over dp x cp."""
    samplers: int = Field(1, ge=1)
    """Copies of the sampler, each of sampler.tp devices. Not set, on GPUs: as many as there are prompts and GPUs."""
    environments: int = Field(0, ge=0)
    """Processes that play the episodes away from their samplers, each on a CPU core and without a GPU; 0: episodes
    live with their sampler."""
    max_staleness: int = Field(0, ge=0)
    """How many weight versions rollout may run ahead of the learner; 0: they take turns. Disaggregated only."""
    transport: Literal["auto", "objects", "peers"] = "auto"
    """How rows get to where they are learned from. `objects`: by Ray's object store. `peers`: from process to process,
    in one group that lasts. `auto`: by the one that is expected to take less time, and then by what both took."""
    checksums: bool = False
    """Whether rows and weights are checked when they arrive; what is damaged is sent again."""
    memory_gib: float | None = Field(None, gt=0)
    """Colocated and disaggregated on CPUs: what each process may take of memory above what it has at its start. A GPU
    is its own budget."""
    heartbeat_seconds: float = Field(10.0, gt=0)
    """A process that says nothing for so long is taken for dead and replaced."""
    stage_seconds: float = Field(1800.0, gt=0)
    """The longest that one stage of a step may take before whoever has not answered is taken for hung."""
    max_recoveries: int = Field(100, ge=0)
    """Failures that are mended before the run gives up."""

    @property
    def memory_bytes(self) -> int | None:
        """`memory_gib` in bytes."""
        return None if self.memory_gib is None else int(self.memory_gib * (1 << 30))


class SelectorConfig(Section):
    """[selector]: layouts that change while a run goes on."""

    kind: Literal["off", "auto"] = "off"
    """`auto`: before each stage of a step the fastest layout that its contexts leave room for: of the learner dp × tp
    over as many ranks, with and without recompute, cp as it is set; of rollout copies × tp over as many devices.
    `off`: as set. What `earl profile` has measured here is known from the first step on."""
    profile: bool = False
    """Measure layouts before a new run begins, as `earl profile` does; what is known is not measured again."""
