"""The embedded sampler: batched decoding in this process; the KV cache is kept over the turns of an episode.

generate: split prompts into waves that fit, prefill what no slot holds, then choose and decode token by token.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earl.engine.kv_batches import Contexts, need, waves
from earl.engine.model import Policy, allocated, bare, head, hidden_states, shape_of, tensors_once
from earl.engine.sampler import Probe, Sampler, check
from earl.parallel.memory import kv_bytes
from earl.rollout.prompt import Completion, Prompt
from earl.seeds import uniforms

TOLERANCE = 1e-3
"""Tolerance of a probe's log-probs: both sides compute in float32, in different order."""


class LocalSampler(Sampler):
    """Samples from its own copy of a policy's model, of whose weights it takes a copy if there are any. room_bytes:
    for keys and values in this process; episodes that do not fit wait for others; None: no limit."""

    tp = 1

    def __init__(self, policy: Policy, temperature: float = 1.0, room_bytes: int | None = None) -> None:
        self._stop_ids = policy.stop_ids
        self._temperature = temperature
        self._version = 0
        self._room = sys.maxsize
        if room_bytes is not None:
            self._room = int(room_bytes / kv_bytes(shape_of(policy.model), self.tp))
        self._most_waves = 0
        self._model: Any = allocated(self._described(policy.model.config)).eval().requires_grad_(False)
        self._filled = not any(parameter.is_meta for parameter in policy.model.parameters())
        if self._filled:
            self._fill(policy.model.state_dict())
        self._forget()

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights and drop every cached key and value. probe: the learner's log-probs of a prompt; raises
        StaleWeights when these weights give others."""
        self._fill(weights)
        self._version, self._filled = version, True
        self._forget()
        if probe:
            self._check(probe)

    def _described(self, config: Any) -> Any:
        """This process's part of the model, on the meta device."""
        return bare(config)

    def _fill(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors_once(self._model).items():  # one by one: they may be fetched lazily
            given = self._part(weights, name)
            assert tensor.shape == given.shape, f"{name!r} has the shape {(*tensor.shape,)}, not {(*given.shape,)}"
            tensor.copy_(given)

    def _part(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        return weights[name]

    @torch.inference_mode()
    def _check(self, probe: Probe) -> None:
        tokens = torch.tensor([probe.tokens])
        logits = self._whole(head(self._model)(hidden_states(self._model, tokens, use_cache=False))[0, :-1].float())
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
        check(probe, logprobs.tolist(), TOLERANCE, self._version)

    def _whole(self, logits: Tensor) -> Tensor:
        """The logits of the whole vocabulary."""
        return logits

    @property
    def version(self) -> int:
        return self._version

    def close(self) -> None:
        for tensor in self._model.parameters():
            tensor.data = tensor.data.new_empty(0)  # modules and hooks form reference cycles, which are collected later
        self._forget()

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
                self._forget()  # dropped contexts are recomputed when needed
            completions |= zip(wave, self._complete(own), strict=True)
        return [completions[number] for number in range(len(prompts))]

    def most_waves(self) -> int | None:
        most, self._most_waves = self._most_waves, 0
        return None if self._room == sys.maxsize else most

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        seeds = np.array([prompt.seed for prompt in prompts], dtype=np.uint64)
        greedy = np.array([prompt.greedy for prompt in prompts])
        replies: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        logits = self._contexts.prefill(prompts)
        live = np.arange(len(prompts))
        for place in range(max(prompt.max_tokens for prompt in prompts)):
            chosen, scores = self._choose(logits, seeds[live], greedy[live], place)
            for number, token, score in zip(live.tolist(), chosen.tolist(), scores.tolist(), strict=True):
                replies[number].append(token)
                logprobs[number].append(score)
            live = live[[not self._ended(prompts[number], replies[number]) for number in live.tolist()]]
            if not len(live):
                break
            logits = self._contexts.decode({prompts[number].session: replies[number][-1] for number in live.tolist()})
        return [
            Completion(reply, scores, [self._version] * len(reply), reply[-1] in self._stop_ids)
            for reply, scores in zip(replies, logprobs, strict=True)
        ]

    def _forget(self) -> None:
        self._contexts = Contexts(self._model, self._room)

    def _ended(self, prompt: Prompt, reply: list[int]) -> bool:
        return reply[-1] in self._stop_ids or len(reply) >= prompt.max_tokens

    def _choose(self, logits: Tensor, seeds: Any, greedy: Any, counter: int) -> tuple[Tensor, Tensor]:
        """Tokens [B] and their log-probs [B]."""
        logprobs = torch.log_softmax(logits / self._temperature, dim=-1)
        chosen = logprobs.argmax(dim=-1)
        if not greedy.all():
            # Inverse of the cumulative distribution: one uniform number per row, so that a row's tokens do not depend
            # on the rest of the batch.
            cumulative = logprobs.double().exp_()
            torch.cumsum(cumulative, dim=-1, out=cumulative)
            drawn = torch.from_numpy(uniforms(seeds, counter))[:, None] * cumulative[:, -1:]
            sampled = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
            chosen = torch.where(torch.from_numpy(greedy), chosen, sampled)
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]
