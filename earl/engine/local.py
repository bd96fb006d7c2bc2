"""The embedded sampler: batched decoding in this process, with the KV cache kept over the turns of an episode.

    prompts ─▶ distinct contexts ─▶ prefill what no row holds ─▶ choose ─▶ decode, rows split where replies part ─▶ …

Episodes whose contexts are alike share a row of the cache: what is alike is computed once.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earl.engine.kept import KeptCache
from earl.engine.model import Policy, head, hidden_states
from earl.rollout.episode import Completion, Prompt
from earl.seeds import uniforms

LIVELY = 0.75
"""Rows whose replies have all ended are carried along until fewer than this share are still decoded."""


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
        """Forget ended episodes; rows that nobody needs any more are dropped with the next prompts."""
        for session in sessions:
            self._rows.pop(session, None)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Complete all prompts in one batch that shrinks as replies end."""
        seeds = np.array([prompt.seed for prompt in prompts], dtype=np.uint64)
        replies: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        logits = self._prefill(prompts)
        live = np.arange(len(prompts))
        for count in range(max(prompt.max_tokens for prompt in prompts)):
            chosen, scores = self._choose(logits, seeds[live], count)
            for number, token, score in zip(live.tolist(), chosen.tolist(), scores.tolist(), strict=True):
                replies[number].append(token)
                logprobs[number].append(score)
            live = live[[not self._ended(prompts[number], replies[number]) for number in live.tolist()]]
            if not len(live):
                break
            logits = self._decode({prompts[number].session: replies[number][-1] for number in live.tolist()})
        return [
            Completion(reply, scores, self._version, reply[-1] in self._stop_ids)
            for reply, scores in zip(replies, logprobs, strict=True)
        ]

    def _forget(self) -> None:
        self._cache = KeptCache(self._model.config.num_hidden_layers)
        self._rows: dict[int, int] = {}  # session -> the row of the cache that holds its context
        self._contexts: list[list[int]] = []  # row -> the tokens whose keys and values it holds
        self._active = 0  # the first rows are being decoded; those behind belong to other sessions

    def _ended(self, prompt: Prompt, reply: list[int]) -> bool:
        return reply[-1] in self._stop_ids or len(reply) >= prompt.max_tokens

    def _prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Feed what no row holds yet; logits [B, V] after each prompt's last token."""
        wanted = [tuple(prompt.tokens) for prompt in prompts]
        found: dict[tuple[int, ...], tuple[int, int]] = {}  # context -> how much of it is held, and by which row
        for prompt, context in zip(prompts, wanted, strict=True):
            held = self._held(prompt)
            found[context] = max(held, found.get(context, held))
        numbers = {context: number for number, context in enumerate(found)}
        rows = [numbers[context] for context in wanted]
        self._arrange(
            parents=[row for _, row in found.values()],
            contexts=[list(context) for context in found],
            rows={prompt.session: row for prompt, row in zip(prompts, rows, strict=True)},
            capacity=max(len(prompt.tokens) + prompt.max_tokens for prompt in prompts),
        )
        starts = [start for start, _ in found.values()]
        return self._forward([context[start:] for context, (start, _) in found.items()], starts)[rows]

    def _decode(self, replies: Mapping[int, int]) -> Tensor:
        """Feed one token to each session that goes on; logits [B, V] after it."""
        children = dict.fromkeys((self._rows[session], token) for session, token in replies.items())
        parents = [row for row, _ in children]
        if len(set(parents)) < len(parents) or len(parents) < LIVELY * self._active:
            numbers = {child: number for number, child in enumerate(children)}
            self._arrange(
                parents,
                contexts=[list(self._contexts[row]) for row in parents],
                rows={session: numbers[self._rows[session], token] for session, token in replies.items()},
                capacity=self._cache.window.capacity,
            )
        starts = [len(context) for context in self._contexts[: self._active]]
        fed = [0] * self._active  # what a silent row is fed lands behind its end
        for session, token in replies.items():
            fed[self._rows[session]] = token
        rows = [self._rows[session] for session in replies]
        for row in set(rows):
            self._contexts[row].append(fed[row])
        return self._forward([[token] for token in fed], starts)[rows]

    def _arrange(
        self, parents: Sequence[int], contexts: list[list[int]], rows: Mapping[int, int], capacity: int
    ) -> None:
        """Put copies of `parents` in front, for the sessions in `rows`; rows of other sessions follow."""
        others = sorted({row for session, row in self._rows.items() if session not in rows})
        used = max(map(len, self._contexts), default=0)
        self._cache.arrange([*parents, *others], used, capacity=max(used, capacity))
        moved = {row: len(parents) + place for place, row in enumerate(others)}
        self._rows = {s: moved[row] for s, row in self._rows.items() if s not in rows} | dict(rows)
        self._contexts = contexts + [self._contexts[row] for row in others]
        self._active = len(parents)

    def _held(self, prompt: Prompt) -> tuple[int, int]:
        """How many of the prompt's first tokens its session's row holds, and which row that is.

        At least the last token is always fed, since the logits after it are wanted.
        """
        if prompt.session not in self._rows:
            return 0, 0
        row = self._rows[prompt.session]
        context = self._contexts[row]
        if len(context) < len(prompt.tokens) and prompt.tokens[: len(context)] == context:
            return len(context), row
        same = 0
        for ours, theirs in zip(context, prompt.tokens[:-1], strict=False):
            if ours != theirs:
                break
            same += 1
        return same, row

    def _forward(self, new: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Logits [A, V] after the last of `new` tokens, which continue the first A rows from `starts`.

        Rows with fewer tokens are padded; what the padding writes lies behind the row's end, is masked, and is
        overwritten before the row grows over it.
        """
        width = max(map(len, new))
        tokens = torch.tensor([[*part, *[0] * (width - len(part))] for part in new])
        begin, last = torch.tensor(starts), torch.tensor([len(part) - 1 for part in new])
        window = self._cache.window
        positions = (begin[:, None] + torch.arange(width)).clamp(max=window.capacity - 1)  # [A, Q]
        window.positions, window.length = positions, int((begin + last).max()) + 1
        hidden = torch.arange(window.length) > positions[:, None, :, None]  # [A, 1, Q, length]
        states = hidden_states(
            self._model,
            tokens,
            attention_mask=torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = head(self._model)(states[torch.arange(len(new)), last])
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
