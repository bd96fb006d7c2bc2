"""The course of a run, and what is told of it: [evaluate], [run], [track]."""

from pydantic import Field

from earl.config.section import Section


class EvaluateConfig(Section):
    """[evaluate]: how strength is measured during training, and which weights are kept."""

    every: int = Field(20, ge=1)
    """Steps between evaluations."""
    opponents: list[str] = Field([])
    """Who is met; empty in tool tasks."""
    exact: bool = False
    """Enumerate every reply of the opponents instead of playing `episodes` games."""
    episodes: int = Field(200, ge=1)
    """Games per opponent and seat, or held-out tasks."""
    final_episodes: int = Field(400, ge=1)
    """The same for the evaluation at the end."""


class RunConfig(Section):
    """[run]"""

    steps: int = Field(100, ge=0)
    """Steps of reinforcement learning, after those of the warm start."""
    seed: int = Field(0, ge=0, lt=1 << 63)
    """The same seed gives the same run, to the bit."""
    processes: int = Field(2, ge=1)
    """Processes that share the work of a step. A different number sums gradients in another order."""
    checkpoint_every: int = Field(20, ge=1)
    """Steps between checkpoints; the last two and the best are kept."""
    keep_trajectories_every: int = Field(10, ge=1)
    """Steps between those whose trajectories are stored."""


class TrackConfig(Section):
    """[track]: where the numbers go beside the run's own folder. Each tracker is an extra, such as earl[wandb]."""

    to: list[str] = Field([])
    """Any of tensorboard, wandb, mlflow and trackio. W&B stays offline unless WANDB_MODE says otherwise."""
    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Serve the latest numbers at http://127.0.0.1:PORT/metrics; 0: any free port. Absent: not served."""
