"""Formats match results as a table, as JSON and in one line."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from earl.cli.text import one_line, table
from earl.matches import FRACTIONS, MatchResult, by_opponent, mean_over_seats, wilson

if TYPE_CHECKING:
    from rich.table import Table


SEATS = ("first", "second")


def as_objects(results: Iterable[MatchResult]) -> list[dict[str, Any]]:
    """One JSON object for each opponent; fractions are averaged over seats."""
    return [_object(seats) for seats in by_opponent(results).values()]


def _object(seats: Sequence[MatchResult]) -> dict[str, Any]:
    mean = mean_over_seats(seats)
    by_seat = {SEATS[result.seat]: _numbers(result) for result in seats}
    for result in seats:
        if not result.exact:
            interval = wilson(result.win * result.episodes, result.episodes)
            by_seat[SEATS[result.seat]]["win_interval"] = list(interval)
    facts = {"env": mean.env, "opponent": mean.opponent or None, "exact": mean.exact}
    return {**facts, **_numbers(mean), "by_seat": by_seat}


def _numbers(result: MatchResult) -> dict[str, Any]:
    fractions = {name: getattr(result, name) for name in FRACTIONS}
    faults = {"faults": len(result.faults)} if result.faults else {}
    return {"episodes_or_leaves": result.episodes, **fractions, **faults}


def match_table(results: Sequence[MatchResult]) -> "Table":
    task = all(not result.opponent for result in results)
    named = [*(("solved",) if task else ("win", "draw")), "loss", "illegal", "truncated"]
    rows = []
    for result in (result for seats in by_opponent(results).values() for result in seats):
        player = (one_line(result.env),) if task else (one_line(result.opponent), SEATS[result.seat])
        shares = [_share(result, name) for name in FRACTIONS if not (task and name == "draw")]
        rows.append((*player, *shares, _measured(result, task)))
    return table((*(("task",) if task else ("opponent", "seat")), *named, "measured"), rows, right=named)


def _share(result: MatchResult, name: str) -> str:
    value: float = getattr(result, name)
    if result.exact or name in ("illegal", "truncated"):
        return f"{value:.1%}"
    low, high = wilson(value * result.episodes, result.episodes)
    return f"{value:.1%} [{low * 100:.1f}, {high * 100:.1f}]"


def _measured(result: MatchResult, task: bool) -> str:
    if result.exact:
        return f"exact, {result.episodes:,} {'leaf' if result.episodes == 1 else 'leaves'}"
    return f"{result.episodes:,} {'held-out tasks' if task else 'games'}"


def in_short(results: Sequence[MatchResult]) -> str:
    """One line of means over the seats: percent won/drawn/lost, such as "perfect 0/100/0, random 93/5/2"."""
    parts = []
    for seats in by_opponent(results).values():
        mean = mean_over_seats(seats)
        if mean.opponent:
            parts.append(f"{one_line(mean.opponent)} {mean.win * 100:.0f}/{mean.draw * 100:.0f}/{mean.loss * 100:.0f}")
        else:
            parts.append(f"solved {mean.win:.1%}")
    return ", ".join(parts)
