"""All the numbers of a run in one value, read while the run goes on and read again where there is more."""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from earl.runs.store import Store
from earl.runs.tables import Event, RecordedMatch, Series

BEGINNINGS = ("start", "resume")
"""Kinds of the events after which steps are done again: what was read of them no longer holds."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a run's database holds by step; the tokens by turn and author are read apart."""

    metrics: Series = field(default_factory=dict)
    timings: Series = field(default_factory=dict)
    matches: list[RecordedMatch] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    last_step: int | None = None


def read(database: Path, before: Numbers | None = None) -> Numbers:
    """Read a run's database.

    Args:
        before: what was read of it earlier. Then only what came since is read, or everything when steps were dropped.

    Raises:
        EarlError: when it is missing, damaged, or from a newer earl.
    """
    with Store(database, read_only=True) as store:
        events, last = store.events(), store.last_step()
        since = 0 if before is None or _begun_anew(before, events, last) else before.last_step or 0
        known = before if before is not None and since else Numbers()
        return Numbers(
            _continued(known.metrics, store.metrics(since=since), since),
            _continued(known.timings, store.timings(since=since), since),
            store.matches(),
            events,
            last,
        )


def _begun_anew(before: Numbers, events: list[Event], last: int | None) -> bool:
    """Whether steps that were read may have been dropped since."""
    if (last or 0) < (before.last_step or 0) or events[: len(before.events)] != before.events:
        return True
    return any(event.kind in BEGINNINGS for event in events[len(before.events) :])


def _continued(known: Series, new: Series, since: int) -> Series:
    """What is known of the steps before `since`, and what was read from there on."""
    kept = {name: points[: bisect_left(points, since, key=itemgetter(0))] for name, points in known.items()}
    joined = {name: kept.get(name, []) + new.get(name, []) for name in sorted({*kept, *new})}
    return {name: points for name, points in joined.items() if points}
