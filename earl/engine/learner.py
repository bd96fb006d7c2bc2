"""The learner: takes batches, returns statistics. `ranks.py` and `sharding/` spread it over processes."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Advantages, Algorithm, TokenInputs
from earl.algorithms.loss import KlEstimator, aggregated, corrected, kl_estimate, kl_to_reference
from earl.algorithms.registry import algorithm_of
from earl.batch import Batch, Rows, alike, chunks_by_tokens, distinct, repeats
from earl.config import AlgorithmConfig, Config, LearnerConfig
from earl.dispatch.rows import balance
from earl.documents import Fingerprints
from earl.engine.heap import give_back
from earl.engine.model import Policy
from earl.engine.ranks import Ranks
from earl.engine.sampler import NOTHING_CUT, Truncation
from earl.engine.score import Scorer, Scores, score, spread
from earl.engine.train_state import TrainState
from earl.rollout.pack import Estimates, complete, token_valued

Numbers = NDArray[np.int64]


class Counts(NamedTuple):
    """The divisors of a minibatch's means."""

    tokens: int  # trained
    turns: int  # value positions
    rows: int  # with trained tokens


@dataclass(frozen=True, slots=True)
class RowShare:
    """The n of N rows of a step that a process has, and what it has to know of the others to learn with them.

    Example:
        RowShare(numbers=[0, 2], learned=[7, 5, 5], turns=[2, 1, 1], alone=True)   # row 1 is on another process
    """

    numbers: Numbers  # [n], ascending
    learned: Numbers  # [N], trained tokens of each row
    turns: Numbers  # [N], value positions of each row
    alone: bool
    """Whether only this process computes its rows; otherwise all processes have all rows and share the work."""

    @classmethod
    def whole(cls, rows: Rows) -> Self:
        counts = rows.per_row(rows.mask), rows.per_row(rows.value_mask)
        return cls(np.arange(rows.num_rows), *counts, alone=False)

    def places(self, rows: Numbers) -> Numbers:
        """Indices, in this process, of those of `rows` that are here, in their order."""
        place = np.full(len(self.learned), -1)
        place[self.numbers] = np.arange(len(self.numbers))
        found: Numbers = place[rows]
        return found[found >= 0]

    def counts(self, rows: Numbers) -> Counts:
        """The counts of `rows`, on whatever process they lie; each at least 1."""
        learned = self.learned[rows]
        numbers = learned.sum(), self.turns[rows].sum(), np.count_nonzero(learned)
        return Counts(*(max(1, int(number)) for number in numbers))


def minibatches(order: Generator, rows: int, count: int) -> list[Numbers]:
    """One epoch: all rows in a new order, cut into `count` parts, without empty ones."""
    return [part for part in np.array_split(order.permutation(rows), count) if len(part)]


R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """A micro-batch: distinct rows, and all rows that are equal to one of them."""

    kinds: R  # [U] distinct rows for one forward pass
    members: R  # [N] rows, N ≥ U
    copies: Numbers  # [N], the index in `kinds` of each member
    numbers: Numbers
    """[N], the index of each member in the source rows; empty for a silent chunk."""

    def scores(self, scorer: Scorer, temperature: float, truncation: Truncation = NOTHING_CUT) -> Scores:
        return spread(score(scorer, self.kinds, temperature, truncation), self.kinds, self.copies)


def chunks(rows: R, max_tokens: int, share: int, shares: int) -> list[Chunk[R]]:
    """The micro-batches of one of `shares` processes, of rows that begin alike; equal rows are computed once."""
    first, kind = distinct(rows)
    lengths = rows.lengths[first]
    order = np.argsort(-lengths, kind="stable")
    own = order[balance(lengths.astype(np.float64), shares)[order] == share]
    members = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    cut = []
    for some in chunks_by_tokens(lengths[own], max_tokens, alike(rows.select(first[own]))):
        kinds = own[np.sort(some)]  # longest first
        numbers = np.concatenate([members[number] for number in kinds])
        copies = np.repeat(np.arange(len(kinds)), [len(members[number]) for number in kinds])
        cut.append(Chunk(rows.select(first[kinds]), rows.select(numbers), copies, numbers))
    return cut


