"""The recipe: one tree of settings, each with one default and one owner. How it is read stands in recipe.py."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

# What all sections of a recipe share.

Share = Annotated[float, Field(gt=0)]


MOST = 10**9
"""The largest whole number that a recipe may set, apart from its seed."""


class Section(BaseModel):
    """A table of the recipe. Keys that it does not know are refused, and so are NaN, infinity and numbers past use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _within_use(cls, value: Any, info: Any) -> Any:
        within = value.values() if isinstance(value, dict) else [value]
        if info.field_name != "seed" and any(isinstance(one, int) and abs(one) > MOST for one in within):
            raise PydanticCustomError("most", "Input should have whole numbers of at most 1,000,000,000")
        return value


# The course of a run, and where its numbers go: [evaluate], [run], [track].


class EvaluateConfig(Section):
    """[evaluate]: how strength is measured during training, and which weights are kept."""

    every: int = Field(20, ge=1)
    """Steps between evaluations."""
    opponents: list[str] = Field([])
    """Opponents to measure against; empty in tool tasks."""
    held_out: list[str] = Field([])
    """More opponents of the evaluation at the end, and those of `earl eval` unless it names others: none that the run
    learns from, or selects weights by."""
    exact: bool = False
    """Enumerate every reply of the opponents instead of playing `episodes` games."""
    episodes: int = Field(200, ge=1)
    """Games per opponent and seat, or held-out tasks."""
    final_episodes: int = Field(400, ge=1)
    """The same for the evaluation at the end."""
    collapse: float | None = Field(None, gt=0, lt=1)
    """An alarm when the mean fraction of lost games is so much above that of the best weights; absent: none."""
    return_to_best: bool = False
    """At that alarm, go on from the best weights."""
    patience: int = Field(0, ge=0)
    """End the run early, once the best weights lose to no reply (`exact`, against `any`) and so many evaluations after
    them found none that win more; 0: run all steps."""


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
    pool: int = Field(8, ge=2, le=1000)
    """Checkpoints that are kept as the opponents `past`."""
    keep_trajectories_every: int = Field(10, ge=1)
    """Steps between those whose trajectories are stored."""


class TrackConfig(Section):
    """[track]: where the numbers go beside the run's own folder. Each tracker is an extra, such as earl[wandb]."""

    to: list[str] = Field([])
    """Any of tensorboard, wandb, mlflow and trackio. W&B stays offline unless WANDB_MODE says otherwise."""
    prometheus_port: int | None = Field(None, ge=0, le=65535)
    """Serve the latest numbers at http://127.0.0.1:PORT/metrics; 0: any free port. Absent: not served."""


# What learns, and how: [model], [warm_start], [algorithm], [learner].


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
    head_dim: int = Field(32, ge=8, le=1024, multiple_of=2)
    """Size of a head, even for its rotary positions. 32 is the smallest that vLLM can serve on a CPU."""
    intermediate: int = Field(128, ge=8, le=1 << 20)
    """Width inside the feed-forward layers."""
    max_positions: int = Field(1024, ge=16)
    """Longest context that the model can see, in tokens."""
    alphabet: Literal["ascii", "unicode"] = "ascii"
    """What a new model reads and writes: `unicode` has a token for every byte of a character that is not ASCII."""
    cells: str = Field("", max_length=4)
    """Characters of which up to four in a row are one token, such as the cells of a board: `.XO`."""

    @field_validator("cells")
    @classmethod
    def _distinct_cells(cls, cells: str) -> str:
        if len({*cells}) != len(cells) or not cells.isascii() or not cells.isprintable():
            raise ValueError("cells have to be different characters of ASCII, such as '.XO'")
        return cells

    @model_validator(mode="after")
    def _cells_are_ascii(self) -> "ModelConfig":
        if self.cells and self.alphabet != "ascii":
            raise ValueError("cells are tokens of alphabet = 'ascii' only; leave one of the two out")
        return self


