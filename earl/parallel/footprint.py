"""What a learner and a sampler take of one device, from shapes alone: lower bounds, without what libraries keep.

update    weights + gradients + the optimizer's moments (16 bytes per parameter, shared by all devices: FSDP2) + the
          layers at work, gathered + activations of a micro-batch + a slice of logits
rollout   weights, shared by the devices of one copy + keys and values of the contexts
"""

from dataclasses import dataclass, replace
from math import ceil

from earl.parallel.memory import ModelShape, activation_bytes, kv_bytes, logit_bytes

MASTER_BYTES = 4
"""Of a trained weight, of its gradient, and of each of its two moments."""
LAYERS_AT_WORK = 2
"""That are gathered at once: one computes while the next one arrives."""


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained, as far as memory is concerned."""

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


@dataclass(frozen=True, slots=True)
class LearnerBytes:
    """Of one device."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    """Layers at work."""
    activations: int
    logits: int
    reference: int

    offload: bool
    """Whether moments and reference lie in host memory while they are not needed."""

    @property
    def resting(self) -> int:
        """What stays while nothing is computed."""
        return self.weights + (0 if self.offload else self.optimizer + self.reference)

    @property
    def peak(self) -> int:
        """The most at once: in the passes, or, where the moments come from host memory for it, in the step."""
        passes = self.gathered + self.activations + self.logits
        least = self.weights + self.gradients
        if self.offload:
            return least + max(passes, self.optimizer, self.reference)
        return least + passes + self.optimizer + self.reference


@dataclass(frozen=True, slots=True)
class SamplerBytes:
    """Of one device."""

    weights: int
    context: int
    """Keys and values of one context of the longest length."""
    contexts: int
    """How many are to be held at once."""

    @property
    def least(self) -> int:
        """Weights and one context: less cannot work."""
        return self.weights + self.context

    @property
    def wanted(self) -> int:
        """Weights and all contexts."""
        return self.weights + self.context * self.contexts


def learner_bytes(shape: ModelShape, training: Training) -> LearnerBytes:
    """What one rank of a learner takes of its device.

    Example:
        Qwen2.5-72B, dp 32 x tp 4: 72.7 billion parameters x 4 bytes / 128 = 2.1 GiB of weights
    """
    devices = training.dp * training.tp
    trained = adapter_parameters(shape, training.lora_rank) if training.lora_rank else shape.parameters
    computing = replace(shape, float_bytes=training.float_bytes)
    base = MASTER_BYTES * shape.parameters
    cast = training.float_bytes != MASTER_BYTES
    moments = 2 * MASTER_BYTES * trained
    return LearnerBytes(
        weights=ceil((base + (MASTER_BYTES * trained if training.lora_rank else 0)) / devices),
        gradients=ceil(MASTER_BYTES * trained / devices),
        optimizer=ceil(moments / devices),
        gathered=_gathered(shape, training) if training.dp > 1 or cast else 0,
        activations=activation_bytes(computing, training.tokens, training.tp, training.recompute),
        logits=logit_bytes(shape, training.tokens, training.tp),
        reference=ceil(base / devices) if training.reference and not training.lora_rank else 0,
        offload=training.offload,
    )


def sampler_bytes(shape: ModelShape, tp: int, float_bytes: int, tokens: int, contexts: int) -> SamplerBytes:
    """What one device of a sampler takes that holds `contexts` contexts of `tokens` tokens at once.

    Example:
        Qwen2.5-72B in 16 bits, tp 4, 32,768 tokens: 33.9 GiB of weights, 80 KiB x 32,768 = 2.5 GiB for a context
    """
    of_kind = replace(shape, float_bytes=float_bytes)
    return SamplerBytes(ceil(shape.parameters * float_bytes / tp), tokens * kv_bytes(of_kind, tp), contexts)


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Of low-rank adapters at every linear layer of every block: rank x (inputs + outputs) of each."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)
    return rank * shape.layers * (attention + 3 * (shape.hidden + shape.intermediate))


def _gathered(shape: ModelShape, training: Training) -> int:
    """The layers at work and the words, in the type of the computation, split by tensor parallelism alone."""
    words = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    layer = max(0, shape.parameters - words) / shape.layers
    return ceil((min(LAYERS_AT_WORK, shape.layers) * layer + words) * training.float_bytes / training.tp)
