"""How long contexts are, and who wrote them: numbers of one step's episodes (EARL, section 2).

turn      tokens of one round: what was asked and what was replied
window    the longest context that one reply of an episode saw, the reply included; token limits apply to it
episode   all tokens that an episode gathered over its turns
"""

from collections.abc import Sequence

import numpy as np

from earl.group import Played
from earl.trajectory import KEPT_TURNS, Author, ContextTokens, StopReason

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def context_metrics(trajectories: Sequence[Played]) -> dict[str, float]:
    """Lengths by level as means and quantiles, tokens by author, truncation by cause."""
    lengths = {
        "turn": [turn.end - turn.prompt_start for trajectory in trajectories for turn in trajectory.turns] or [0],
        "window": [window(trajectory) for trajectory in trajectories],
        "episode": [trajectory.num_tokens for trajectory in trajectories],
    }
    result: dict[str, float] = {}
    for level, values in lengths.items():
        result[f"context/{level}/mean"] = float(np.mean(values))
        quantiles = np.quantile(values, list(QUANTILES.values()))
        result |= {f"context/{level}/{name}": float(value) for name, value in zip(QUANTILES, quantiles, strict=True)}
    return {**result, **_tokens(trajectories), **truncation(trajectories)}


def window(trajectory: Played) -> int:
    """The longest context that one reply of an episode saw, the reply included.

    Where a prompt left no room for a reply, it counts itself: the episode ended because of it.
    """
    longest = max((turn.end - turn.context_start for turn in trajectory.turns), default=trajectory.num_tokens)
    if cause(trajectory) == "prompt":
        longest = max(longest, trajectory.num_tokens - _last_start(trajectory))
    return longest


def cause(trajectory: Played) -> str | None:
    """Which limit cut an episode off: "prompt" left no room, the "reply" hit the context limit, or the limit of a
    "turn". None: none did.
    """
    if trajectory.stop is StopReason.TRUNCATED_TURN:
        return "turn"
    if trajectory.stop is not StopReason.CONTEXT_LIMIT:
        return None
    return "reply" if trajectory.turns and trajectory.turns[-1].end == trajectory.num_tokens else "prompt"


def truncation(trajectories: Sequence[Played]) -> dict[str, float]:
    """Share of the episodes that were cut off, by cause."""
    causes = [cause(trajectory) for trajectory in trajectories]
    return {f"truncation/{name}": causes.count(name) / len(causes) for name in ("prompt", "reply", "turn")}


def tokens_by_turn(trajectories: Sequence[Played], step: int) -> list[ContextTokens]:
    """Tokens of a step's episodes by turn and author. What came after the last reply belongs to a turn of its own.

    Example:
        one episode, 2 turns: 4 given + 2 sampled, 3 given + 2 sampled
        -> (turn 0: 4 by the environment and the template, 2 by the policy), (turn 1: 3, 2)
    """
    counts = np.zeros((KEPT_TURNS, len(Author)), np.int64)
    had = np.zeros(KEPT_TURNS, np.int64)
    for tokens in (trajectory.author_tokens for trajectory in trajectories):
        np.add.at(counts, np.arange(len(tokens)).clip(max=KEPT_TURNS - 1), tokens)
        had[: len(tokens)] += 1
    return [
        ContextTokens(step, int(turn), int(author), int(counts[turn, author]), int(had[turn]))
        for turn, author in np.argwhere(counts)
    ]


def _last_start(trajectory: Played) -> int:
    """Where the last context begins, as far as a trajectory tells: a history policy may have begun a new one."""
    if not trajectory.turns:
        return 0
    last = trajectory.turns[-1]
    restarted = any(turn.context_start for turn in trajectory.turns)
    return last.end if restarted else last.context_start


def _tokens(trajectories: Sequence[Played]) -> dict[str, float]:
    counts = np.sum([trajectory.author_tokens.sum(axis=0) for trajectory in trajectories], axis=0)
    by_author = {f"tokens/{author.name.lower()}": float(counts[author]) for author in Author}
    sampled = sum(trajectory.num_sampled for trajectory in trajectories)
    return {"tokens": float(counts.sum()), "tokens/sampled": float(sampled), **by_author}
