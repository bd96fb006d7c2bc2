"""GSPO: one importance ratio for a whole sequence."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from earl.algorithms.base import Stats, TokenInputs
from earl.algorithms.grpo import GRPO
from earl.algorithms.loss import clipped_surrogate, row_means


class GSPO(GRPO):
    """s_i = exp(mean over the row's tokens of log π/π_old), clipped as a whole: mean over rows of
    -min(s_i·A_i, clip(s_i)·A_i) (arXiv 2507.18071, equations 5 to 7). A row is one context: the whole episode under
    full history. Written as GSPO-token (equation 13): every token has the ratio sg(s_i)·π/sg(π), which has the same
    gradient, and lets the turns of a row have advantages of their own. sg: without gradient."""

    aggregation: Literal["token", "sequence", "constant"] = "sequence"
    """Mean over rows of each row's mean; see GRPO."""
    clip: float = Field(3e-4, gt=0)
    """The distance of the lower bound from 1, of the mean ratio of a row: far smaller than that of a token."""
    clip_high: float | None = Field(4e-4, gt=0)
    """The distance of the upper bound from 1; absent: as clip."""

    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        of_row = row_means(inputs.logprobs - inputs.old_logprobs, inputs.rows)
        ratio = (of_row.detach() + inputs.logprobs - inputs.logprobs.detach()).exp()
        return clipped_surrogate(inputs, ratio, self.bounds, self.dual_clip)
