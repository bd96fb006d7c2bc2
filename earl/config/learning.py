"""What learns, and how: [model], [warm_start], [algorithm], [learner]."""

from typing import Literal

from pydantic import Field, model_validator

from earl.config.section import Section, Share


class ModelConfig(Section):
    """[model]: an existing model by `path`, or the shape of a small Qwen3 trained from scratch."""

    path: str | None = None
    """A folder, a hub id or a well-known name such as `Qwen2.5-7B`; absent: a new small model."""
    hidden: int = Field(64, ge=8, le=65536)
    """Width of the residual stream."""
    layers: int = Field(3, ge=1, le=256)
    """Transformer layers."""
    heads: int = Field(4, ge=1, le=1024)
    """Attention heads."""
    head_dim: int = Field(32, ge=8, le=1024)
    """Size of a head. 32 is the smallest that vLLM can serve on a CPU."""
    intermediate: int = Field(128, ge=8, le=1 << 20)
    """Width inside the feed-forward layers."""
    max_positions: int = Field(1024, ge=16)
    """Longest context that the model can see, in tokens."""

    @model_validator(mode="after")
    def _heads_turn(self) -> "ModelConfig":
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions need an even one, such as 32")
        return self


class WarmStartConfig(Section):
    """[warm_start]: imitation of a scripted teacher before reinforcement learning."""

    steps: int = Field(0, ge=0)
    """Steps of imitation; 0: none."""
    teacher: str = "random"
    """Whose actions are the labels. `random` teaches only the format of a reply."""
    opponents: dict[str, Share] = Field({})
    """Opponent → share; empty: those of [env]."""
    noise: float = Field(0.25, ge=0, le=1)
    """Share of turns where a random legal action is played, while the label stays the teacher's."""
    episodes: int = Field(256, ge=1)
    """New teacher episodes per step."""
    minibatches: int = Field(8, ge=1)
    """Updates per pass over a step's episodes."""
    epochs: int = Field(1, ge=1)
    """Passes over a step's episodes; more than one pays where the teacher is slow."""
    learning_rate: float = Field(2e-3, gt=0, le=1)
    """At the first step."""
    final_learning_rate: float | None = Field(None, ge=0, le=1)
    """At the last step of the warm start, reached linearly; absent: constant."""


class AlgorithmConfig(Section):
    """[algorithm]"""

    name: str = "grpo"
    """One of the algorithm registry."""
    clip: float = Field(0.2, gt=0)
    """Importance ratios are clipped to [1 - clip, 1 + clip_high]."""
    clip_high: float | None = Field(None, gt=0)
    """Absent: equal to clip."""
    entropy: float = Field(0.0, ge=0)
    """Weight of the entropy over action tokens."""
    final_entropy: float | None = Field(None, ge=0)
    """Its weight at the last step; absent: constant."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the reference, the model as it was when RL began."""
    gamma: float = Field(1.0, gt=0, le=1)
    """PPO: discount per turn."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """PPO: λ of turn-level generalised advantage estimation."""
    value_weight: float = Field(0.5, ge=0)
    """PPO: weight of the value loss."""
    correction: Literal["none", "token", "sequence"] = "none"
    """Truncated importance weights from the sampler's policy to the learner's as an update begins, by token or by
    sequence: for asynchronous rollout, and for samplers whose arithmetic differs."""
    correction_cap: float = Field(2.0, ge=1)
    """The largest such weight."""


class LearnerConfig(Section):
    """[learner]: AdamW and how a batch is cut."""

    learning_rate: float = Field(5e-4, gt=0, le=1)
    """AdamW's step size, after the warm-up."""
    final_learning_rate: float | None = Field(None, ge=0, le=1)
    """At the last step; absent: constant."""
    schedule: Literal["linear", "cosine"] = "linear"
    """Shape of the way to the final learning rate."""
    decay_from: float = Field(0.5, ge=0, le=1)
    """Share of the RL steps after which learning rate and entropy go to their final values."""
    warmup_steps: int = Field(0, ge=0)
    """RL steps over which the learning rate rises from 0."""
    minibatches: int = Field(1, ge=1)
    """Updates per pass over a step's batch."""
    epochs: int = Field(1, ge=1)
    """Passes over a step's batch."""
    micro_batch_tokens: int = Field(2048, ge=16)
    """Tokens of one forward and backward pass; with placement.cp they are split over so many devices."""
    clip_grad_norm: float = Field(1.0, gt=0)
    """Longest gradient; longer ones are scaled down."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's, decoupled from the gradient."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's decay of the gradient's mean."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """AdamW's decay of its square's mean."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; the weights that are trained stay float32. Not set, on GPUs: bfloat16."""
    recompute: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    offload: bool = False
    """Keep the optimizer's state and the reference model in host memory while they are not needed."""
    lora_rank: int = Field(0, ge=0)
    """Train low-rank adapters of this rank instead of all weights; 0: all weights."""
    lora_alpha: float = Field(16.0, gt=0)
    """Scale of the adapters: they are multiplied by alpha / rank."""
