"""A ledger that threads wait at: producers for room, consumers for whole groups.

Where it stands, with the driver or in a process of its own, nothing but numbers passes through it.
"""

from collections.abc import Callable, Sequence
from threading import Condition
from typing import TypeVar

from earl.dispatch.dock.handout import Handout
from earl.dispatch.dock.ledger import Ledger
from earl.dispatch.dock.store import Store
from earl.dispatch.spread import Numbers
from earl.errors import EarlError

Answer = TypeVar("Answer")


class DockFull(EarlError):
    """No room came free in time."""


class NothingReady(EarlError):
    """No group, or not enough of them, became ready in time."""


class Dock:
    """Every method may be called by any thread; see `Ledger` for what they do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changed = Condition()

    def open(self, size: int, seconds: float) -> Numbers:
        """The numbers of a new group's rows, once there is room for all of them.

        Raises:
            DockFull: when there is none after so long.
        """
        with self._changed:
            numbers = self._waited(lambda: self._ledger.open(size), lambda answer: answer is not None, seconds)
            if numbers is None:
                raise DockFull(
                    f"a producer waited {seconds:g} s for room for {size} rows: {self._ledger.free} of "
                    f"{self._ledger.capacity} are free; see why its consumers do not say done, or raise its capacity"
                )
            return numbers

    def begin(self, group: int, process: int) -> None:
        """A process makes a group."""
        self._tell(lambda: self._ledger.begin(group, process))

    def ready(self, numbers: Numbers, lengths: Numbers, process: int, columns: Sequence[str]) -> None:
        """Columns of some rows lie in the store of a process."""
        self._tell(lambda: self._ledger.ready(numbers, lengths, process, columns))

    def take(self, consumer: str, groups: int, seconds: float) -> Handout | None:
        """The next groups of a consumer, once there are enough; None when there is nothing left.

        Raises:
            NothingReady: when there are not enough after so long.
        """
        with self._changed:
            taken = self._waited(
                lambda: self._ledger.take(consumer, groups),
                lambda answer: answer is not None or self._ledger.finished(consumer),
                seconds,
            )
            if taken is None and not self._ledger.finished(consumer):
                whole, others = map(len, self._ledger.waiting(consumer))
                raise NothingReady(
                    f"{consumer!r} waited {seconds:g} s for {groups} whole groups: {whole} are ready, {others} lack "
                    f"rows or columns, {self._ledger.free} of {self._ledger.capacity} rows are free; "
                    "see what became of the producers, take fewer groups, or raise the capacity"
                )
            return taken

    def done(self, handout: Handout) -> None:
        """The consumer has what it took."""
        self._tell(lambda: self._ledger.done(handout))

    def back(self, handout: Handout) -> None:
        """The consumer did not get what it took."""
        self._tell(lambda: self._ledger.back(handout))

    def lost(self, process: int) -> Numbers:
        """What lay on a process, or was made there, is gone. Returns the groups to be made again, or to be given up."""
        return self._tell(lambda: self._ledger.lost(process))

    def give_up(self, group: int) -> None:
        """A group that will not be whole."""
        self._tell(lambda: self._ledger.give_up(group))

    def close(self) -> None:
        """No more groups are opened; those that wait for room are refused."""
        self._tell(self._ledger.close)

    def gone(self, numbers: Numbers) -> Numbers:
        """Of these rows those that nobody waits for any more."""
        with self._changed:
            return self._ledger.gone(numbers)

    def _waited(
        self, ask: Callable[[], Answer | None], enough: Callable[[Answer | None], bool], seconds: float
    ) -> Answer | None:
        """What `ask` says as soon as it is enough, else what it says at the end."""
        said: list[Answer | None] = [None]

        def settled() -> bool:
            said[0] = ask()
            return enough(said[0])

        if self._changed.wait_for(settled, seconds):
            self._changed.notify_all()  # who takes the last group ends the waiting of others
        return said[0]

    def _tell(self, change: Callable[[], Answer]) -> Answer:
        with self._changed:
            told = change()
            self._changed.notify_all()
            return told


def sweep(store: Store, dock: Dock) -> None:
    """Free what nobody waits for any more. A producer that does so whenever it opens a group keeps to the capacity."""
    store.free(dock.gone(store.numbers))