class WarmStartConfig(Section):
    """[warm_start]: imitation of a scripted teacher before reinforcement learning."""

    steps: int = Field(0, ge=0)
    """Steps of imitation; 0: none."""
    teacher: str = "random"
    """The scripted player whose actions are the labels. `random` teaches only the format of a reply."""
    data: str | None = None
    """Episodes in place of a teacher's: a file .jsonl of chats, a line {"messages": [{"role": …, "content": …}, …]} for
    each; or a file .parquet of a run's trajectories, or their folder."""
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
    aggregate: bool = False
    """A step learns from the episodes of the steps before it too (DAgger's union of data, Ross et al. 2011), in as many
    times more minibatches: else what was learned from few of them is forgotten in the next step."""
    learning_rate: float = Field(2e-3, gt=0, le=1)
    """At the first step."""
    final_learning_rate: float | None = Field(None, ge=0, le=1)
    """At the last step of the warm start, reached linearly; absent: constant."""
    distill: float = Field(0.0, ge=0)
    """Weight of the teacher's labels in the loss of reinforcement learning, where the teacher is asked what it would do
    in each state that the policy comes to; times 1 less the policy's return as a share of the teacher's, and 0 for good
    once that is 0."""
    distill_steps: int = Field(0, ge=0)
    """Steps of reinforcement learning after which the teacher is not asked any more; 0: all."""


class AlgorithmConfig(Section):
    """[algorithm]"""

    name: str = "grpo"
    """One of the algorithm registry, or MODULE:NAME, a class of yours."""
    options: dict[str, bool | int | float | str] = Field({})
    """Settings of that algorithm, such as `clip`; see docs/design/algorithms.md. What it does not have is refused."""
    entropy: float = Field(0.0, ge=0)
    """Weight of the entropy over action tokens."""
    final_entropy: float | None = Field(None, ge=0)
    """Its weight at the last step; absent: constant."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the reference, the model as it was when RL began."""
    reset_reference: int | None = Field(None, ge=1)
    """Every so many steps of reinforcement learning the policy becomes the reference; absent: never."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether it is a term of the loss at each token, or taken off the rewards of the turns whose tokens diverge."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that divergence is estimated at each token; with r = π_ref/π, k1: -log r, k2: (log r)²/2, k3: r - 1 - log r.
    As a loss, k1 has no gradient on average."""
    correction: Literal["none", "token", "sequence"] = "none"
    """Truncated importance weights from the sampler's policy to the learner's as an update begins, by token or by
    sequence. Not set, where rollout runs ahead or the arithmetic of samplers differs: token."""
    correction_cap: float = Field(2.0, ge=1)
    """The largest such weight."""
    correction_excess: Literal["cap", "drop"] = "cap"
    """What becomes of a larger weight; `drop`: tokens, or rows, with one above the cap or below its inverse are not
    learned from."""

    @property
    def loss_kl(self) -> float:
        """The weight of the divergence in the loss."""
        return self.kl if self.kl_in == "loss" else 0.0


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
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of a running mean of the weights over updates, (1 + n) / (10 + n) after n where that is less, which the
    weights become after the last step; these are the run's best. 0: none."""
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


# Where the fragments of a step run: [sampler], [placement], [selector].

GIB = 1 << 30


