"""Possible numbers of learner and sampler copies and their splits, and whether a stage fits into memory."""

from collections.abc import Callable

from earl.errors import EarlError
from earl.parallel.hardware import GIB, ClusterSpec
from earl.parallel.memory import ModelShape

MARGIN = 0.03
"""Share of memory left free for the error of predictions, as `earl bench footprint` shows it."""


def usable(room_bytes: int) -> int:
    """The memory of a device without the margin."""
    return int(room_bytes * (1 - MARGIN))


def fits(needed_bytes: int, room_bytes: int) -> bool:
    """Whether `needed_bytes`, such as a peak with the longest episode expected, fit into a device's memory."""
    return needed_bytes <= usable(room_bytes)


def verdict(needed_bytes: int, room_bytes: int) -> str:
    spare = usable(room_bytes) - needed_bytes
    needed, most, room, left = (
        f"{size / GIB:.1f} GiB" for size in (needed_bytes, usable(room_bytes), room_bytes, abs(spare))
    )
    return f"{needed} needed, {most} of {room} may be used: {left} {'to spare' if spare >= 0 else 'too much'}"


def check_split(shape: ModelShape, key: str, tp: int, replicated: bool) -> None:
    """Raises EarlError, naming the setting `key`, when `tp` devices cannot share the heads evenly.
    `replicated`: devices beyond the number of key-value heads may hold copies of one, as in vLLM."""
    for what, count in (("attention heads", shape.heads), ("key-value heads", shape.kv_heads)):
        copies = replicated and what == "key-value heads" and tp % count == 0
        if count % tp and not copies:
            raise EarlError(
                f"{key} = {tp}: the model has {count} {what}, which {tp} devices cannot share evenly; "
                f"set {key} to one of {', '.join(map(str, splits(shape, max(count, tp), replicated)))}"
            )


def splits(shape: ModelShape, most: int, replicated: bool = False) -> list[int]:
    """Sizes up to `most` that one copy can be split into, ascending: 28 heads and 4 key-value heads give 1, 2, 4."""

    def shared(tp: int) -> bool:
        kv = shape.kv_heads % tp == 0 or (replicated and tp % shape.kv_heads == 0)
        return shape.heads % tp == 0 and kv

    return [tp for tp in range(1, most + 1) if shared(tp)]


def smallest(candidates: list[int], fits: Callable[[int], bool]) -> int:
    """The first candidate that fits; if none does, the last."""
    return next((tp for tp in candidates if fits(tp)), candidates[-1])


def shares(cluster: ClusterSpec, shared: bool) -> tuple[int, int]:
    """Default GPUs for the learner and for the samplers: all in turns, or else half each, by whole hosts.
    16 hosts of 8, apart: 64 and 64. 3 hosts of 8, apart: 16 and 8. 1 host of 8, apart: 4 and 4."""
    if shared:
        return cluster.gpus, cluster.gpus
    unit = cluster.gpus_per_host if cluster.hosts > 1 else 1
    samplers = cluster.gpus // unit // 2 * unit
    return cluster.gpus - samplers, samplers


MOST_GPUS = 16_384
"""Limit for a cluster on paper: a larger plan takes minutes."""


def planned_shares(cluster: ClusterSpec, shared: bool) -> tuple[int, int]:
    """`shares` of a cluster on paper. Raises EarlError when it is too large, or one side has no GPU."""
    if cluster.gpus > MOST_GPUS:
        raise EarlError(f"{cluster.where}: {cluster.gpus:,} GPUs; earl plans for {MOST_GPUS:,} at most, name fewer")
    learning, sampling = shares(cluster, shared)
    if not sampling:
        raise EarlError(
            f"placement.kind = 'disaggregated' needs GPUs for the learner and others for samplers, {cluster.where} has "
            f"{cluster.gpus}; name more of them, or set placement.kind to colocated"
        )
    return learning, sampling
