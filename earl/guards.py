"""What a run's numbers say is wrong with it, each in one line with a cure: pure functions of a step's metrics, and of
those of the last steps. `earl.step` logs them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from earl.algorithms.registry import algorithm_of
from earl.config import Config
from earl.trajectory import TRUNCATING

IDLE = "idle"
"""The kind of event that says why a step could teach nothing."""


def idleness(config: Config, metrics: Mapping[str, float]) -> str:
    """Why the episodes of a step taught nothing, with the cure; empty: they did."""
    agent, reward = config.agent, f"{metrics['reward']:.4g}"
    new = config.model.path is None and not config.warm_start.steps
    if metrics["illegal_replies"] == 1:
        place = f"agent.parser = {agent.parser!r}, agent.max_turn_tokens = {agent.max_turn_tokens}"
        return (
            f"not one reply was legal in {config.env.name}: the model does not know what an action looks like. See "
            f"`earl replay`, then tell it the rules (agent.instructions), find the action in its reply ({place}), or "
            "begin with imitation (warm_start.steps)"
        )
    if sum(metrics[f"stop/{stop}"] for stop in TRUNCATING) == 1:
        return (
            "every episode was cut off before its end: raise context.limit, agent.max_turn_tokens = "
            f"{agent.max_turn_tokens} or agent.max_turns, whichever `earl replay` shows to be reached"
            + "; a new model that has imitated nothing writes at random: give the environment a random_action, or name "
            "chats in warm_start.data, and set warm_start.steps" * new
        )
    if metrics["zero_variance_groups"] == 1 and metrics["won"] < 1 and _needs_groups(config):
        cure = "make the task easier or harder by opponents or options of [env], or set algorithm.name to 'ppo'"
        return f"within every group all episodes earned the same ({reward} on average), every advantage is 0: {cure}"
    if metrics.get("grad_norm") == 0:
        return (
            f"the gradient is 0 (learner.learning_rate = {config.learner.learning_rate:g}, reward {reward}): no token "
            "that was learned from had an advantage, or learner.lora_rank leaves nothing to train"
        )
    return ""


def _needs_groups(config: Config) -> bool:
    return algorithm_of(config).needs_groups


GUARD = "guard"
"""The kind of event that says what the last steps show."""
WATCHED = (
    *("reward", "won", "illegal_replies", "zero_variance_groups"),
    *("clip_fraction", "entropy", "context/episode/mean"),
)
WINDOW, PART = 20, 5
"""Steps that are looked back at; the first and the last of them that are averaged and compared."""
SOLVED = 0.95
"""Share of the episodes that are won, above which a policy that no longer explores is no fault."""
REWARDS = 100.0
"""A larger mean reward is out of the range that losses, clipping of gradients and value heads are made for."""

History = Sequence[Mapping[str, float]]


def append_numbers(history: History, metrics: Mapping[str, float]) -> tuple[dict[str, float], ...]:
    """The watched numbers of the last steps, the newest last."""
    kept = {name: float(metrics[name]) for name in WATCHED if name in metrics}
    return (*map(dict, history[-WINDOW + 1 :]), kept)


def warnings_of(config: Config, history: History) -> dict[str, str]:
    """By guard, what a user should know and do; empty: all is well. history: `append_numbers`."""
    reward = [step["reward"] for step in history]
    if not math.isfinite(reward[-1]) or abs(reward[-1]) > REWARDS:
        fault = f"the mean reward is {reward[-1]:.4g}, outside of -{REWARDS:g} to {REWARDS:g}"
        return {"reward": f"{fault}: scale the environment's rewards, so that an episode earns about 1"}
    if len(history) < WINDOW:
        return {}
    (earned, earns), means = _ends(history, "reward"), {name: _ends(history, name) for name in WATCHED}
    illegal, flat, clipped = (means[name] for name in ("illegal_replies", "zero_variance_groups", "clip_fraction"))
    entropy, length = means["entropy"], means["context/episode/mean"]
    better = earns > earned + 1e-3 * max(1.0, abs(earned))
    fine = better or means["won"][1] > SOLVED
    warnings = {}
    if illegal[1] > 0.25 and illegal[1] >= illegal[0]:
        warnings["illegal"] = (
            f"{illegal[1]:.0%} of replies are illegal, no fewer than {WINDOW} steps ago: lower agent.forfeit_reward, "
            "lengthen the warm start (warm_start.steps), or tell the rules (agent.instructions)"
        )
    if flat[1] > 0.95 and _needs_groups(config) and not fine:
        warnings["variance"] = (
            f"in {flat[1]:.0%} of the groups of the last {PART} steps all episodes earned the same, and taught "
            "nothing: make the task harder or easier ([env]), or rollout.group_size larger"
        )
    if clipped[1] > 0.5:
        warnings["clip"] = (
            f"the bound of the ratio holds {clipped[1]:.0%} of the tokens, which are then not learned from: lower "
            "learner.learning_rate, learner.epochs or learner.minibatches, or raise algorithm.options.clip"
        )
    if entropy[1] < 0.1 * entropy[0] and not fine:
        warnings["entropy"] = (
            f"the entropy fell from {entropy[0]:.3g} to {entropy[1]:.3g} nats a token in {WINDOW} steps and the reward "
            "did not rise: lower learner.learning_rate or raise algorithm.entropy, from a checkpoint before it"
        )
    if length[1] > 1.5 * length[0] and not better:
        warnings["length"] = (
            f"episodes grew from {length[0]:.0f} to {length[1]:.0f} tokens in {WINDOW} steps and the reward did not "
            "rise: set context.length_penalty, or lower agent.max_turn_tokens"
        )
    return warnings


def _ends(history: History, name: str) -> tuple[float, float]:
    """The means of a number over the first and the last part of the window; 0 where it was never there."""
    known = [[step[name] for step in part if name in step] for part in (history[:PART], history[-PART:])]
    first, last = (float(np.mean(part)) if part else 0.0 for part in known)
    return first, last