class SamplerConfig(Section):
    """[sampler]: what decodes the model's replies."""

    engine: Literal["auto", "local", "vllm"] = "auto"
    """`local`: earl's own, on CPU. `vllm`: vLLM, on GPUs or on CPU. `auto`: the faster one for model and hardware."""
    tp: int = Field(1, ge=1)
    """Devices that one copy of the model is split over. Not set, on GPUs: as planned, the fastest that fits."""
    compiled: bool = False
    """vLLM: compile the model; takes longer to start."""
    memory_share: float = Field(0.85, gt=0, lt=1)
    """vLLM on GPUs: share of a device's memory for weights and KV cache."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """On CPU: memory for the KV cache of one process. Not set: vLLM takes 1, earl's own what a step's episodes need."""

    @property
    def cache_bytes(self) -> int | None:
        """Memory for the KV cache; None: not set."""
        return None if self.kv_cache_gib is None else int(self.kv_cache_gib * GIB)


class PlacementConfig(Section):
    """[placement]: where the fragments of a step run."""

    kind: Literal["auto", "embedded", "colocated", "disaggregated"] = "auto"
    """`embedded`: in `run.processes` processes, without Ray. `colocated`: rollout and learner take turns on the same
    devices. `disaggregated`: each has its own. `auto`: colocated with GPUs and Ray, or where an address or GPUs are
    named; else embedded."""
    address: str | None = None
    """Of a Ray cluster: HOST:PORT, or `auto` for the one that this machine is part of; absent: an own one, here."""
    gpus: str | None = None
    """What of it may be used: HOSTSxGPUSxKIND such as `16x8xH100`, or GPUSxKIND on one host; absent: all GPUs."""
    dp: int = Field(1, ge=1)
    """Learner: data-parallel copies, over which parameters are sharded (FSDP2). Not set, on GPUs: as planned."""
    tp: int = Field(1, ge=1)
    """Learner: tensor-parallel devices of one copy. Not set, on GPUs: as planned, the fastest that fits."""
    cp: int = Field(1, ge=1)
    """Learner: context-parallel devices, over which the tokens of a micro-batch are split, each with tp neighbours.
    Parameters are sharded over dp x cp."""
    ep: int = Field(1, ge=1)
    """Learner: devices over which the experts of a mixture are spread, out of dp x tp x cp of a replica; tokens travel
    to them. Not set, on GPUs: as planned."""
    replicas: int = Field(1, ge=1)
    """Learner: groups of devices that hold the parameters once each, out of dp (hybrid sharding, HSDP): gradients are
    summed over them once per optimizer step. Not set, on GPUs: as planned."""
    samplers: int = Field(1, ge=1)
    """Copies of the sampler, each of sampler.tp devices. Not set, on GPUs: as many as there are prompts and GPUs."""
    environments: int = Field(0, ge=0)
    """Processes that play the episodes away from their samplers, each on a CPU core and without a GPU; 0: episodes
    live with their sampler."""
    max_staleness: int = Field(0, ge=0)
    """How many weight versions rollout may run ahead of the learner; 0: they take turns. Disaggregated only."""
    checksums: bool = False
    """Whether rows and weights are checked when they arrive; what is damaged is sent again."""
    memory_gib: float | None = Field(None, gt=0)
    """Colocated and disaggregated on CPUs: what each process may take of memory above what it has at its start. A GPU
    is its own budget."""
    heartbeat_seconds: float = Field(10.0, gt=0)
    """A process without a heartbeat for so long is taken for dead and replaced."""
    stage_seconds: float = Field(1800.0, gt=0)
    """The longest that one stage of a step may take before an actor that has not answered is taken for hung."""
    max_recoveries: int = Field(100, ge=0)
    """Failures that are mended before the run gives up."""

    @property
    def ranks(self) -> int:
        """Devices of the learner."""
        return self.dp * self.tp * self.cp

    @property
    def memory_bytes(self) -> int | None:
        """`memory_gib` in bytes."""
        return None if self.memory_gib is None else int(self.memory_gib * GIB)


class SelectorConfig(Section):
    """[selector]: layouts that change while a run goes on."""

    kind: Literal["off", "auto"] = "off"
    """`auto`: before each stage of a step the fastest layout that its contexts leave room for: of the learner
    dp × tp × cp over as many ranks, with and without recompute, with half and twice the micro-batch, on GPUs with
    offload, as far as these are left at their defaults; of rollout copies × tp over as many devices. `off`: as set.
    What `earl profile` has measured here is known from the first step on."""
    profile: bool = False
    """Measure layouts before a new run begins, as `earl profile` does; what is known is not measured again."""


# Environments, opponents, and the form of an episode: [env], [agent], [context], [rollout].

DEFAULT_LIMIT = 256
HISTORY = re.compile(r"full|board_only|(last_turns|summary):[1-9][0-9]{0,5}")


def _a_limit(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise PydanticCustomError("limit", "Input should be a number of tokens, 1 or more, or 'auto'")


def _a_history(value: str) -> str:
    if HISTORY.fullmatch(value):
        return value
    rule = "Input should be 'full', 'board_only', 'last_turns:K' or 'summary:K', such as 'last_turns:2'"
    raise PydanticCustomError("history", rule)


def _a_share(value: Any) -> Any:
    ends = value if isinstance(value, list | tuple) else [value, value]
    numbers = all(type(end) in (int, float) and 0 <= end < math.inf for end in ends)
    if len(ends) != 2 or not numbers or not any(ends):
        raise PydanticCustomError("share", "Input should be above 0, or [first, last] for what it is at these steps")
    return value


ShareOverSteps = Annotated[float | tuple[float, float], BeforeValidator(_a_share)]


class OneEnvConfig(Section):
    """An environment and its opponents."""

    name: str
    """Name in the environment registry."""
    options: dict[str, bool | int | float | str] = Field({})
    """Arguments of the environment."""
    grow: dict[str, int] = Field({})
    """Options that grow with the run: what each is at the last step, from what `options` says at the first. Matches
    are played under `options`."""
    levels: dict[str, Annotated[list[bool | int | float | str], Field(min_length=1)]] = Field({}, max_length=1)
    """In tool tasks an option → its values, one of which every task is drawn with, such as num_operations = [2, 4, 8];
    with equal shares, unless `prefer` changes them. Matches are played under `options`."""
    opponents: dict[str, ShareOverSteps] = Field({})
    """Opponent → share of the episodes, or [first, last]: that at the first and at the last step, with a straight way
    between them; shares are relative. Empty in tool tasks. `self`: the policy has both seats of a game, and learns from
    both; `past`: earlier checkpoints of the run; `run:NAME@STEP`: a checkpoint of another; `exploiter`: makes the
    moves that beat the policy in the last evaluation, and random ones where it answers otherwise, or lost none."""
    prefer: Literal["none", "hard", "informative"] = "none"
    """What the shares of levels and of opponents other than `self` are multiplied by. `hard`: what the policy loses
    there, 1 less its running mean result, where a draw is 0.5. `informative`: the running variance of the results in a
    group, which is p(1 - p) where a share p is won and the rest lost."""
    random_replies: int = Field(0, ge=0, le=1000)
    """In a game against `self` one seat makes up to so many random moves first, as many as chance says, and the policy
    has it from then on: so the other seat meets every reply."""
    restarts: float = Field(0.0, ge=0, le=1)
    """Share of the games against `self` that begin at positions from which the policy lost others, most often where it
    holds half of the games: a curriculum out of the run's own games."""
    delay_seconds: float = Field(0.0, ge=0)
    """Median of a simulated heavy-tailed wait before every answer of the environment: a rehearsal of slow tools."""

    processes: int = Field(0, ge=0, le=1024)
    """Processes for environments, of each process that plays: one that hangs, crashes or fills memory is ended, and
    only its own episode with it. 0: environments answer in the process that plays."""
    step_timeout_seconds: float | None = Field(None, gt=0)
    """Longest time of a reset or a step, after which the environment's process is ended; takes `processes`."""
    memory_mb: int | None = Field(None, ge=64)
    """Largest data of one of `processes`, in MiB (kept on Linux); absent: 4096."""

    @model_validator(mode="after")
    def _keys_agree(self) -> "OneEnvConfig":
        for key in ("step_timeout_seconds", "memory_mb"):
            if (limit := getattr(self, key)) is not None and not self.processes:
                raise ValueError(
                    f"env.{key} = {limit:g} takes a process that can be ended; set env.processes to 1 or more"
                )
        for name in self.grow:
            if type(self.options.get(name)) is not int:
                raise ValueError(f"env.grow.{name} has no beginning; set env.options.{name} to a whole number too")
        for course, step in ((0.0, "first"), (1.0, "last")):
            if self.opponents and not self.shares_at(course):
                raise ValueError(f"env.opponents has a share of 0 for each at the {step} step; raise one of them")
        return self

    @property
    def leveled(self) -> dict[str, dict[str, bool | int | float | str]]:
        """By name, the options that differ in tasks of each level."""
        return {f"{name}={value}": {name: value} for name, values in self.levels.items() for value in values}

    def shares_at(self, course: float) -> dict[str, float]:
        """Level or opponent → share, once that share of the run is done; without those of 0."""
        given = {**dict.fromkeys(self.leveled, 1.0), **self.opponents}
        ends = {name: share if isinstance(share, tuple) else (share, share) for name, share in given.items()}
        shares = {name: first + course * (last - first) for name, (first, last) in ends.items()}
        return {name: share for name, share in shares.items() if share > 0}

    def options_at(self, share: float) -> dict[str, bool | int | float | str]:
        """The options once that share of the run is done.

        Example:
            options {"num_operations": 2}, grow {"num_operations": 10}, share 0.25 -> {"num_operations": 4}
        """
        grown = {name: round((1 - share) * int(self.options[name]) + share * last) for name, last in self.grow.items()}
        return {**self.options, **grown}


