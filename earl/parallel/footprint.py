"""Memory of a learner on one device at the peak of a stage, from shapes alone.

update    weights + gradients + the optimizer's moments (16 bytes per parameter, shared by all devices: FSDP2) + the
          layers at work, gathered, and what is exchanged + activations of a micro-batch + a slice of logits
forward   weights + the optimizer's moments + layers at work + a layer's activations + logits
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from earl.config import Config
from earl.parallel.layout import Layout
from earl.parallel.memory import KERNEL_BYTES, PRODUCT_SLICE, RESIDUE_BYTES, WIDE_BYTES, ModelShape, layer, logit_bytes

FLOAT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of training that determine memory."""

    layout: Layout
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
    moments: int = 2  # numbers of the optimizer's state for each parameter that is trained
    reference_shape: ModelShape | None = None  # of a reference that is no copy of the model

    @classmethod
    def of(cls, config: Config, layout: Layout, **other: Any) -> "Training":
        """A recipe's; `other` takes precedence over the recipe."""
        own, reference = config.learner, config.algorithm.kl > 0
        kept = (own.micro_batch_tokens, FLOAT_BYTES[own.dtype], own.recompute, own.offload, own.lora_rank, reference)
        return replace(cls(layout, *kept, moments=2 + (own.ema > 0)), **other)

    @property
    def portion(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return ceil(self.tokens / self.layout.cp)


def held_bytes(shape: ModelShape, training: Training, number_bytes: int) -> int:
    """The bytes of the parameters on the fullest rank, `number_bytes` for each: FSDP2 shards by whole experts."""
    experts = shape.layers * shape.experts * shape.expert_parameters
    if training.whole:
        return ceil(number_bytes * shape.parameters / training.layout.tp)
    devices = training.layout.shards * training.layout.tp
    return ceil(number_bytes * (shape.parameters - experts) / devices) + number_bytes * held_experts(shape, training)


def held_experts(shape: ModelShape, training: Training) -> int:
    """Parameters of experts on the fullest rank."""
    own = ceil(ceil(shape.experts / training.layout.ep) / training.layout.expert_shards)
    return shape.layers * own * shape.expert_parameters


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
        return sum(self.parts.values())


PARTS = ("weights", "gradients", "optimizer", "gathered", "buffers", "activations", "logits", "reference", "residue")


@dataclass(frozen=True, slots=True)
class Unit:
    """The bytes that FSDP2 gathers and sends at once for a layer, or for its experts, on one rank."""

    gathered: int = 0
    gradients: int = 0  # of the trained weights, in the computation's type
    sent: int = 0  # the same in 32 bits
    shards: int = 1  # ranks that hold shards of it
    sends: int = 0
    """Everything that an exchange of the gradients takes: gloo sums in a copy, a single rank divides in one."""
    ahead: int = 0
    """What is kept of a gathering until the next one."""

    @classmethod
    def of(cls, parameters: int, trained: int, kind: int, shards: int, on_host: bool) -> "Unit":
        sent, copies = WIDE_BYTES * trained, 2 if on_host or shards == 1 else 1
        gathered = kind * parameters
        ahead = gathered if shards > 1 else 0
        return cls(gathered, kind * trained, sent, shards, copies * sent + sent // shards, ahead)


class Moments:
    """The moments of a rank's stages, from the sizes that they are made of, in bytes."""

    def __init__(self, shape: ModelShape, training: Training) -> None:
        layout, kind, rank, whole = training.layout, training.float_bytes, training.lora_rank, training.whole
        tp = layout.tp
        head, tables = ceil(shape.vocab / tp) * shape.hidden, 1 if shape.tied else 2
        self.experts = shape.layers * shape.experts * shape.expert_parameters  # of all layers
        rest = max(0, shape.parameters - tables * shape.vocab * shape.hidden - self.experts)
        unit, own = ceil(rest / shape.layers / tp), ceil(self.experts / shape.layers / layout.ep)
        trained = ceil(adapter_parameters(shape, rank) / shape.layers / tp) if rank else unit
        root_trained = 0 if rank else tables * head
        learned = training.portion if training.learned is None else ceil(training.learned / layout.cp)
        stream = shape.hidden * kind
        self.shape, self.training, self.tokens = shape, training, training.portion
        self.head = 0 if rank else WIDE_BYTES * head  # output layer, in 32 bits
        self.root = 0 if whole else kind * tables * head  # output layer and embeddings, gathered: one unit in FSDP2
        self.root_sent = Unit.of(0, root_trained, kind, layout.shards, training.on_host)
        self.unit, self.mixed = Unit(), Unit()  # a layer, and its experts
        if not whole:
            count = unit + (trained if rank else 0)
            self.unit = Unit.of(count, trained, kind, layout.shards, training.on_host)
            self.mixed = Unit.of(own, 0 if rank else own, kind, layout.expert_shards, training.on_host)
        self.last = self.mixed if self.experts else self.unit  # of a layer's forward pass
        gradients = WIDE_BYTES * (shape.layers * trained + root_trained)
        held = 0 if rank else self.experts if whole else held_experts(shape, training)
        # All gradients, as they wait for the step.
        self.shards = ceil(gradients / (1 if whole else layout.shards)) + WIDE_BYTES * held
        ragged = training.ragged and training.on_host
        plain = training.whole and training.on_host and not training.recompute  # see `earl.engine.decoder.suits`
        fused = plain and kind == WIDE_BYTES and shape.head_norms and shape.experts == 1
        self.layer = layer(shape, tp, kind, ragged, rank > 0, layout.cp, layout.ep, fused)
        self.states = self.tokens * stream  # one tensor of the stream
        self.learned_states = learned * stream  # the stream where log-probs are wanted
        self.slices = logit_bytes(shape, learned, tp)  # logits of a slice, in two copies
        # In 16 bits: a slice's gradient in both types and part of its product, or the output layer's when passed on.
        both = WIDE_BYTES + kind
        narrow = max(self.slices // 2 * both // WIDE_BYTES + min(PRODUCT_SLICE, head) * both, kind * head)
        self.logits = max(self.slices, 0 if kind == WIDE_BYTES else narrow)
        self.waiting = self.head * kind // WIDE_BYTES  # the head's gradient, until that of the embeddings
        self.before = self.shards if training.accumulated else 0

    def update(self) -> list[LearnerBytes]:
        """The moments of an update's last micro-batch."""
        return [*self._backward(), *self._ending()]

    def _gather(self, activations: int = 0) -> list[LearnerBytes]:
        """The first layer's weights arrive, then its experts'."""
        first = self.root + self.unit.gathered
        own = LearnerBytes("gather", self.before, first, first if self.unit.ahead else 0, activations)
        mixed = replace(own, moment="experts", gathered=first + self.mixed.gathered, buffers=self.mixed.ahead)
        return [own, replace(mixed, activations=activations + self.tokens * self.layer.attended)]

    def _backward(self) -> list[LearnerBytes]:
        """From the gathering of the first layer to the gradients of the last; `layer` when each of them begins."""
        again, before, root, unit = self.training.recompute, self.before, self.root, self.unit
        freed = self.tokens * (self.layer.stream if again else self.layer.kept)  # after the first layer
        kept = freed * self.shape.layers
        one = self.tokens * self.layer.kept if again else 0
        # The last norm's, of both kinds.
        closing = 2 * self.tokens * self.shape.hidden * WIDE_BYTES + self.learned_states
        unsent = max(0, unit.sent - freed)
        # Of experts, the gradient of the product that leaves the layer: the others come when activations are freed.
        first = self.last.gradients // 3 if self.experts else self.last.gradients
        gathered, backward = root + unit.gathered + self.mixed.gathered, self.tokens * self.layer.backward
        layer = LearnerBytes("layer", self.waiting + first, gathered, unit.ahead + unsent, one + backward)
        attended = self.tokens * self.layer.attended if self.experts else 0  # whose experts' gradients are being sent
        return [
            *self._gather(),
            LearnerBytes(
                "head", before + self.head, root, self.last.ahead, kept + closing + self.learned_states, self.logits
            ),
            replace(layer, gradients=layer.gradients + before, activations=layer.activations + kept),
            replace(layer, gradients=layer.gradients + self._layers_done(), activations=layer.activations + freed),
            LearnerBytes(
                "send",
                before + self.waiting,
                root + (unit.gathered if self.experts else 0),
                unit.ahead + self.last.sends,
                kept - freed + attended,
            ),
        ]

    def _layers_done(self) -> int:
        """Gradients of all layers but the first, as they wait for the step."""
        return self.before or self.shards * (self.shape.layers - 1) // self.shape.layers

    def _ending(self) -> list[LearnerBytes]:
        """From the embeddings' gradient to the step."""
        shape, waiting = self.shape, self.waiting
        words = 2 if shape.tied and not self.training.lora_rank else 0  # embeddings' gradient, and its sum
        gradients = self._layers_done() + waiting * (1 + words) + (0 if shape.tied else waiting)
        exchanged = 0 if self.training.whole else self.root_sent.sends
        return [
            LearnerBytes("words", gradients, self.root, self.unit.sent, self.states),
            LearnerBytes("exchange", self.shards + waiting, 0, exchanged),
            LearnerBytes("step", self.shards),
        ]

    def forward(self) -> list[LearnerBytes]:
        """The moments of a pass without gradients, by the model or its reference."""
        root, ahead = self.root, self.last.ahead
        gathered = root + self.unit.gathered + self.mixed.gathered
        return [
            *(replace(one, gradients=0) for one in self._gather(2 * self.states)[:1]),
            LearnerBytes("layer", 0, gathered, ahead, self.tokens * self.layer.forward),
            LearnerBytes("head", 0, root, ahead, self.states + self.learned_states, self.slices),
        ]


def learner_bytes(shape: ModelShape, training: Training) -> LearnerBytes:
    """Memory of one learner rank during the update."""
    return _fullest(shape, training, Moments(shape, training).update())


def forward_bytes(shape: ModelShape, training: Training) -> LearnerBytes:
    """Memory of one learner rank during passes for log-probs or values, of its own or of the reference."""
    models = [shape, training.reference_shape] if training.reference_shape else [shape]
    return _fullest(shape, training, [moment for one in models for moment in Moments(one, training).forward()])


def _fullest(shape: ModelShape, training: Training, moments: list[LearnerBytes]) -> LearnerBytes:
    devices = training.layout.tp * (1 if training.whole else training.layout.shards)
    adapters = adapter_parameters(shape, training.lora_rank) if training.lora_rank else 0
    base = held_bytes(shape, training, WIDE_BYTES)
    weights = base + ceil(WIDE_BYTES * adapters / devices)
    state = training.moments * WIDE_BYTES
    optimizer = ceil(state * adapters / devices) if adapters else held_bytes(shape, training, state)
    reference = base if training.reference and not training.lora_rank else 0
    if training.reference_shape:
        reference = held_bytes(training.reference_shape, training, WIDE_BYTES)
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
