"""Teacher-forced forward passes over packed rows: log-probs, entropy and hidden states where they are needed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earl.batch import Rows, repeats
from earl.engine.model import head, hidden_states


@dataclass(frozen=True, slots=True)
class Scores:
    """What one forward pass says of some rows."""

    logprobs: Tensor  # [M], of the targets at rows.mask
    entropy: Tensor  # [M]
    turn_states: Tensor  # [K, H], hidden states at rows.value_mask


def score(model: Any, rows: Rows, temperature: float) -> Scores:
    """Score all rows in one forward pass.

    Rows are padded on the right for the pass and packed again behind it; with causal attention nothing that is
    kept can see the padding. Logits exist at the learned positions only.
    """
    states = packed_states(model, rows)
    learned = torch.from_numpy(np.flatnonzero(rows.mask))
    logits = head(model)(states[learned - 1]).float() / temperature
    distribution = torch.log_softmax(logits, dim=-1)
    targets = torch.from_numpy(rows.targets).long()[learned]
    logprobs = distribution.gather(1, targets[:, None])[:, 0]
    entropy = -(distribution.exp() * distribution).sum(dim=-1)
    return Scores(logprobs, entropy, states[torch.from_numpy(rows.value_mask)])


def spread(scores: Scores, rows: Rows, chosen: NDArray[np.int64]) -> Scores:
    """The scores of `chosen` rows, each as often as it is chosen, from the scores of all `rows`."""
    learned = torch.from_numpy(repeats(np.add.reduceat(rows.mask, rows.offsets[:-1], dtype=np.int64), chosen))
    turns = torch.from_numpy(repeats(np.add.reduceat(rows.value_mask, rows.offsets[:-1], dtype=np.int64), chosen))
    return Scores(scores.logprobs[learned], scores.entropy[learned], scores.turn_states[turns])


def packed_states(model: Any, rows: Rows) -> Tensor:
    """Hidden states [T, H] of packed rows."""
    lengths = torch.from_numpy(rows.lengths)
    row = torch.repeat_interleave(torch.arange(rows.num_rows), lengths)
    column = torch.arange(len(rows.tokens)) - torch.from_numpy(rows.offsets[:-1])[row]
    padded = torch.zeros(rows.num_rows, int(lengths.max()), dtype=torch.long)
    padded[row, column] = torch.from_numpy(rows.tokens).long()
    return hidden_states(model, padded, use_cache=False)[row, column]
