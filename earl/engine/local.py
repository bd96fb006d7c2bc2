"""The embedded sampler: batched decoding in this process, with the KV cache kept over the turns of an episode.

    prompts ─▶ distinct contexts ─▶ prefill what no slot holds ─▶ choose ─▶ decode ─▶ choose ─▶ … completions

Episodes whose contexts are alike share a slot of the cache until they part: what is alike is computed once.
"""

import copy
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from itertools import count, groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from earl.engine.bare import empty
from earl.engine.model import Policy, head, hidden_states, shape_of, tensors_once
from earl.engine.probe import Probe, check
from earl.engine.slots import SlotCache
from earl.engine.waves import need, waves
from earl.parallel.memory import kv_bytes
from earl.parallel.slots import PASS_TOKENS
from earl.rollout.prompt import Completion, Prompt
from earl.seeds import uniforms

TOLERANCE = 1e-3
"""How far a probe's log-probs may lie from the learner's: both compute in float32, in another order."""

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


class LocalSampler:
    """Samples from its own copy of a policy's model.

    Args:
        policy: model and stop tokens; the weights are copied, where it has any.
        temperature: divides the logits; log-probs are those of the resulting distribution.
        room_bytes: of the keys and values in this process; episodes that do not fit wait for others to end. None: as
            many as there are episodes.
    """

    tp = 1
    """Processes that the copy is split over."""

    def __init__(self, policy: Policy, temperature: float = 1.0, room_bytes: int | None = None) -> None:
        self._stop_ids = policy.stop_ids
        self._temperature = temperature
        self._version = 0
        self._room = sys.maxsize
        if room_bytes is not None:
            self._room = int(room_bytes / kv_bytes(shape_of(policy.model), self.tp))
        self._most_waves = 0
        self._filled = not any(parameter.is_meta for parameter in policy.model.parameters())
        self._model: Any = self._copied(policy).eval().requires_grad_(False)
        self._forget()

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights and drop every cached key and value.

        Args:
            probe: what the learner's weights say of a prompt, where they came from another process; compared.

        Raises:
            StaleWeights: when these say something else.
        """
        for name, tensor in tensors_once(self._model).items():  # one after the other: they may be fetched one by one
            given = self._part(weights, name)
            assert tensor.shape == given.shape, f"{name!r} has the shape {(*tensor.shape,)}, not {(*given.shape,)}"
            tensor.copy_(given)
        self._version, self._filled = version, True
        self._forget()
        if probe:
            self._check(probe)

    def _copied(self, policy: Policy) -> Any:
        """A model with the policy's weights, or with memory for some to come."""
        return copy.deepcopy(policy.model) if self._filled else empty(policy.model)

    def _part(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        """What this process holds of a tensor."""
        return weights[name]

    def _check(self, probe: Probe) -> None:
        check(probe, Probe.of(self._model).logprobs, TOLERANCE, self._version)

    @property
    def version(self) -> int:
        """Of the weights that sample now."""
        return self._version

    def sleep(self) -> None:
        """Nothing to free."""

    def wake(self) -> None:
        """Nothing was freed."""

    def close(self) -> None:
        """Let go of weights, keys and values at once; the sampler is of no use any more."""
        for tensor in self._model.parameters():
            tensor.data = tensor.data.new_empty(0)  # modules and their hooks know each other, and go later
        self._forget()

    def release(self, sessions: Sequence[int]) -> None:
        """Forget ended episodes; a slot that is nobody's any more is used again."""
        for session in sessions:
            self._slots.pop(session, None)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Complete all prompts in one batch that shrinks as replies end, or in as many as their room asks for.

        Raises:
            EarlError: when not even one of them has room.
        """
        assert self._filled, "a sampler that was made without weights is given some before it is asked"
        planned = waves([need(prompt) for prompt in prompts], self._room)
        self._most_waves = max(self._most_waves, len(planned))
        completions: dict[int, Completion] = {}
        for wave in planned:
            own = [prompts[number] for number in wave]
            self._make_room(own)
            completions |= zip(wave, self._complete(own), strict=True)
        return [completions[number] for number in range(len(prompts))]

    def most_waves(self) -> int | None:
        """The most batches that one call took since this was last asked; None where room is not bounded."""
        most, self._most_waves = self._most_waves, 0
        return None if self._room == sys.maxsize else most

    @property
    def held_bytes(self) -> tuple[int, int]:
        """Of the weights, and of the keys and values, in this process."""
        return sum(tensor.nbytes for tensor in tensors_once(self._model).values()), self._cache.held_bytes

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Complete prompts together."""
        seeds = np.array([prompt.seed for prompt in prompts], dtype=np.uint64)
        greedy = np.array([prompt.greedy for prompt in prompts])
        replies: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        logits = self._prefill(prompts)
        live = np.arange(len(prompts))
        for place in range(max(prompt.max_tokens for prompt in prompts)):
            chosen, scores = self._choose(logits, seeds[live], greedy[live], place)
            for number, token, score in zip(live.tolist(), chosen.tolist(), scores.tolist(), strict=True):
                replies[number].append(token)
                logprobs[number].append(score)
            live = live[[not self._ended(prompts[number], replies[number]) for number in live.tolist()]]
            if not len(live):
                break
            logits = self._decode({prompts[number].session: replies[number][-1] for number in live.tolist()})
        return [
            Completion(reply, scores, [self._version] * len(reply), reply[-1] in self._stop_ids)
            for reply, scores in zip(replies, logprobs, strict=True)
        ]

    def _make_room(self, prompts: Sequence[Prompt]) -> None:
        """Forget what is cached, where it leaves no room for these: it is computed again when it is wanted."""
        sessions = {prompt.session for prompt in prompts}
        kept = {slot for session, slot in self._slots.items() if session not in sessions}
        if not self._cache.fits(len(kept) + len(prompts), max(map(need, prompts))):
            self._forget()

    def _forget(self) -> None:
        self._cache = SlotCache(self._model.config.num_hidden_layers, self._room)
        self._slots: dict[int, int] = {}  # session -> the slot that holds its context, or the beginning of it
        self._contexts: dict[int, list[int]] = {}  # slot -> the tokens whose keys and values it holds

    def _ended(self, prompt: Prompt, reply: list[int]) -> bool:
        return reply[-1] in self._stop_ids or len(reply) >= prompt.max_tokens

    def _prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Feed what no slot holds yet; logits [B, V] after each prompt's last token."""
        contexts = {prompt.session: tuple(prompt.tokens) for prompt in prompts}
        best: dict[tuple[int, ...], tuple[int, int]] = {}
        for session, context in contexts.items():
            held = self._held(session, context)
            best[context] = max(held, best.get(context, held))
        wanted = {context: Wanted(held, slot, context[held:]) for context, (held, slot) in best.items()}
        return self._feed(contexts, wanted)

    def _decode(self, replies: Mapping[int, int]) -> Tensor:
        """Feed one token to each session that goes on; logits [B, V] after it."""
        children = {session: (self._slots[session], token) for session, token in replies.items()}
        wanted = {(slot, token): Wanted(len(self._contexts[slot]), slot, (token,)) for slot, token in children.values()}
        return self._feed(children, wanted)

    def _held(self, session: int, context: tuple[int, ...]) -> tuple[int, int]:
        """How many of a context's first tokens the session's slot holds, and which slot that is, -1 for none.

        At least the last token is always fed, since the logits after it are wanted.
        """
        slot = self._slots.get(session, -1)
        tokens = self._contexts.get(slot, [])
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
        kept = {slot for session, slot in self._slots.items() if session not in sessions}
        slots = dict(zip(wanted, self._claim([*wanted.values()], kept), strict=True))
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
            self._contexts[slot] = self._contexts[context.slot][: context.held]
        for context, slot in zip(wanted, slots, strict=True):
            tokens = self._contexts.setdefault(slot, [])
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

    def _choose(self, logits: Tensor, seeds: Any, greedy: Any, counter: int) -> tuple[Tensor, Tensor]:
        """Tokens [B] and their log-probs [B]."""
        logprobs = torch.log_softmax(logits / self._temperature, dim=-1)
        chosen = logprobs.argmax(dim=-1)
        if not greedy.all():
            # Inverse of the cumulative distribution: one uniform number per row, so that a row's tokens do not
            # depend on what else is in the batch.
            cumulative = logprobs.double().exp_()
            torch.cumsum(cumulative, dim=-1, out=cumulative)
            drawn = torch.from_numpy(uniforms(seeds, counter))[:, None] * cumulative[:, -1:]
            sampled = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
            chosen = torch.where(torch.from_numpy(greedy), chosen, sampled)
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]
