"""A number that was measured or is predicted: the two are never mixed unmarked."""

from dataclasses import dataclass
from typing import Literal

Origin = Literal["measured", "predicted", "corrected"]
"""`corrected`: a prediction, moved by what was measured next to it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and where the true one is expected in four of five cases.

    Example:
        Estimate(412.0, 371.0, 458.0, "predicted")   # tokens per GPU per second
    """

    value: float
    low: float
    """Lower end of the 80 % interval."""
    high: float
    """Upper end of the 80 % interval."""
    origin: Origin
