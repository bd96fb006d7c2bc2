"""What a trace of the learner's own code found (`earl/engine/trace.py`), as data: memory, exchanges and arithmetic."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from earl.parallel.layout import Layout

TracedStage = Literal["load", "experience", "update", "recording", "weights", "checkpoint"]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One rank's share of a step, and what it computes with."""

    layout: Layout
    row_tokens: int
    micro_batch_tokens: int
    micro_batches: int = 2
    rank: int = 0  # the first one has the largest parts

    @property
    def rows(self) -> int:
        """The number of rows of one data-parallel rank, all of one length."""
        return self.micro_batches * max(1, self.micro_batch_tokens // self.row_tokens)


@dataclass(frozen=True, slots=True)
class Exchange:
    """All exchanges of one kind over one group of ranks."""

    operation: str  # such as "all-gather"
    group: str  # the axis of the layout that its ranks differ along, such as "tp"
    ranks: int
    count: int
    bytes: int
    """Of the largest tensor of each: what was gathered, summed, or is to be scattered."""


@dataclass(frozen=True, slots=True)
class StageTrace:
    stage: TracedStage
    held_bytes: int  # in tensors before the stage
    peak_bytes: int  # in tensors at most
    moment: str  # the operation after which it was
    exchanges: tuple[Exchange, ...]
    flops: Mapping[str, int]  # by operator; of attention as if it were not causal

    def exchanged(self, group: str | None = None) -> int:
        return sum(one.bytes for one in self.exchanges if group in (None, one.group))


@dataclass(frozen=True, slots=True)
class Trace:
    job: TraceJob
    stages: tuple[StageTrace, ...]

    def stage(self, name: TracedStage) -> StageTrace:
        return next(stage for stage in self.stages if stage.stage == name)

    @property
    def as_object(self) -> dict[str, Any]:
        return asdict(self)
