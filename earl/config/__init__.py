"""The recipe: one tree of settings, each with one default and one owner. How it is read stands in recipe.py.

play.py: who plays where · learning.py: what learns, and how · places.py: where · course.py: the course of a run
"""

from earl.config.course import EvaluateConfig, RunConfig, TrackConfig
from earl.config.learning import AlgorithmConfig, LearnerConfig, ModelConfig, WarmStartConfig
from earl.config.places import PlacementConfig, SamplerConfig, SelectorConfig
from earl.config.play import AgentConfig, ContextConfig, EnvConfig, RolloutConfig
from earl.config.section import MOST, Section

__all__ = [
    "MOST",
    "AgentConfig",
    "AlgorithmConfig",
    "Config",
    "ContextConfig",
    "EnvConfig",
    "EvaluateConfig",
    "LearnerConfig",
    "ModelConfig",
    "PlacementConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplerConfig",
    "SelectorConfig",
    "TrackConfig",
    "WarmStartConfig",
]


class Config(Section):
    """A whole recipe."""

    env: EnvConfig
    agent: AgentConfig = AgentConfig()
    context: ContextConfig = ContextConfig()
    model: ModelConfig = ModelConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    rollout: RolloutConfig = RolloutConfig()
    sampler: SamplerConfig = SamplerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    run: RunConfig = RunConfig()
    track: TrackConfig = TrackConfig()
    placement: PlacementConfig = PlacementConfig()
    selector: SelectorConfig = SelectorConfig()

    @property
    def total_steps(self) -> int:
        """Steps of the whole run: warm start, then reinforcement learning."""
        return self.warm_start.steps + self.run.steps

    def course(self, step: int) -> float:
        """Which share of reinforcement learning is done before a step, 0 at its first and 1 at its last."""
        last = max(1, self.run.steps - 1)
        return min(1.0, max(0.0, (step - self.warm_start.steps - 1) / last))
