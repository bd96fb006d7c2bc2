"""What a learner and a sampler take of one device, from shapes alone, at the fullest moment of a stage.

update    weights + gradients + the optimizer's moments (16 bytes per parameter, shared by all devices: FSDP2) + the
          layers at work, gathered, and what is exchanged + activations of a micro-batch + a slice of logits
forward   weights + the optimizer's moments, which lie there + layers at work + a layer's activations + logits
rollout   weights, shared by the devices of one copy + keys and values of the contexts
"""

from dataclasses import dataclass, replace
from math import ceil

from earl.parallel.memory import KERNEL_BYTES, RESIDUE_BYTES, WIDE_BYTES, ModelShape, kv_bytes
from earl.parallel.moments import Moment, of_pass, of_update
from earl.parallel.training import Training, adapter_parameters

__all__ = [
    "LearnerBytes",
    "SamplerBytes",
    "Training",
    "adapter_parameters",
    "forward_bytes",
    "learner_bytes",
    "sampler_bytes",
]


PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "gathered",
    "buffers",
    "activations",
    "logits",
    "reference",
    "residue",
)


@dataclass(frozen=True, slots=True)
class LearnerBytes:
    """Of one device, at the fullest moment of a stage: what is said of each kind adds up to the peak."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    """Layers at work."""
    buffers: int
    """Of exchanges between devices."""
    activations: int
    logits: int
    reference: int
    residue: int
    """What libraries keep; counted on CPUs."""

    offload: bool
    """Whether moments and reference lie in host memory while they are not needed."""
    moment: str
    """Which one it is; see moments.py."""
    resting: int
    """What stays while nothing is computed."""

    @property
    def parts(self) -> dict[str, int]:
        """By what they are for, as they add up to the peak."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def peak(self) -> int:
        """The most at once."""
        return sum(self.parts.values())


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
    """What one rank of a learner takes of its device while it learns.

    Example:
        Qwen2.5-72B, dp 32 x tp 4: 72.7 billion parameters x 4 bytes / 128 = 2.1 GiB of weights
    """
    return _fullest(shape, training, of_update(shape, training))


def forward_bytes(shape: ModelShape, training: Training) -> LearnerBytes:
    """What it takes while it reads log-probs or values, of its own or of the reference; moments lie beside."""
    return _fullest(shape, training, of_pass(shape, training))


def _fullest(shape: ModelShape, training: Training, moments: list[Moment]) -> LearnerBytes:
    devices = training.tp if training.whole else training.shards * training.tp
    trained = adapter_parameters(shape, training.lora_rank) if training.lora_rank else shape.parameters
    base = WIDE_BYTES * shape.parameters
    weights = ceil((base + (WIDE_BYTES * trained if training.lora_rank else 0)) / devices)
    optimizer = ceil(2 * WIDE_BYTES * trained / devices)
    reference = ceil(base / devices) if training.reference and not training.lora_rank else 0
    residue = RESIDUE_BYTES + (KERNEL_BYTES if training.float_bytes < WIDE_BYTES else 0)
    away = training.offload and not training.on_host
    held = {moment.name: 0 if away and moment.name != "step" else optimizer for moment in moments}
    fullest = max(moments, key=lambda moment: moment.total + held[moment.name])
    return LearnerBytes(
        weights=weights,
        gradients=fullest.gradients,
        optimizer=held[fullest.name],
        gathered=fullest.gathered,
        buffers=fullest.buffers,
        activations=fullest.activations,
        logits=fullest.logits,
        reference=0 if away else reference,
        residue=residue if training.on_host else 0,
        offload=training.offload,
        moment=fullest.name,
        resting=weights + (0 if away else optimizer + reference),
    )


def sampler_bytes(shape: ModelShape, tp: int, float_bytes: int, tokens: int, contexts: int) -> SamplerBytes:
    """What one device of a sampler takes that holds `contexts` contexts of `tokens` tokens at once.

    Example:
        Qwen2.5-72B in 16 bits, tp 4, 32,768 tokens: 33.9 GiB of weights, 80 KiB x 32,768 = 2.5 GiB for a context
    """
    of_kind = replace(shape, float_bytes=float_bytes)
    return SamplerBytes(ceil(shape.parameters * float_bytes / tp), tokens * kv_bytes(of_kind, tp), contexts)
