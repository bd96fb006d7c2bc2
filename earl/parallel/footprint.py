"""What a learner and a sampler take of one device, from shapes alone, at the fullest moment of a stage.

update    weights + gradients + the optimizer's moments (16 bytes per parameter, shared by all devices: FSDP2) + the
          layers at work, gathered, and what is exchanged + activations of a micro-batch + a slice of logits
forward   weights + the optimizer's moments, which lie there + layers at work + a layer's activations + logits
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

# How a model is trained, as far as memory is concerned.


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


# An update and a pass without gradients as a row of moments, each with what it holds beside weights and moments.
#
# gather ─▶ head ─▶ layer ─▶ send … layer ─▶ send ─▶ words ─▶ exchange ─▶ step   (update)
# gather ─▶ layer ─▶ head                                                        (pass)
#
# Which one is the peak depends on the model, the layout and the tokens, so all are counted. Communication buffers are
# those of FSDP2; gloo adds gradients up in a copy.


@dataclass(frozen=True, slots=True)
class Moment:
    """What one rank holds at one time, in bytes."""

    name: str
    gradients: int = 0
    """Of all weights: shards that wait for the step, and whole ones that were not exchanged yet."""
    gathered: int = 0
    """Layers at work, put together from their shards."""
    buffers: int = 0
    """Of exchanges: what is sent and received."""
    activations: int = 0
    logits: int = 0

    @property
    def total(self) -> int:
        """Of all parts."""
        return self.gradients + self.gathered + self.buffers + self.activations + self.logits


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the moments are made of, in bytes on one rank."""

    head: int
    """The output layer, in 32 bits."""
    root: int
    """It and the embeddings, gathered; FSDP2 treats them as one."""
    root_gradients: int
    """The same in 32 bits; with adapters nothing, as they are not trained."""
    unit: int
    """One layer, gathered."""
    unit_gradients: int
    """Of one layer's trained weights, in the type of the computation."""
    unit_sent: int
    """The same in 32 bits, as it is sent."""
    shards: int
    """Gradients of all that is trained, as they wait for the step."""
    layer: Layer
    states: int
    """One tensor of the stream."""
    learned_states: int
    """The stream where log-probs are wanted."""
    slices: int
    """Logits of a slice, in two copies."""
    narrow: int
    """In 16 bits, of a slice: its gradient in both types, and some of the product that it goes into; or the output
    layer's gradient as it is handed on."""


def sizes(shape: ModelShape, training: Training) -> Sizes:
    """Those of a model under a layout."""
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


def of_update(shape: ModelShape, training: Training) -> list[Moment]:
    """Those of an update's last micro-batch."""
    size = sizes(shape, training)
    waiting = size.head * training.float_bytes // WIDE_BYTES  # the head's gradient, until the embeddings' is there
    twice = 2 if training.on_host or not _shared(training) else 1  # gloo sums up in a copy; alone it is one to divide
    return [*_backward(shape, training, size, waiting, twice), *_ending(shape, training, size, waiting, twice)]


def _backward(shape: ModelShape, training: Training, size: Sizes, waiting: int, twice: int) -> list[Moment]:
    """From the gathering of the first layer to the gradients of the last."""
    tokens, whole = training.portion, training.whole
    kept = tokens * (shape.layers * (size.layer.stream if training.recompute else size.layer.kept))
    one = tokens * size.layer.kept if training.recompute else 0
    before = size.shards if training.accumulated else 0
    root, unit = (0, 0) if whole else (size.root, size.unit)
    ahead = unit if _shared(training) else 0
    freed = tokens * (size.layer.stream if training.recompute else size.layer.kept)  # after the first layer
    closing = 2 * tokens * shape.hidden * WIDE_BYTES + size.learned_states  # of the last norm, of both kinds of states
    logits = max(size.slices, size.narrow)
    unsent = 0 if whole else max(0, size.unit_sent - freed)
    sent = 0 if whole else ahead + twice * size.unit_sent + size.unit_sent // training.shards
    own = before + waiting + (0 if whole else size.unit_gradients)
    return [
        Moment("gather", before, root + unit, root + unit if _shared(training) else 0),
        Moment("head", before + size.head, root, ahead, kept + closing + size.learned_states, logits),
        Moment("layer", own, root + unit, ahead + unsent, kept + one + tokens * size.layer.backward),
        Moment("send", before + waiting, root, sent, kept - freed),
    ]


def _ending(shape: ModelShape, training: Training, size: Sizes, waiting: int, twice: int) -> list[Moment]:
    """From the embeddings' gradient to the step."""
    whole, root = training.whole, 0 if training.whole else size.root
    copies = 2 if shape.tied and not training.lora_rank else 0  # the embeddings' gradient, and the sum with the head's
    layers_done = size.shards if training.accumulated else size.shards * (shape.layers - 1) // shape.layers
    words = layers_done + waiting * (1 + copies) + (0 if shape.tied else waiting)
    exchanged = 0 if whole else twice * size.root_gradients + size.root_gradients // training.shards
    return [
        Moment("words", words, root, 0 if whole else size.unit_sent, size.states),
        Moment("exchange", size.shards + waiting, 0, exchanged),
        Moment("step", size.shards),
    ]


def _shared(training: Training) -> bool:
    """Whether several ranks have a shard each of the same weights."""
    return training.shards > 1 and not training.whole


def of_pass(shape: ModelShape, training: Training) -> list[Moment]:
    """Those of a pass without gradients, by the model or by its reference."""
    size, tokens, whole = sizes(shape, training), training.portion, training.whole
    shared = _shared(training)
    root, unit = (0, 0) if whole else (size.root, size.unit)
    return [
        Moment("gather", 0, root + unit, root + unit if shared else 0, 2 * size.states),
        Moment("layer", 0, root + unit, unit if shared else 0, tokens * size.layer.forward),
        Moment(
            "head",
            0,
            root,
            unit if shared else 0,
            size.states + size.learned_states,
            size.slices,
        ),
    ]


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
