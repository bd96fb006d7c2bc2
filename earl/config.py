"""The recipe: one tree of settings, each with one default and one owner. How it is read stands in recipe.py."""

import math
import re
from collections.abc import Mapping
from posixpath import normpath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

# What all sections of a recipe share.

Share = Annotated[float, Field(gt=0)]


MOST = 10**9
"""The largest whole number that a recipe may set, apart from its seed."""


class Section(BaseModel):
    """A table of the recipe. Keys that it does not know are refused, and so are NaN, infinity and numbers past use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

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
    """Opponents that are never trained on: met in the evaluation at the end and, by default, in `earl eval`. Weights
    are not selected by them."""
    exact: bool = False
    """Enumerate every reply of the opponents instead of playing `episodes` games."""
    episodes: int = Field(200, ge=1)
    """Games per opponent and seat, or held-out tasks."""
    final_episodes: int = Field(400, ge=1)
    """The same for the evaluation at the end."""
    collapse: float | None = Field(None, gt=0, lt=1)
    """Raise an alarm when the mean fraction of lost games exceeds that of the best weights by this much; absent:
    never."""
    return_to_best: bool = False
    """At that alarm, continue from the best weights, at half the learning rate."""
    patience: int = Field(0, ge=0)
    """End the run early once the best weights lose to no reply (`exact`, against `any`) and this many later evaluations
    found no weights that win more; 0: run all steps."""


class RunConfig(Section):
    """[run]"""

    steps: int = Field(100, ge=0)
    """Steps of reinforcement learning, after those of the warm start."""
    seed: int = Field(0, ge=0, lt=1 << 63)
    """The same seed gives the same run, to the bit."""
    processes: int = Field(2, ge=1)
    """Processes that share the work of a step. Another number sums gradients in another order, so results differ
    slightly."""
    checkpoint_every: int = Field(20, ge=1)
    """Steps between checkpoints; the last two and the best are kept."""
    pool: int = Field(8, ge=2, le=1000)
    """Number of checkpoints kept as the opponents `past`."""
    keep_trajectories_every: int = Field(10, ge=1)
    """Trajectories are stored every this many steps."""


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
    """Size of a head; rotary positions need an even number. 32 is the smallest that vLLM can serve on a CPU."""
    intermediate: int = Field(128, ge=8, le=1 << 20)
    """Width inside the feed-forward layers."""
    max_positions: int = Field(1024, ge=16)
    """Longest context that the model can see, in tokens."""
    alphabet: Literal["ascii", "unicode"] = "ascii"
    """Characters of a new model's tokenizer. `unicode` adds a token for every byte of characters outside ASCII."""
    cells: str = Field("", max_length=4)
    r"""Up to four consecutive characters of this set form one token, of two characters up to six, such as the cells of
    a board, `.XO`. With a line break, `XO\n`, one before them is part of their token."""

    @field_validator("cells")
    @classmethod
    def _distinct_cells(cls, cells: str) -> str:
        marks = cells.replace("\n", "", 1)
        if len({*marks}) != len(marks) or not marks.isascii() or not marks.isprintable() or cells == "\n":
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
    """Imitate stored episodes instead of a teacher: a .jsonl file with one chat per line, {"messages": [{"role": …,
    "content": …}, …]}; a .parquet file of a run's trajectories; or a folder of such files."""
    opponents: dict[str, Share] = Field({})
    """Opponent → share; empty: those of [env]."""
    noise: float = Field(0.25, ge=0, le=1)
    """Share of turns in which a random legal action is played; the label is still the teacher's action."""
    episodes: int = Field(256, ge=1)
    """New teacher episodes per step."""
    minibatches: int = Field(8, ge=1)
    """Updates per pass over a step's episodes."""
    epochs: int = Field(1, ge=1)
    """Passes over a step's episodes; more than one pays where the teacher is slow."""
    aggregate: bool = False
    """Each step also learns from the episodes of all earlier steps (DAgger's union of data, Ross et al. 2011), with
    proportionally more minibatches."""
    learning_rate: float = Field(2e-3, gt=0, le=1)
    """At the first step."""
    final_learning_rate: float | None = Field(None, ge=0, le=1)
    """At the last step of the warm start, reached linearly; absent: constant."""
    distill: float = Field(0.0, ge=0)
    """Weight of a loss on the teacher's labels during reinforcement learning; the teacher labels each state that the
    policy visits. It is multiplied by 1 - (the policy's return / the teacher's) and stays 0 once it reaches 0."""
    distill_steps: int = Field(0, ge=0)
    """Steps of reinforcement learning with such labels; 0: all."""


