"""How a model is trained, as far as memory is concerned."""

from dataclasses import dataclass
from math import ceil

from earl.parallel.memory import ModelShape


@dataclass(frozen=True, slots=True)
class Training:
    """A layout, what a micro-batch is, and what is kept where.

    Example:
        Training(dp=32, tp=4, tokens=32_768, float_bytes=2, recompute=True, offload=False, lora_rank=0, reference=True)
    """

    dp: int
    tp: int
    tokens: int
    """Of a micro-batch."""
    float_bytes: int
    """Of one number in computation."""
    recompute: bool
    offload: bool
    lora_rank: int
    reference: bool
    """Whether a frozen copy is kept beside."""
    whole: bool = False
    """Whether every process holds a whole copy, as in an embedded run, instead of shards."""
    on_host: bool = False
    """Whether the device is the host: then exchanges go by gloo, and nothing can be moved out of the way."""
    learned: int | None = None
    """Tokens of a micro-batch whose log-probs are wanted; None: all."""
    accumulated: bool = True
    """Whether a step has several micro-batches, so that gradients of earlier ones are there."""
    ragged: bool = True
    """Whether rows of several lengths share a micro-batch: GPUs have a kernel for that, hosts join their attention."""
    cp: int = 1
    """Ranks that the tokens of a micro-batch are split over."""

    @property
    def shards(self) -> int:
        """Over which each part of a layer is sharded."""
        return self.dp * self.cp

    @property
    def portion(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return ceil(self.tokens / self.cp)


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Of low-rank adapters at every linear layer of every block: rank x (inputs + outputs) of each."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)
    return rank * shape.layers * (attention + 3 * (shape.hidden + shape.intermediate))
