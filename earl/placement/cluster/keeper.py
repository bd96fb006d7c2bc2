"""Who holds the crews of a run, as these see it."""

from collections.abc import Sequence
from typing import Protocol

from earl.config import Config
from earl.placement.cluster.carry import Given
from earl.placement.cluster.crew import Crew


class Keeper(Protocol):
    """Who holds the crews of a run, as far as these need to know."""

    def turn(self, crew: Crew) -> None:
        """A crew is about to be called: where it shares its devices, they are made free for it."""

    def keep(self, config: Config) -> None:
        """Whoever is started from now on follows this recipe."""

    def rejoin(self, config: Config, given: Sequence[Given]) -> None:
        """Ranks that have left each other meet under another layout. Raises Lost when one is gone."""

    def failed(self, message: str) -> None:
        """Somebody was lost. Raises EarlError when there were too many."""

    def mended(self, message: str) -> None:
        """Somebody was replaced."""

    def note(self, kind: str, message: str) -> None:
        """Something is to stand among the run's events."""