class OtherEnvConfig(OneEnvConfig):
    """[[env.others]]: another environment of the same run, with the keys of [env] and these."""

    share: float = Field(gt=0, le=1e6, allow_inf_nan=False)
    """Share of the groups, next to 1 for the environment of [env]."""
    teacher: str | None = None
    """Absent: warm_start.teacher."""


class EnvConfig(OneEnvConfig):
    """[env]: the environment and its opponents."""

    edition: int = Field(2, ge=1)
    """Of the rules of earl's own environments. A run of an earlier edition is refused where its environment has changed
    since, except for its report."""
    others: list[OtherEnvConfig] = Field([])
    """More environments of the same run: tables [[env.others]] with the keys of [env], `share` (of the groups, next to
    1 for this one) and `teacher` (absent: warm_start.teacher). Each is evaluated against its `opponents`."""

    @property
    def each(self) -> dict[str, OneEnvConfig]:
        """By name; that of [env] first."""
        return {one.name: one for one in (self, *self.others)}

    @model_validator(mode="after")
    def _environments_differ(self) -> "EnvConfig":
        names = [self.name, *(other.name for other in self.others)]
        if twice := [name for name in self.each if names.count(name) > 1]:
            raise ValueError(f"env.others names {twice[0]!r} again; list each environment once")
        return self


