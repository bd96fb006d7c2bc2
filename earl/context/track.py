"""How long contexts are, and who wrote them: numbers of one step's episodes (EARL, section 2).

turn      tokens of one round: what was asked and what was replied
window    the longest context that one reply of an episode saw, the reply included; token limits apply to it
episode   all tokens that an episode gathered over its turns
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from earl.growth import KEPT_TURNS, ContextTokens
from earl.trajectory import Author, StopReason, Trajectory

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def context_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Lengths by level as means and quantiles, tokens by author, truncation by cause."""
    lengths = {
        "turn": [turn.end - turn.prompt_start for trajectory in trajectories for turn in trajectory.turns] or [0],
        "window": [window(trajectory) for trajectory in trajectories],
        "episode": [len(trajectory.tokens) for trajectory in trajectories],
    }
    result: dict[str, float] = {}
    for level, values in lengths.items():
        result[f"context/{level}/mean"] = float(np.mean(values))
        quantiles = np.quantile(values, list(QUANTILES.values()))
        result |= {f"context/{level}/{name}": float(value) for name, value in zip(QUANTILES, quantiles, strict=True)}
    return {**result, **_tokens(trajectories), **truncation(trajectories)}


def window(trajectory: Trajectory) -> int:
    """The longest context that one reply of an episode saw, the reply included.

    Where a prompt left no room for a reply, it counts itself: the episode ended because of it.
    """
    longest = max((turn.end - turn.context_start for turn in trajectory.turns), default=len(trajectory.tokens))
    if cause(trajectory) == "prompt":
        longest = max(longest, len(trajectory.tokens) - _last_start(trajectory))
    return longest


def cause(trajectory: Trajectory) -> str | None:
    """Which limit cut an episode off: "prompt" left no room, the "reply" hit the context limit, or the limit of a
    "turn". None: none did.
    """
    if trajectory.stop is StopReason.TRUNCATED_TURN:
        return "turn"
    if trajectory.stop is not StopReason.CONTEXT_LIMIT:
        return None
    return "reply" if trajectory.turns and trajectory.turns[-1].end == len(trajectory.tokens) else "prompt"


def truncation(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Share of the episodes that were cut off, by cause."""
    causes = [cause(trajectory) for trajectory in trajectories]
    return {f"truncation/{name}": causes.count(name) / len(causes) for name in ("prompt", "reply", "turn")}


def tokens_by_turn(trajectories: Sequence[Trajectory], step: int) -> list[ContextTokens]:
    """Tokens of a step's episodes by turn and author. What came after the last reply belongs to a turn of its own.

    Example:
        one episode, 2 turns: 4 given + 2 sampled, 3 given + 2 sampled
        -> (turn 0: 4 by the environment and the template, 2 by the policy), (turn 1: 3, 2)
    """
    spans = [_spans(trajectory) for trajectory in trajectories]
    lengths = np.fromiter(chain.from_iterable(spans), np.int64)
    numbers = np.fromiter(chain.from_iterable(range(len(span)) for span in spans), np.int64).clip(max=KEPT_TURNS - 1)
    authors = np.concatenate([trajectory.authors for trajectory in trajectories]).astype(np.int64)
    counts = np.bincount(np.repeat(numbers, lengths) * len(Author) + authors, minlength=KEPT_TURNS * len(Author))
    had = np.bincount(
        [min(number, KEPT_TURNS - 1) for span in spans for number in {*range(min(len(span), KEPT_TURNS))}]
    )
    places = ((int(cell) // len(Author), int(cell) % len(Author), int(counts[cell])) for cell in np.flatnonzero(counts))
    return [ContextTokens(step, turn, author, tokens, int(had[turn])) for turn, author, tokens in places]


def _spans(trajectory: Trajectory) -> list[int]:
    """Tokens from the end of each turn to the end of the next."""
    ends = [turn.end for turn in trajectory.turns]
    if not ends or ends[-1] < len(trajectory.tokens):
        ends.append(len(trajectory.tokens))
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _last_start(trajectory: Trajectory) -> int:
    """Where the last context begins, as far as a trajectory tells: a history policy may have begun a new one."""
    if not trajectory.turns:
        return 0
    last = trajectory.turns[-1]
    restarted = any(turn.context_start for turn in trajectory.turns)
    return last.end if restarted else last.context_start


def _tokens(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counts: NDArray[np.int64] = np.bincount(
        np.concatenate([trajectory.authors for trajectory in trajectories]), minlength=len(Author)
    )
    by_author = {f"tokens/{author.name.lower()}": float(counts[author]) for author in Author}
    sampled = np.count_nonzero(np.concatenate([trajectory.sampled for trajectory in trajectories]))
    return {"tokens": float(counts.sum()), "tokens/sampled": float(sampled), **by_author}
