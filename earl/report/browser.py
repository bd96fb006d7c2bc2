"""The trajectory browser's data: the chosen episodes of every run, small enough for one page."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from earl.envs import registry
from earl.envs.base import Board
from earl.errors import boundary
from earl.report.data import RunData
from earl.report.decoding import Decoder
from earl.report.episodes import AUTHORS, Draw, Room, episode
from earl.report.packing import pack
from earl.report.text import shown_line

BUDGET = 2_600_000
"""Characters that the packed episodes may take. Where they take more, less of each is shown."""


def browser(runs: Sequence[RunData]) -> str:
    """The episodes of all runs, packed; empty when there are none."""
    if not any(run.episodes for run in runs):
        return ""
    room = Room()
    packed = pack(_document(runs, room))
    while len(packed) > BUDGET and room.tokens > 1:
        room = room.half()
        packed = pack(_document(runs, room))
    return packed


def _document(runs: Sequence[RunData], room: Room) -> dict[str, Any]:
    episodes = [
        {"run": place, **found} for place, run in enumerate(runs) if run.episodes for found in _episodes(run, room)
    ]
    return {"authors": AUTHORS, "runs": [shown_line(run.name, 60) for run in runs], "episodes": episodes}


def _episodes(run: RunData, room: Room) -> list[dict[str, Any]]:
    assert run.episodes is not None
    decoder = Decoder(run.model.tokenizer if run.model else None)
    options = run.config.env.options if run.config else {}
    names = {stored.trajectory.task.env for stored in run.episodes.chosen}
    draws = {name: _drawer(name, options) for name in names}
    return [episode(stored, decoder, draws[stored.trajectory.task.env], room) for stored in run.episodes.chosen]


def _drawer(env: str, options: dict[str, bool | int | float | str]) -> Draw:
    """How an environment draws what it said. Who has no such environment, or a faulty one, sees the text alone."""
    with boundary() as fault:
        made = registry.make(env, **options)
    if fault.message:
        return lambda observation, action: None  # noqa: ARG005

    @lru_cache(maxsize=4096)
    def draw(observation: str, action: str | None) -> Board | None:
        with boundary():
            return made.draw(observation, action)
        return None

    return draw
