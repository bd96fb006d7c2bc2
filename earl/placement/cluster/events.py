"""What befalls the crews of a run: who was lost, and what was done about it."""

from earl.errors import EarlError


class Events:
    """What was noted, and how many were lost.

    Args:
        most: losses that a run goes on from.
    """

    def __init__(self, most: int) -> None:
        self._most, self._failures = most, 0
        self._notes: list[tuple[str, str]] = []

    def notes(self) -> list[tuple[str, str]]:
        """What was noted since this was last asked: kinds of events and messages."""
        notes, self._notes = self._notes, []
        return notes

    def note(self, kind: str, message: str) -> None:
        """Note an event; see `Keeper`."""
        self._notes.append((kind, message))

    def mended(self, message: str) -> None:
        """Note what was replaced; see `Keeper`."""
        self.note("recovered", message)

    def failed(self, message: str) -> None:
        """Count a loss; see `Keeper`."""
        self._failures += 1
        if self._failures > self._most:
            raise EarlError(
                f"{message}; this is failure {self._failures} of this run and placement.max_recoveries is "
                f"{self._most}: see to the machines, then continue with --resume"
            )
