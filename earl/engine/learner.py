"""The learner: batches in, statistics out. Every process holds the same weights and computes its share of gradients."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from earl.algorithms.base import Algorithm, TokenInputs
from earl.algorithms.loss import kl_to_reference
from earl.batch import Batch, Rows, chunks_by_tokens, deal, distinct, repeats
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.model import Policy, read_weights
from earl.engine.score import Scores, score, spread

R = TypeVar("R", bound=Rows)

STATE = "learner"
"""The folder of the learner's state: inference engines read every safetensors file beside config.json as weights."""

REFERENCE = "reference"
"""The folder in a checkpoint that holds the reference model, once there is one."""


class Sums(Protocol):
    """How processes add up what each computed."""

    rank: int
    size: int

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same to the bit on each."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one call of `update` does."""

    learning_rate: float
    entropy: float
    kl: float
    minibatches: int
    epochs: int
    seed: int
    """Orders the rows."""


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """A micro-batch: rows of which no two are alike, and all rows that are like one of them."""

    kinds: R
    """[U] rows for one forward pass."""
    members: R
    """[N] rows, N ≥ U."""
    copies: NDArray[np.int64]
    """The kind of each member, [N]."""
    numbers: NDArray[np.int64]
    """The place of each member among the rows that the chunk was made of, [N]."""

    def scores(self, model: Any, temperature: float) -> Scores:
        """Scores of the members."""
        return spread(score(model, self.kinds, temperature), self.kinds, self.copies)


