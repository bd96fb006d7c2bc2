"""The contexts of a sampler's sessions in the slots of its cache, and the logits that come after them.

    sessions ─▶ distinct contexts ─▶ a slot each ─▶ what it does not hold is fed ─▶ logits, by session

Episodes whose contexts are alike share a slot of the cache until they part: what is alike is computed once.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from itertools import count, groupby
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from earl.engine.model import head, hidden_states
from earl.engine.slots import SlotCache
from earl.engine.waves import need
from earl.parallel.slots import PASS_TOKENS
from earl.rollout.prompt import Prompt

Name = TypeVar("Name", bound=Hashable)


class Wanted(NamedTuple):
    """A context that logits are wanted for: the first `held` tokens of a slot, then the new ones."""

    held: int
    slot: int
    """Whose beginning is held; -1 where nothing is."""
    new: Sequence[int]


def _size(context: Wanted) -> int:
    """Contexts of one size have up to twice as many new tokens as each other, so padding stays below the half."""
    return (len(context.new) - 1).bit_length()


def _passes(names: Sequence[Name], wanted: Mapping[Name, Wanted]) -> Iterator[Sequence[Name]]:
    """Contexts of one size in passes of at most PASS_TOKENS new tokens, or of one context."""
    each = max(1, PASS_TOKENS // max(len(wanted[name].new) for name in names))
    return (names[start : start + each] for start in range(0, len(names), each))


class Contexts:
    """What a model has computed of the contexts of its sessions, with its weights as they are.

    Args:
        room: positions of all slots together, at most.
    """

    def __init__(self, model: Any, room: int) -> None:
        self._model = model
        self._cache = SlotCache(model.config.num_hidden_layers, room)
        self._slots: dict[int, int] = {}  # session -> the slot that holds its context, or the beginning of it
        self._tokens: dict[int, list[int]] = {}  # slot -> the tokens whose keys and values it holds

    @property
    def held_bytes(self) -> int:
        """Of all keys and values."""
        return self._cache.held_bytes

    def release(self, session: int) -> None:
        """Forget an ended episode; a slot that is nobody's any more is used again."""
        self._slots.pop(session, None)

    def fits(self, prompts: Sequence[Prompt]) -> bool:
        """Whether there is room for prompts and replies beside what is held for other sessions."""
        kept = self._kept({prompt.session for prompt in prompts})
        return self._cache.fits(len(kept) + len(prompts), max(map(need, prompts)))

    def prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Feed what no slot holds yet; logits [B, V] after each prompt's last token."""
        contexts = {prompt.session: tuple(prompt.tokens) for prompt in prompts}
        best: dict[tuple[int, ...], tuple[int, int]] = {}
        for session, context in contexts.items():
            held = self._held(session, context)
            best[context] = max(held, best.get(context, held))
        wanted = {context: Wanted(held, slot, context[held:]) for context, (held, slot) in best.items()}
        return self._feed(contexts, wanted)

    def decode(self, replies: Mapping[int, int]) -> Tensor:
        """Feed one token to each session that goes on; logits [B, V] after it."""
        children = {session: (self._slots[session], token) for session, token in replies.items()}
        wanted = {(slot, token): Wanted(len(self._tokens[slot]), slot, (token,)) for slot, token in children.values()}
        return self._feed(children, wanted)

    def _kept(self, sessions: Set[int]) -> set[int]:
        """The slots of all sessions but these."""
        return {slot for session, slot in self._slots.items() if session not in sessions}

    def _held(self, session: int, context: tuple[int, ...]) -> tuple[int, int]:
        """How many of a context's first tokens the session's slot holds, and which slot that is, -1 for none.

        At least the last token is always fed, since the logits after it are wanted.
        """
        slot = self._slots.get(session, -1)
        tokens = self._tokens.get(slot, [])
        if len(tokens) < len(context) and [*context[: len(tokens)]] == tokens:
            return len(tokens), slot
        same = 0
        for ours, theirs in zip(tokens, context[:-1], strict=False):
            if ours != theirs:
                break
            same += 1
        return same, slot

    def _feed(self, sessions: Mapping[int, Name], wanted: Mapping[Name, Wanted]) -> Tensor:
        """Compute each distinct context once.

        Args:
            sessions: the name of each session's context.
            wanted: the contexts by name.

        Returns:
            logits [B, V], by session.
        """
        slots = dict(zip(wanted, self._claim([*wanted.values()], self._kept(sessions.keys())), strict=True))
        self._slots |= {session: slots[name] for session, name in sessions.items()}
        names = sorted(wanted, key=lambda name: _size(wanted[name]))
        logits = []
        for _, alike in groupby(names, key=lambda name: _size(wanted[name])):
            for batch in _passes([*alike], wanted):
                logits.append(self._forward([slots[name] for name in batch], [wanted[name] for name in batch]))
        rows = {name: row for row, name in enumerate(names)}
        order = [rows[name] for name in sessions.values()]
        if len(logits) == 1 and order == [*range(len(names))]:
            return logits[0]  # as they are: copies of them may be what takes most
        return torch.cat(logits)[order]

    def _claim(self, wanted: Sequence[Wanted], kept: Set[int]) -> list[int]:
        """A slot for each context: the one that holds its beginning, or a free one with a copy of that."""
        owner: dict[int, int] = {}
        for number, context in enumerate(wanted):
            owner.setdefault(context.slot, number)
        free = (slot for slot in count() if slot not in owner and slot not in kept)
        slots = [c.slot if c.slot >= 0 and owner[c.slot] == n else next(free) for n, c in enumerate(wanted)]
        copied = [(c, slot) for c, slot in zip(wanted, slots, strict=True) if c.held and slot != c.slot]
        if copied:
            length = max(context.held for context, _ in copied)
            self._cache.copy([context.slot for context, _ in copied], [slot for _, slot in copied], length)
        for context, slot in copied:
            self._tokens[slot] = self._tokens[context.slot][: context.held]
        for context, slot in zip(wanted, slots, strict=True):
            tokens = self._tokens.setdefault(slot, [])
            tokens[context.held :] = context.new
        return slots

    def _forward(self, slots: Sequence[int], wanted: Sequence[Wanted]) -> Tensor:
        """Logits [B, V] after the last new token of each context.

        Rows with fewer new tokens are padded; what the padding writes lies behind the context's end, is masked,
        and is overwritten before the context grows over it.
        """
        width = max(len(context.new) for context in wanted)
        tokens = torch.tensor([[*context.new, *[0] * (width - len(context.new))] for context in wanted])
        starts = torch.tensor([context.held for context in wanted])
        last = torch.tensor([len(context.new) - 1 for context in wanted])
        window = self._cache.window
        window.length = int((starts + last).max()) + 1
        window.slots = torch.tensor(slots)
        window.positions = (starts[:, None] + torch.arange(width)).clamp(max=window.length)  # [B, Q]
        mask = torch.zeros(len(slots), 1, width, window.length)
        mask.masked_fill_(torch.arange(window.length) > window.positions[:, None, :, None], -torch.inf)
        states = hidden_states(
            self._model,
            tokens,
            attention_mask=mask,
            position_ids=window.positions.clamp(max=window.length - 1),  # padding may stand behind the last
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = head(self._model)(states[torch.arange(len(slots)), last])
        return logits.float()
