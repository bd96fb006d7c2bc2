"""Formats match results as tables, as JSON and in one line."""

from collections.abc import Iterable, Sequence
from typing import Any

from earl.cli.text import one_line, print_table
from earl.matches import FRACTIONS, OUTCOMES, MatchResult, by_opponent, mean_over_seats, wilson

SEATS = ("first", "second")
PER_MOVE = ("forfeit", "turn_tokens", "optimal", "value_lost")
HOW = {
    **{"illegal": "illegal", "forfeit": "forfeit", "truncated": "truncated", "turn_tokens": "tokens/turn"},
    **{"optimal": "optimal moves", "value_lost": "value lost/move"},
}
"""Field of a result and its title."""


def as_objects(results: Iterable[MatchResult]) -> list[dict[str, Any]]:
    """One JSON object for each opponent; fractions are averaged over seats."""
    objects = []
    for seats in by_opponent(results).values():
        mean = mean_over_seats(seats)
        facts = {"env": mean.env, "opponent": mean.opponent or None, "exact": mean.exact}
        by_seat = {SEATS[result.seat]: _numbers(result) | _intervals(result) for result in seats}
        objects.append({**facts, **_numbers(mean), "by_seat": by_seat})
    return objects


def _numbers(result: MatchResult) -> dict[str, Any]:
    fractions = {name: getattr(result, name) for name in FRACTIONS}
    faults = {"faults": len(result.faults)} if result.faults else {}
    moves = {name: value for name in PER_MOVE if (value := getattr(result, name)) is not None}
    return {"episodes_or_leaves": result.episodes, **fractions, **faults, **moves}


def _intervals(result: MatchResult) -> dict[str, Any]:
    """Of samples: the interval of the wins, and the results of the games that differ, each with its interval."""
    if result.exact:
        return {}
    wins = {"win_interval": list(wilson(result.win * result.episodes, result.episodes))}
    if not result.distinct_games:
        return wins
    shares: dict[str, Any] = {"games": result.distinct_games}
    for name in OUTCOMES:
        shares[name], *shares[f"{name}_interval"] = result.share(name)
    return {**wins, "distinct": shares}


def print_matches(results: Sequence[MatchResult], imitated: Sequence[MatchResult] = ()) -> None:
    """Print what the games came to, with intervals, and how they were played; then, with an evaluation after imitation,
    what imitation gave beside what reinforcement learning made of it."""
    listed = [result for seats in by_opponent(results).values() for result in seats]
    task = all(not result.opponent for result in results)
    head, named = (("task",), ("win", "loss")) if task else (("opponent", "seat"), OUTCOMES)
    won = "solved" if task else "win"
    titles = (won, *named[1:])
    rows = [(*_who(r, task), *(_share(r, name) for name in named), r.measured) for r in listed]
    print_table((*head, *titles, "measured"), rows, right=titles)
    how = [(*_who(r, task), *(_cell(r, name) for name in HOW)) for r in listed]
    print_table((*head, *HOW.values()), how, right=HOW.values())
    before = {(result.opponent, result.seat): result for result in imitated}
    pairs = [(old, new) for new in listed if (old := before.get((new.opponent, new.seat)))]
    if pairs:
        titles = tuple(f"{what} after {stage}" for what in (won, "loss") for stage in ("imitation", "RL"))
        gains = [(*_who(pair[1], task), *(_share(r, name) for name in ("win", "loss") for r in pair)) for pair in pairs]
        print_table((*head, *titles), gains, right=titles)


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
