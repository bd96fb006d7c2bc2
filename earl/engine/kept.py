"""A KV cache that outlives a turn: its rows are contexts, taken over, split and dropped from one turn to the next."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


@dataclass(slots=True)
class Window:
    """Which part of the cache the next forward pass reads and writes: its first A rows."""

    positions: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))  # [A, Q]
    length: int = 0
    """Positions to attend to."""
    rows: int = 0
    """Rows of the whole cache, and"""
    capacity: int = 0
    """positions of each."""


class KeptLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [rows, positions, heads, head size]."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the new states [A, heads, Q, head size]; return all that the rows attend to."""
        self.keys, keys = _exchange(self.keys, key_states, self.window)
        self.values, values = _exchange(self.values, value_states, self.window)
        return keys, values


class KeptCache(Cache):  # type: ignore[misc]
    """The rows of all layers, moved together."""

    def __init__(self, num_layers: int) -> None:
        self.window = Window()
        super().__init__(layers=[KeptLayer(self.window) for _ in range(num_layers)])

    def arrange(self, parents: Sequence[int], used: int, capacity: int) -> None:
        """Make row i a copy of row parents[i], with room for `capacity` positions.

        Args:
            parents: rows that are nobody's parent are dropped.
            used: positions that rows hold so far; only these are copied.
        """
        window = self.window
        if list(parents) == list(range(window.rows)) and capacity <= window.capacity:
            return
        window.rows, window.capacity = len(parents), capacity
        index = torch.tensor(parents, dtype=torch.long)
        for layer in self.layers:
            if layer.keys is not None:
                layer.keys, layer.values = (_taken(s, index, used, capacity) for s in (layer.keys, layer.values))


def _taken(store: Tensor, index: Tensor, used: int, capacity: int) -> Tensor:
    taken = store.new_empty(len(index), capacity, *store.shape[2:])
    if used := used if len(store) else 0:
        torch.index_select(store[:, :used], 0, index, out=taken[:, :used])
    # What is masked has weight 0, and 0 times whatever lay in the memory might not be 0.
    taken[:, used:] = 0
    return taken


def _exchange(store: Tensor | None, states: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Write `states` into a store; the store, and [A, heads, length, head size] read from it."""
    active, heads, _, size = states.shape
    if store is None:
        store = states.new_zeros(window.rows, window.capacity, heads, size)
    store[torch.arange(active)[:, None], window.positions] = states.transpose(1, 2)
    return store, store[:active, : window.length].transpose(1, 2)
