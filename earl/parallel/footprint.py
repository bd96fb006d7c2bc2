"""Memory of a learner and a sampler on one device at the peak of a stage, from shapes alone.

update    weights + gradients + the optimizer's moments (16 bytes per parameter, shared by all devices: FSDP2) + the
          layers at work, gathered, and what is exchanged + activations of a micro-batch + a slice of logits
forward   weights + the optimizer's moments + layers at work + a layer's activations + logits
rollout   weights, shared by the devices of one copy + keys and values of the contexts
"""

from dataclasses import dataclass, replace
from math import ceil

from earl.parallel.memory import (
    KERNEL_BYTES,
    PRODUCT_AT_ONCE,
    RESIDUE_BYTES,
    WIDE_BYTES,
    Layer,
    ModelShape,
    kv_bytes,
    layer,
    logit_bytes,
)


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of training that determine memory."""

    dp: int
    tp: int
    tokens: int  # of a micro-batch
    float_bytes: int  # of one number in computation
    recompute: bool
    offload: bool
    lora_rank: int
    reference: bool  # whether a frozen copy of the model is kept
    whole: bool = False  # whether every process holds a whole copy, as in an embedded run
    on_host: bool = False
    """Whether the device is the host: then exchanges go by gloo, and nothing can be offloaded."""
    learned: int | None = None  # tokens of a micro-batch whose log-probs are wanted; None: all
    accumulated: bool = True  # whether a step has several micro-batches, with accumulated gradients
    ragged: bool = True
    """Whether rows of several lengths share a micro-batch: GPUs have a kernel for that, hosts join their attention."""
    cp: int = 1  # ranks that share the tokens of a micro-batch

    @property
    def shards(self) -> int:
        """Ranks over which each part of a layer is sharded."""
        return self.dp * self.cp

    @property
    def portion(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return ceil(self.tokens / self.cp)


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Parameters of low-rank adapters at every linear layer of every block: rank x (inputs + outputs) of each."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)
    return rank * shape.layers * (attention + 3 * (shape.hidden + shape.intermediate))


# An update and a pass without gradients as sequences of moments, each with its memory beside weights and moments.
#
# gather ─▶ head ─▶ layer ─▶ send … layer ─▶ send ─▶ words ─▶ exchange ─▶ step   (update)
# gather ─▶ layer ─▶ head                                                        (pass)
#
# Any of them can be the peak. Communication buffers are those of FSDP2; gloo sums gradients in a copy.


@dataclass(frozen=True, slots=True)
class LearnerBytes:
    """Memory of one rank at one moment, or at the peak of a stage, when the parts add up to the peak."""

    moment: str
    gradients: int = 0  # shards waiting for the step, and gradients not exchanged yet
    gathered: int = 0  # gathered layers
    buffers: int = 0  # sent and received in exchanges
    activations: int = 0
    logits: int = 0
    weights: int = 0
    optimizer: int = 0
    reference: int = 0
    residue: int = 0  # kept by libraries; counted on CPUs

    @property
    def parts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in PARTS}

    @property
    def peak(self) -> int:
        return sum(getattr(self, name) for name in PARTS)


PARTS = ("weights", "gradients", "optimizer", "gathered", "buffers", "activations", "logits", "reference", "residue")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that the moments are made of, in bytes on one rank."""

    head: int  # output layer, in 32 bits
    root: int  # output layer and embeddings, gathered; one unit in FSDP2
    root_gradients: int  # the same in 32 bits; 0 with adapters, as they are not trained
    unit: int  # one layer, gathered
    unit_gradients: int  # of one layer's trained weights, in the computation's type
    unit_sent: int  # the same in 32 bits, as it is sent
    shards: int  # all gradients, as they wait for the step
    layer: Layer
    states: int  # one tensor of the stream
    learned_states: int  # the stream where log-probs are wanted
    slices: int  # logits of a slice, in two copies
    narrow: int
    """In 16 bits: a slice's gradient in both types and part of its product, or the output layer's gradient when passed
    on."""


def sizes(shape: ModelShape, training: Training) -> Sizes:
    tp, kind, rank = training.tp, training.float_bytes, training.lora_rank
    head, tables = ceil(shape.vocab / tp) * shape.hidden, 1 if shape.tied else 2
    unit = ceil(max(0, shape.parameters - tables * shape.vocab * shape.hidden) / shape.layers / tp)
    trained = ceil(adapter_parameters(shape, rank) / shape.layers / tp) if rank else unit
    learned = training.portion if training.learned is None else ceil(training.learned / training.cp)
    root_trained = 0 if rank else tables * head
    stream, slices = shape.hidden * kind, logit_bytes(shape, learned, tp)
    narrow = slices // 2 * (WIDE_BYTES + kind) // WIDE_BYTES + min(PRODUCT_AT_ONCE, head) * (WIDE_BYTES + kind)
    return Sizes(
        head=0 if rank else WIDE_BYTES * head,
        root=kind * tables * head,
        root_gradients=WIDE_BYTES * root_trained,
        unit=kind * (unit + (trained if rank else 0)),
        unit_gradients=kind * trained,
        unit_sent=WIDE_BYTES * trained,
        shards=ceil(WIDE_BYTES * (shape.layers * trained + root_trained) / (1 if training.whole else training.shards)),
        layer=layer(shape, tp, kind, training.ragged and training.on_host, frozen=rank > 0, cp=training.cp),
        states=training.portion * stream,
        learned_states=learned * stream,
        slices=slices,
        narrow=0 if kind == WIDE_BYTES else max(narrow, kind * head),
    )