class AlgorithmConfig(Section):
    """[algorithm]"""

    name: str = "grpo"
    """A name of the algorithm registry, or your own class as MODULE:NAME."""
    options: dict[str, bool | int | float | str] = Field({})
    """Settings of that algorithm, such as `clip`; see docs/design/algorithms.md. Unknown ones are refused."""
    entropy: float = Field(0.0, ge=0)
    """Weight of the entropy bonus over action tokens."""
    final_entropy: float | None = Field(None, ge=0)
    """Its weight at the last step; absent: constant."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the reference, the model as it was when RL began."""
    reference: str | None = None
    """Folder or hub id of another reference, of any size but with the same tokens. With `kl_estimator = "k2"` this is
    on-policy distillation by reverse KL per token (arXiv 2306.13649)."""
    reset_reference: int | None = Field(None, ge=1)
    """Replace the reference by the current policy every this many steps of reinforcement learning; absent: never."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL divergence is applied: added to each token's loss, or subtracted from the reward of each turn."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence at each token. With r = π_ref/π, k1: -log r, k2: (log r)²/2, k3: r - 1 - log r. In
    the loss, k1 has no gradient on average."""
    correction: Literal["none", "token", "sequence"] = "none"
    """Truncated importance weights between the sampler's policy and the learner's at the start of an update, per token
    or per sequence. Default `token` where rollout runs ahead or the sampler's arithmetic differs, such as vLLM's."""
    correction_cap: float = Field(2.0, ge=1)
    """The largest such weight."""
    correction_excess: Literal["cap", "drop"] = "cap"
    """`cap`: larger weights are cut to the cap. `drop`: tokens (or rows) whose weight is above the cap or below its
    inverse are not learned from."""

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
    """Shape of the decay to the final learning rate."""
    decay_from: float = Field(0.5, ge=0, le=1)
    """Share of the RL steps after which learning rate and entropy weight begin to decay to their final values."""
    warmup_steps: int = Field(0, ge=0)
    """RL steps over which the learning rate rises from 0."""
    minibatches: int = Field(1, ge=1)
    """Updates per pass over a step's batch."""
    epochs: int = Field(1, ge=1)
    """Passes over a step's batch."""
    micro_batch_tokens: int = Field(2048, ge=16)
    """Tokens of one forward and backward pass; with placement.cp they are split over that many devices."""
    clip_grad_norm: float = Field(1.0, gt=0)
    """Largest norm of the gradient; larger gradients are scaled down to it."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's decay rate of the first moment."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """AdamW's decay rate of the second moment."""
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights; after n updates at most (1 + n) / (10 + n). The average
    replaces the weights after the last step and counts as the run's best. 0: none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the computation; the trained weights stay float32. Default on GPUs: bfloat16."""
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
    """`local`: earl's own, on CPU. `vllm`: vLLM, on GPU or CPU. `auto`: the faster one for this model and hardware."""
    tp: int = Field(1, ge=1)
    """Devices that one copy of the model is split over. Default on GPUs: the fastest planned layout that fits."""
    compiled: bool = False
    """vLLM: compile the model; takes longer to start."""
    memory_share: float = Field(0.85, gt=0, lt=1)
    """vLLM on GPUs: share of a device's memory for weights and KV cache."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """On CPU: memory for the KV cache of one process. Default: 1 for vLLM; what a step's episodes need for `local`."""

    @property
    def cache_bytes(self) -> int | None:
        """Memory for the KV cache; None: not set."""
        return None if self.kv_cache_gib is None else int(self.kv_cache_gib * GIB)