class SandboxConfig(Section):
    """[sandbox]: what the programs of one episode may use together, where an environment runs any."""

    kind: Literal["local", "bubblewrap", "nsjail", "docker", "podman"] = "local"
    """What makes its namespaces: earl itself, or another program, see `earl doctor`."""
    image: str = "docker.io/library/python:3.12-slim"
    """Of docker or podman, which have it already; with Python 3.11 or later."""
    runtime: str = ""
    """Of docker or podman, such as "runsc" (gVisor); empty: their own."""
    seconds: float = Field(5.0, gt=0)
    """Of one command, by the clock on the wall."""
    memory_mb: int = Field(512, ge=32)
    """Of all processes, in MiB."""
    scratch_mb: int = Field(64, ge=1)
    """Of all files, in MiB; they are in memory, and count apart from memory_mb."""
    processes: int = Field(64, ge=1, le=4096)
    """And threads."""
    output_kb: int = Field(64, ge=1)
    """Kept of each of standard output and error, in KiB; a program that writes 128 times as much is ended."""
    read: list[Annotated[str, Field(pattern="^/")]] = Field([])
    """Folders of this machine that programs may read, beside those of the system and of Python."""
    require: list[Literal["seccomp", "landlock", "cgroup"]] = Field(["seccomp", "landlock"])
    """Layers without which no sandbox starts, see `earl doctor`; namespaces, limits and no_new_privs always are."""


class ToolsConfig(Section):
    """[tools]: limits of calls by the tool's name, over all processes of a run; a call above them waits. Each process
    that plays, and of these each of env.processes, has the same part of a limit."""

    cores: dict[str, Annotated[int, Field(ge=0, le=512)]] = Field({})
    """Tool → most cores that one call is given, in 1, 2, 4, …: as many as make calls end soonest. Absent: 1 where the
    environment has a sandbox, else 0, which is no core of its own."""
    at_once: dict[str, Annotated[int, Field(ge=1)]] = Field({})
    """Tool → calls that run at the same time."""
    per_second: dict[str, Share] = Field({})
    """Tool → calls that begin in a second."""


class ExampleMessage(Section):
    """[[agent.examples]]: a message of a conversation that stands before every episode's own."""

    role: Literal["user", "assistant"]
    content: str


