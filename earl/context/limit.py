"""The context limit while a run goes on: forecast, warned of, and raised ahead of growth when the recipe says "auto".

Every process of a run sees the same episodes and so comes to the same limit; a checkpoint keeps where it stands.
"""

from dataclasses import asdict, dataclass, field
from math import ceil, inf
from typing import Any

from earl.context.forecast import Forecast, expected, forecast, warns

KEPT_STEPS = 500
"""Steps of history that forecasts are given."""
EVERY = 5
"""Steps from one forecast to the next."""
AHEAD = 10
"""The limit stays above what is expected so many steps from now."""
ROOM = 1.1
"""Times what is expected."""
LEAP = 1.5
"""By which the limit grows where episodes were cut, since how long they would have become cannot be seen; and how far
ahead of the longest context it goes at most."""
ROUNDED = 8
FORECAST = ("p50", "p95", "p99")
"""The quantiles of the windows that are forecast. "ceiling": when the last of them reaches what an automatic limit may
rise to, which is what memory, the model's positions and a micro-batch allow.
"""


@dataclass(frozen=True, slots=True)
class Growth:
    """What one step showed: quantiles of the windows in tokens, and the share of episodes that met the limit."""

    step: int
    quantiles: tuple[float, ...]  # in the order of FORECAST
    longest: float
    cut: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What the watch makes of a step."""

    metrics: dict[str, float]
    events: tuple[tuple[str, str], ...]
    """(kind, message) pairs: "forecast" warns, "limit" says that the limit was raised, or why it was not."""


@dataclass(slots=True)
class ContextWatch:
    """Where the limit stands. `ceiling` is None where the recipe fixes the limit.

    Example:
        watch = ContextWatch(limit=72, ceiling=1024)
        watch.observe(Growth(step=1, quantiles=(40, 70, 72), longest=72, cut=0.02))
        watch.limit == 112   # 72 * 1.5 = 108, rounded up to a multiple of 8
    """

    limit: int
    ceiling: int | None = None
    history: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Which warnings of a fixed limit have been given: "near", "met"."""
    ahead: int = 0
    """Steps whose episodes have begun already, under the limit that held then, when a step is learned from."""
    raised: int | None = None
    """The last step after which the limit was raised."""

    def observe(self, growth: Growth) -> Seen:
        """Take in a step, and raise the limit for the next one where that is due."""
        self.history = [*self.history[1 - KEPT_STEPS :], (growth.step, growth.quantiles)]
        metrics = {"context/limit": float(self.limit)}
        forecasts = {}
        if growth.step % EVERY == 0:
            forecasts = {name: forecast(self._series(number), self.limit) for number, name in enumerate(FORECAST)}
            if self.ceiling is not None:
                forecasts["ceiling"] = forecast(self._series(len(FORECAST) - 1), self.ceiling)
        for name, seen in forecasts.items():
            metrics |= {f"forecast/{name}/{edge}": getattr(seen, edge) for edge in ("early", "median", "late")}
        if self.ceiling is not None:
            return Seen(metrics, self._follow(growth, self.ceiling))
        return Seen(metrics, self._warn(growth, forecasts.get(FORECAST[-1])))

    def _warn(self, growth: Growth, longest: Forecast | None) -> tuple[tuple[str, str], ...]:
        """Say once that a fixed limit will be met, and once that it was."""
        if growth.cut and "met" not in self.said:
            self.said += ["met"]
            message = f"{growth.cut:.1%} of the episodes were cut off at the limit of {self.limit} tokens"
        elif longest and warns(longest, growth.step) and not self.said:
            self.said += ["near"]
            message = _warning(self.limit, longest)
        else:
            return ()
        return (("forecast", f"{message}: raise context.limit, or set it to 'auto'"),)

    def state(self) -> dict[str, Any]:
        """All of it as JSON holds it."""
        return asdict(self)

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "ContextWatch":
        """What `state` was taken of."""
        history = [(step, tuple(quantiles)) for step, quantiles in state["history"]]
        return cls(**{**state, "history": history})

    def _series(self, number: int) -> list[tuple[int, float]]:
        return [(step, quantiles[number]) for step, quantiles in self.history]

    def make_room(self, longest: int) -> tuple[tuple[str, str], ...]:
        """Raise an automatic limit above contexts that were gathered without it, such as a teacher's."""
        if self.ceiling is None:
            return ()
        return self._raise(ROOM * longest, self.ceiling, f"the teacher's contexts take up to {longest}")

    def _follow(self, growth: Growth, ceiling: int) -> tuple[tuple[str, str], ...]:
        """Raise the limit to what is needed, as far as the ceiling allows."""
        upper = growth.longest
        if growth.step % EVERY == 0:
            # Bounded: after a few steep steps a trend has a far upper end that is no reason to hold so much room.
            upper = min(max(upper, expected(self._series(len(FORECAST) - 1), AHEAD)[1]), LEAP * growth.longest)
        wanted, why = ROOM * upper, f"up to {upper:.0f} tokens are expected soon"
        before = self.raised is not None and growth.step <= self.raised + self.ahead  # the limit was another
        if growth.cut and not before:
            wanted, why = max(wanted, LEAP * self.limit), f"{growth.cut:.1%} of the episodes were cut off"
        events = self._raise(min(wanted, 2 * self.limit), ceiling, why)
        self.raised = growth.step if events else self.raised
        return events

    def _raise(self, wanted: float, ceiling: int, why: str) -> tuple[tuple[str, str], ...]:
        before = self.limit
        self.limit = max(before, min(ceiling, ceil(wanted / ROUNDED) * ROUNDED))
        if self.limit == before:
            return ()
        last = "; this is the highest that is allowed" if self.limit == ceiling else ""
        return (("limit", f"context limit raised from {before} to {self.limit} tokens: {why}{last}"),)


def growth_of(step: int, metrics: dict[str, float]) -> Growth:
    """What a step's context metrics say of growth."""
    quantiles = tuple(metrics[f"context/window/{name}"] for name in FORECAST)
    cut = metrics["truncation/prompt"] + metrics["truncation/reply"]
    return Growth(step, quantiles, metrics["context/window/max"], cut)


def _warning(limit: int, seen: Forecast) -> str:
    when = f"at about step {seen.median:.0f}" if seen.median < inf else "soon"
    between = f"{seen.early:.0f} to {seen.late:.0f}" if seen.late < inf else f"step {seen.early:.0f} or later"
    return f"the longest contexts will reach the limit of {limit} tokens {when} (80 % interval: {between})"
