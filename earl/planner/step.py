"""What a step takes at a context, stage by stage, and what that costs."""

from dataclasses import dataclass
from typing import Any

from earl.dispatch.outlook import Entry
from earl.parallel.estimate import Estimate
from earl.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Part:
    """A stage of a step.

    Example:
        Part("rollout", Estimate(253.0, …), Layout(dp=16, tp=8))
    """

    stage: str
    seconds: Estimate
    layout: Layout | None
    """dp copies or parts, each over tp GPUs; None: between layouts."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a recipe."""

    context: int
    episodes: int
    tokens: int
    """Of all episodes."""
    gpus: int
    parts: tuple[Part, ...]
    """Empty where a stage does not fit."""
    verdict: str
    """What does not fit."""
    dispatch: Entry | None

    @property
    def seconds(self) -> Estimate | None:
        """Of all stages, one after another; its interval is that of stages which err alike."""
        if not self.parts:
            return None
        spans = [part.seconds for part in self.parts]
        return Estimate(
            sum(span.value for span in spans),
            sum(span.low for span in spans),
            sum(span.high for span in spans),
            "predicted",
        )

    @property
    def gpu_hours(self) -> Estimate | None:
        """Of 1,000 episodes."""
        took = self.seconds
        if took is None:
            return None
        factor = self.gpus / 3600 * 1000 / self.episodes
        return Estimate(took.value * factor, took.low * factor, took.high * factor, took.origin)

    @property
    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return {
            "context": self.context,
            "episodes": self.episodes,
            "tokens": self.tokens,
            "fits": bool(self.parts),
            "verdict": self.verdict,
            "seconds": _object(self.seconds),
            "stages": {
                part.stage: {
                    "seconds": _object(part.seconds),
                    "dp": part.layout.dp if part.layout else None,
                    "tp": part.layout.tp if part.layout else None,
                }
                for part in self.parts
            },
        }

    def cost(self, price: float | None) -> dict[str, Any]:
        """What 1,000 episodes take, for programs.

        Args:
            price: of a GPU-hour; None: nothing is known of it.
        """
        hours = self.gpu_hours
        return {
            "context": self.context,
            "gpu_hours_per_1000_episodes": _object(hours),
            "cost_per_1000_episodes": _object(hours, price) if price is not None else None,
        }


def _object(estimate: Estimate | None, factor: float = 1.0) -> dict[str, float] | None:
    if estimate is None:
        return None
    names = ("value", "low", "high")
    return {name: float(f"{getattr(estimate, name) * factor:.5g}") for name in names}