class AgentConfig(Section):
    """[agent]: how the model plays."""

    history: Annotated[str, AfterValidator(_a_history)] = "full"
    """What the model still sees: `full`: everything. `last_turns:K`: the last K rounds. `board_only`: the last
    observation. `summary:K`: after every K rounds the model writes a summary that stands for all before."""
    retries: int = Field(0, ge=0)
    """Replies that may break the rule before the episode is forfeited."""
    forfeit_reward: float = -1.0
    """Added to the last turn's reward when an episode ends by forfeit or by a limit."""
    thinking: bool = False
    """Whether a reply may begin with a <think>…</think> span; the chat template may leave it out of later prompts."""
    parser: str = "exact"
    """Where in a reply the action stands, behind its thinking: `exact`: the reply is the action, white space and all;
    `last_line`, `boxed`, `tag:NAME`, `regex:PATTERN`, `json:FIELD`, `tool_call`: there; none, or two that differ, break
    the rule. `MODULE:NAME` is a function of yours."""
    instructions: bool = False
    """Whether the conversation begins with the environment's rules in words."""
    system_prompt: str = ""
    """Text before the environment's rules, in the system message or, where the chat template has none, the first."""
    examples: list[ExampleMessage] = Field([])
    """Messages before every conversation, of `user` and `assistant` in turn."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """What the model's chat template is given by name, such as `enable_thinking = false`."""
    max_turn_tokens: int = Field(8, ge=1)
    """Tokens of one reply, thinking included."""
    summary_tokens: int | None = Field(None, ge=1)
    """With `history = "summary:K"`: tokens of one summary; absent: 64."""
    max_turns: int | None = Field(None, ge=1)
    """Replies per episode; absent: what the environment needs plus the retries."""

    @model_validator(mode="after")
    def _keys_agree(self) -> "AgentConfig":
        roles = [one.role for one in self.examples]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise ValueError("examples have to be of user and assistant in turn, and end with the assistant")
        if taken := sorted({"messages", "tools", "documents", "add_generation_prompt"} & {*self.chat_template_kwargs}):
            raise ValueError(f"chat_template_kwargs.{taken[0]} is what earl itself gives to templates; leave it out")
        if self.summary_tokens and not self.history.startswith("summary:"):
            raise ValueError(f"summary_tokens has no use beside history = {self.history!r}; leave it out")
        return self


class ContextConfig(Section):
    """[context]: how long contexts may grow, and what becomes of episodes that were cut off."""

    limit: Annotated[int | Literal["auto"], BeforeValidator(_a_limit)] = DEFAULT_LIMIT
    """Tokens of the longest context, the reply included. `"auto"`: raised ahead of growth."""
    initial: int | None = Field(None, ge=1)
    """With `limit = "auto"`: the first limit; absent: 256, or the ceiling where that is lower."""
    ceiling: int | None = Field(None, ge=1)
    """With `limit = "auto"`: the highest; absent: what the model's positions, a micro-batch and memory allow."""
    learn_truncated: bool = True
    """Whether episodes that a token limit cut off are learned from; if not, they are counted only."""
    length_penalty: float = Field(0.0, ge=0)
    """Taken off an episode's return, as it is learned from, for every token that the model sampled."""

    @property
    def automatic(self) -> bool:
        """Whether the limit follows the growth."""
        return self.limit == "auto"

    @property
    def first_limit(self) -> int:
        """The limit of the first step."""
        if isinstance(self.limit, int):
            return self.limit
        return self.initial or min(DEFAULT_LIMIT, self.ceiling or DEFAULT_LIMIT)

    @model_validator(mode="after")
    def _limits_agree(self) -> "ContextConfig":
        if not self.automatic and (self.initial or self.ceiling):
            name = "initial" if self.initial else "ceiling"
            raise ValueError(f"context.{name} has no use beside limit = {self.limit}; leave it out or set 'auto'")
        if self.ceiling and self.first_limit > self.ceiling:
            raise ValueError(f"initial = {self.first_limit} is above ceiling = {self.ceiling}; lower it")
        return self


