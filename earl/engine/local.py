"""The embedded sampler: batched decoding in this process, with the KV cache kept over the turns of an episode."""

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earl.engine.model import Policy, head, hidden_states
from earl.engine.slots import SlotCache
from earl.rollout.episode import Completion, Prompt
from earl.seeds import uniforms


class LocalSampler:
    """Samples from its own copy of a policy's model.

    Args:
        policy: model and stop tokens; the weights are copied.
        temperature: divides the logits; log-probs are those of the resulting distribution.
        greedy: take the most likely token instead of drawing one.
    """

    def __init__(self, policy: Policy, temperature: float = 1.0, greedy: bool = False) -> None:
        self._model: Any = copy.deepcopy(policy.model).eval().requires_grad_(False)
        self._stop_ids = policy.stop_ids
        self._temperature, self._greedy = temperature, greedy
        self._version = 0
        self._forget()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights and drop every cached key and value."""
        self._model.load_state_dict(weights)
        self._version = version
        self._forget()

    def release(self, sessions: Sequence[int]) -> None:
        """Give the slots of ended episodes back."""
        for session in sessions:
            self._cached.pop(session, None)
            self._free.append(self._slots.pop(session))

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Complete all prompts in one batch that shrinks as replies end."""
        rows = torch.tensor([self._slot(prompt.session) for prompt in prompts])
        seeds = np.array([prompt.seed for prompt in prompts], dtype=np.uint64)
        replies: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        logits, shared = self._prefill(prompts, rows)
        live = np.arange(len(prompts))
        for count in range(max(prompt.max_tokens for prompt in prompts)):
            chosen, scores = self._choose(logits, seeds[live], count)
            for row, token, score in zip(live.tolist(), chosen.tolist(), scores.tolist(), strict=True):
                replies[row].append(token)
                logprobs[row].append(score)
            going = np.array([not self._ended(prompts[row], replies[row]) for row in live.tolist()])
            if not going.any():
                break
            keep = torch.from_numpy(going)
            live = live[going]
            logits, shared = self._decode(prompts, live, rows[live], chosen[keep], shared[going])
        return [
            Completion(reply, scores, self._version, reply[-1] in self._stop_ids)
            for reply, scores in zip(replies, logprobs, strict=True)
        ]

    def _forget(self) -> None:
        self._cache = SlotCache(self._model.config.num_hidden_layers)
        self._cached: dict[int, list[int]] = {}  # session -> the tokens whose keys and values its slot holds
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def _slot(self, session: int) -> int:
        if session not in self._slots:
            self._slots[session] = self._free.pop() if self._free else len(self._slots)
            self._cached[session] = []
        return self._slots[session]

    def _ended(self, prompt: Prompt, reply: list[int]) -> bool:
        return reply[-1] in self._stop_ids or len(reply) >= prompt.max_tokens

    def _prefill(self, prompts: Sequence[Prompt], rows: Tensor) -> tuple[Tensor, Any]:
        """Feed what the slots do not hold yet; logits [B, V] after each prompt's last token."""
        starts = [self._reusable(prompt) for prompt in prompts]
        new = [prompt.tokens[start:] for prompt, start in zip(prompts, starts, strict=True)]
        width = max(map(len, new))
        tokens = torch.tensor([list(part) + [0] * (width - len(part)) for part in new])
        for prompt in prompts:
            self._cached[prompt.session] = list(prompt.tokens)
        contexts = [(start, tuple(prompt.tokens)) for start, prompt in zip(starts, prompts, strict=True)]
        last = torch.tensor([len(part) - 1 for part in new])
        return self._once(contexts, rows, tokens, torch.tensor(starts), last)

    def _decode(
        self, prompts: Sequence[Prompt], live: Any, rows: Tensor, chosen: Tensor, shared: Any
    ) -> tuple[Tensor, Any]:
        starts, tokens = [], chosen.tolist()
        for row, token in zip(live.tolist(), tokens, strict=True):
            cached = self._cached[prompts[row].session]
            starts.append(len(cached))
            cached.append(token)
        contexts = list(zip(shared.tolist(), tokens, strict=True))
        return self._once(contexts, rows, chosen[:, None], torch.tensor(starts), torch.zeros_like(rows))

    def _once(
        self, contexts: Sequence[Hashable], rows: Tensor, tokens: Tensor, starts: Tensor, last: Tensor
    ) -> tuple[Tensor, Any]:
        """Compute every distinct context once; rows that are alike take over its keys, values and logits.

        Returns:
            logits [B, V], and the number of each row's context among the distinct ones [B].
        """
        numbers: dict[Hashable, int] = {}
        shared = np.array([numbers.setdefault(context, len(numbers)) for context in contexts])
        _, first = np.unique(shared, return_index=True)
        logits = self._forward(rows[first], tokens[first], starts[first], last[first])
        if len(first) < len(rows):
            others = np.setdiff1d(np.arange(len(rows)), first)
            positions = starts[others, None] + torch.arange(tokens.shape[1])
            self._cache.copy(rows[first[shared[others]]], rows[others], positions)
        return logits[shared], shared

    def _reusable(self, prompt: Prompt) -> int:
        """How many of the prompt's first tokens the slot holds; at least the last token is always fed."""
        cached = self._cached[prompt.session]
        if len(cached) < len(prompt.tokens) and prompt.tokens[: len(cached)] == cached:
            return len(cached)
        same = 0
        for ours, theirs in zip(cached, prompt.tokens[:-1], strict=False):
            if ours != theirs:
                break
            same += 1
        return same

    def _forward(self, rows: Tensor, tokens: Tensor, starts: Tensor, last: Tensor) -> Tensor:
        """Logits [B, V] at query `last` of tokens [B, Q] that continue their rows from `starts` [B].

        Rows shorter than Q are padded; what the padding writes lies behind the row's end, is masked, and is
        overwritten before the row grows over it.
        """
        positions = starts[:, None] + torch.arange(tokens.shape[1])
        window = self._cache.window
        window.rows, window.positions = rows, positions
        window.length, window.slots = int((starts + last).max()) + 1, len(self._slots) + len(self._free)
        hidden = torch.arange(window.length) > positions[:, None, :, None]  # [B, 1, Q, length]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)  # made once for all layers
        states = hidden_states(
            self._model,
            tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = head(self._model)(states[torch.arange(len(rows)), last])
        return logits.float()

    def _choose(self, logits: Tensor, seeds: Any, counter: int) -> tuple[Tensor, Tensor]:
        """Tokens [B] and their log-probs [B]."""
        logprobs = torch.log_softmax(logits / self._temperature, dim=-1)
        if self._greedy:
            chosen = logprobs.argmax(dim=-1)
        else:
            # Inverse of the cumulative distribution: one uniform number per row, so that a row's tokens do not
            # depend on what else is in the batch.
            cumulative = logprobs.double().exp().cumsum(dim=-1)
            drawn = torch.from_numpy(uniforms(seeds, counter))[:, None] * cumulative[:, -1:]
            chosen = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]
