"""The context limit during a run: forecast, warned about, and raised ahead of growth when the recipe says "auto".

Every process of a run sees the same episodes and computes the same limit; checkpoints keep its state.
"""

from dataclasses import dataclass, field
from math import ceil, inf

from earl.context.forecast import Forecast, expected, forecast, warns

KEPT_STEPS = 500  # steps of history that forecasts use
EVERY = 5  # steps between forecasts
AHEAD = 10  # the limit stays above what is expected this many steps ahead
ROOM = 1.1  # factor on the expectation
LEAP = 1.5
"""Growth factor of the limit after episodes were cut, since their full length is unknown; also the largest ratio of an
expectation to the longest context."""
ROUNDED = 8
FORECAST = ("p50", "p95", "p99")
"""Forecast quantiles of the windows. "ceiling" is the forecast of the last one against the largest automatic limit,
which memory, the model's positions and the micro-batch allow."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Context growth in one step: quantiles of the windows in tokens, and the share of episodes that met the limit."""

    step: int
    quantiles: tuple[float, ...]  # in the order of FORECAST
    longest: float
    cut: float


@dataclass(frozen=True, slots=True)
class LimitUpdate:
    metrics: dict[str, float]
    events: tuple[tuple[str, str], ...]
    """(kind, message) pairs: "forecast" warns, "limit" says that the limit was raised, or why it was not."""


@dataclass(slots=True)
class ContextWatch:
    """State of the limit. `ceiling` is None if the recipe fixes the limit."""

    limit: int
    ceiling: int | None = None
    history: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # warnings of a fixed limit already given: "near", "met"
    ahead: int = 0
    """Steps whose episodes have already begun, under the limit of that time, when a step is trained on."""
    raised: int | None = None  # last step after which the limit was raised

    def observe(self, growth: Growth) -> LimitUpdate:
        """Record a step, and raise the limit for the next one if that is due."""
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
            return LimitUpdate(metrics, self._follow_growth(growth, self.ceiling))
        return LimitUpdate(metrics, self._warn_of_limit(growth, forecasts.get(FORECAST[-1])))

    def _warn_of_limit(self, growth: Growth, longest: Forecast | None) -> tuple[tuple[str, str], ...]:
        """Warn once that a fixed limit will be reached, and once that it was."""
        if growth.cut and "met" not in self.said:
            self.said += ["met"]
            message = f"{growth.cut:.1%} of the episodes were cut off at the limit of {self.limit} tokens"
        elif longest and warns(longest, growth.step) and not self.said:
            self.said += ["near"]
            message = _warning(self.limit, longest)
        else:
            return ()
        return (("forecast", f"{message}: raise context.limit, or set it to 'auto'"),)

    def _series(self, number: int) -> list[tuple[int, float]]:
        return [(step, quantiles[number]) for step, quantiles in self.history]

    def make_room(self, longest: int) -> tuple[tuple[str, str], ...]:
        """Raise an automatic limit above contexts gathered without it, such as a teacher's."""
        if self.ceiling is None:
            return ()
        return self._raise(ROOM * longest, self.ceiling, f"the teacher's contexts take up to {longest}")

    def _follow_growth(self, growth: Growth, ceiling: int) -> tuple[tuple[str, str], ...]:
        """Raise the limit to the expected need, at most to the ceiling."""
        upper = growth.longest
        if growth.step % EVERY == 0:
            # Bounded: after a few steep steps a trend's far upper end does not justify so large a limit.
            upper = min(max(upper, expected(self._series(len(FORECAST) - 1), AHEAD)[1]), LEAP * growth.longest)
        wanted, why = ROOM * upper, f"up to {upper:.0f} tokens are expected soon"
        before = self.raised is not None and growth.step <= self.raised + self.ahead  # under the previous limit
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
    quantiles = tuple(metrics[f"context/window/{name}"] for name in FORECAST)
    cut = metrics["truncation/prompt"] + metrics["truncation/reply"]
    return Growth(step, quantiles, metrics["context/window/max"], cut)


def _warning(limit: int, seen: Forecast) -> str:
    when = f"at about step {seen.median:.0f}" if seen.median < inf else "soon"
    between = f"{seen.early:.0f} to {seen.late:.0f}" if seen.late < inf else f"step {seen.early:.0f} or later"
    return f"the longest contexts will reach the limit of {limit} tokens {when} (80 % interval: {between})"
