"""A stored episode turn by turn, as text: what the model was given, what it wrote, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from earl.envs import registry
from earl.errors import boundary
from earl.report.decoding import Decoder
from earl.trajectory import Author, Experience, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a reply, or the few that make one character."""

    text: str
    author: str
    logprob: float
    """The sampler's."""
    learned: bool | None
    """Whether it was learned from; None when that was not stored."""
    new_logprob: float | None
    """The learner's after the update; None where nothing was learned."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One turn; after the last reply there may be one that has no reply."""

    given: tuple[tuple[str, str], ...]
    """(author, text) of each stretch of the prompt that is new."""
    reply: tuple[Token, ...]
    action: str | None
    summary: bool
    reward: float | None
    """None where there is no reply."""
    advantage: float | None
    board: tuple[tuple[str, ...], ...] | None
    """What the environment draws after the action; None where it draws nothing."""


def scenes(
    trajectory: Trajectory, experience: Experience | None, decoder: Decoder, options: Mapping[str, Any]
) -> list[Scene]:
    """The turns of an episode.

    Args:
        options: those of the environment, which draws the boards.
    """
    found, reached = [], 0
    for number, turn in enumerate(trajectory.turns):
        given = _given(trajectory, reached, turn.action_start, decoder)
        learned = experience if experience is not None and len(experience.advantages) == len(trajectory.turns) else None
        found.append(
            Scene(
                given=given,
                reply=tuple(_reply(trajectory, turn, experience, decoder)),
                action=turn.action,
                summary=turn.summary,
                reward=turn.reward,
                advantage=float(learned.advantages[number]) if learned else None,
                board=_board(trajectory.task.env, options, given, turn.action),
            )
        )
        reached = turn.end
    rest = _given(trajectory, reached, len(trajectory.tokens), decoder)
    if rest:
        found.append(Scene(rest, (), None, False, None, None, None))
    return found


def _given(trajectory: Trajectory, start: int, end: int, decoder: Decoder) -> tuple[tuple[str, str], ...]:
    runs = groupby(range(max(0, start), end), key=lambda place: int(trajectory.authors[place]))
    stretches = [(author, list(places)) for author, places in runs]
    return tuple((name(author), decoder.whole(_ids(trajectory, run[0], run[-1] + 1))) for author, run in stretches)


def _reply(trajectory: Trajectory, turn: Turn, experience: Experience | None, decoder: Decoder) -> list[Token]:
    tokens = []
    fits = experience is not None and len(experience.mask) == len(trajectory.tokens)
    for text, first, last in decoder.pieces(_ids(trajectory, turn.action_start, turn.end)):
        span = slice(turn.action_start + first, turn.action_start + last)
        learned = bool(experience.mask[span].all()) if experience is not None and fits else None
        new = float(experience.logprobs[span].sum()) if experience is not None and learned else None
        author = name(int(trajectory.authors[span.start]))
        tokens.append(Token(text, author, float(trajectory.logprobs[span].sum()), learned, new))
    return tokens


def _ids(trajectory: Trajectory, start: int, end: int) -> Sequence[int]:
    ids: list[int] = trajectory.tokens[start:end].tolist()
    return ids


def _board(
    env: str, options: Mapping[str, Any], given: Sequence[tuple[str, str]], action: str | None
) -> tuple[tuple[str, ...], ...] | None:
    """Whatever is stored, a text that shows no board draws none."""
    observation = "".join(text for author, text in given if author == "environment")
    with boundary():
        drawn = registry.make(env, **options).draw(observation, action)
        return None if drawn is None else drawn.cells
    return None


def name(author: int) -> str:
    """The author of a token in a word."""
    return Author(author).name.lower() if author in list(Author) else f"author {author}"
