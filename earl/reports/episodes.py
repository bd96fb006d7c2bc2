"""The data of the trajectory browser: stored episodes as text by author, numbers by token, boards by turn.

choice ─▶ episode() for each ─▶ browser(): one JSON value ─▶ templates/browser.js draws it
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from earl.config import Config
from earl.envs import registry
from earl.envs.base import Board
from earl.errors import boundary
from earl.reports.data import Decoder, ReportedRun, StoredEpisode
from earl.reports.html import pack, shown, shown_line
from earl.reports.results import seat_name
from earl.trajectory import Author, Trajectory, Turn

AUTHORS = [author.name.lower() for author in Author]
_LEAST = 40

Draw = Callable[[str, str | None], Board | None]


@dataclass(frozen=True, slots=True)
class Room:
    """Limits on what is shown of one episode, over all its turns."""

    tokens: int = 1600
    """Tokens by the model, shown one by one."""
    characters: int = 16_000
    """Characters of the prompts."""
    turns: int = 40
    """Two thirds from the episode's start, one third from its end."""


EVERYTHING = Room(1 << 40, 1 << 40, 1 << 40)


def episode(stored: StoredEpisode, decoder: Decoder, draw: Draw, room: Room = Room()) -> dict[str, Any]:
    """The episode as JSON of bounded size, as templates/browser.js reads it."""
    played, task = stored.trajectory, stored.trajectory.task
    turns = played.turns
    head = len(turns) if len(turns) <= room.turns else room.turns * 2 // 3
    kept = [*range(head), *range(max(head, len(turns) - room.turns + head), len(turns))]
    reader = _Reader(stored, decoder, draw, room, max(1, len(kept)))
    return {
        "step": stored.step,
        "number": stored.number,
        "env": shown_line(task.env, 60),
        "opponent": shown_line(task.opponent, 60),
        "seat": seat_name(task.seat) if task.opponent else "",
        "outcome": _outcome(played),
        "stop": played.stop.value.replace("_", " "),
        "reward": _rounded(played.reward),
        "illegal": played.illegal,
        "tokens": len(played.tokens),
        "logprob": _mean_logprob(played),
        "error": shown(played.error, 500) if played.error else None,
        "length": len(turns),
        "head": head,
        "turns": [reader.turn(number) for number in kept],
        "rest": reader.texts(turns[-1].end if turns else 0, len(played.tokens)),
    }


def _outcome(played: Trajectory) -> str:
    if played.task.opponent:
        return played.outcome.value
    return "solved" if played.outcome.value == "win" else "not solved"


def _mean_logprob(played: Trajectory) -> float | None:
    sampled = played.logprobs[played.sampled]
    return _rounded(float(sampled.mean())) if len(sampled) else None


