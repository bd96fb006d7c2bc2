"""How learning rate and entropy weight move over the steps of reinforcement learning."""

import math

from earl.config import AlgorithmConfig, LearnerConfig


def ramp(step: int, steps: int, start: float, final: float | None, decay_from: float, shape: str) -> float:
    """The value at `step` (1 to `steps`): `start` up to decay_from · steps, then on the way to `final`.

    Example:
        >>> [ramp(step, 4, 1.0, 0.0, 0.5, "linear") for step in (1, 2, 3, 4)]
        [1.0, 1.0, 0.5, 0.0]
    """
    begin = decay_from * steps
    if final is None or step <= begin:
        return start
    way = min(1.0, (step - begin) / (steps - begin))
    if shape == "cosine":
        way = (1 - math.cos(math.pi * way)) / 2
    return start + way * (final - start)


def learning_rate(config: LearnerConfig, step: int, steps: int) -> float:
    """The learning rate of an RL step, after a linear warm-up."""
    rate = ramp(step, steps, config.learning_rate, config.final_learning_rate, config.decay_from, config.schedule)
    return rate * min(1.0, step / config.warmup_steps) if config.warmup_steps else rate


def entropy_weight(algorithm: AlgorithmConfig, learner: LearnerConfig, step: int, steps: int) -> float:
    """The weight of the entropy bonus at an RL step."""
    return ramp(step, steps, algorithm.entropy, algorithm.final_entropy, learner.decay_from, learner.schedule)
