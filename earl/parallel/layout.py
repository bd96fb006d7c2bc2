"""Layouts and choices, and which part of every tensor a process holds: pure arithmetic, the same on every process.

Tensor parallelism cuts a tensor along one axis into `tp` parts; each is cut along its first axis into `shards` parts
(FSDP2), of which every replica has all. The experts of a mixture are cut by `ep` in place of `tp`. All cut as
`torch.chunk` does, so the last parts may be smaller, or empty. A part is always a box of the whole tensor, which makes
checkpoints independent of the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any, Final, Literal

from earl.config import PlacementConfig
from earl.errors import EarlError
from earl.parallel.hardware import GIB, ClusterSpec
from earl.parallel.memory import ModelShape

Slices = tuple[slice, ...]
Axis = int | Literal["experts"]
"""What a tensor is split along: an axis, over the ranks of a tp group, or its experts (axis 0), over those of an ep
group."""
EXPERTS: Final = "experts"


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: its offset and size, by axis."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return prod(self.shape)

    @property
    def slices(self) -> Slices:
        """The box as an index of the whole tensor."""
        return tuple(slice(start, start + size) for start, size in zip(self.offset, self.shape, strict=True))

    def common(self, other: "Box") -> "Box | None":
        """The intersection; None when it is empty."""
        starts = [max(a, b) for a, b in zip(self.offset, other.offset, strict=True)]
        ends = [min(a.stop, b.stop) for a, b in zip(self.slices, other.slices, strict=True)]
        shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(tuple(starts), shape) if all(size > 0 for size in shape) else None

    def inside(self, outer: "Box") -> Slices:
        """The box as an index of the part `outer`."""
        return Box(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.shape).slices


LEARNER_AXES = ("dp", "tp", "cp", "ep", "replicas")


@dataclass(frozen=True, slots=True)
class Layout:
    """How processes share a model. Rank = (dp_rank · cp + cp_rank) · tp + tp_rank.

    Ranks of a tp group compute the same tokens, those of a cp group other tokens of the same rows, those of a dp
    group other rows. Replicas, of neighbouring ranks each, hold the same parts (HSDP). An ep group is of neighbouring
    ranks of a replica, whichever axis they differ in.
    """

    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    replicas: int = 1
    pp: int = 1  # of a sampler: hosts that a copy reaches over, with some of the layers each; a learner has 1

    @property
    def size(self) -> int:
        return self.dp * self.tp * self.cp * self.pp

    @property
    def settings(self) -> dict[str, int]:
        """The axes of a learner by their keys in [placement]."""
        return {name: getattr(self, name) for name in LEARNER_AXES}

    @property
    def named_axes(self) -> list[tuple[str, int]]:
        """The axes of a learner that a text names, with their sizes: dp, tp, and others larger than 1."""
        return [(axis, size) for axis, size in self.settings.items() if size > 1 or axis in ("dp", "tp")]

    @property
    def words(self) -> str:
        """The axes of a learner in a text, such as "dp 4 x tp 2"."""
        return " x ".join(f"{axis} {size}" for axis, size in self.named_axes)

    @property
    def shards(self) -> int:
        """Ranks over which FSDP2 shards each part."""
        return self.dp * self.cp // self.replicas

    @property
    def expert_shards(self) -> int:
        """Ranks over which FSDP2 shards the experts of one rank of an ep group."""
        return self.shards * self.tp // self.ep

    @property
    def uneven(self) -> str:
        """Why the ranks cannot be grouped so; empty if they can."""
        if self.dp % self.replicas:
            return f"dp = {self.dp} ranks cannot be shared by {self.replicas} replicas evenly"
        if (own := self.shards * self.tp) % self.ep:
            return f"{own} ranks{' of a replica' * (self.replicas > 1)} are not in whole groups of ep = {self.ep}"
        return ""

    def box(self, shape: Sequence[int], axis: Axis | None, rank: int) -> Box:
        """The part of `rank` of a tensor that is split along `axis`, None: that FSDP2 alone splits.

        Example:
            >>> [Layout(2, 2).box((8, 6), 1, rank).offset for rank in range(4)]   # columns by tp, then rows by dp
            [(0, 0), (0, 3), (4, 0), (4, 3)]
        """
        offset, size, own = [0] * len(shape), list(shape), rank % (self.shards * self.tp)
        along, parts, shards = (0, self.ep, self.expert_shards) if axis == EXPERTS else (axis, self.tp, self.shards)
        for cut, count, number in ((along, parts, own % parts), (0, shards, own // parts)):
            if cut is not None and size:
                start, size[cut] = chunk(size[cut], count, number)
                offset[cut] += start
        return Box(tuple(offset), tuple(size))

    def keeps(self, axis: Axis | None, rank: int) -> bool:
        """Whether `rank` saves its part, out of the ranks that hold the same."""
        return rank < self.shards * self.tp and (axis is not None or rank % self.tp == 0)


def learner_layout(place: PlacementConfig) -> Layout:
    return Layout(**{axis: getattr(place, axis) for axis in LEARNER_AXES})


def chunk(length: int, parts: int, own: int) -> tuple[int, int]:
    """Start and length of a part, as `torch.chunk` cuts: 106 in 4 parts gives 27 + 27 + 27 + 25."""
    whole = -(-length // parts)
    start = min(own * whole, length)
    return start, min(whole, length - start)


def whole(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


Stage = Literal["rollout", "experience", "update"]
STAGES: tuple[Stage, ...] = ("rollout", "experience", "update")


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run a stage."""

    stage: Stage
    layout: Layout  # of rollout: dp copies of a sampler, each split tp times
    micro_batch_tokens: int | None = None  # tokens per pass; None if the stage has no such bound
    recompute: bool = False  # whether activations are recomputed in the backward pass
    offload: bool = False  # whether unused state is in host memory

    def __str__(self) -> str:
        layout = self.layout
        if self.stage == "rollout":
            split = f"{layout.dp} x tp{layout.tp}" + f" pp{layout.pp}" * (layout.pp > 1)
        else:
            split = " ".join(f"{axis}{size}" for axis, size in layout.named_axes)
        tokens = [f"{self.micro_batch_tokens} tokens"] if self.micro_batch_tokens else []
        return ", ".join([split, *tokens, *["recompute"] * self.recompute, *["offload"] * self.offload])

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Choice":
        return cls(**{**fields, "layout": Layout(**fields["layout"])})


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Loads that are measured as one, by powers of two: 1,025 to 2,048 tokens, 17 to 32 sequences give (11, 5)."""

    context: int  # log2 of the most tokens; all have more than half as many
    load: int  # log2 of the most sequences; all have more than half as many


def bucket_of(tokens: float, sequences: int) -> Bucket:
    return Bucket(ceil(log2(max(1.0, tokens))), ceil(log2(max(1, sequences))))


MARGIN = 0.03
"""Share of memory left free for the error of predictions, as `earl bench footprint` shows it."""


def usable(room_bytes: int) -> int:
    """The memory of a device without the margin."""
    return int(room_bytes * (1 - MARGIN))


def verdict(needed_bytes: int, room_bytes: int) -> str:
    spare = usable(room_bytes) - needed_bytes
    sizes = (needed_bytes, usable(room_bytes), room_bytes, abs(spare))
    needed, most, room, left = (f"{size / GIB:.1f} GiB" for size in sizes)
    return f"{needed} needed, {most} of {room} may be used: {left} {'to spare' if spare >= 0 else 'too much'}"


def why_not_split(shape: ModelShape, tp: int, replicated: bool) -> str:
    """Why one copy of a model cannot be split over `tp` devices; empty if it can. Plans, checks, the selector and the
    engine all go by it. `replicated`: by an engine such as vLLM, where devices beyond the number of key-value heads may
    hold copies of one, and every device has an equal part of the feed-forward layers."""
    if tp == 1:
        return ""
    if shape.indivisible and not replicated:
        return shape.indivisible
    counts = {"attention heads": shape.heads, "key-value heads": shape.kv_heads}
    if replicated:
        counts["feed-forward columns"] = shape.intermediate // shape.experts_per_token
    elif shape.experts > 1:
        counts["experts"] = shape.experts
    for what, count in counts.items():
        copies = replicated and what == "key-value heads" and tp % count == 0
        if count % tp and not copies:
            return f"the model has {count} {what}, which {tp} devices cannot share evenly"
    return ""


def why_not_shared(shape: ModelShape, layout: Layout) -> str:
    """Why the ranks of a learner cannot share a model so; empty if they can."""
    if why := why_not_split(shape, layout.tp, replicated=False) or layout.uneven:
        return why
    if layout.ep > 1 and (shape.experts % layout.ep or shape.experts == 1):
        return f"the model has {shape.experts} experts, which {layout.ep} ranks cannot share evenly"
    return shape.indivisible if layout.ep > 1 else ""


def check_shared(shape: ModelShape, layout: Layout) -> None:
    """Raises EarlError, naming the settings, when the ranks of a learner cannot share a model so."""
    check_split(shape, "placement.tp", layout.tp, replicated=False)
    if why := why_not_shared(shape, layout):
        raise EarlError(
            f"placement.ep = {layout.ep} and placement.replicas = {layout.replicas}: {why}; set placement.ep to a "
            "divisor of the model's experts and of a replica's ranks, placement.replicas to one of placement.dp"
        )


def check_split(shape: ModelShape, key: str, tp: int, replicated: bool) -> None:
    """Raises EarlError, naming the setting `key`, when one copy cannot be split over `tp` devices."""
    if why := why_not_split(shape, tp, replicated):
        possible = splits(shape, max(shape.heads, tp), replicated)
        raise EarlError(f"{key} = {tp}: {why}; set {key} to one of {', '.join(map(str, possible))}")


def splits(shape: ModelShape, most: int, replicated: bool = False) -> list[int]:
    """Sizes up to `most` that one copy can be split into, ascending: 28 heads and 4 key-value heads give 1, 2, 4."""
    return [tp for tp in range(1, most + 1) if not why_not_split(shape, tp, replicated)]


MOST_GPUS = 16_384
"""Limit for a cluster on paper: a larger plan takes minutes."""


def check_planned(cluster: ClusterSpec, shared: bool) -> None:
    """Raises EarlError when a cluster on paper is too large, or learner and samplers cannot both have a GPU."""
    if cluster.gpus > MOST_GPUS:
        raise EarlError(f"{cluster.where}: {cluster.gpus:,} GPUs; earl plans for {MOST_GPUS:,} at most, name fewer")
    if not shared and cluster.gpus < 2:
        raise EarlError(
            f"placement.kind = 'disaggregated' needs GPUs for the learner and others for samplers, {cluster.where} has "
            f"{cluster.gpus}; name more of them, or set placement.kind to colocated"
        )
