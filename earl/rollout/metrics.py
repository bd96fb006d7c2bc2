"""Metrics of a step's episodes, and measures of a match."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from earl.context.track import context_metrics
from earl.trajectory import FAULTS, FORFEITS, Outcome, PlayedGroups, StopReason, ToolCall, Trajectory


def episode_metrics(groups: PlayedGroups) -> dict[str, float]:
    """Returns, stop reasons and context lengths of a step."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    replies = sum(len(trajectory.turns) for trajectory in trajectories)
    stops = {f"stop/{stop}": _share(t.stop is stop for t in trajectories) for stop in StopReason}
    by_env: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        by_env[trajectory.task.env].append(trajectory.reward)
    rewards = {f"reward/{env}": float(np.mean(own)) for env, own in by_env.items()} if len(by_env) > 1 else {}
    return {
        "episodes": float(len(trajectories)),
        "reward": float(np.mean([trajectory.reward for trajectory in trajectories])),
        "won": _share(trajectory.outcome is Outcome.WIN for trajectory in trajectories),
        "turns": replies / len(trajectories),
        "illegal_replies": sum(t.illegal for t in trajectories) / max(1, replies),
        "zero_variance_groups": _share(len({t.reward for t in group.trajectories}) == 1 for group in groups),
        **rewards,
        **stops,
        **tool_metrics(call for trajectory in trajectories for call in trajectory.tools),
        **context_metrics(trajectories),
    }


def tool_metrics(calls: Iterable[ToolCall]) -> dict[str, float]:
    """By tool: the calls and what became of them, counted, and the mean seconds that one waited and ran."""
    by_tool: dict[str, list[ToolCall]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    metrics: dict[str, float] = {}
    for tool, own in by_tool.items():
        counts = Counter(["calls"] * len(own) + [call.fault for call in own if call.fault])
        metrics |= {f"tool/{tool}/{name}": float(number) for name, number in counts.items()}
        metrics[f"tool/{tool}/queue_seconds"] = fmean(call.queue_seconds for call in own)
        metrics[f"tool/{tool}/run_seconds"] = fmean(call.run_seconds for call in own)
    return metrics


def staleness_metrics(groups: PlayedGroups, version: int) -> dict[str, float]:
    """How many versions the weights that sampled the tokens lie behind `version`, which is trained on them."""
    sampled = [t for group in groups for t in group.trajectories if t.num_sampled]
    count = sum(trajectory.num_sampled for trajectory in sampled)
    total = version * count - sum(trajectory.version_sum for trajectory in sampled)
    oldest = min(trajectory.oldest for trajectory in sampled)
    return {"staleness/mean": total / count, "staleness/max": float(version - oldest)}


def match_measures(played: Sequence[Trajectory], weights: Sequence[float]) -> dict[str, Any]:
    """Fields of a `MatchResult`; `weights` are the episodes' probabilities, or all equal. Wins, draws and losses add up
    to 1; a forfeit or truncation is a loss, and is counted separately as well."""
    total = sum(weights)
    shares = dict.fromkeys(("win", "draw", "loss", "illegal", "truncated"), 0.0)
    for trajectory, weight in zip(played, weights, strict=True):
        shares[trajectory.outcome.value] += weight
        shares["illegal"] += weight * (trajectory.illegal > 0)
        shares["truncated"] += weight * trajectory.truncated
    shares = {name: weight / total for name, weight in shares.items()}  # divided last: a full share is exactly 1
    weighted = [*zip(played, weights, strict=True)]
    forfeit = sum(weight for t, weight in weighted if t.stop in FORFEITS) / total
    replies = sum(weight * len(t.turns) for t, weight in weighted)
    turn_tokens = sum(weight * t.num_sampled for t, weight in weighted) / replies if replies else None
    faults = tuple(str(t.error) for t in played if t.stop in FAULTS)
    return {**shares, "faults": faults, "forfeit": forfeit, "turn_tokens": turn_tokens}


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean([*flags]))
