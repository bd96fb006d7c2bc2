"""The embedded sampler: batched decoding in this process; the KV cache is kept over the turns of an episode.

generate: split prompts into waves that fit, prefill what no slot holds, then choose and decode token by token.

A model may be split over several processes by tensor parallelism: weights, keys and values by heads. Only the first
process is called, as any sampler is; under `together` the others receive each `generate` call and compute the same
batches with their part of every layer. Only the first chooses tokens.
"""

import json
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count, takewhile
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from transformers.cache_utils import Cache, DynamicLayer

from earl.dispatch.transports.rendezvous import TIMEOUT_SECONDS, Rendezvous, Sealed
from earl.engine.attention import batched
from earl.engine.decoder import TokenDecoder, suits
from earl.engine.model import Policy, allocated, head, hidden_states, meta_model, shape_of, tensors_once
from earl.engine.sampler import NOTHING_CUT, Probe, Sampler, Truncation, check
from earl.engine.sharding.expert_parallel import expert_layers, spread
from earl.engine.sharding.mesh import join_group
from earl.engine.sharding.tensor_parallel import gathered, split
from earl.errors import EarlError
from earl.parallel.layout import EXPERTS, Axis, Box, Layout, check_split
from earl.parallel.memory import PASS_TOKENS, kv_bytes, room_for
from earl.seeds import uniforms
from earl.trajectory import Completion, Prompt


class Window:
    """Which part of the slots the next forward pass reads and writes."""

    slots: Tensor  # [B], the slot of each row, ascending
    positions: Tensor  # [B, Q]
    length: int  # positions to attend to
    span: slice  # from the first slot to the last
    unbroken: bool  # whether the rows are all slots of the span


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [slots, heads, positions, head size] each."""

    def __init__(self, cache: "SlotCache") -> None:
        super().__init__()
        self.cache = cache
        self.store: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the new states [B, heads, Q, head size] to their slots; return all that the rows attend to."""
        return self.written(key_states.transpose(1, 2), value_states.transpose(1, 2))

    def written(self, *states: Tensor) -> tuple[Tensor, Tensor]:
        """The same as `update`, for states [..., heads, head size] of B x Q tokens."""
        window, (*_, heads, size) = self.cache.window, states[0].shape
        store = self.held(states[0])
        places = self.cache.places(heads)
        for part, own in zip(store.view(2, -1, size), states, strict=True):
            part.index_copy_(0, places, own.reshape(-1, size))
        known = store[:, window.span, :, : window.length]
        if not window.unbroken:
            known = known[:, window.slots - window.span.start]
        keys, values = known
        return keys, values

    def held(self, states: Tensor) -> Tensor:
        """The storage of keys and values; allocated for states [..., KV heads, head size] when it is first needed."""
        if self.store is None:
            *_, heads, size = states.shape
            # Zeros: masked positions have weight 0, and 0 times uninitialised memory might be NaN.
            self.store = states.new_zeros(2, self.cache.slots, heads, self.cache.positions, size)
            self.keys, self.values = self.store
        return self.store

    def clear(self) -> None:
        if self.store is not None:
            self.store.zero_()

    def grow(self, slots: int, positions: int) -> None:
        if self.store is not None:
            _, old, heads, longest, size = self.store.shape
            larger = self.store.new_zeros(2, slots, heads, positions, size)
            larger[:, :old, :, :longest] = self.store
            self.store = larger
            self.keys, self.values = larger


