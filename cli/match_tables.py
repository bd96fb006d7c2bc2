"""Formats match results as a table, as JSON and in one line."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from earl.cli.text import one_line, table
from earl.matches import FRACTIONS, OUTCOMES, MatchResult, by_opponent, mean_over_seats, wilson

if TYPE_CHECKING:
    from rich.table import Table


SEATS = ("first", "second")
PER_MOVE = ("forfeit", "turn_tokens", "optimal", "value_lost")
HOW = {
    **{"illegal": "illegal", "forfeit": "forfeit", "truncated": "truncated", "turn_tokens": "tokens/turn"},
    **{"optimal": "optimal moves", "value_lost": "value lost/move"},
}
"""Field of a result and its title."""


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
            if result.distinct_games:
                by_seat[SEATS[result.seat]]["distinct"] = _distinct(result)
    facts = {"env": mean.env, "opponent": mean.opponent or None, "exact": mean.exact}
    return {**facts, **_numbers(mean), "by_seat": by_seat}


def _numbers(result: MatchResult) -> dict[str, Any]:
    fractions = {name: getattr(result, name) for name in FRACTIONS}
    faults = {"faults": len(result.faults)} if result.faults else {}
    moves = {name: value for name in PER_MOVE if (value := getattr(result, name)) is not None}
    return {"episodes_or_leaves": result.episodes, **fractions, **faults, **moves}


def _distinct(result: MatchResult) -> dict[str, Any]:
    """The results of the games that differ, each with its interval."""
    shares: dict[str, Any] = {"games": result.distinct_games}
    for name in OUTCOMES:
        shares[name], *shares[f"{name}_interval"] = result.share(name)
    return shares


def match_tables(results: Sequence[MatchResult]) -> list["Table"]:
    """What the games came to, with intervals; how they were played."""
    task, listed = _is_task(results), _listed(results)
    named = ("win", "loss") if task else OUTCOMES
    titles = ("solved", "loss") if task else named
    shares = [[_share(result, name) for name in named] for result in listed]
    rows = [(*_who(r, task), *cells, _measured(r, task)) for r, cells in zip(listed, shares, strict=True)]
    how = [(*_who(r, task), *(_cell(r, name) for name in HOW)) for r in listed]
    drawn = table((*_head(task), *titles, "measured"), rows, right=titles)
    return [drawn, table((*_head(task), *HOW.values()), how, HOW.values())]


def gain_tables(imitated: Sequence[MatchResult], results: Sequence[MatchResult]) -> list["Table"]:
    """What imitation gave beside what reinforcement learning made of it; none without an evaluation after imitation."""
    task, before = _is_task(results), {(result.opponent, result.seat): result for result in imitated}
    pairs = [(old, new) for new in _listed(results) if (old := before.get((new.opponent, new.seat)))]
    won = "solved" if task else "win"
    titles = [f"{what} after {stage}" for what in (won, "loss") for stage in ("imitation", "RL")]
    rows = [(*_who(pair[1], task), *(_share(one, name) for name in ("win", "loss") for one in pair)) for pair in pairs]
    return [table((*_head(task), *titles), rows, right=titles)] if pairs else []


def _is_task(results: Sequence[MatchResult]) -> bool:
    return all(not result.opponent for result in results)


def _listed(results: Sequence[MatchResult]) -> list[MatchResult]:
    return [result for seats in by_opponent(results).values() for result in seats]


def _head(task: bool) -> tuple[str, ...]:
    return ("task",) if task else ("opponent", "seat")


def _who(result: MatchResult, task: bool) -> tuple[str, ...]:
    return (one_line(result.env),) if task else (one_line(result.opponent), SEATS[result.seat])


def _share(result: MatchResult, name: str) -> str:
    value, low, high = result.share(name)
    return f"{value:.1%}" if result.exact else f"{value:.1%} [{low * 100:.1f}, {high * 100:.1f}]"


def _cell(result: MatchResult, name: str) -> str:
    value: float | None = getattr(result, name)
    if value is None:
        return "-"
    return f"{value:.2f}" if name in ("turn_tokens", "value_lost") else f"{value:.1%}"


def _measured(result: MatchResult, task: bool) -> str:
    if result.exact:
        return f"exact, {result.episodes:,} {'leaf' if result.episodes == 1 else 'leaves'}"
    kind = "held-out tasks" if task else "games"
    alike = result.distinct_games not in (0, result.episodes)
    return (
        f"{result.distinct_games:,} distinct of {result.episodes:,} {kind}" if alike else f"{result.episodes:,} {kind}"
    )


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
