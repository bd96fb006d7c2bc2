"""Teacher-forced forward passes over packed rows: log-probs, entropy and values where they are needed.

Context parallelism splits the tokens of a packed micro-batch over the processes of a group:

    process 0 of 2:  pieces 0 and 3 ┐  embeddings, layers, output layer: own tokens
    process 1 of 2:  pieces 1 and 2 ┘  attention: own queries, keys and values of all tokens, gathered

Tokens late in a row attend to more than early ones, so each process has a piece of the front and its mirror image. All
processes know all tokens, and all get the scores of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup, ReduceOp, all_reduce
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.nn.functional import pad

from earl.batch import Rows, chunks_by_tokens, repeats
from earl.engine import decoder
from earl.engine.attention import ATTENTION, NO_MASK, PackedRows, Spans, spans
from earl.engine.model import head, hidden_states
from earl.engine.sampler import NOTHING_CUT, Truncation
from earl.engine.sharding.tensor_parallel import copied, gathered, summed
from earl.parallel.memory import LOGIT_SLICE, PRODUCT_SLICE


@dataclass(frozen=True, slots=True)
class Portion:
    """The n of T tokens that one process computes, in two pieces."""

    group: ProcessGroup
    pieces: tuple[tuple[int, Spans], ...]
    """Of each piece that is not empty, where the first token's row begins, and the rows: tokens 4 … 8 of rows of 7 and
    5 are (0, rows (3, 2) with before = 4)."""
    positions: Tensor  # the position of each own token in its row, [1, n]
    places: Tensor  # the index of each own token in the sequence, [n]
    order: Tensor
    """The index of each token of the sequence in the padded all-gather result, [T]."""
    padded: int  # the largest n of any process
    idle: bool
    """Whether the process has no tokens of its own: it then computes token 0, and its result is not read."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of own queries [n, heads, D] within each row; keys and values are gathered from all processes."""
        own = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        # Gradients are summed over the processes, each of which gets those of its own rows.
        gathered = all_gather_single_autograd(pad(own, (0, 0, 0, self.padded - len(own))), 0, self.group)[self.order]
        width = key.shape[1] * key.shape[2]
        keys, values = gathered[:, :width].view(-1, *key.shape[1:]), gathered[:, width:].view(-1, *value.shape[1:])
        queries = torch.split(query, [sum(rows.lengths) for _, rows in self.pieces])
        attended = []
        for some, (first, rows) in zip(queries, self.pieces, strict=True):
            known = slice(first, first + rows.before + len(some))
            attended.append(rows.attended(some, keys[known], values[known], scaling))
        return torch.cat(attended)

    def found(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the wanted positions are here, and their indices among the own tokens."""
        own = torch.full_like(self.order, -1)
        if not self.idle:
            own[self.places] = torch.arange(len(self.places), device=own.device)
        here = torch.nonzero(own[wanted] >= 0)[:, 0]
        return here, own[wanted[here]]

    def collected(self, parts: Sequence[tuple[Tensor, Tensor, int]]) -> list[Tensor]:
        """Whole vectors from parts (values, their positions, length of the whole) that the processes hold."""
        spread = [numbers.new_zeros(count).index_copy(0, places, numbers) for numbers, places, count in parts]
        whole = torch.split(summed(torch.cat(spread), self.group), [count for _, _, count in parts])
        return [numbers.clone() for numbers in whole]  # FSDP2 hooks a module's outputs, and warns of views


def portion(rows: Spans, group: ProcessGroup) -> Portion:
    total, size, rank = sum(rows.lengths), distributed.get_world_size(group), distributed.get_rank(group)
    everyone = [_bounds(total, size, other) for other in range(size)]
    places = [torch.cat([torch.arange(*bounds) for bounds in own]) for own in everyone]
    padded = max(map(len, places))
    order = torch.empty(total, dtype=torch.long)
    for other, own in enumerate(places):
        order[own] = torch.arange(len(own)) + other * padded
    device, idle = rows.offsets.device, not len(places[rank])
    mine = [bounds for bounds in everyone[rank] if bounds[0] < bounds[1]] or [(0, 1)]  # models take no empty tensors
    pieces = tuple(_piece(rows, *bounds) for bounds in mine)
    here = torch.cat([torch.arange(*bounds) for bounds in mine]).to(device)
    return Portion(group, pieces, rows.positions[:, here], here, order.to(device), padded, idle)


def _bounds(total: int, size: int, rank: int) -> list[tuple[int, int]]:
    """Begin and end of a process's pieces: 17 tokens over 2 give [(0, 4), (12, 17)] and [(4, 8), (8, 12)]."""
    cuts = [*pairwise(total * number // (2 * size) for number in range(2 * size + 1))]
    return [cuts[rank], cuts[-1 - rank]]


def _piece(rows: Spans, start: int, stop: int) -> tuple[int, Spans]:
    limits = pairwise(accumulate(rows.lengths, initial=0))
    touched = [(begin, end) for begin, end in limits if begin < stop and end > start]
    lengths = tuple(min(end, stop) - max(begin, start) for begin, end in touched)
    first = touched[0][0]
    return first, spans(lengths, rows.offsets.device, start - first)


# Log-probs and entropies are computed in slices of positions, so the logits of all positions never exist together. The
# output layer may be split by vocabulary over a group; log-sum-exp, target logit and entropy are then combined by sums
# over the group.


def slice_positions(vocab: int) -> int:
    return max(1, LOGIT_SLICE // vocab)


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
        cut: tuple[Truncation, int] = (NOTHING_CUT, 0),
    ) -> tuple[Tensor, Tensor]:
        """Log-probs [M] and entropies [M] in float32.

        Args:
            states: [M, H].
            weight: [V', H], this process's part of the vocabulary.
            bias: [V'].
            targets: [M], minus the first token id of this process: other processes' tokens lie outside 0 … V' - 1.
            temperature: divides the logits.
            group: the processes that the vocabulary is split over; None: not split.
            cut: the truncation of the distribution, which targets are not subject to, and the size of the vocabulary.
        """
        ctx.temperature = temperature
        step = slice_positions(weight.shape[0])
        log_sums, entropies, logprobs = (states.new_empty(len(states), dtype=torch.float32) for _ in range(3))
        lowest = states.new_empty(len(states), 1, dtype=torch.float32) if cut[0] else None
        for start in range(0, len(states), step):
            span = slice(start, start + step)
            logits = _logits(states[span], weight, bias, temperature)
            if lowest is not None:
                lowest[span] = cut[0].lowest(logits if group is None else gathered(logits, 1, cut[1], group))
                _truncate(logits, targets[span], lowest[span])
            log_sums[span], target, mean = _summary(logits, targets[span], group)
            del logits  # free each slice before the next one
            logprobs[span] = target - log_sums[span]
            entropies[span] = log_sums[span] - mean
        ctx.save_for_backward(states, weight, bias, targets, log_sums, entropies, lowest)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of states (this process's part) and of the output layer. With p the distribution and H its entropy:
        ∂ log p(t)/∂z = 1[t] - p and ∂H/∂z = -p · (log p + H)."""
        states, weight, bias, targets, log_sums, entropies, lowest = ctx.saved_tensors
        of_logprobs, of_entropies = gradients
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        step = slice_positions(weight.shape[0])
        for start in range(0, len(states), step):
            span = slice(start, start + step)
            logits = _logits(states[span], weight, bias, ctx.temperature)
            if lowest is not None:
                _truncate(logits, targets[span], lowest[span])
            logprobs = logits.sub_(log_sums[span, None])
            of_logits = _of_logits(logprobs, targets[span], entropies[span], of_logprobs[span], of_entropies[span])
            del logits, logprobs
            narrow = of_logits.div_(ctx.temperature).to(weight.dtype)
            of_states[span] = narrow @ weight
            if of_weight is not None:
                _add_product(of_weight, narrow, states[span])
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
            del of_logits, narrow
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        return of_states, of_weight, None if of_bias is None else of_bias.to(bias.dtype), None, None, None, None


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(states, weight, bias).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


CUT = -1e30  # a logit whose probability is 0; finite, as 0 times infinity is none


def _truncate(logits: Tensor, targets: Tensor, lowest: Tensor) -> None:
    """Leave only the targets, and the logits that are not below `lowest` [m, 1]."""
    dropped, places = logits < lowest, targets.clamp(0, logits.shape[1] - 1)[:, None]
    _, inside = _target_entries(logits, targets)
    dropped.scatter_(1, places, dropped.gather(1, places) & ~inside[:, None])
    logits.masked_fill_(dropped, CUT)


def _summary(logits: Tensor, targets: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp, target logit, and mean logit under the distribution, of each position."""
    highest = _all_reduced(logits.amax(dim=-1), ReduceOp.MAX, group)
    chosen, inside = _target_entries(logits, targets)
    chances = (logits - highest[:, None]).exp_()
    parts = torch.stack([chances.sum(dim=-1), chosen * inside, chances.mul_(logits).sum(dim=-1)])
    total, target, weighted = _all_reduced(parts, ReduceOp.SUM, group)
    return highest + total.log(), target, weighted / total


def _of_logits(
    logprobs: Tensor, targets: Tensor, entropies: Tensor, of_logprobs: Tensor, of_entropies: Tensor
) -> Tensor:
    """The gradient of a slice of logits [m, V'], from their log-probs, which are overwritten."""
    chances = logprobs.exp()
    _, inside = _target_entries(chances, targets)
    logprobs.add_(entropies[:, None]).mul_(-of_entropies[:, None]).sub_(of_logprobs[:, None])
    places = targets.clamp(0, chances.shape[1] - 1)[:, None]
    return chances.mul_(logprobs).scatter_add_(1, places, (of_logprobs * inside)[:, None])


def _target_entries(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets' entries [M], and whether they are in this process's part of the vocabulary [M]."""
    inside = (targets >= 0) & (targets < logits.shape[1])
    return logits.gather(1, targets.clamp(0, logits.shape[1] - 1)[:, None])[:, 0], inside


def _add_product(total: Tensor, of_logits: Tensor, states: Tensor) -> None:
    """Add a slice's gradient of the output layer; a narrow dtype by vocabulary blocks, as each is widened."""
    if total.dtype == of_logits.dtype:
        total.addmm_(of_logits.T, states)
        return
    words = max(1, PRODUCT_SLICE // total.shape[1])
    for part, columns in zip(torch.split(total, words), torch.split(of_logits, words, dim=1), strict=True):
        part += columns.T @ states


def _all_reduced(values: Tensor, operation: Any, group: ProcessGroup | None) -> Tensor:
    if group is not None:
        all_reduce(values, operation, group)
    return values


@dataclass(frozen=True, slots=True)
class Scores:
    logprobs: Tensor  # [M], of the targets at rows.mask
    entropy: Tensor  # [M]
    values: Tensor  # [K], at rows.value_mask; without a value head, none
    labels: Tensor  # [L], log-probs of the labels that a teacher gives beside the tokens


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
        self,
        tokens: Tensor,
        rows: Spans,
        learned: Tensor,
        targets: Tensor,
        turns: Tensor,
        temperature: float,
        truncation: Truncation = NOTHING_CUT,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs [M], entropies [M] and values [K or 0] of packed rows.

        Args:
            tokens: [1, T].
            learned: [M], positions of the tokens to score.
            targets: [M].
            turns: [K], positions at which a value is read.
        """
        if self.context is None:
            return self._scored(tokens, rows, learned - 1, targets, turns, (temperature, truncation))
        own = portion(rows, self.context)
        (learns, before), (reads, at) = own.found(learned - 1), own.found(turns)
        how = (temperature, truncation)
        logprobs, entropy, values = self._scored(tokens[:, own.places], own, before, targets[learns], at, how)
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
        self,
        tokens: Tensor,
        rows: PackedRows,
        places: Tensor,
        targets: Tensor,
        turns: Tensor,
        how: tuple[float, Truncation],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the tokens after `places`, and values at `turns`, when all tokens are on this process."""
        wanted = places if self.value_head is None else torch.cat([places, turns])
        states = packed_states(self.model, tokens, rows, wanted)
        layer, (group, first) = head(self.model), self.words
        words = self.model.config.get_text_config().vocab_size
        before = copied(states[: len(places)], group)
        logprobs, entropy = TokenScores.apply(  # type: ignore[no-untyped-call]
            before, layer.weight, layer.bias, targets - first, how[0], group, (how[1], words)
        )
        if self.value_head is None:
            return logprobs, entropy, states.new_zeros(0)
        return logprobs, entropy, self.value_head(states[len(places) :]).float().sum(dim=-1)  # squeezes the last axis


def packed_states(model: Any, tokens: Tensor, rows: PackedRows, wanted: Tensor) -> Tensor:
    """Hidden states [M, H] of tokens [1, T] at the positions `wanted` [M]."""
    if isinstance(rows, Spans) and decoder.suits(model):
        return decoder.packed_states(model, tokens[0], rows.lengths, wanted)
    how = {"attention_mask": NO_MASK, "position_ids": rows.positions, "rows": rows, "use_cache": False}
    return hidden_states(model, tokens, **how)[0][wanted]


def score(scorer: Scorer, rows: Rows, temperature: float, truncation: Truncation = NOTHING_CUT) -> Scores:
    learned, labelled = np.flatnonzero(rows.mask), np.flatnonzero(rows.targets < 0)
    turns = np.flatnonzero(rows.value_mask)
    scored = np.where(rows.targets < 0, rows.tokens, rows.targets)
    targets = np.concatenate([scored[learned], -1 - rows.targets[labelled]]).astype(np.int64)
    columns = (np.concatenate([learned, labelled]), targets, turns)
    tokens = torch.from_numpy(rows.tokens).long()[None].to(scorer.device)
    places = spans(tuple(rows.lengths.tolist()), scorer.device)
    moved = (torch.from_numpy(column).to(scorer.device) for column in columns)
    logprobs, entropy, values = scorer(tokens, places, *moved, temperature, truncation)
    count = len(learned)
    return Scores(logprobs[:count], entropy[:count], values, logprobs[count:])


def spread(scores: Scores, rows: Rows, chosen: NDArray[np.int64]) -> Scores:
    """The scores of `chosen` rows, repetitions included, from the scores of all `rows`."""
    marks = (rows.mask, rows.value_mask, rows.targets < 0)
    learned, turns, labelled = (torch.from_numpy(repeats(rows.per_row(marked), chosen)) for marked in marks)
    values = scores.values[turns.to(scores.values.device)] if len(scores.values) else scores.values
    learned = learned.to(scores.logprobs.device)
    labels = scores.labels[labelled.to(learned.device)]
    return Scores(scores.logprobs[learned], scores.entropy[learned], values, labels)


def own_name(name: str) -> str:
    """A parameter of a scorer as its model names it; the value head keeps its name."""
    return name.removeprefix("model.")


MAX_TOKENS = 8192  # per forward pass of `review`


@torch.inference_mode()
def review(
    model: Any, rows: Rows, temperature: float, truncation: Truncation = NOTHING_CUT
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Score the sampled tokens of rows exactly as `LocalSampler` does when it draws them. Returns their log-probs, and
    the probability of all tokens with a smaller id: a draw in [below, below + exp(logprob)) gives this token. Both are
    [T], 0 where the mask is not set."""
    logprobs, below = np.zeros(len(rows.tokens), np.float32), np.zeros(len(rows.tokens), np.float64)
    for chosen in chunks_by_tokens(rows.lengths, MAX_TOKENS):
        part = rows.select(chosen)
        learned = np.flatnonzero(part.mask)
        places = repeats(rows.lengths, chosen)[learned]
        tokens = torch.from_numpy(part.tokens).long()[None]
        own = spans(tuple(part.lengths.tolist()), tokens.device)
        states = packed_states(model, tokens, own, torch.from_numpy(learned) - 1)
        step = slice_positions(model.config.get_text_config().vocab_size)
        for start in range(0, len(learned), step):
            span = slice(start, start + step)
            targets = torch.from_numpy(part.targets[learned[span]]).long()[:, None]
            logits = head(model)(states[span]).float() / temperature
            if truncation:
                _truncate(logits, targets[:, 0], truncation.lowest(logits))
            distribution = torch.log_softmax(logits, dim=-1)
            chances = distribution.double().exp()
            reached = chances.cumsum(dim=-1)
            logprobs[places[span]] = distribution.gather(1, targets)[:, 0].numpy()
            lower = reached.gather(1, targets) - chances.gather(1, targets)
            below[places[span]] = (lower / reached[:, -1:])[:, 0].numpy()
    return logprobs, below
