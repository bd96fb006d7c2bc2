"""Rescores sampled tokens under given weights: their log-probs, and the uniform draws that lead to them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from earl.batch import Rows, chunks_by_tokens, repeats
from earl.engine.attention import spans
from earl.engine.model import head
from earl.engine.score import packed_states, slice_positions

MAX_TOKENS = 8192  # per forward pass


@dataclass(frozen=True, slots=True)
class Review:
    """Per token of some rows, [T]; 0 where the mask is not set."""

    logprobs: NDArray[np.float32]
    below: NDArray[np.float64]
    """Probability of all tokens with a smaller id: a draw in [below, below + exp(logprob)) gives this token."""


@torch.inference_mode()
def review(model: Any, rows: Rows, temperature: float) -> Review:
    """Score the sampled tokens of rows exactly as `LocalSampler` does when it draws them."""
    logprobs, below = np.zeros(len(rows.tokens), np.float32), np.zeros(len(rows.tokens), np.float64)
    for chosen in chunks_by_tokens(rows.lengths, MAX_TOKENS):
        part = rows.select(chosen)
        learned = np.flatnonzero(part.mask)
        places = repeats(rows.lengths, chosen)[learned]
        tokens = torch.from_numpy(part.tokens).long()[None]
        rows_of_part = spans(tuple(part.lengths.tolist()), tokens.device)
        states = packed_states(model, tokens, rows_of_part)[torch.from_numpy(learned) - 1]
        step = slice_positions(model.config.get_text_config().vocab_size)
        for start in range(0, len(learned), step):
            span = slice(start, start + step)
            distribution = torch.log_softmax(head(model)(states[span]).float() / temperature, dim=-1)
            targets = torch.from_numpy(part.targets[learned[span]]).long()[:, None]
            chances = distribution.double().exp()
            reached = chances.cumsum(dim=-1)
            logprobs[places[span]] = distribution.gather(1, targets)[:, 0].numpy()
            lower = reached.gather(1, targets) - chances.gather(1, targets)
            below[places[span]] = (lower / reached[:, -1:])[:, 0].numpy()
    return Review(logprobs, below)
