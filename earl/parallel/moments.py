"""An update and a pass without gradients as a row of moments, each with what it holds beside weights and moments.

    gather ─▶ head ─▶ layer ─▶ send … layer ─▶ send ─▶ words ─▶ exchange ─▶ step   (update)
    gather ─▶ layer ─▶ head                                                        (pass)

Which one is the peak depends on the model, the layout and the tokens, so all are counted. Communication buffers are
those of FSDP2; gloo adds gradients up in a copy.
"""

from dataclasses import dataclass
from math import ceil

from earl.parallel.memory import PRODUCT_AT_ONCE, WIDE_BYTES, ModelShape, logit_bytes
from earl.parallel.passes import Layer, layer
from earl.parallel.training import Training, adapter_parameters


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
