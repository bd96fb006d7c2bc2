"""How many copies of learner and sampler, each split how often: what can be, and a simple choice.

The choice: the smallest split that fits, and as many copies of it as there are devices.
"""

from collections.abc import Callable
from dataclasses import dataclass

from earl.errors import EarlError
from earl.parallel.hardware import ClusterSpec
from earl.parallel.memory import ModelShape

# Whether what a stage needs finds room, with a margin, said in words.

MARGIN = 0.03
"""Of the room, left free: predictions may be short by so much, as `earl bench footprint` shows."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """Of one stage on one device.

    Example:
        fits(83 << 30, 80 << 30).words   # 83.0 GiB needed, 77.6 GiB of 80.0 GiB may be used: 5.4 GiB too much
    """

    needed_bytes: int
    room_bytes: int
    margin: float

    @property
    def usable_bytes(self) -> int:
        """The room without the margin."""
        return int(self.room_bytes * (1 - self.margin))

    @property
    def spare_bytes(self) -> int:
        """What is left; below zero: what is missing."""
        return self.usable_bytes - self.needed_bytes

    @property
    def ok(self) -> bool:
        """Whether it fits."""
        return self.spare_bytes >= 0

    @property
    def words(self) -> str:
        """The same for people."""
        needed, usable, room = (
            f"{size / GIB:.1f} GiB" for size in (self.needed_bytes, self.usable_bytes, self.room_bytes)
        )
        left = f"{abs(self.spare_bytes) / GIB:.1f} GiB {'to spare' if self.ok else 'too much'}"
        return f"{needed} needed, {usable} of {room} may be used: {left}"


def fits(needed_bytes: int, room_bytes: int, margin: float = MARGIN) -> MemoryVerdict:
    """Whether `needed_bytes`, such as a peak with the longest episode expected, fit into a device's memory."""
    return MemoryVerdict(needed_bytes, room_bytes, margin)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Devices of a run. A device is a GPU, or a processor core where there are none.

    Example:
        Arrangement(dp=32, tp=4, samplers=32, sampler_tp=4, shared=True)   # all 128 GPUs, in turns
    """

    dp: int
    tp: int
    samplers: int
    sampler_tp: int
    shared: bool
    """Whether learner and samplers take turns on the same devices."""
    cp: int = 1
    """Devices of the learner that share the tokens of a micro-batch, each with tp neighbours."""

    @property
    def ranks(self) -> int:
        """Devices of the learner."""
        return self.dp * self.tp * self.cp

    @property
    def sampling(self) -> int:
        """Devices of all samplers."""
        return self.samplers * self.sampler_tp

    @property
    def devices(self) -> int:
        """Of the whole run."""
        return max(self.ranks, self.sampling) if self.shared else self.ranks + self.sampling


def check_split(shape: ModelShape, key: str, tp: int, replicated: bool) -> None:
    """Raises EarlError when heads cannot be shared by `tp` devices.

    Args:
        key: the setting, to be named.
        replicated: whether more devices than key-value heads may each hold a copy of one, as vLLM does.
    """
    for what, count in (("attention heads", shape.heads), ("key-value heads", shape.kv_heads)):
        copies = replicated and what == "key-value heads" and tp % count == 0
        if count % tp and not copies:
            raise EarlError(
                f"{key} = {tp}: the model has {count} {what}, which {tp} devices cannot share evenly; "
                f"set {key} to one of {', '.join(map(str, splits(shape, max(count, tp), replicated)))}"
            )


def splits(shape: ModelShape, most: int, replicated: bool = False) -> list[int]:
    """Every number of devices up to `most` that one copy can be split over, the smallest first.

    Example:
        Qwen2.5-7B with 28 heads and 4 key-value heads, up to 8: 1, 2, 4
    """

    def shared(tp: int) -> bool:
        kv = shape.kv_heads % tp == 0 or (replicated and tp % shape.kv_heads == 0)
        return shape.heads % tp == 0 and kv

    return [tp for tp in range(1, most + 1) if shared(tp)]


def smallest(candidates: list[int], fits: Callable[[int], bool]) -> int:
    """The first candidate that fits; where none does, the last, whose needs are then said."""
    return next((tp for tp in candidates if fits(tp)), candidates[-1])


def shares(cluster: ClusterSpec, shared: bool) -> tuple[int, int]:
    """GPUs for the learner and for the samplers, where the recipe is silent: all in turns, else half, by whole hosts.

    Example:
        16 hosts of 8, apart: 64 and 64.   3 hosts of 8, apart: 16 and 8.   1 host of 8, apart: 4 and 4
    """
    if shared:
        return cluster.gpus, cluster.gpus
    unit = cluster.gpus_per_host if cluster.hosts > 1 else 1
    samplers = cluster.gpus // unit // 2 * unit
    return cluster.gpus - samplers, samplers