class SlotCache(Cache):  # type: ignore[misc]
    """room: the most positions of all slots."""

    def __init__(self, num_layers: int, room: int) -> None:
        self.window, self.room = Window(), room
        self.slots = self.positions = 0
        self._places: Tensor | None = None
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])

    def places(self, heads: int) -> Tensor:
        """Where the window's tokens are among the slots' [slots x heads x positions], [B x Q x heads]."""
        if self._places is None:
            rows = self.window.slots[:, None, None] * heads + torch.arange(heads)  # [B, 1, heads]
            self._places = (rows * self.positions + self.window.positions[:, :, None]).flatten()
        return self._places

    def reach(self, num_slots: int, num_positions: int) -> None:
        """Before a pass: have so many slots of so many positions at least; they grow by doubling."""
        self._places = None
        if num_slots <= self.slots and num_positions <= self.positions:
            return
        wanted = (max(self.slots, room_for(num_slots)), max(self.positions, room_for(num_positions)))
        if wanted[0] * wanted[1] > self.room:
            wanted = (max(self.slots, num_slots), max(self.positions, num_positions))
        self.slots, self.positions = wanted
        for layer in self.layers:
            layer.grow(*wanted)

    def fits(self, num_slots: int, num_positions: int) -> bool:
        return max(self.slots, num_slots) * max(self.positions, num_positions) <= self.room

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of the slots `sources` to the slots `targets`, one to one."""
        self.reach(max(targets) + 1, length)
        for layer in self.layers:
            part = layer.store[:, :, :, :length]
            for source, target in zip(sources, targets, strict=True):  # indexing by all of them takes thrice as long
                part[:, target].copy_(part[:, source])


def need(prompt: Prompt) -> int:
    """The most positions of a prompt and its reply; padding writes to the last, which is never read."""
    return len(prompt.tokens) + prompt.max_tokens


def waves(needs: Sequence[int], room: int) -> list[list[int]]:
    """Indices of the prompts, in as few waves as possible: needs [5, 9, 4, 5], room 10 give [1], [0, 3], [2]. Slots
    are as long as the longest prompt of a wave, so prompts of similar length go together. needs: positions of each
    prompt; room: of all slots together. Raises EarlError when the longest alone does not fit."""
    left = sorted(range(len(needs)), key=lambda number: -needs[number])
    if left and (longest := needs[left[0]]) > room:
        raise EarlError(
            f"an episode needs keys and values for {longest} tokens, and sampler.kv_cache_gib has room for {room}; "
            "raise it, split the sampler over more processes with sampler.tp, or lower the context limit"
        )
    planned = []
    while left:
        size = room // needs[left[0]]
        planned.append(sorted(left[:size]))
        left = left[size:]
    return planned


Name = TypeVar("Name", bound=Hashable)


class Wanted(NamedTuple):
    """A context whose logits are wanted: the first `held` tokens of a slot, then the new ones."""

    held: int
    slot: int  # the slot that holds the beginning; -1 for none
    new: Sequence[int]


def _passes(wanted: Mapping[Name, Wanted]) -> Iterator[list[Name]]:
    """Split contexts into passes of at most PASS_TOKENS new tokens, or of one context. The new tokens of a pass differ
    at most by a factor of two, so that less than half of it is padding."""
    alike: dict[int, list[Name]] = {}
    for name, context in wanted.items():
        alike.setdefault((len(context.new) - 1).bit_length(), []).append(name)
    for _, names in sorted(alike.items()):
        each = max(1, PASS_TOKENS // max(len(wanted[name].new) for name in names))
        yield from (names[start : start + each] for start in range(0, len(names), each))


class Contexts:
    """Cached contexts of a model's sessions, valid for its current weights. room: the most positions of all slots."""

    def __init__(self, model: Any, decoder: TokenDecoder | None, room: int) -> None:
        self._model, self._decoder = model, decoder
        self._cache = SlotCache(model.config.num_hidden_layers, room)
        self._slots: dict[int, int] = {}  # session -> the slot that holds its context, or the beginning of it
        self._tokens: dict[int, list[int]] = {}  # slot -> the tokens whose keys and values it holds

    @torch.inference_mode()
    def emptied(self) -> "Contexts":
        """Contexts of new weights. They take over the memory of these, unless a quarter would do."""
        new = Contexts(self._model, self._decoder, self._cache.room)
        longest = max(map(len, self._tokens.values()), default=0)
        if 4 * room_for(len(self._tokens)) * room_for(longest) > self._cache.slots * self._cache.positions:
            new._cache = self._cache
            for layer in new._cache.layers:
                layer.clear()
        return new

    def release(self, session: int) -> None:
        self._slots.pop(session, None)

    def fits(self, prompts: Sequence[Prompt]) -> bool:
        """Whether prompts and replies fit beside what is held for other sessions."""
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
        """Feed one token to each continuing session; logits [B, V] after it."""
        children = {session: (self._slots[session], token) for session, token in replies.items()}
        wanted = {own: Wanted(len(self._tokens[own[0]]), own[0], own[1:]) for own in dict.fromkeys(children.values())}
        return self._feed(children, wanted)

    def _kept(self, sessions: Set[int]) -> set[int]:
        return {slot for session, slot in self._slots.items() if session not in sessions}

    def _held(self, session: int, context: tuple[int, ...]) -> tuple[int, int]:
        """How many of a context's first tokens the session's slot holds, and the slot, -1 for none. At least the last
        token is always fed, since the logits after it are wanted."""
        slot = self._slots.get(session, -1)
        tokens = self._tokens.get(slot, [])
        if len(tokens) < len(context) and [*context[: len(tokens)]] == tokens:
            return len(tokens), slot
        pairs = zip(tokens, context[:-1], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), slot

    def _feed(self, sessions: Mapping[int, Name], wanted: Mapping[Name, Wanted]) -> Tensor:
        """Compute each distinct context once; logits [B, V], by session. sessions: the name of each session's context;
        wanted: the contexts by name."""
        slots = dict(zip(wanted, self._claim([*wanted.values()], self._kept(sessions.keys())), strict=True))
        self._slots |= {session: slots[name] for session, name in sessions.items()}
        passes = [*_passes(wanted)]
        states = [self._forward([slots[name] for name in names], [wanted[name] for name in names]) for names in passes]
        rows = {name: row for row, name in enumerate(chain.from_iterable(passes))}
        order = [rows[name] for name in sessions.values()]
        logits: Tensor = head(self._model)(torch.cat(states)[order])
        return logits.float()

    def _claim(self, wanted: Sequence[Wanted], kept: Set[int]) -> list[int]:
        """A slot for each context: the one that holds its beginning, or a free one with a copy of it."""
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
        """The last hidden states [B, H] after the last new token of each context. Rows with fewer new tokens are
        padded; padding writes behind the context's end, is masked, and is overwritten before the context grows."""
        window, width = self._cache.window, max(len(context.new) for context in wanted)
        if self._decoder and width == 1:
            return self._next(self._decoder, slots, wanted)
        window.length = max(context.held + len(context.new) for context in wanted)
        known = dict(zip(slots, wanted, strict=True))
        known |= dict.fromkeys(self._idle(known, width), Wanted(window.length, -1, ()))
        rows = {slot: row for row, slot in enumerate(sorted(known))}
        contexts = [known[slot] for slot in rows]
        window.span = slice(min(rows), max(rows) + 1)
        window.unbroken = window.span.stop - window.span.start == len(rows)
        starts = np.array([context.held for context in contexts])
        positions = np.minimum(starts[:, None] + np.arange(width), window.length)  # [B, Q]
        window.slots, window.positions = torch.tensor([*rows]), torch.from_numpy(positions)
        self._cache.reach(window.span.stop, int(positions.max()) + 1)
        mask = np.where(np.arange(window.length) > positions[:, None, :, None], -np.inf, 0).astype(np.float32)
        tokens = torch.tensor([[*context.new, *[0] * (width - len(context.new))] for context in contexts])
        last = torch.tensor([rows[slot] * width + len(known[slot].new) - 1 for slot in slots])
        return self._states(tokens, torch.from_numpy(mask), last)

    def _idle(self, slots: Mapping[int, Wanted], width: int) -> list[int]:
        """The slots between these, where to compute rows for nothing takes less than to copy the others' contexts: few,
        and with room for padding."""
        idle = [slot for slot in range(min(slots), max(slots)) if slot not in slots]
        held = {*self._slots.values()}.intersection(idle)
        fit = all(len(self._tokens[slot]) <= self._cache.window.length for slot in held)
        return idle if fit and len(idle) * max(width, 4) <= 4 * len(slots) else []

    def _states(self, tokens: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
        """The last hidden states [M, H] of rows of tokens [B, Q] in the window, at the places `wanted` [M] of B x Q.
        mask: [B, 1, Q, positions to attend to]."""
        window, (rows, width) = self._cache.window, tokens.shape
        positions = window.positions.clamp(max=window.length - 1)  # padding may lie behind the last position
        if self._decoder is None:
            how = {"attention_mask": mask, "position_ids": positions, "past_key_values": self._cache, "use_cache": True}
            return hidden_states(self._model, tokens, **how).flatten(0, 1)[wanted]
        decoder = self._decoder

        def attend(number: int, heads: Tensor) -> Tensor:
            query, *states = decoder.apart(heads)
            keys, values = self._cache.layers[number].written(*states)
            query = query.reshape(rows, width, *query.shape[1:]).transpose(1, 2)
            return batched(query, keys, values, mask, False, None).flatten(0, 1)

        return decoder.states(tokens.flatten(), positions.flatten(), attend, wanted)

    def _next(self, decoder: TokenDecoder, slots: Sequence[int], wanted: Sequence[Wanted]) -> Tensor:
        """`_forward` of one new token each, whose keys and values are read where they lie."""
        places, positions = np.array(slots), np.array([context.held for context in wanted])
        self._cache.reach(max(slots) + 1, int(positions.max()) + 1)

        def attend(number: int, heads: Tensor) -> Tensor:
            store = self._cache.layers[number].held(decoder.apart(heads)[1])
            return decoder.of_one(heads, store, places, positions)

        tokens = torch.tensor([context.new[0] for context in wanted])
        return decoder.states(tokens, torch.from_numpy(positions), attend)


TOLERANCE = 1e-3
"""Tolerance of a probe's log-probs: both sides compute in float32, in different order."""
DRAWN = 32
"""Places of replies whose random numbers are drawn at once."""


class LocalSampler(Sampler):
    """Samples from its own copy of a policy's model, of whose weights it takes a copy if there are any. room_bytes:
    for keys and values in this process; episodes that do not fit wait for others; None: no limit."""

    tp = 1

    def __init__(
        self,
        policy: Policy,
        temperature: float = 1.0,
        room_bytes: int | None = None,
        truncation: Truncation = NOTHING_CUT,
    ) -> None:
        self._stop_ids = policy.stop_ids
        self._temperature, self._truncation = temperature, truncation
        self.version = 0
        self._room = sys.maxsize
        if room_bytes is not None:
            self._room = int(room_bytes / kv_bytes(shape_of(policy.model), self.tp))
        self._most_waves = 0
        self._model: Any = allocated(self._described(policy.model.config)).eval().requires_grad_(False)
        self._filled = not any(parameter.is_meta for parameter in policy.model.parameters())
        self._decoder = TokenDecoder(self._model) if self.tp == 1 and suits(self._model) else None
        if self._filled:
            self._fill(policy.model.state_dict())
        self._contexts = self._empty()

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights and drop every cached key and value. probe: the learner's log-probs of a prompt; raises
        StaleWeights when these weights give others."""
        self._fill(weights)
        self.version, self._filled = version, True
        self._contexts = self._contexts.emptied()
        if probe:
            self._check(probe)

    def _described(self, config: Any) -> Any:
        """This process's part of the model, on the meta device."""
        return meta_model(config)

    def _fill(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors_once(self._model).items():  # one by one: they may be fetched lazily
            given = self._part(weights, name)
            assert tensor.shape == given.shape, f"{name!r} has the shape {(*tensor.shape,)}, not {(*given.shape,)}"
            tensor.copy_(given)
        self.needed_bytes = sum(tensor.nbytes for tensor in tensors_once(self._model).values())

    def _part(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        return weights[name]

    @torch.inference_mode()
    def _check(self, probe: Probe) -> None:
        tokens = torch.tensor([probe.tokens])
        logits = self._whole(head(self._model)(hidden_states(self._model, tokens, use_cache=False))[0, :-1].float())
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
        check(probe, logprobs.tolist(), TOLERANCE, self.version)

    def _whole(self, logits: Tensor) -> Tensor:
        """The logits of the whole vocabulary."""
        return logits

    def close(self) -> None:
        for tensor in self._model.parameters():
            tensor.data = tensor.data.new_empty(0)  # modules and hooks form reference cycles, which are collected later
        self._decoder = None
        self._contexts = self._empty()

    def release(self, sessions: Sequence[int]) -> None:
        for session in sessions:
            self._contexts.release(session)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Complete all prompts, in one batch that shrinks as replies end, or in several if they do not fit together.
        Raises EarlError when the longest prompt alone does not fit."""
        assert self._filled, "a sampler that was made without weights is given some before it is asked"
        planned = waves([need(prompt) for prompt in prompts], self._room)
        self._most_waves = max(self._most_waves, len(planned))
        completions: dict[int, Completion] = {}
        for wave in planned:
            own = [prompts[number] for number in wave]
            if not self._contexts.fits(own):
                self._contexts = self._empty()  # dropped contexts are recomputed when needed
            completions |= zip(wave, self._complete(own), strict=True)
        return [completions[number] for number in range(len(prompts))]

    def most_waves(self) -> int | None:
        most, self._most_waves = self._most_waves, 0
        return None if self._room == sys.maxsize else most

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        seeds = np.array([prompt.seed for prompt in prompts], dtype=np.uint64)
        greedy = np.array([prompt.greedy for prompt in prompts])
        limits = np.array([prompt.max_tokens for prompt in prompts])
        most = int(limits.max())
        replies, logprobs = np.empty((len(prompts), most), np.int64), np.empty((len(prompts), most), np.float32)
        lengths = limits.copy()
        logits = self._contexts.prefill(prompts)
        live = np.arange(len(prompts))
        for place in range(most):
            if place % DRAWN == 0:
                drawn = uniforms(seeds[:, None], place + np.arange(DRAWN))
            chosen, scores = (part.numpy() for part in self._choose(logits, drawn[live, place % DRAWN], greedy[live]))
            replies[live, place], logprobs[live, place] = chosen, scores
            ended = np.array([token in self._stop_ids for token in chosen.tolist()])
            lengths[live[ended]] = place + 1
            going = ~ended & (place + 1 < limits[live])
            live = live[going]
            if not len(live):
                break
            sessions = (prompts[number].session for number in live.tolist())
            logits = self._contexts.decode(dict(zip(sessions, chosen[going].tolist(), strict=True)))
        return [
            Completion(reply[:n].tolist(), scores[:n].tolist(), [self.version] * n, reply[n - 1] in self._stop_ids)
            for reply, scores, n in zip(replies, logprobs, lengths.tolist(), strict=True)
        ]

    def _empty(self) -> Contexts:
        return Contexts(self._model, self._decoder, self._room)

    def _choose(self, logits: Tensor, drawn: Any, greedy: Any) -> tuple[Tensor, Tensor]:
        """Tokens [B] and their log-probs [B]. drawn: one uniform number per row, so that a row's tokens do not depend
        on the rest of the batch."""
        logits = logits if self._temperature == 1.0 else logits / self._temperature
        if self._truncation:
            logits = logits.masked_fill(logits < self._truncation.lowest(logits), -torch.inf)
        logprobs = torch.log_softmax(logits, dim=-1)
        if greedy.all():
            chosen = logprobs.argmax(dim=-1)
        else:  # inverse of the cumulative distribution
            cumulative = logprobs.double().exp_()
            torch.cumsum(cumulative, dim=-1, out=cumulative)
            reached = torch.from_numpy(drawn)[:, None] * cumulative[:, -1:]
            chosen = torch.searchsorted(cumulative, reached, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
            if greedy.any():
                chosen = torch.where(torch.from_numpy(greedy), logprobs.argmax(dim=-1), chosen)
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Meeting:
    rank: int
    size: int
    place: Rendezvous  # the first process opens it


class TpGroup:
    """A process's membership in the group of its copy; a process is in one group at a time. store: on the first
    process, an already opened store; None: opened now."""

    def __init__(self, meeting: Meeting, store: Sealed | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.rank, self.layout = meeting.rank, Layout(1, meeting.size, ep=meeting.size)
        cpu = torch.device("cpu")
        self._store = join_group(self.rank, meeting.size, meeting.place, store, cpu, timeout_seconds)
        group: ProcessGroup | None = distributed.group.WORLD
        assert group is not None
        self.group = group

    def broadcast(self, order: bytes) -> bytes:
        """The first process's order, on all processes: JSON or nothing, so that no data can run code."""
        size = torch.tensor([len(order)])
        distributed.broadcast(size, 0)
        message = torch.empty(int(size), dtype=torch.uint8)
        if order:
            message = torch.frombuffer(bytearray(order), dtype=torch.uint8)
        if len(message):
            distributed.broadcast(message, 0)
        return message.numpy().tobytes()


def split_axes(config: Any) -> Mapping[str, Axis]:
    """The axis that a split sampler cuts a tensor along, by name; others are whole in every process."""
    model = meta_model(config)
    layers = expert_layers(model).items()
    experts = {f"{name}.{key}" for name, module in layers for key, _ in module.named_parameters(recurse=False)}
    return {**dict.fromkeys(experts, EXPERTS), **split(model, 1, 0, None).axes}


class SplitSampler(LocalSampler):
    """One process's part of a sampler; every process of `tp_group` makes its own. room_bytes: of this process. Raises
    EarlError when the model cannot be split over this many processes."""

    def __init__(
        self,
        policy: Policy,
        tp_group: TpGroup,
        temperature: float = 1.0,
        room_bytes: int | None = None,
        truncation: Truncation = NOTHING_CUT,
    ) -> None:
        self._tp_group, self.tp = tp_group, tp_group.layout.tp
        self._words = policy.model.config.get_text_config().vocab_size
        self._boxes: dict[str, Box] = {}
        self._released: list[int] = []
        super().__init__(policy, temperature, room_bytes, truncation)

    def together(self, work: Callable[[], R]) -> R | None:
        """Run `work`, which may call the sampler. All processes call this; the others follow the first until it is
        done. Returns its result on the first process."""
        if self._tp_group.rank:
            while order := self._tp_group.broadcast(b""):
                released, asked = json.loads(order)
                self._follow(released, [Prompt(*fields) for fields in asked])
            return None
        try:
            return work()
        finally:
            self._tp_group.broadcast(b"")

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        released, self._released = self._released, []
        asked = [(p.session, [*p.tokens], p.seed, p.max_tokens, p.greedy) for p in prompts]
        self._tp_group.broadcast(json.dumps((released, asked), default=int).encode())
        return self._follow(released, prompts)

    def release(self, sessions: Sequence[int]) -> None:
        self._released += sessions

    def close(self) -> None:
        """Free everything and leave the process group, so that this process can join others."""
        distributed.destroy_process_group()
        super().close()

    def _follow(self, released: Sequence[int], prompts: Sequence[Prompt]) -> list[Completion]:
        super().release(released)
        return super().generate(prompts)

    def _described(self, config: Any) -> Any:
        model, layout = meta_model(config), self._tp_group.layout
        check_split(shape_of(model), "sampler.tp", self.tp, replicated=False)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_once(model).items()}
        group = self._tp_group.group
        axes = {**spread(model, group, group), **split(model, self.tp, self._tp_group.rank, group).axes}
        self._boxes = {name: layout.box(shape, axes.get(name), self._tp_group.rank) for name, shape in shapes.items()}
        return model

    def _part(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        """This process's part of a tensor; fetches only this part where possible."""
        box, read = self._boxes[name], getattr(weights, "part", None)
        part: Tensor = read(name, box) if read else weights[name][box.slices]
        return part

    def _whole(self, logits: Tensor) -> Tensor:
        return gathered(logits, 1, self._words, self._tp_group.group)

    def _choose(self, logits: Tensor, drawn: Any, greedy: Any) -> tuple[Tensor, Tensor]:
        whole, agreed = self._whole(logits), torch.empty(2, len(logits), dtype=torch.float64)  # exact for both
        if not self._tp_group.rank:
            agreed[0], agreed[1] = super()._choose(whole, drawn, greedy)
        distributed.broadcast(agreed, 0)
        return agreed[0].long(), agreed[1].float()
