"""Context lengths and token counts by author of one step's episodes (EARL, section 2).

turn      tokens of one round: the new prompt and the reply
window    the longest context of one reply of an episode, the reply included; token limits apply to it
episode   all tokens that an episode gathered over its turns
"""

from collections.abc import Sequence

import numpy as np

from earl.trajectory import KEPT_TURNS, Author, ContextTokens, Played, StopReason

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def context_metrics(trajectories: Sequence[Played]) -> dict[str, float]:
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
    causes = [cause(trajectory) for trajectory in trajectories]
    cut = {f"truncation/{name}": causes.count(name) / len(causes) for name in ("prompt", "reply", "turn")}
    return {**result, **_tokens(trajectories), **cut}


def window(trajectory: Played) -> int:
    """The longest context of one reply of an episode, the reply included. A last prompt without reply counts too."""
    longest = max((turn.end - turn.context_start for turn in trajectory.turns), default=trajectory.num_tokens)
    if cause(trajectory) == "prompt":
        longest = max(longest, trajectory.num_tokens - _last_start(trajectory))
    return longest


def cause(trajectory: Played) -> str | None:
    """The limit that cut an episode off: "prompt" left no space, the "reply" hit the context limit, or the limit of a
    "turn"; None if not cut off."""
    if trajectory.stop is StopReason.TRUNCATED_TURN:
        return "turn"
    if trajectory.stop is not StopReason.CONTEXT_LIMIT:
        return None
    return "reply" if trajectory.turns and trajectory.turns[-1].end == trajectory.num_tokens else "prompt"


def tokens_by_turn(trajectories: Sequence[Played], step: int) -> list[ContextTokens]:
    """Tokens of a step's episodes by turn and author. Tokens after the last reply form a turn of their own."""
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
    """Start of the last context. If the context ever restarted, the end of the last turn is used."""
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
