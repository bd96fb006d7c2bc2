"""A KV cache whose slots hold contexts, from one turn of an episode to the next."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from earl.parallel.slots import room_for


@dataclass(slots=True)
class Window:
    """Which part of the slots the next forward pass reads and writes."""

    slots: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [B], the slot of each row
    positions: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))  # [B, Q]
    length: int = 0
    """Positions to attend to, of all that the slots hold."""
    room: int = sys.maxsize
    """Positions of all slots together, at most."""


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

    def __init__(self, num_layers: int, room: int = sys.maxsize) -> None:
        self.window = Window(room=room)
        super().__init__(layers=[SlotLayer(self.window) for _ in range(num_layers)])

    def fits(self, num_slots: int, num_positions: int) -> bool:
        """Whether the slots may grow to so many, each with so many positions."""
        first = self.layers[0].keys
        slots, positions = first.shape[:2] if first is not None else (0, 0)
        return max(slots, num_slots) * max(positions, num_positions) <= self.window.room

    @property
    def held_bytes(self) -> int:
        """Of all keys and values."""
        stores = (store for layer in self.layers for store in (layer.keys, layer.values))
        return sum(store.nbytes for store in stores if store is not None)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of the slots `sources` to the slots `targets`, one to one."""
        source, target = torch.tensor(sources), torch.tensor(targets)
        for layer in self.layers:
            layer.keys, layer.values = (
                _copied(s, source, target, length, self.window.room) for s in (layer.keys, layer.values)
            )


def _copied(store: Tensor, source: Tensor, target: Tensor, length: int, room: int) -> Tensor:
    store = _grown(store, int(target.max()) + 1, length, room)
    part = store[:, :length]
    part.index_copy_(0, target, part.index_select(0, source))
    return store


def _exchange(store: Tensor | None, states: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Write `states` into a store, grown where it must; the store, and [B, heads, length, head size] read from it."""
    if store is None:
        store = states.new_zeros(0, 0, states.shape[1], states.shape[3])
    store = _grown(store, int(window.slots.max()) + 1, int(window.positions.max()) + 1, window.room)
    store[window.slots[:, None], window.positions] = states.transpose(1, 2)
    return store, store[:, : window.length].index_select(0, window.slots).transpose(1, 2)


def _grown(store: Tensor, num_slots: int, num_positions: int, room: int) -> Tensor:
    slots, positions, heads, size = store.shape
    needed = (max(slots, room_for(num_slots)), max(positions, room_for(num_positions)))
    if needed[0] * needed[1] > room:
        needed = (max(slots, num_slots), max(positions, num_positions))
    if needed == (slots, positions):
        return store
    # Zeros: what is masked has weight 0, and 0 times whatever lay in the memory might not be 0.
    larger = store.new_zeros(*needed, heads, size)
    larger[:slots, :positions] = store
    return larger
