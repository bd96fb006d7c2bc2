"""Teacher-forced forward passes over packed rows: log-probs, entropy and values where they are needed."""

from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

from earl.batch import Rows, chunks_by_tokens, deal, distinct, repeats
from earl.engine.attention import ATTENTION, NO_MASK, PackedRows, Spans, spans
from earl.engine.model import head, hidden_states
from earl.engine.sharding.context_parallel import portion
from earl.engine.sharding.tensor_parallel import copied
from earl.parallel.memory import LOGITS_AT_ONCE, PRODUCT_AT_ONCE

# Log-probs and entropies are computed in slices of positions, so the logits of all positions never exist together. The
# output layer may be split by vocabulary over a group; log-sum-exp, target logit and entropy are then combined by sums
# over the group.


def slice_positions(vocab: int) -> int:
    return max(1, LOGITS_AT_ONCE // vocab)


class TokenScores(torch.autograd.Function):
    """Log-probs and entropies: forward keeps two numbers per position, backward recomputes the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs [M] and entropies [M] in float32.

        Args:
            states: [M, H].
            weight: [V', H], this process's part of the vocabulary.
            bias: [V'].
            targets: [M], minus the first token id of this process: other processes' tokens lie outside 0 … V' - 1.
            temperature: divides the logits.
            group: the processes that the vocabulary is split over; None: not split.
        """
        ctx.temperature = temperature
        step = slice_positions(weight.shape[0])
        log_sums, entropies, logprobs = (states.new_empty(len(states), dtype=torch.float32) for _ in range(3))
        for start in range(0, len(states), step):
            span = slice(start, start + step)
            log_sums[span], target, mean = _summary(states[span], weight, bias, targets[span], temperature, group)
            logprobs[span] = target - log_sums[span]
            entropies[span] = log_sums[span] - mean
        ctx.save_for_backward(states, weight, bias, targets, log_sums, entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of states (this process's part) and of the output layer. With p the distribution and H its entropy:
        ∂ log p(t)/∂z = 1[t] - p and ∂H/∂z = -p · (log p + H)."""
        states, weight, bias, targets, log_sums, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = gradients
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        step = slice_positions(weight.shape[0])
        for start in range(0, len(states), step):
            span = slice(start, start + step)
            logprobs = _logits(states[span], weight, bias, ctx.temperature).sub_(log_sums[span, None])
            of_logits = _of_logits(logprobs, targets[span], entropies[span], of_logprobs[span], of_entropies[span])
            del logprobs  # free each slice before the next one
            narrow = of_logits.div_(ctx.temperature).to(weight.dtype)
            of_states[span] = narrow @ weight
            if of_weight is not None:
                _add_product(of_weight, narrow, states[span])
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
            del of_logits, narrow
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        return of_states, of_weight, None if of_bias is None else of_bias.to(bias.dtype), None, None, None


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(states, weight, bias).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _summary(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    group: ProcessGroup | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp, target logit, and mean logit under the distribution, of each position."""
    logits = _logits(states, weight, bias, temperature)
    highest = _over(logits.amax(dim=-1), ReduceOp.MAX, group)
    chosen, inside = _chosen(logits, targets)
    chances = (logits - highest[:, None]).exp_()
    parts = torch.stack([chances.sum(dim=-1), chosen * inside, chances.mul_(logits).sum(dim=-1)])
    total, target, weighted = _over(parts, ReduceOp.SUM, group)
    return highest + total.log(), target, weighted / total


def _of_logits(
    logprobs: Tensor, targets: Tensor, entropies: Tensor, of_logprobs: Tensor, of_entropies: Tensor
) -> Tensor:
    """The gradient of a slice of logits [m, V'], from their log-probs, which are overwritten."""
    chances = logprobs.exp()
    _, inside = _chosen(chances, targets)
    logprobs.add_(entropies[:, None]).mul_(-of_entropies[:, None]).sub_(of_logprobs[:, None])
    places = targets.clamp(0, chances.shape[1] - 1)[:, None]
    return chances.mul_(logprobs).scatter_add_(1, places, (of_logprobs * inside)[:, None])


def _chosen(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets' entries [M], and whether they are in this process's part of the vocabulary [M]."""
    inside = (targets >= 0) & (targets < logits.shape[1])
    return logits.gather(1, targets.clamp(0, logits.shape[1] - 1)[:, None])[:, 0], inside


def _add_product(total: Tensor, of_logits: Tensor, states: Tensor) -> None:
    """Add a slice's gradient of the output layer; a narrow dtype by vocabulary blocks, as each is widened."""
    if total.dtype == of_logits.dtype:
        total.addmm_(of_logits.T, states)
        return
    words = max(1, PRODUCT_AT_ONCE // total.shape[1])
    for part, columns in zip(torch.split(total, words), torch.split(of_logits, words, dim=1), strict=True):
        part += columns.T @ states


def _over(values: Tensor, operation: Any, group: ProcessGroup | None) -> Tensor:
    if group is not None:
        all_reduce(values, operation, group)
    return values


@dataclass(frozen=True, slots=True)
class Scores:
    logprobs: Tensor  # [M], of the targets at rows.mask
    entropy: Tensor  # [M]
    values: Tensor  # [K], at rows.value_mask; without a value head, none


class Scorer(nn.Module):
    """A model and, where the algorithm needs one, a value head, as the module that is trained, sharded and saved.
    `words`: the processes that the output layer's vocabulary is split over, and the first token id of this one.
    `context`: the processes that the tokens are split over; None: not split."""

    def __init__(self, model: Any, values: bool = False) -> None:
        super().__init__()
        assert model.config._attn_implementation == ATTENTION, "another attention would look across rows"
        self.model = model
        self.value_head: nn.Linear | None = None
        if values:
            self.value_head = nn.Linear(model.config.hidden_size, 1, device=head(model).weight.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.device: Any = head(model).weight.device
        self.words: tuple[ProcessGroup | None, int] = (None, 0)
        self.context: ProcessGroup | None = None

    def forward(
        self, tokens: Tensor, rows: Spans, learned: Tensor, targets: Tensor, turns: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs [M], entropies [M] and values [K or 0] of packed rows.

        Args:
            tokens: [1, T].
            learned: [M], positions of the tokens to score.
            targets: [M].
            turns: [K], positions at which a value is read.
        """
        if self.context is None:
            return self._scored(tokens, rows, learned - 1, targets, turns, temperature)
        own = portion(rows, self.context)
        (learns, before), (reads, at) = own.found(learned - 1), own.found(turns)
        logprobs, entropy, values = self._scored(tokens[:, own.places], own, before, targets[learns], at, temperature)
        wanted = len(turns) if self.value_head is not None else 0
        logprobs, entropy, values = own.collected(
            [
                (logprobs, learns, len(learned)),
                (entropy, learns, len(learned)),
                (values, reads[: len(values)], wanted),
            ]
        )
        return logprobs, entropy, values

    def _scored(
        self, tokens: Tensor, rows: PackedRows, places: Tensor, targets: Tensor, turns: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the tokens after `places`, and values at `turns`, when all tokens are on this process."""
        states = packed_states(self.model, tokens, rows)
        layer, (group, first) = head(self.model), self.words
        before = copied(states[places], group)
        logprobs, entropy = TokenScores.apply(  # type: ignore[no-untyped-call]
            before, layer.weight, layer.bias, targets - first, temperature, group
        )
        if self.value_head is None:
            return logprobs, entropy, states.new_zeros(0)
        return logprobs, entropy, self.value_head(states[turns]).float().sum(dim=-1)  # squeezes the last axis


def packed_states(model: Any, tokens: Tensor, rows: PackedRows) -> Tensor:
    """Hidden states [T, H] of tokens [1, T]."""
    return hidden_states(
        model, tokens, attention_mask=NO_MASK, position_ids=rows.positions, rows=rows, use_cache=False
    )[0]


def score(scorer: Scorer, rows: Rows, temperature: float) -> Scores:
    learned = np.flatnonzero(rows.mask)
    turns = np.flatnonzero(rows.value_mask)
    columns = (learned, rows.targets[learned].astype(np.int64), turns)
    tokens = torch.from_numpy(rows.tokens).long()[None].to(scorer.device)
    places = spans(tuple(rows.lengths.tolist()), scorer.device)
    moved = (torch.from_numpy(column).to(scorer.device) for column in columns)
    return Scores(*scorer(tokens, places, *moved, temperature))


def spread(scores: Scores, rows: Rows, chosen: NDArray[np.int64]) -> Scores:
    """The scores of `chosen` rows, repetitions included, from the scores of all `rows`."""
    learned, turns = (
        torch.from_numpy(repeats(rows.per_row(marked), chosen)) for marked in (rows.mask, rows.value_mask)
    )
    values = scores.values[turns.to(scores.values.device)] if len(scores.values) else scores.values
    learned = learned.to(scores.logprobs.device)
    return Scores(scores.logprobs[learned], scores.entropy[learned], values)


def own_name(name: str) -> str:
    """A parameter of a scorer as its model names it; the value head keeps its name."""
    return name.removeprefix("model.")


Numbers = NDArray[np.int64]


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

    def counts(self, rows: Numbers) -> tuple[int, int]:
        """Trained tokens and value positions of `rows`, wherever they lie; each at least 1."""
        return max(1, int(self.learned[rows].sum())), max(1, int(self.turns[rows].sum()))


def minibatches(order: Generator, rows: int, count: int) -> list[Numbers]:
    """One epoch: all rows in a new order, cut into `count` parts, without empty ones."""
    return [part for part in np.array_split(order.permutation(rows), count) if len(part)]


def order_of(seed: int) -> Generator:
    return np.random.Generator(np.random.PCG64(seed))


R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """A micro-batch: distinct rows, and all rows that are equal to one of them."""

    kinds: R  # [U] distinct rows for one forward pass
    members: R  # [N] rows, N ≥ U
    copies: NDArray[np.int64]  # [N], the index in `kinds` of each member
    numbers: NDArray[np.int64]
    """[N], the index of each member in the source rows; empty for a silent chunk."""

    def scores(self, scorer: Scorer, temperature: float) -> Scores:
        return spread(score(scorer, self.kinds, temperature), self.kinds, self.copies)


def chunks(rows: R, max_tokens: int, share: int, shares: int) -> list[Chunk[R]]:
    """The micro-batches of one of `shares` processes; equal rows are computed once."""
    first, kind = distinct(rows)
    own = deal(rows.lengths[first], shares)[share]
    members = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    cut = []
    for kinds in (own[some] for some in chunks_by_tokens(rows.lengths[first[own]], max_tokens)):
        numbers = np.concatenate([members[number] for number in kinds])
        copies = np.repeat(np.arange(len(kinds)), [len(members[number]) for number in kinds])
        cut.append(Chunk(rows.select(first[kinds]), rows.select(numbers), copies, numbers))
    return cut


def silent(rows: R) -> Chunk[R]:
    """A row with nothing to learn: it adds zeros under the same statistic names, for processes without rows."""
    only = np.zeros(1, np.int64)
    row = rows.select(only) if rows.num_rows else _blank(rows)
    row = replace(row, mask=np.zeros_like(row.mask), value_mask=np.zeros_like(row.value_mask))
    return Chunk(row, row, only, np.zeros(0, np.int64))


def _blank(rows: R) -> R:
    """One dummy token, when there are no rows."""
    columns = {f.name: np.zeros(1, getattr(rows, f.name).dtype) for f in fields(rows) if f.name != "offsets"}
    return replace(rows, offsets=np.array([0, 1]), **columns)
