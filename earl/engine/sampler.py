"""The `Sampler` protocol, and the probe that checks whether an engine computes with the weights it was given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from earl.batch import Rows
from earl.config import RolloutConfig
from earl.errors import EarlError
from earl.trajectory import Completion, Prompt

LENGTH = 24
COARSE = 0.1
"""Log-prob tolerance when one side was computed in bfloat16."""


class StaleWeights(EarlError):
    """A sampler's log-probs are not those of the weights that it was given."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt, and its log-probs under the learner's weights."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    """[T - 1] for T tokens: of every token but the first, given those before; without temperature."""
    coarse: bool = False  # whether they were computed in bfloat16

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, weights: Mapping[str, Tensor] | None = None) -> "Probe":
        """The probe of a model, with its own weights or with the given ones."""
        tokens = probe_tokens(model.config.get_text_config().vocab_size)
        own = {name for name, _ in model.named_parameters()}  # tied weights have two names in `weights`, one here
        given = {name: tensor for name, tensor in (weights or {}).items() if name in own}
        inputs = {"input_ids": torch.tensor([tokens]), "use_cache": False}
        logits = functional_call(model, given, (), inputs).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1)
        return cls(tokens, logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist())


def probe_rows(tokens: Sequence[int]) -> Rows:
    """The prompt as a learner scores it: one row; every token but the first is scored."""
    known, count = np.array(tokens, np.int32), len(tokens)
    return Rows(
        offsets=np.array([0, count], np.int64),
        tokens=known,
        mask=np.arange(count) > 0,
        targets=known,
        logprobs=np.zeros(count, np.float32),
        turns=np.full(count, -1, np.int32),
        value_mask=np.zeros(count, np.bool_),
    )


def probe_tokens(vocab: int) -> list[int]:
    return [Random(place).randrange(vocab) for place in range(LENGTH)]


def check(probe: Probe, measured: Sequence[float], tolerance: float, version: int) -> None:
    """Compare the engine's log-probs of a probe with the learner's. Raises StaleWeights when they differ by more than
    `tolerance`, or one is not finite."""
    tolerance = max(tolerance, COARSE) if probe.coarse else tolerance
    pairs = [(abs(ours - theirs), theirs, ours) for ours, theirs in zip(measured, probe.logprobs, strict=True)]
    broken = next((pair for pair in pairs if not math.isfinite(pair[0])), None)
    difference, expected, got = broken or max(pairs)
    if not difference <= tolerance:
        raise StaleWeights(
            f"after loading the weights of version {version} the sampler gives a probe token the log-prob {got:.6f}, "
            f"the learner {expected:.6f}; they may differ by {tolerance:g}: the engine did not take the weights "
            "whole, or computes something else; set sampler.engine to local"
        )


class Truncation(NamedTuple):
    """Which tokens may be drawn: the `top_k` most likely (0: all), and of these as few as together have `top_p` of
    their probability; those as likely as the last one too. The others have probability 0, and the rest is divided by
    its sum: that is the policy which acts, and so the one whose log-probs, entropy and ratios are learned with."""

    top_p: float = 1.0
    top_k: int = 0

    @classmethod
    def of(cls, rollout: RolloutConfig) -> Self:
        return cls(rollout.top_p, rollout.top_k)

    def __bool__(self) -> bool:
        return self != NOTHING_CUT

    def lowest(self, logits: Tensor) -> Tensor:
        """The smallest logit that is kept of each row of the whole vocabulary [M, V], after the temperature: [M, 1]."""
        ordered = logits.topk(min(self.top_k or logits.shape[1], logits.shape[1]), dim=-1).values
        chances = torch.softmax(ordered, dim=-1, dtype=torch.float64)
        before = chances.cumsum(dim=-1) - chances  # of the first it is 0, so that one token is always kept
        count = (before < self.top_p).sum(dim=-1, keepdim=True)
        return ordered.gather(1, count - 1)


NOTHING_CUT = Truncation()


class Sampler:
    """Token ids in, token ids and log-probs out. A subclass inherits methods that do nothing here."""

    needed_bytes = 0  # of the weights that its processes compute with
    received_bytes = 0
    """What processes of its own, besides this one, read of the last weights, together."""

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""
        raise NotImplementedError

    def release(self, sessions: Sequence[int]) -> None:
        """Forget cached state of these episodes."""

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights; anything computed with the old ones is dropped.

        probe: for samplers that check themselves after loading; absent: they compute it from `weights`.
        """
        raise NotImplementedError

    def sleep(self) -> None:
        """Free the device's memory, where it is separate."""

    def wake(self) -> None:
        """Take it back."""

    def close(self) -> None:
        """Free all memory now; the sampler is unusable afterwards."""

    def most_waves(self) -> int | None:
        """The most batches of one call since this was last asked; None without a limit on memory."""
        return None
