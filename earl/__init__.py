"""earl trains language-model agents by reinforcement learning on multi-turn games and tool tasks."""

__version__ = "0.1.0"
