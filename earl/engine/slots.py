"""A KV cache whose rows live as long as episodes: one slot per episode, kept over its turns."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


@dataclass(slots=True)
class Window:
    """Which part of the slots the next forward pass reads and writes."""

    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [B] slot of each row
    positions: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))  # [B, Q]
    length: int = 0
    """Positions to attend to, of all that the slots hold."""
    slots: int = 0
    """Slots in use at most."""


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [slots, positions, heads, head size], grown by doubling."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the new states [B, heads, Q, head size] to their slots; return all that the rows attend to."""
        self.keys, keys = _exchange(self.keys, key_states, self.window)
        self.values, values = _exchange(self.values, value_states, self.window)
        return keys, values


class SlotCache(Cache):  # type: ignore[misc]
    """The slots of all layers, moved together by one window."""

    def __init__(self, num_layers: int) -> None:
        self.window = Window()
        super().__init__(layers=[SlotLayer(self.window) for _ in range(num_layers)])

    def copy(self, source: Tensor, target: Tensor, positions: Tensor) -> None:
        """Copy `positions` [B, Q] of the slots `source` [B] to the slots `target` [B]."""
        for layer in self.layers:
            for store in (layer.keys, layer.values):
                flat = store.flatten(0, 1)
                there, here = (_places(store, slots, positions) for slots in (source, target))
                flat.index_copy_(0, here, flat.index_select(0, there))


def _exchange(store: Tensor | None, states: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Write `states` into a store, grown where it must; the store, and [B, heads, length, head size] read from it."""
    if store is None:
        store = states.new_zeros(0, 0, states.shape[1], states.shape[3])
    store = _grown(store, window)
    store[window.rows[:, None], window.positions] = states.transpose(1, 2)
    return store, store[:, : window.length].index_select(0, window.rows).transpose(1, 2)


def _places(store: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    """Where `positions` [B, Q] of `slots` [B] stand in the store laid flat: [B * Q]."""
    return (slots[:, None] * store.shape[1] + positions).flatten()


def _grown(store: Tensor, window: Window) -> Tensor:
    slots, positions, heads, size = store.shape
    needed = (_at_least(slots, window.slots), _at_least(positions, int(window.positions.max()) + 1))
    if needed == (slots, positions):
        return store
    larger = store.new_zeros(*needed, heads, size)
    larger[:slots, :positions] = store
    return larger


def _at_least(have: int, needed: int) -> int:
    while have < needed:
        have = max(16, 2 * have)
    return have
