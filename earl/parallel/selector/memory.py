"""What a selector remembers of a run: contexts, what stages took, what ran out of memory, and what switches cost."""

from dataclasses import asdict, dataclass, field
from typing import Any

from earl.parallel.choice import STAGES, Choice, Stage, longest_bucket
from earl.parallel.load import Load
from earl.parallel.profile.cells import Cells, as_objects, cells_of
from earl.parallel.selector.state import StageState

KEPT_STEPS = 200
"""Steps of contexts that forecasts are given."""


@dataclass(frozen=True, slots=True)
class Barred:
    """A choice that ran out of memory: it is not taken again for this bucket, nor for any above."""

    choice: Choice
    load: Load
    step: int

    def covers(self, choice: Choice, load: Load) -> bool:
        """Whether the choice may not be taken for a load."""
        bucket, own = longest_bucket(load), longest_bucket(self.load)
        return choice == self.choice and bucket.context >= own.context and bucket.load >= own.load


@dataclass(slots=True)
class Memory:
    """All that decisions follow from, besides what is predicted."""

    loads: list[tuple[int, Load]] = field(default_factory=list)
    """What steps showed, in order of step."""
    cells: dict[Stage, Cells] = field(default_factory=lambda: {stage: {} for stage in STAGES})
    barred: list[Barred] = field(default_factory=list)
    switches: dict[Choice, tuple[int, float]] = field(default_factory=dict)
    """How often each was switched to, and the seconds that all of that took."""
    stages: dict[Stage, StageState] = field(default_factory=lambda: {stage: StageState() for stage in STAGES})

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "loads": [(step, asdict(load)) for step, load in self.loads],
            "cells": {stage: as_objects(cells) for stage, cells in self.cells.items()},
            "barred": [asdict(one) for one in self.barred],
            "switches": [(choice.as_object(), *counted) for choice, counted in self.switches.items()],
            "stages": {stage: state.as_object() for stage, state in self.stages.items()},
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Memory":
        """What `as_object` made, also after JSON turned tuples into lists."""
        return cls(
            loads=[(step, Load(**load)) for step, load in fields["loads"]],
            cells={stage: cells_of(fields["cells"][stage]) for stage in STAGES},
            barred=[Barred(Choice.of(one["choice"]), Load(**one["load"]), one["step"]) for one in fields["barred"]],
            switches={Choice.of(choice): (count, seconds) for choice, count, seconds in fields["switches"]},
            stages={stage: StageState.of(fields["stages"][stage]) for stage in STAGES},
        )