class PlacementConfig(Section):
    """[placement]: where the fragments of a step run."""

    kind: Literal["auto", "embedded", "colocated", "disaggregated"] = "auto"
    """`embedded`: in `run.processes` processes, without Ray. `colocated`: rollout and learner take turns on the same
    devices. `disaggregated`: each has its own. `auto`: colocated if there are GPUs and Ray, or if `address` or `gpus`
    is set; else embedded."""
    address: str | None = None
    """Address of a Ray cluster: HOST:PORT, or `auto` for the one this machine belongs to; absent: start one here."""
    gpus: str | None = None
    """GPUs of the cluster to use: HOSTSxGPUSxKIND such as `16x8xH100`, or GPUSxKIND on one host; absent: all."""
    dp: int = Field(1, ge=1)
    """Learner: data-parallel size; parameters are sharded over it (FSDP2). Default on GPUs: as planned."""
    tp: int = Field(1, ge=1)
    """Learner: tensor-parallel size. Default on GPUs: the fastest planned layout that fits."""
    cp: int = Field(1, ge=1)
    """Learner: context-parallel size; the tokens of a micro-batch are split over it. Parameters are sharded over dp x
    cp."""
    ep: int = Field(1, ge=1)
    """Learner: expert-parallel size; the experts of a mixture are spread over this many of a replica's dp x tp x cp
    devices, and tokens are sent to them. Default on GPUs: as planned."""
    replicas: int = Field(1, ge=1)
    """Learner: replicas of the sharded parameters, a divisor of dp (hybrid sharding, HSDP); gradients are summed over
    them once per optimizer step. Default on GPUs: as planned."""
    samplers: int = Field(1, ge=1)
    """Copies of the sampler, each on sampler.tp devices. Default on GPUs: as many as prompts and GPUs allow."""
    environments: int = Field(0, ge=0)
    """Processes that play episodes apart from the samplers, each on a CPU core without a GPU; 0: episodes are played in
    the sampler's process."""
    max_staleness: int = Field(0, ge=0)
    """How many weight versions rollout may lag behind the learner; 0: they take turns. Disaggregated only."""
    checksums: bool = False
    """Whether rows and weights carry checksums; what arrives damaged is sent again."""
    memory_gib: float | None = Field(None, gt=0)
    """Memory that each process may take beyond what it has at its start; colocated and disaggregated on CPUs only. On a
    GPU its own memory is the limit."""
    heartbeat_seconds: float = Field(10.0, gt=0)
    """A process whose heartbeat is missing for this long is declared dead and replaced."""
    stage_seconds: float = Field(1800.0, gt=0)
    """Longest time of one stage of a step; an actor that has not answered by then is declared hung."""
    max_recoveries: int = Field(100, ge=0)
    """Failures that a run recovers from before it ends with an error."""

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
    """`auto`: before each stage of a step, take the fastest layout that fits its contexts. For the learner: dp × tp ×
    cp over the same ranks and, where the recipe leaves them at their defaults, recompute, half and twice the
    micro-batch, and on GPUs offload. For rollout: copies × tp over the same devices. `off`: layouts as set.
    Measurements of `earl profile` on this machine are used from the first step on."""
    profile: bool = False
    """Measure layouts before a new run begins, as `earl profile` does; known ones are not measured again."""


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
    """Options that change linearly over the run: the value at the last step; `options` has the value at the first.
    Evaluation uses `options`."""
    levels: dict[str, Annotated[list[bool | int | float | str], Field(min_length=1)]] = Field({}, max_length=1)
    """Difficulty levels of a tool task: an option and its values, such as num_operations = [2, 4, 8]. Each task gets
    one of them, in equal shares unless `prefer` changes these. Evaluation uses `options`."""
    opponents: dict[str, ShareOverSteps] = Field({})
    """Opponent → relative share of the episodes, or [first, last] for a share that changes linearly over the run. Empty
    in tool tasks. `self`: the policy plays both seats and learns from both. `past`: earlier checkpoints of this run.
    `run:NAME@STEP`: a checkpoint of another run. `exploiter`: replays the moves that beat the policy in the last
    evaluation; where the policy answers differently, or lost no game, it moves at random."""
    prefer: Literal["none", "hard", "informative"] = "none"
    """Multiplies the shares of levels and of opponents other than `self`. `hard`: by 1 - the running mean result (win
    1, draw 0.5). `informative`: by the running variance of results within a group, which is p(1 - p) if a share p is
    won and the rest lost."""
    random_replies: int = Field(0, ge=0, le=1000)
    """In a game against `self`, one seat begins with a random number of random moves, at most this many, before the
    policy takes it over; so the other seat meets replies that the policy would not make."""
    restarts: float = Field(0.0, ge=0, le=1)
    """Share of the games against `self` that begin at positions of games that the policy lost; positions that it holds
    in about half of its games are drawn most often."""
    delay_seconds: float = Field(0.0, ge=0)
    """Median of a simulated heavy-tailed delay before every answer of the environment, to rehearse slow tools."""

    processes: int = Field(0, ge=0, le=1024)
    """Environment processes per process that plays episodes. One that hangs, crashes or exceeds its memory is killed,
    and only its own episode ends. 0: environments run in the process that plays."""
    step_timeout_seconds: float | None = Field(None, gt=0)
    """Longest time of a reset or a step, after which the environment's process is killed; needs `processes`."""
    memory_mb: int | None = Field(None, ge=64)
    """Memory limit of each of `processes`, in MiB (enforced on Linux); absent: 4096."""

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
    """Share of the groups, relative to 1 for the environment of [env]."""
    teacher: str | None = None
    """Absent: warm_start.teacher."""


