"""The recipe: one tree of settings, each with one default and one owner. How it is read stands in recipe.py.

play.py: who plays where · learning.py: what learns, and how · places.py: where · course.py: the course of a run
"""

from earl.config.course import EvaluateConfig, RunConfig, TrackConfig
from earl.config.learning import AlgorithmConfig, LearnerConfig, ModelConfig, WarmStartConfig
from earl.config.places import PlacementConfig, SamplerConfig
from earl.config.play import AgentConfig, ContextConfig, EnvConfig, RolloutConfig
from earl.config.section import Section

__all__ = [
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

    @property
    def total_steps(self) -> int:
        """Steps of the whole run: warm start, then reinforcement learning."""
        return self.warm_start.steps + self.run.steps