def _rounded(value: float) -> float | None:
    """Four significant digits; None for NaN and infinity, which JSON does not have."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class _Reader:
    stored: StoredEpisode
    decoder: Decoder
    draw: Draw
    room: Room
    turns: int

    @property
    def _played(self) -> Trajectory:
        return self.stored.trajectory

    def turn(self, number: int) -> dict[str, Any]:
        turn = self._played.turns[number]
        following = self._played.turns[number + 1 : number + 2]
        experience = self.stored.experience
        known = experience is not None and number < len(experience.advantages)
        return {
            "number": number + 1,
            "given": self.texts(turn.prompt_start, turn.action_start),
            "reply": self._reply(turn),
            "speaker": "tool" if self._by_tool(turn) else "environment",
            "call": bool(following) and self._by_tool(following[0]),
            "refused": turn.action is None and not turn.summary,
            "summary": turn.summary,
            "reward": _rounded(turn.reward),
            "context": turn.end - turn.context_start,
            "advantage": _rounded(float(experience.advantages[number])) if known and experience else None,
            "boards": self._boards(turn),
        }

    def texts(self, start: int, end: int) -> list[list[Any]]:
        """The tokens start … end as [author, text], one pair per run of one author."""
        runs = list(self._played.stretches(start, end))
        limit = max(_LEAST, self.room.characters // self.turns // max(1, len(runs)))
        return [[min(author, Author.ACTION), shown(self._text(first, last), limit)] for author, first, last in runs]

    def _text(self, start: int, end: int) -> str:
        return self.decoder.whole(self._played.tokens[start:end].tolist())

    def _by_tool(self, turn: Turn) -> bool:
        return bool((self._played.authors[turn.prompt_start : turn.action_start] == Author.TOOL).any())

    def _boards(self, turn: Turn) -> list[Any]:
        """The boards before and after the turn's action; empty for environments without boards."""
        given = self._played.stretches(turn.prompt_start, turn.action_start)
        spans = [(first, last) for author, first, last in given if author == Author.ENVIRONMENT]
        if not spans or spans[-1][1] - spans[-1][0] > self.room.characters:
            return []
        observation = self._text(*spans[-1])
        before = self.draw(observation, None)
        if before is None:
            return []
        after = self.draw(observation, turn.action) if turn.action is not None else None
        return [_board(before), *([_board(after)] if after else [])]

    def _reply(self, turn: Turn) -> dict[str, Any]:
        """The reply in columns: texts, authors, log-probs and importance ratios; `marks` are the indices of special
        tokens. If some tokens are omitted, `cut` is [index among the kept, number omitted].
        """
        start, end, limit = turn.action_start, turn.end, max(_LEAST, self.room.tokens // self.turns)
        head, cut = start + limit * 2 // 3, {}
        pieces = self._pieces(start, end if end - start <= limit else head)
        if end - start > limit:
            cut = {"cut": [len(pieces), end - start - limit]}
            pieces += self._pieces(end - limit + head - start, end)
        logprobs, tokens = self._played.logprobs, self._played.tokens
        return {
            "texts": [shown(text, 200) for text, _, _ in pieces],
            "authors": [min(int(self._played.authors[first]), Author.ACTION) for _, first, _ in pieces],
            "logprobs": [_rounded(float(logprobs[first:last].sum())) for _, first, last in pieces],
            "ratios": [self._ratio(first, last) for _, first, last in pieces] if self.stored.experience else [],
            "marks": [n for n, (_, first, _) in enumerate(pieces) if self.decoder.is_control(int(tokens[first]))],
            **cut,
        }

    def _pieces(self, start: int, end: int) -> list[tuple[str, int, int]]:
        pieces = self.decoder.pieces(self._played.tokens[start:end].tolist())
        return [(text, start + first, start + last) for text, first, last in pieces]

    def _ratio(self, first: int, last: int) -> float | None:
        """Importance ratio of the update; None if the tokens were not learned from."""
        experience = self.stored.experience
        if experience is None or not experience.mask[first:last].all():
            return None
        change = float((experience.logprobs[first:last] - self._played.logprobs[first:last]).sum())
        return _rounded(math.exp(min(max(change, -50.0), 50.0)))


def _board(board: Board) -> dict[str, Any]:
    return {"cells": [[shown_line(cell, 12) for cell in row] for row in board.cells], "marked": board.marked}


BUDGET = 2_600_000
"""Maximum characters of the packed episodes; beyond it each episode is shown with less detail."""


def browser(runs: Sequence[ReportedRun]) -> str:
    if not any(run.episodes for run in runs):
        return ""
    room = Room()
    names = [shown_line(run.name, 60) for run in runs]
    while True:
        episodes = [{"run": place, **found} for place, run in enumerate(runs) for found in _episodes(run, room)]
        packed = pack({"authors": AUTHORS, "runs": names, "episodes": episodes})
        if len(packed) <= BUDGET or room.tokens <= 1:
            return packed
        room = Room(room.tokens // 2, room.characters // 2)


def _episodes(run: ReportedRun, room: Room) -> list[dict[str, Any]]:
    if run.episodes is None:
        return []
    decoder = Decoder(run.model.tokenizer if run.model else None)
    draws = {name: drawer(run.config, name) for name in {one.trajectory.task.env for one in run.episodes.chosen}}
    return [episode(stored, decoder, draws[stored.trajectory.task.env], room) for stored in run.episodes.chosen]


def drawer(config: Config | None, env: str) -> Draw:
    """The draw function of a run's environment; it draws nothing if the environment is missing or fails."""
    own = config.env.each.get(env) if config else None
    with boundary() as fault:
        made = registry.make(env, **(own.options if own else {}))
    if fault.message:
        return lambda observation, action: None  # noqa: ARG005

    @lru_cache(maxsize=4096)
    def draw(observation: str, action: str | None) -> Board | None:
        with boundary():
            return made.draw(observation, action)
        return None

    return draw