class EnvConfig(OneEnvConfig):
    """[env]: the environment and its opponents."""

    edition: int = Field(2, ge=1)
    """Version of the rules of earl's own environments. A run of an earlier edition whose environment has changed since
    can only be reported."""
    others: list[OtherEnvConfig] = Field([])
    """More environments of the same run: tables [[env.others]] with the keys of [env], `share` (of the groups, relative
    to 1 for this one) and `teacher` (absent: warm_start.teacher). Each is evaluated against its `opponents`."""

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
    """[sandbox]: limits of the programs that one episode runs, all together."""

    kind: Literal["local", "bubblewrap", "nsjail", "docker", "podman"] = "local"
    """What isolates the programs: `local`, earl itself; or one of these programs. `earl doctor` tries each."""
    image: str = "docker.io/library/python:3.12-slim"
    """Image for docker or podman, already pulled, with Python 3.11 or later."""
    runtime: str = ""
    """OCI runtime of docker or podman, such as "runsc" (gVisor); empty: their default."""
    seconds: float = Field(5.0, gt=0)
    """Wall-clock time limit of one command."""
    memory_mb: int = Field(512, ge=32)
    """Memory of all processes, in MiB."""
    scratch_mb: int = Field(64, ge=1)
    """Size of all files, in MiB; they are kept in memory and do not count towards memory_mb."""
    processes: int = Field(64, ge=1, le=4096)
    """Most processes and threads."""
    output_kb: int = Field(64, ge=1)
    """Output kept of stdout and of stderr, in KiB; a program that writes 128 times as much is killed."""
    read: list[Annotated[str, Field(pattern="^/")]] = Field([])
    """Folders that programs may read, in addition to those of the system and of Python."""
    require: list[Literal["seccomp", "landlock", "cgroup"]] = Field(["seccomp", "landlock"])
    """Layers without which no sandbox starts, see `earl doctor`. Namespaces, rlimits and no_new_privs are always
    required."""

    @model_validator(mode="after")
    def _reads_outside_its_own(self) -> "SandboxConfig":
        own = ("scratch", "proc") if self.kind in ("docker", "podman") else ("scratch", "proc", "tmp")
        for folder in self.read:
            if (first := normpath(folder).lstrip("/").partition("/")[0]) in own:
                raise ValueError(f"sandbox.read names {folder}; a sandbox has its own /{first}, so copy it elsewhere")
        return self