class Learner:
    """AdamW on a model, and on a value head where the algorithm needs one.

    Args:
        policy: a causal language model with its tokenizer; it is trained in place.
        temperature: that of the sampler, so that both speak of the same distribution.
        values: whether to train a value head.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: AlgorithmConfig,
        learner: LearnerConfig,
        temperature: float,
        peers: Sums,
        values: bool,
    ) -> None:
        self.policy, self.model = (
            policy,
            policy.model.eval(),
        )  # gradients flow all the same; dropout would change what was sampled from
        self._algorithm, self._config = algorithm, learner
        self._temperature, self._peers = temperature, peers
        self._frozen: Any = None
        self.value_head = nn.Linear(self.model.config.hidden_size, 1) if values else None
        self._named = dict(self.model.named_parameters())
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
            self._named |= {f"value_head.{name}": p for name, p in self.value_head.named_parameters()}
        self._parameters = list(self._named.values())
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            betas=(learner.beta1, learner.beta2),
            weight_decay=learner.weight_decay,
            fused=True,
        )

    def weights(self) -> Mapping[str, Tensor]:
        """The model's weights, as the sampler loads them."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def update(self, batch: Batch, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from a batch: epochs × minibatches optimiser steps.

        Returns:
            the mean of each statistic; nothing when the batch has no rows.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = update.learning_rate
        rng = np.random.Generator(np.random.PCG64(update.seed))
        collected: list[dict[str, float]] = []
        for _ in range(update.epochs):
            for rows in np.array_split(rng.permutation(batch.num_rows), update.minibatches):
                if len(rows):
                    collected.append(self._minibatch(batch.select(rows), algorithm, update))
        return {name: float(np.mean([stats[name] for stats in collected])) for name in (collected or [{}])[0]}

    @torch.no_grad()
    def logprobs(self, rows: Rows, reference: bool = False) -> NDArray[np.float32]:
        """Log-probs [T] of the targets at rows.mask; each process scores its share.

        Args:
            reference: under the model as it was when this was first asked for, instead of as it is now.
        """
        model = self._reference() if reference else self.model
        return self._shared(rows, rows.mask, lambda chunk: chunk.scores(model, self._temperature).logprobs)

    @torch.no_grad()
    def values(self, rows: Rows) -> NDArray[np.float32]:
        """The value head's estimates [T] at rows.value_mask."""

        def read(chunk: "Chunk[Rows]") -> Tensor:
            return self._value(chunk.scores(self.model, self._temperature))

        return self._shared(rows, rows.value_mask, read)

    def save(self, folder: Path) -> None:
        """Write all that `restore` continues from: the policy as a Hugging Face folder, and the rest beside it."""
        self.policy.save(folder)
        (folder / STATE).mkdir()
        save_file(self.state(), folder / STATE / "state.safetensors")
        if self._frozen is not None:
            self._frozen.save_pretrained(folder / REFERENCE)

    def restore(self, folder: Path) -> None:
        """Continue exactly from what `save` wrote."""
        self.take(read_weights(folder), load_file(folder / STATE / "state.safetensors"))
        if (folder / REFERENCE).exists():
            self._reference().load_state_dict(read_weights(folder / REFERENCE))

    def _reference(self) -> Any:
        """The model as it was when reinforcement learning began."""
        if self._frozen is None:
            self._frozen = copy.deepcopy(self.model).eval().requires_grad_(False)
        return self._frozen

    def state(self) -> dict[str, Tensor]:
        """Everything but the model's weights: value head and moments, by parameter name."""
        tensors: dict[str, Tensor] = {}
        if self.value_head is not None:
            tensors |= {f"value_head.{name}": t.detach() for name, t in self.value_head.state_dict().items()}
        for name, parameter in self._named.items():
            for key, tensor in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = tensor
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def take(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `weights` and `state` were taken."""
        self.model.load_state_dict(weights)
        self._optimizer.state.clear()
        if self.value_head is not None:
            self.value_head.load_state_dict(
                {name: state[f"value_head.{name}"] for name in self.value_head.state_dict()}
            )
        for name, parameter in self._named.items():
            own = {key.split("/", 1)[0]: t.clone() for key, t in state.items() if key.partition("/")[2] == name}
            if own:
                self._optimizer.state[parameter] = own

    def _minibatch(self, batch: Batch, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """One optimiser step on the processes' summed gradients."""
        tokens, turns = max(1, int(batch.mask.sum())), max(1, int(batch.value_mask.sum()))
        self._optimizer.zero_grad(set_to_none=False)
        sums: dict[str, Tensor] = {}
        for chunk in self._chunks(batch) or [_silent(batch)]:
            loss, stats = self._loss(chunk, algorithm, update, tokens, turns)
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in stats.items():
                sums[name] = sums.get(name, torch.zeros(())) + value.detach()
        norm, totals = self._step(sums)
        return {name: value / tokens for name, value in totals.items()} | {"grad_norm": norm}

    def _chunks(self, rows: R) -> "list[Chunk[R]]":
        """This process's share, in micro-batches: of rows that are alike, each holds one and knows them all."""
        first, kind = distinct(rows)
        lengths = rows.lengths[first]
        mine = deal(lengths, self._peers.size)[self._peers.rank]
        members = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
        chunks = []
        for chosen in chunks_by_tokens(lengths[mine], self._config.micro_batch_tokens):
            kinds = mine[chosen]
            of_kind = [members[number] for number in kinds]
            copies = np.repeat(np.arange(len(kinds)), [len(own) for own in of_kind])
            numbers = np.concatenate(of_kind)
            chunks.append(Chunk(rows.select(first[kinds]), rows.select(numbers), copies, numbers))
        return chunks

    def _loss(
        self, chunk: "Chunk[Batch]", algorithm: Algorithm, update: Update, tokens: int, turns: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch, scaled so that micro-batches and processes add up to the mean over tokens."""
        batch, scores = chunk.members, chunk.scores(self.model, self._temperature)
        inputs = _token_inputs(batch, scores)
        loss, stats = algorithm.loss(inputs, self._algorithm)
        entropy = scores.entropy.sum()
        stats = {"loss": loss, "entropy": entropy, **stats}
        loss = loss - update.entropy * entropy
        if update.kl:
            stats["kl_to_reference"] = divergence = kl_to_reference(inputs)
            loss = loss + update.kl * divergence
        loss = loss / tokens
        if self.value_head is not None and algorithm.needs_values:
            returns = torch.from_numpy(batch.returns[batch.value_mask])
            value_loss = (self._value(scores) - returns).square().sum()
            stats["value_loss"] = value_loss * tokens / turns
            loss = loss + self._algorithm.value_weight * value_loss / turns
        return loss, stats

    def _step(self, sums: dict[str, Tensor]) -> tuple[float, dict[str, float]]:
        """Add gradients and statistics over processes in one message, clip, step."""
        names = sorted(sums)
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        message = torch.cat([torch.stack([sums[name] for name in names]), *(g.flatten() for g in gradients)])
        message = self._peers.add(message)
        start = len(names)
        for parameter in self._parameters:
            parameter.grad = message[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.clip_grad_norm)
        self._optimizer.step()
        return float(norm), dict(zip(names, message[: len(names)].tolist(), strict=True))

    def _value(self, scores: Scores) -> Tensor:
        assert self.value_head is not None
        values: Tensor = self.value_head(scores.turn_states)[:, 0]
        return values

    def _shared(
        self, rows: Rows, where: NDArray[np.bool_], compute: "Callable[[Chunk[Rows]], Tensor]"
    ) -> NDArray[np.float32]:
        """Compute one number per token of `where`, each process for its share of the rows."""
        result = torch.zeros(len(rows.tokens))
        for chunk in self._chunks(rows):
            positions = repeats(rows.lengths, chunk.numbers)
            result[torch.from_numpy(positions[where[positions]])] = compute(chunk)
        return self._peers.add(result).numpy()


def _silent(batch: Batch) -> "Chunk[Batch]":
    """A row that nothing is learned from: a process without rows of its own adds zeros under the same names."""
    only = np.zeros(1, np.int64)
    row = batch.select(only)
    row = replace(row, mask=np.zeros_like(row.mask), value_mask=np.zeros_like(row.value_mask))
    return Chunk(row, row, only, only)


def _token_inputs(batch: Batch, scores: Scores) -> TokenInputs:
    return TokenInputs(
        logprobs=scores.logprobs,
        entropy=scores.entropy,
        old_logprobs=torch.from_numpy(batch.logprobs[batch.mask]),
        advantages=torch.from_numpy(batch.advantages[batch.mask]),
        reference=torch.from_numpy(batch.reference[batch.mask]),
    )
