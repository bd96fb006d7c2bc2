"""What a stage of a step can be run in, and how alike two loads are."""

from dataclasses import asdict, dataclass
from math import ceil, log2
from typing import Any, Literal

from earl.parallel.layout import Layout
from earl.parallel.load import Load

Stage = Literal["rollout", "experience", "update"]
STAGES: tuple[Stage, ...] = ("rollout", "experience", "update")


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run a stage.

    Example:
        >>> str(Choice("rollout", Layout(dp=2, tp=4))), str(Choice("update", Layout(4, 2), 8192, recompute=True))
        ('2 x tp4', 'dp4 tp2, 8192 tokens, recompute')
    """

    stage: Stage
    layout: Layout
    """Of rollout: dp copies of a sampler, each split tp times."""
    micro_batch_tokens: int | None = None
    """Tokens that pass at once; None where the stage has no such bound."""
    recompute: bool = False
    """Whether activations are computed again in the backward pass."""
    offload: bool = False
    """Whether what is not in use lies in host memory."""

    def __str__(self) -> str:
        layout = self.layout
        if self.stage == "rollout":
            split = f"{layout.dp} x tp{layout.tp}"
        else:
            split = f"dp{layout.dp} tp{layout.tp}" + (f" cp{layout.cp}" if layout.cp > 1 else "")
        tokens = [f"{self.micro_batch_tokens} tokens"] if self.micro_batch_tokens else []
        return ", ".join([split, *tokens, *["recompute"] * self.recompute, *["offload"] * self.offload])

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Choice":
        """What `as_object` made."""
        return cls(**{**fields, "layout": Layout(**fields["layout"])})


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Loads that are measured as one: powers of two.

    Example:
        >>> bucket_of(1500.0, 32)   # 1,025 to 2,048 tokens, 17 to 32 sequences
        Bucket(context=11, load=5)
    """

    context: int
    """Contexts have at most 2 ** context tokens, and more than half as many."""
    load: int
    """There are at most 2 ** load sequences, and more than half as many."""

    def __str__(self) -> str:
        return f"{2**self.context} x {2**self.load}"


def bucket_of(tokens: float, sequences: int) -> Bucket:
    """The bucket of contexts with so many tokens."""
    return Bucket(ceil(log2(max(1.0, tokens))), ceil(log2(max(1, sequences))))


def mean_bucket(load: Load) -> Bucket:
    """By the mean context: what a step's time goes by."""
    return bucket_of(load.mean_tokens, load.sequences)


def longest_bucket(load: Load) -> Bucket:
    """By the longest context: what memory goes by."""
    return bucket_of(load.longest_tokens, load.sequences)