class ToolsConfig(Section):
    """[tools]: limits of calls by the tool's name, over all processes of a run; a call above a limit waits. A limit is
    divided equally among the processes that play and their env.processes."""

    cores: dict[str, Annotated[int, Field(ge=0, le=512)]] = Field({})
    """Tool → most cores of one call. The scheduler gives 1, 2, 4, … cores, whichever lets calls end soonest. Absent: 1
    if the environment has a sandbox; else 0, no core of its own."""
    at_once: dict[str, Annotated[int, Field(ge=1)]] = Field({})
    """Tool → most calls at the same time."""
    per_second: dict[str, Share] = Field({})
    """Tool → most calls that begin per second."""


class ExampleMessage(Section):
    """[[agent.examples]]: a message of the conversation that precedes every episode."""

    role: Literal["user", "assistant"]
    content: str


class AgentConfig(Section):
    """[agent]: how the model plays."""

    history: Annotated[str, AfterValidator(_a_history)] = "full"
    """How much of the episode the model sees. `full`: everything. `last_turns:K`: the last K rounds. `board_only`: the
    last observation. `summary:K`: after every K rounds the model writes a summary that replaces them."""
    retries: int = Field(0, ge=0)
    """Invalid replies that are allowed before the episode is forfeited."""
    forfeit_reward: float = -1.0
    """Added to the last turn's reward when an episode ends by forfeit or by a limit."""
    thinking: bool = False
    """Whether a reply may begin with a <think>…</think> span; the chat template may drop it from later prompts."""
    parser: str = "exact"
    """How the action is read from a reply, after any thinking. `exact`: the whole reply, including white space.
    `last_line`, `boxed`, `tag:NAME`, `regex:PATTERN`, `json:FIELD` or `tool_call`: that part; a reply with none, or
    with two that differ, is invalid. `MODULE:NAME`: your own function."""
    instructions: bool = False
    """Whether the conversation begins with the environment's rules."""
    system_prompt: str = ""
    """Text before the environment's rules, in the system message (in the first message if the template has no system
    role)."""
    examples: list[ExampleMessage] = Field([])
    """Messages before every episode, alternately of `user` and `assistant`."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """Variables for the model's chat template, such as `enable_thinking = false`."""
    max_turn_tokens: int = Field(8, ge=1)
    """Tokens of one reply, thinking included."""
    summary_tokens: int | None = Field(None, ge=1)
    """With `history = "summary:K"`: tokens of one summary; absent: 64."""
    max_turns: int | None = Field(None, ge=1)
    """Most replies per episode; absent: what the environment needs plus the retries."""

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
    """[context]: how long contexts may grow, and how cut-off episodes are treated."""

    limit: Annotated[int | Literal["auto"], BeforeValidator(_a_limit)] = DEFAULT_LIMIT
    """Tokens of the longest context, the reply included. `"auto"`: raised ahead of growth."""
    initial: int | None = Field(None, ge=1)
    """With `limit = "auto"`: the first limit; absent: 256, or the ceiling where that is lower."""
    ceiling: int | None = Field(None, ge=1)
    """With `limit = "auto"`: the highest; absent: what the model's positions, a micro-batch and memory allow."""
    learn_truncated: bool = True
    """Whether episodes that a token limit cut off are learned from; if not, they are only counted."""
    length_penalty: float = Field(0.0, ge=0)
    """Subtracted from an episode's return in training for every token that the model sampled."""

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
    """Divides the logits, both when sampling and when learning."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: sample from the fewest tokens whose probabilities reach this sum. Training uses the log-probs
    of the truncated distribution too, so ratios stay unbiased."""
    top_k: int = Field(0, ge=0)
    """Sample from this many most likely tokens; 0: all. Applied before top_p."""
    resample: int = Field(0, ge=0, le=100)
    """DAPO's dynamic sampling: most rounds in which groups whose episodes all have the same return are replaced by new
    ones. All played episodes count in the metrics. 0: none."""

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
