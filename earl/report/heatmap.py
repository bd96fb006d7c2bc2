"""The heat map of contexts: tokens of each turn at each step, by author. Pure functions."""

import math
from collections import defaultdict
from typing import Any

from earl.report.data import RunData
from earl.report.figures import Figure, finite, layout, plain
from earl.trajectory import KEPT_TURNS, Author

MAX_COLUMNS = 150
"""Maximum columns of the map; in a longer run a column holds several steps."""
Cell = tuple[int, int]
"""Column and turn, both from 0."""


def heat_figure(data: RunData, number: int = 0, named: bool = False) -> Figure:
    title = f"Context by turn{plain(f' ({data.name})') if named else ''}"
    told = (
        "Mean tokens that a turn added, over the episodes that had it, by step. A row that brightens to the right is a "
        "turn that grows."
    )
    steps = sorted({row.step for row in data.contexts})
    if not steps:
        return Figure(f"heat-{number}", title, told, None)
    width = math.ceil(len(steps) / MAX_COLUMNS)
    column_of = {step: place // width for place, step in enumerate(steps)}
    ends = steps[width - 1 :: width] + ([steps[-1]] if len(steps) % width else [])
    maps = _maps(data, column_of)
    turns = 1 + max(row.turn for row in data.contexts)
    choices = [name for name in maps if any(maps[name].values())]
    traces = [_trace(place, maps[name], ends, turns) for place, name in enumerate(choices)]
    if width > 1:
        told += f" Each column stands for {width} neighbouring steps."
    if turns == KEPT_TURNS:
        told += f" Turn {KEPT_TURNS} holds all later ones too."
    return Figure(f"heat-{number}", title, told, {"data": traces, "layout": _layout(data, turns)}, tuple(choices))


def _maps(data: RunData, column_of: dict[int, int]) -> dict[str, dict[Cell, float]]:
    """Mean tokens by map: all authors, and each author; also the number of episodes that had the turn."""
    episodes: dict[tuple[int, int], int] = {}
    tokens: defaultdict[str, defaultdict[Cell, int]] = defaultdict(lambda: defaultdict(int))
    for row in data.contexts:
        cell = column_of[row.step], row.turn
        episodes[row.step, row.turn] = max(row.episodes, episodes.get((row.step, row.turn), 0))
        tokens["all authors"][cell] += row.tokens
        tokens[_author(row.author)][cell] += row.tokens
    had: defaultdict[Cell, int] = defaultdict(int)
    steps_in: defaultdict[int, int] = defaultdict(int)
    for (step, turn), number in episodes.items():
        had[column_of[step], turn] += number
    for column in column_of.values():
        steps_in[column] += 1
    order = ["all authors", *(author.name.lower() for author in Author)]
    means = {name: {cell: total / max(1, had[cell]) for cell, total in tokens[name].items()} for name in order}
    return {**means, "episodes that had the turn": {cell: number / steps_in[cell[0]] for cell, number in had.items()}}


def _author(value: int) -> str:
    return Author(value).name.lower() if value in set(Author) else f"author {value}"


def _trace(choice: int, cells: dict[Cell, float], ends: list[int], turns: int) -> dict[str, Any]:
    grid = [[cells.get((column, turn), math.nan) for column in range(len(ends))] for turn in range(turns)]
    return {
        "type": "heatmap",
        "x": ends,
        "y": [turn + 1 for turn in range(turns)],
        "z": [finite(float(f"{value:.4g}") for value in row) for row in grid],
        "zmin": 0,
        "zmax": max(cells.values()),
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "outlinewidth": 0},
        "hovertemplate": "step %{x}, turn %{y}: %{z:,.1f}<extra></extra>",
        "meta": {"choice": choice},
        "visible": choice == 0,
    }


def _layout(data: RunData, turns: int) -> dict[str, Any]:
    drawn = layout([data], "turn", hovermode="closest", showlegend=False)
    drawn["margin"] = {**drawn["margin"], "t": 22}
    ticks = {"nticks": min(turns + 1, 12)} if turns > 12 else {"dtick": 1}
    drawn["yaxis"] = {**drawn["yaxis"], **ticks, "range": [0.5, turns + 0.5], "showgrid": False}
    return drawn
