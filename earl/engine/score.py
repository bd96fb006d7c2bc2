"""Teacher-forced forward passes over packed rows: log-probs, entropy and values where they are needed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from earl.batch import Rows, repeats
from earl.engine.attention import ATTENTION, NO_MASK, Packed, Spans, spans
from earl.engine.head import TokenScores
from earl.engine.model import head, hidden_states
from earl.engine.sharding.collectives import copied
from earl.engine.sharding.context_parallel import portion


@dataclass(frozen=True, slots=True)
class Scores:
    """What one forward pass says of some rows."""

    logprobs: Tensor  # [M], of the targets at rows.mask
    entropy: Tensor  # [M]
    values: Tensor  # [K], at rows.value_mask; without a value head, none


class Scorer(nn.Module):
    """A model and, where the algorithm needs one, a value head, in one module: what is trained, sharded and saved.

    Attributes:
        device: where it computes.
        words: the processes that the output layer's words are split over, and the number of this one's first word.
        context: the processes that the tokens are split over; None: all are here.
    """

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
        """Score packed rows.

        Args:
            tokens: [1, T].
            learned: places of the M tokens whose log-probs are wanted.
            targets: [M].
            turns: places of the K tokens where a value is read.

        Returns:
            log-probs [M], entropies [M], values [K or 0].
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
        self, tokens: Tensor, rows: Packed, places: Tensor, targets: Tensor, turns: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of what follows the tokens at `places`, and values at `turns`, among tokens that are all here."""
        states = packed_states(self.model, tokens, rows)
        layer, (group, first) = head(self.model), self.words
        before = copied(states[places], group)
        logprobs, entropy = TokenScores.apply(  # type: ignore[no-untyped-call]
            before, layer.weight, layer.bias, targets - first, temperature, group
        )
        if self.value_head is None:
            return logprobs, entropy, states.new_zeros(0)
        return logprobs, entropy, self.value_head(states[turns]).float().sum(dim=-1)  # of one number


def packed_states(model: Any, tokens: Tensor, rows: Packed) -> Tensor:
    """Hidden states [T, H] of tokens [1, T]."""
    return hidden_states(
        model, tokens, attention_mask=NO_MASK, position_ids=rows.positions, rows=rows, use_cache=False
    )[0]


def score(scorer: Scorer, rows: Rows, temperature: float) -> Scores:
    """Score all rows in one forward pass."""
    learned = np.flatnonzero(rows.mask)
    turns = np.flatnonzero(rows.value_mask)
    columns = (learned, rows.targets[learned].astype(np.int64), turns)
    tokens = torch.from_numpy(rows.tokens).long()[None].to(scorer.device)
    places = spans(tuple(rows.lengths.tolist()), scorer.device)
    moved = (torch.from_numpy(column).to(scorer.device) for column in columns)
    return Scores(*scorer(tokens, places, *moved, temperature))


def spread(scores: Scores, rows: Rows, chosen: NDArray[np.int64]) -> Scores:
    """The scores of `chosen` rows, each as often as it is chosen, from the scores of all `rows`."""
    learned = torch.from_numpy(repeats(np.add.reduceat(rows.mask, rows.offsets[:-1], dtype=np.int64), chosen))
    turns = torch.from_numpy(repeats(np.add.reduceat(rows.value_mask, rows.offsets[:-1], dtype=np.int64), chosen))
    values = scores.values[turns.to(scores.values.device)] if len(scores.values) else scores.values
    learned = learned.to(scores.logprobs.device)
    return Scores(scores.logprobs[learned], scores.entropy[learned], values)


def own_name(name: str) -> str:
    """A parameter of a scorer as its model names it; the value head keeps its name."""
    return name.removeprefix("model.")