def dummy_chunk(rows: R) -> Chunk[R]:
    """One dummy token with nothing to learn: it adds zeros to the statistics, for processes without rows."""
    columns = {f.name: np.zeros(1, getattr(rows, f.name).dtype) for f in fields(rows) if f.name != "offsets"}
    row = replace(rows, offsets=np.array([0, 1]), **columns)
    return Chunk(row, row, np.zeros(1, np.int64), np.zeros(0, np.int64))


SKIPPED = "skipped_minibatches"  # statistic; absent when none was skipped
CORRECTION = ("correction/weight", "correction/capped", "kl_to_sampler")  # statistics of the importance correction
LOSSES = ("loss", "value_loss", "kl_to_reference", "distillation_loss")  # statistics that are minimised


@dataclass(frozen=True, slots=True)
class Update:
    learning_rate: float
    entropy: float  # weight of its bonus in this step
    minibatches: int
    epochs: int
    seed: int  # orders the rows
    config: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """For the KL divergence and the importance correction; by default neither."""
    renews_reference: bool = False  # whether the policy becomes the reference afterwards
    takes_average: bool = False  # whether the weights become their running mean afterwards
    distillation: float = 0.0  # weight of the teacher's labels, see `earl.algorithms.imitation`

    @classmethod
    def of(cls, config: Config, learning_rate: float, entropy: float, seed: int, **more: Any) -> "Update":
        """The update of a step of reinforcement learning, by a recipe."""
        how = config.learner
        return cls(learning_rate, entropy, how.minibatches, how.epochs, seed, config.algorithm, **more)