class RolloutConfig(Section):
    """[rollout]: episodes = prompts × group_size."""

    episodes: int = Field(384, ge=1)
    """Episodes per step."""
    group_size: int = Field(16, ge=1)
    """Episodes that start alike."""
    temperature: float = Field(1.0, ge=0.01, le=100)
    """Divides the logits when episodes are sampled, and alike when they are learned from."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from as few of the most likely tokens as have this probability together, and learn with the policy that
    does so: log-probs, and what follows from them, are those of the truncated distribution."""
    top_k: int = Field(0, ge=0)
    """The same for the so many most likely tokens; 0: all. Where both are set, top_p is of what top_k left."""
    resample: int = Field(0, ge=0, le=100)
    """Rounds, at most, in which another group is played in place of each that teaches nothing, as all its episodes have
    the same return (DAPO's dynamic sampling). All count as episodes of the step; 0: none."""

    @property
    def prompts(self) -> int:
        """Groups per step."""
        return self.episodes // self.group_size

    @model_validator(mode="after")
    def _groups_fill(self) -> "RolloutConfig":
        if self.group_size > self.episodes or self.episodes % self.group_size:
            fault = f"episodes = {self.episodes} must be a multiple of group_size = {self.group_size}"
            raise ValueError(f"{fault}; set episodes to {self.group_size * max(1, self.prompts)}")
        return self


class Config(Section):
    """A whole recipe."""

    env: EnvConfig
    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tools: ToolsConfig = ToolsConfig()
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

    @model_validator(mode="after")
    def _patience_can_be_decided(self) -> "Config":
        rule = self.evaluate
        if rule.patience and not (rule.exact and "any" in rule.opponents and not self.env.others):
            raise ValueError(
                f"evaluate.patience = {rule.patience} ends a run whose weights lose to no reply, which only "
                "evaluate.exact = true with 'any' among evaluate.opponents decides, in one environment; set these or 0"
            )
        if rule.patience and self.learner.ema:
            raise ValueError(
                f"evaluate.patience = {rule.patience} ends a run before its last step, after which learner.ema = "
                f"{self.learner.ema:g} takes the mean of the weights; set one of them to 0"
            )
        return self

    @property
    def code(self) -> list[str]:
        """Names that may be import strings: of the environment, the parser, the algorithm, teachers and opponents."""
        named = [self.agent.parser, self.algorithm.name]
        for one in self.each_env():
            met = (one.env.opponents, one.warm_start.opponents, one.evaluate.opponents, one.evaluate.held_out)
            named += [one.env.name, one.warm_start.teacher, *(name for own in met for name in own)]
        return named

    def each_env(self) -> "list[Config]":
        """The recipe of each of its environments alone; its own first."""
        alone, warm = self.changed(env={"others": []}), self.warm_start
        return [alone, *(alone._of(other, other.teacher or warm.teacher) for other in self.env.others)]

    def _of(self, other: OtherEnvConfig, teacher: str) -> "Config":
        """This recipe for another environment."""
        env = EnvConfig(edition=self.env.edition, **other.model_dump(exclude={"share", "teacher"}))
        evaluate = {"opponents": [*other.opponents], "held_out": [], "exact": False}
        own = self.changed(warm_start={"teacher": teacher, "opponents": {}}, evaluate=evaluate)
        return own.model_copy(update={"env": env})

    @property
    def players(self) -> int:
        """The most processes that play episodes, where the placement is decided."""
        place = self.placement
        if place.kind == "embedded":
            return self.run.processes
        return place.environments or place.samplers * self.sampler.tp

    @property
    def pool_size(self) -> int:
        """Checkpoints that are kept as opponents."""
        return self.run.pool if any("past" in one.opponents for one in self.env.each.values()) else 0

    @property
    def total_steps(self) -> int:
        """Steps of the whole run: warm start, then reinforcement learning."""
        return self.warm_start.steps + self.run.steps

    def changed(self, **sections: Mapping[str, object]) -> "Config":
        """A copy in which keys of some sections are set; they are not validated."""
        changed = {name: getattr(self, name).model_copy(update=keys) for name, keys in sections.items()}
        return self.model_copy(update=changed)

    def course(self, step: int) -> float:
        """Which share of reinforcement learning is done before a step, 0 at its first and 1 at its last."""
        last = max(1, self.run.steps - 1)
        return min(1.0, max(0.0, (step - self.warm_start.steps - 1) / last))
