"""What earl's own sampler takes: weights, keys and values in slots that grow by doubling, and the pass at work."""

from dataclasses import dataclass

from earl.parallel.memory import RESIDUE_BYTES, WIDE_BYTES, ModelShape, kv_bytes
from earl.parallel.passes import layer

PASS_TOKENS = 1 << 14
"""Prompts are read in passes of at most so many new tokens, or one at a time."""
FIRST_ROOM = 16


def room_for(count: int) -> int:
    """Slots, or positions of a slot, that are there for `count`: 16, 32, 64 …

    Example:
        >>> room_for(3), room_for(33), room_for(0)
        (16, 64, 0)
    """
    return max(FIRST_ROOM, 1 << (count - 1).bit_length()) if count else 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is sampled at once."""

    contexts: int
    prompt_tokens: int
    """Of the longest new piece of a context: a first prompt, or what a turn adds."""
    tokens: int
    """Of the longest context, with its reply."""
    held_tokens: int = 0
    """Of a context, that its slot holds already when the new piece is read."""
    on_host: bool = True
    """Whether what libraries keep of host memory counts."""


@dataclass(frozen=True, slots=True)
class SlotBytes:
    """Of one process that samples, at the fullest moment."""

    weights: int
    slots: int
    """Keys and values, and the room that is there for more."""
    activations: int
    """Of the pass at work, with its mask and the keys and values that it reads."""
    logits: int
    residue: int
    """What libraries keep."""
    moment: str
    """`prompts`, `reply` or `draw`."""

    @property
    def parts(self) -> dict[str, int]:
        """By what they are for."""
        return {name: getattr(self, name) for name in ("weights", "slots", "activations", "logits", "residue")}

    @property
    def peak(self) -> int:
        """The most at once."""
        return sum(self.parts.values())


def slot_bytes(shape: ModelShape, sampling: Sampling) -> SlotBytes:
    """What earl's own sampler takes; it computes in 32 bits, on one device.

    prompts   a pass reads prompts: activations of its tokens, its mask, what it attends to
    reply     a pass adds a token to every context
    draw      tokens are drawn: logits, log-probs, and their sum in 64 bits
    """
    many, piece = sampling.contexts, sampling.prompt_tokens
    read, longest = room_for(sampling.held_tokens + piece), room_for(sampling.tokens)
    slot = room_for(many) * kv_bytes(shape)
    before = longest // 2 if longest > read else 0  # keys or values of one layer, as they were, while they are copied
    growing = slot * before // (2 * shape.layers)
    at_once = max(1, min(many, PASS_TOKENS // piece))
    logits = many * shape.vocab * WIDE_BYTES
    moments = {
        "prompts": (slot * read, _pass(shape, at_once, piece, sampling.held_tokens + piece), logits),
        "reply": (slot * longest + growing, _pass(shape, many, 1, sampling.tokens), 2 * logits),
        "draw": (slot * longest, 0, 4 * logits),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    residue = RESIDUE_BYTES if sampling.on_host else 0
    return SlotBytes(WIDE_BYTES * shape.parameters, *moments[moment], residue, moment)


def _pass(shape: ModelShape, rows: int, width: int, length: int) -> int:
    """Of a pass over `rows` x `width` tokens that attend to `length` each: the fuller half of a layer, and the mask."""
    one = layer(shape, 1, WIDE_BYTES, ragged=False, frozen=True)
    tokens, attended = rows * width, rows * length * kv_bytes(shape) // shape.layers
    queries = tokens * (4 * shape.hidden + 3 * shape.heads * shape.head_dim) * WIDE_BYTES
    return max(tokens * one.forward, queries + attended) + rows * width * length * WIDE_BYTES