class Learner:
    """AdamW on a model, and on a value head if `values`. All `ranks` call every method alike; `temperature` and
    `truncation` are the sampler's, so that both use the same distribution."""

    costs: Mapping[str, float] = MappingProxyType({})  # cost of moving rows to the learner: none, they are local

    def __init__(
        self,
        policy: Policy,
        learner: LearnerConfig,
        temperature: float,
        ranks: Ranks,
        values: bool,
        truncation: Truncation = NOTHING_CUT,
    ) -> None:
        self._config, self._temperature, self._ranks = learner, temperature, ranks
        self._truncation = truncation
        give_back(learner.micro_batch_tokens)
        policy.model.eval()  # does not stop gradients; dropout would change the sampled distribution
        self.scorer = ranks.place(policy, learner, values)
        self.state = TrainState(self.scorer, policy.tokenizer, learner, ranks)

    @property
    def vocab(self) -> int:
        size: int = self.scorer.model.config.get_text_config().vocab_size
        return size

    def weights(self) -> Mapping[str, Tensor]:
        """The whole weights for the sampler, adapters merged; of sharded ranks, on the first one only."""
        return self.state.weights()

    def snapshot(self) -> Callable[[Path], Fingerprints]:
        """A copy of all that `restore` needs, in host memory; every process takes part. Returns a function that writes
        it into a folder, from any thread and without the other processes: the policy as a Hugging Face folder, and the
        rest beside it. See `Snapshot`."""
        return self.state.snapshot()

    def restore(self, folder: Path) -> None:
        self.state.restore(folder)

    def peaks(self) -> Mapping[str, float]:
        """Not measured: the sampler uses memory of the same process."""
        return {}

    def take(self, rows: Rows, seed: int, minibatches: int) -> Rows:
        """The rows as the other methods want them; here they are local already."""
        return rows

    def turn_values(self, rows: Rows, by_token: bool = False, part: RowShare | None = None) -> Estimates:
        rows = token_valued(rows) if by_token else rows
        return rows.turns[rows.value_mask], self.values(rows, part)[rows.value_mask]

    def divergences(self, rows: Rows, estimator: KlEstimator, part: RowShare | None = None) -> Estimates:
        """The turn of each token to learn, and the estimated KL divergence from the sampler to the reference there."""
        log_ratio = (self.logprobs(rows, reference=True, part=part) - rows.logprobs)[rows.mask]
        return rows.turns[rows.mask], kl_estimate(torch.from_numpy(log_ratio), estimator).numpy()

    def complete(self, rows: Rows, advantages: Advantages, reference: bool, part: RowShare | None = None) -> Batch:
        """The batch of `rows`. advantages: of all turns of the step; reference: add its log-probs."""
        known = self.logprobs(rows, reference=True, part=part) if reference else None
        return complete(rows, advantages, known)

    def collected(self, batch: Batch) -> tuple[Batch, NDArray[np.float32]]:
        """The whole batch, to be recorded, and its current log-probs [T]."""
        return batch, self.logprobs(batch)

    def update(
        self, batch: Batch, algorithm: Algorithm, update: Update, part: RowShare | None = None
    ) -> dict[str, float]:
        """Learn from a batch: epochs × minibatches optimiser steps.

        Args:
            part: which rows of the step the batch is; None: all of them.

        Returns:
            the mean of each statistic; empty when the batch has no rows. Minibatches with a non-finite loss or gradient
                are skipped and left out of the means; SKIPPED counts them.
        """
        for group in self.state.optimizer.param_groups:
            group["lr"] = update.learning_rate
        part, order = part or RowShare.whole(batch), default_rng(update.seed)
        batch, importance = self._corrected(batch, update, part)
        collected = [
            self._minibatch(batch, rows, algorithm, update, part)
            for _ in range(update.epochs)
            for rows in minibatches(order, len(part.learned), update.minibatches)
        ]
        if update.takes_average:
            self.state.take_average()
        if update.renews_reference:
            self.state.forget_reference()
        made = [stats for stats in collected if stats]
        means = {name: float(np.mean([stats[name] for stats in made])) for name in (made or [{}])[0]}
        skipped = {} if made == collected else {SKIPPED: float(len(collected) - len(made))}
        return means | skipped | importance

    @torch.no_grad()
    def logprobs(
        self, rows: Rows, reference: bool = False, temperature: float | None = None, part: RowShare | None = None
    ) -> NDArray[np.float32]:
        """Log-probs [T] of the targets at rows.mask; each process scores its share.

        Args:
            reference: use the reference, by default the model as it was at the first such call.
            temperature: in place of the sampler's; the distribution is then not truncated.
            part: which rows of the step these are; None: all of them.
        """
        how = (temperature, NOTHING_CUT) if temperature else (self._temperature, self._truncation)
        with self.state.reference() if reference else nullcontext(self.scorer) as scorer:
            return self._shared(rows, rows.mask, lambda chunk: chunk.scores(scorer, *how).logprobs, part)

    @torch.no_grad()
    def values(self, rows: Rows, part: RowShare | None = None) -> NDArray[np.float32]:
        """The value head's estimates [T] at rows.value_mask."""
        how = (self._temperature, NOTHING_CUT)
        return self._shared(rows, rows.value_mask, lambda chunk: chunk.scores(self.scorer, *how).values, part)

    def _corrected(self, batch: Batch, update: Update, part: RowShare) -> tuple[Batch, dict[str, float]]:
        """The batch with importance correction, and its statistics: means over the trained tokens of all processes."""
        how = update.config
        if how.correction == "none":
            return batch, {}
        proximal = self.logprobs(batch, part=part)
        known, means = corrected(batch, proximal, how.correction, how.correction_cap, how.correction_excess)
        if not part.alone:
            return known, means
        count = int(batch.mask.sum())
        own = [count, *(count * means.get(name, 0.0) for name in CORRECTION)]
        total, *sums = self._ranks.add(torch.tensor(own, dtype=torch.float64)).tolist()
        return known, {name: value / total for name, value in zip(CORRECTION, sums, strict=True)}

    def _minibatch(
        self, batch: Batch, rows: Numbers, algorithm: Algorithm, update: Update, part: RowShare
    ) -> dict[str, float]:
        """One optimiser step on gradients summed over processes, for rows of the step wherever they lie. Returns the
        statistics; empty when the step was skipped because loss or gradient are not finite. Both are sums over all
        processes, so all processes skip alike."""
        counts = part.counts(rows)
        own = batch.select(part.places(rows))
        sums: dict[str, Tensor] = {}
        micro_batches = self._chunks(own, part.alone) or [dummy_chunk(own)]
        for number, chunk in enumerate(micro_batches, 1):
            self._ranks.begin(last=number == len(micro_batches))
            loss, stats = self._loss(chunk, algorithm, update, counts)
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in stats.items():
                sums[name] = sums.get(name, 0) + value.detach()
        names = sorted(sums)
        gathered = torch.stack([sums[name] for name in names])
        norm, totals = self._ranks.finish(self.state.trained, gathered, self._config.clip_grad_norm)
        named = dict(zip(names, totals.tolist(), strict=True))
        losses = [named[name] for name in LOSSES if name in named]
        sound = all(math.isfinite(number) for number in (norm, *losses))
        if sound:
            self.state.step()
        self.state.optimizer.zero_grad()  # now, to free the gradients between two updates
        if not sound:
            return {}
        return {name: value / counts.tokens for name, value in named.items()} | {"grad_norm": norm}

    def _chunks(self, rows: R, alone: bool) -> list[Chunk[R]]:
        """This process's micro-batches; silent ones are added where the processes work in lockstep."""
        share, shares = (0, 1) if alone else (self._ranks.share, self._ranks.shares)
        own = chunks(rows, self._config.micro_batch_tokens, share, shares)
        return own + [dummy_chunk(rows)] * (self._ranks.most(len(own)) - len(own))

    def _loss(
        self, chunk: Chunk[Batch], algorithm: Algorithm, update: Update, counts: Counts
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of a micro-batch, scaled so that the sum over micro-batches and processes is the mean that the algorithm
        aggregates by; of the entropy, the mean over tokens."""
        batch, cut = chunk.members, self._truncation if algorithm.on_samples else NOTHING_CUT
        scores = chunk.scores(self.scorer, self._temperature, cut)
        inputs = _token_inputs(batch, scores)
        losses, stats = algorithm.loss(inputs)
        loss = _aggregated(losses, inputs, algorithm, counts)
        entropy = scores.entropy.sum()
        stats = {"loss": loss, "entropy": entropy, **stats}
        loss = loss - update.entropy * entropy
        if kl := update.config.loss_kl:
            divergences = kl_to_reference(inputs, update.config.kl_estimator)
            stats["kl_to_reference"] = divergence = _aggregated(divergences, inputs, algorithm, counts)
            loss = loss + kl * divergence
        if update.distillation:
            stats["distillation_loss"] = taught = -scores.labels.sum()
            loss = loss + update.distillation * taught
        loss = loss / counts.tokens
        if algorithm.needs_values:
            columns = (batch.returns, batch.values)
            known = (torch.from_numpy(column[batch.value_mask]).to(scores.values.device) for column in columns)
            error, value_loss = algorithm.value_loss(scores.values, *known)
            count = counts.tokens if algorithm.by_token else counts.turns
            stats["value_loss"] = error * counts.tokens / count
            loss = loss + value_loss / count
        return loss, stats

    def _shared(
        self, rows: Rows, where: NDArray[np.bool_], compute: Callable[[Chunk[Rows]], Tensor], part: RowShare | None
    ) -> NDArray[np.float32]:
        """One number per token of `where`; each process computes its share of the rows, or those that it holds."""
        alone = part is not None and part.alone
        result = torch.zeros(len(rows.tokens))
        for chunk in self._chunks(rows, alone):
            positions = repeats(rows.lengths, chunk.numbers)
            result[torch.from_numpy(positions[where[positions]])] = compute(chunk).cpu()
        return (result if alone else self._ranks.add(result)).numpy()


def make_learner(config: Config, policy: Policy, ranks: Ranks) -> Learner:
    """The learner of a recipe, spread over `ranks`."""
    values, reference = algorithm_of(config).needs_values, config.algorithm.reference
    made = Learner(policy, config.learner, config.rollout.temperature, ranks, values, Truncation.of(config.rollout))
    if reference is not None:
        made.state.named_reference = ranks.frozen(reference, config.learner)
    return made


def _token_inputs(batch: Batch, scores: Scores) -> TokenInputs:
    rows = np.repeat(np.arange(batch.num_rows), batch.lengths)
    columns = (batch.logprobs, batch.advantages, batch.reference, rows, batch.turns)
    moved = (torch.from_numpy(column[batch.mask]).to(scores.logprobs.device) for column in columns)
    return TokenInputs(scores.logprobs, scores.entropy, *moved)


def _aggregated(losses: Tensor, inputs: TokenInputs, algorithm: Algorithm, counts: Counts) -> Tensor:
    own = (algorithm.aggregation, counts.tokens, counts.rows, algorithm.constant_tokens)
    return aggregated(losses, inputs.rows, *own)
