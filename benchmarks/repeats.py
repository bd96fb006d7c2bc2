"""Repeats that take turns, and what benchmarks tell of repeated numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")


def in_turns(ways: Mapping[str, Callable[[int], T]], repeats: int, warm: int = 0) -> dict[str, list[T]]:
    """The results of calling every way with the number of the repeat, without those of `warm` rounds before."""
    results: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(repeats + warm):
        for name, way in ways.items():
            results[name].append(way(number))
    return {name: own[warm:] for name, own in results.items()}


def interval(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, in the order of the first ones."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
