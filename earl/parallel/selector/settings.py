"""How readily layouts are switched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the decision; the same for all stages."""

    margin: float = 0.5
    """A switch has to save its cost and this share of it beside."""
    dwell_steps: int = 100
    """How long an advantage is expected to last before anything is known: loads change their direction that often."""
    rest_steps: int = 5
    """Fewest steps from one switch to the next that nothing forces."""
    back_steps: int = 100
    """Of so many steps at most one switches back to what was left within them, unless memory forces it."""
    guard_steps: int = 2
    """A choice has to fit the contexts expected so many steps ahead, so that a switch comes in time."""
    longest_quantile: float = 0.95
    """Of the forecast of the longest context, which has to fit."""
    longest_margin: float = 1.05
    """Times that quantile."""