def of_update(shape: ModelShape, training: Training) -> list[LearnerBytes]:
    """Moments of an update's last micro-batch."""
    size = sizes(shape, training)
    waiting = size.head * training.float_bytes // WIDE_BYTES  # the head's gradient, until that of the embeddings
    twice = 2 if training.on_host or not _shared(training) else 1  # gloo sums in a copy; a single rank divides in one
    return [*_backward(shape, training, size, waiting, twice), *_ending(shape, training, size, waiting, twice)]


def _backward(shape: ModelShape, training: Training, size: Sizes, waiting: int, twice: int) -> list[LearnerBytes]:
    """From the gathering of the first layer to the gradients of the last."""
    tokens, whole = training.portion, training.whole
    kept = tokens * (shape.layers * (size.layer.stream if training.recompute else size.layer.kept))
    one = tokens * size.layer.kept if training.recompute else 0
    before = size.shards if training.accumulated else 0
    root, unit = (0, 0) if whole else (size.root, size.unit)
    ahead = unit if _shared(training) else 0
    freed = tokens * (size.layer.stream if training.recompute else size.layer.kept)  # after the first layer
    closing = 2 * tokens * shape.hidden * WIDE_BYTES + size.learned_states  # the last norm's, of both kinds of states
    logits = max(size.slices, size.narrow)
    unsent = 0 if whole else max(0, size.unit_sent - freed)
    sent = 0 if whole else ahead + twice * size.unit_sent + size.unit_sent // training.shards
    own = before + waiting + (0 if whole else size.unit_gradients)
    return [
        LearnerBytes("gather", before, root + unit, root + unit if _shared(training) else 0),
        LearnerBytes("head", before + size.head, root, ahead, kept + closing + size.learned_states, logits),
        LearnerBytes("layer", own, root + unit, ahead + unsent, kept + one + tokens * size.layer.backward),
        LearnerBytes("send", before + waiting, root, sent, kept - freed),
    ]


def _ending(shape: ModelShape, training: Training, size: Sizes, waiting: int, twice: int) -> list[LearnerBytes]:
    """From the embeddings' gradient to the step."""
    whole, root = training.whole, 0 if training.whole else size.root
    copies = 2 if shape.tied and not training.lora_rank else 0  # the embeddings' gradient, and its sum with the head's
    layers_done = size.shards if training.accumulated else size.shards * (shape.layers - 1) // shape.layers
    words = layers_done + waiting * (1 + copies) + (0 if shape.tied else waiting)
    exchanged = 0 if whole else twice * size.root_gradients + size.root_gradients // training.shards
    return [
        LearnerBytes("words", words, root, 0 if whole else size.unit_sent, size.states),
        LearnerBytes("exchange", size.shards + waiting, 0, exchanged),
        LearnerBytes("step", size.shards),
    ]


def _shared(training: Training) -> bool:
    """Whether several ranks hold shards of the same weights."""
    return training.shards > 1 and not training.whole


def of_pass(shape: ModelShape, training: Training) -> list[LearnerBytes]:
    """Moments of a pass without gradients, by the model or its reference."""
    size, tokens, whole = sizes(shape, training), training.portion, training.whole
    shared = _shared(training)
    root, unit = (0, 0) if whole else (size.root, size.unit)
    return [
        LearnerBytes("gather", 0, root + unit, root + unit if shared else 0, 2 * size.states),
        LearnerBytes("layer", 0, root + unit, unit if shared else 0, tokens * size.layer.forward),
        LearnerBytes("head", 0, root, unit if shared else 0, size.states + size.learned_states, size.slices),
    ]


@dataclass(frozen=True, slots=True)
class SamplerBytes:
    """Memory of one device of a sampler."""

    weights: int
    context: int  # keys and values of one context of the longest length
    contexts: int  # contexts to be held at once

    @property
    def least(self) -> int:
        """Weights and one context: the minimum."""
        return self.weights + self.context

    @property
    def wanted(self) -> int:
        """Weights and all contexts."""
        return self.weights + self.context * self.contexts


def learner_bytes(shape: ModelShape, training: Training) -> LearnerBytes:
    """Memory of one learner rank during the update."""
    return _fullest(shape, training, of_update(shape, training))


def forward_bytes(shape: ModelShape, training: Training) -> LearnerBytes:
    """Memory of one learner rank during passes for log-probs or values, of its own or of the reference."""
    return _fullest(shape, training, of_pass(shape, training))


def _fullest(shape: ModelShape, training: Training, moments: list[LearnerBytes]) -> LearnerBytes:
    devices = training.tp if training.whole else training.shards * training.tp
    trained = adapter_parameters(shape, training.lora_rank) if training.lora_rank else shape.parameters
    base = WIDE_BYTES * shape.parameters
    weights = ceil((base + (WIDE_BYTES * trained if training.lora_rank else 0)) / devices)
    optimizer = ceil(2 * WIDE_BYTES * trained / devices)
    reference = ceil(base / devices) if training.reference and not training.lora_rank else 0
    residue = RESIDUE_BYTES + (KERNEL_BYTES if training.float_bytes < WIDE_BYTES else 0)
    away = training.offload and not training.on_host
    held = {one.moment: 0 if away and one.moment != "step" else optimizer for one in moments}
    fullest = max(moments, key=lambda one: one.peak + held[one.moment])
    return replace(
        fullest,
        weights=weights,
        optimizer=held[fullest.moment],
        reference=0 if away else reference,
        residue=residue if training.on_host else 0,
    )


def sampler_bytes(shape: ModelShape, tp: int, float_bytes: int, tokens: int, contexts: int) -> SamplerBytes:
    """Memory of one sampler device that holds `contexts` contexts of `tokens` tokens at once."""
    of_kind = replace(shape, float_bytes=float_bytes)
    return SamplerBytes(ceil(shape.parameters * float_bytes / tp), tokens * kv_bytes(of_kind, tp), contexts)
