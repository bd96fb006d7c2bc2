"""Rollout ahead of the learner, as a schedule: which groups may start, which are in play, which have ended. Pure.

    weights of version v ─▶ advance: the groups of the steps up to v + 1 + max_staleness start
                            ended:   … in whatever order they come to an end
    step s               ─▶ take:    exactly the groups that were drawn for s

The learner updates in step s from version s - 1 to version s. The groups of s start as soon as version
s - 1 - max_staleness is there, so no token of theirs is older than that: the bound needs no further rule. Groups are
learned in the order in which they start. Where all start as early as they may, the bound leaves no other order: each
is needed in the very step that it is learned in, and whoever takes a quick one early must later either wait for two
slow ones at once or learn from one that is too old.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Played = TypeVar("Played")


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A group before it is played: the `number`-th of those that were drawn for `step`."""

    step: int
    number: int


class Ahead(Generic[Played]):
    """The groups that have started and are not learned yet: at most (max_staleness + 1) × prompts.

    Args:
        first: the first step that learns from groups; the weights of the step before are the oldest that play.
        last: the last such step.
        prompts: groups of one step.
        max_staleness: versions that rollout may run ahead of the learner; 0: they take turns.

    Example:
        ahead = Ahead(first=1, last=10, prompts=2, max_staleness=1)
        ahead.advance(version=0, limit=120)   # the four tickets of steps 1 and 2
    """

    def __init__(self, first: int, last: int, prompts: int, max_staleness: int) -> None:
        self._first, self._last = first, last
        self._prompts, self._max_staleness = prompts, max_staleness
        self._limits: dict[int, int] = {}
        self._playing: set[Ticket] = set()
        self._ended: dict[Ticket, Played] = {}
        self._taken = first - 1

    def advance(self, version: int, limit: int) -> list[Ticket]:
        """The groups that start now, in order.

        Args:
            version: of the weights that are there now.
            limit: tokens of the longest context, for the steps that start with this.
        """
        if version < self._first - 1:
            return []
        through = min(self._last, version + 1 + self._max_staleness)
        starting = []
        for step in range(max(self._taken, version) + 1, through + 1):
            self._limits.setdefault(step, limit)
            tickets = [Ticket(step, number) for number in range(self._prompts)]
            starting += [t for t in tickets if t not in self._ended and t not in self._playing]
        self._playing.update(starting)
        return starting

    def end(self, ticket: Ticket, played: Played) -> None:
        """A group in play has come to its end."""
        self._playing.remove(ticket)
        self._ended[ticket] = played

    def again(self, tickets: Iterable[Ticket]) -> None:
        """Groups that had ended and were lost are in play once more."""
        for ticket in tickets:
            del self._ended[ticket]
            self._playing.add(ticket)

    def take(self, step: int) -> list[Played]:
        """The groups of the step, in order, once none of them is in play. The next step is taken after it."""
        assert not self.playing(step), "groups of the step are still in play"
        self._taken = step
        del self._limits[step]
        return [self._ended.pop(Ticket(step, number)) for number in range(self._prompts)]

    def playing(self, step: int) -> list[Ticket]:
        """The step's groups that have not ended, in order."""
        return sorted(ticket for ticket in self._playing if ticket.step == step)

    def limit_of(self, step: int) -> int:
        """The context limit that the groups of a step are played under, also where they have to start again."""
        return self._limits[step]

    @property
    def limits(self) -> Mapping[int, int]:
        """The context limit of every step that has started and is not learned."""
        return self._limits

    @property
    def ended(self) -> Mapping[Ticket, Played]:
        """The groups that wait to be learned from."""
        return self._ended

    def restore(self, limits: Mapping[int, int], ended: Mapping[Ticket, Played]) -> None:
        """Go on, or back, to where `limits` and `ended` were read.

        What was in play then starts again with the next `advance`, which says where that was; all else is forgotten.
        """
        self._limits, self._ended, self._playing = dict(limits), dict(ended), set()
        self._taken = self._first - 1
