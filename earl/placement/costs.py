"""Predicts memory and time of a run's stages under a layout, before it is tried.

Memory: `earl.parallel.footprint` against the limit of a process. Time: operations and exchanged bytes; only ratios are
meaningful until the first step has calibrated the machine's speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2

from earl.algorithms.registry import algorithm
from earl.config import Config
from earl.parallel.footprint import Training, learner_bytes, sampler_bytes
from earl.parallel.hardware import GIB, of_gpus
from earl.parallel.layout import Choice, Layout, Stage, splits
from earl.parallel.memory import Load, ModelShape, Sampling, slot_bytes

# Layouts for a run's stages, and the recipe with another layout.


def candidates(config: Config, shape: ModelShape) -> dict[Stage, Sequence[Choice]]:
    """Layouts by stage, the current one first. The learner's ranks also prepare experience; cp is never changed."""
    place, learner = config.placement, config.learner
    ranks, devices = place.dp * place.tp, place.samplers * config.sampler.tp
    update = [
        Choice("update", Layout(ranks // tp, tp, place.cp), learner.micro_batch_tokens, recompute, learner.offload)
        for tp in splits(shape, ranks)
        if ranks % tp == 0
        for recompute in ([True] if learner.recompute else [False, True])
    ]
    rollout = [Choice("rollout", Layout(devices // tp, tp)) for tp in splits(shape, devices) if devices % tp == 0]
    own: dict[Stage, list[Choice]] = {"update": update, "rollout": rollout}
    return {stage: [*dict.fromkeys((now(config, stage), *choices))] for stage, choices in own.items()}


def now(config: Config, stage: Stage) -> Choice:
    place, learner = config.placement, config.learner
    if stage == "rollout":
        return Choice("rollout", Layout(place.samplers, config.sampler.tp))
    layout = Layout(place.dp, place.tp, place.cp)
    return Choice("update", layout, learner.micro_batch_tokens, learner.recompute, learner.offload)


def chosen(config: Config, choice: Choice) -> Config:
    layout = choice.layout
    if choice.stage == "rollout":
        return config.changed(placement={"samplers": layout.dp}, sampler={"tp": layout.tp})
    learner = {name: getattr(choice, name) for name in ("micro_batch_tokens", "recompute", "offload")}
    return config.changed(placement={"dp": layout.dp, "tp": layout.tp}, learner=learner)


FLOPS = 2e10
"""Operations per second of one CPU core in float32, approximately; on GPUs the ratios are similar."""
LINK = 1e9
"""Bytes per second between one process and its neighbours through gloo on one host; all-reduces of 8 MiB reached 1.2e9
between two processes on two cores, 0.9e9 between four."""
LAYER_SECONDS = 3e-4
"""Minimum time of an exchange between two processes: all-reduces of 256 bytes took 0.27 ms, of 4 KiB 0.34 ms. Four
processes are assumed to take twice as long; on two shared cores they take 5 ms, which calibration finds."""
STAGE_SECONDS = 0.3
"""Fixed cost of a stage, such as actor calls. In `earl bench adaptive --arm unbounded`, the intercept of a stage's
seconds over tokens is 0.3 for update, 0.4 for rollout."""
MARGIN = 1.15  # factor on predicted memory, for rows, Python and the allocator
MEASURED_MARGIN = 1.05  # the factor once the prediction has been compared with a measurement


@dataclass(frozen=True, slots=True)
class PlacedCosts:
    config: Config
    shape: ModelShape
    scale: dict[Stage, float] = field(default_factory=dict)
    """By stage, measured over predicted seconds; set by the first measurement."""
    filled: dict[Choice, float] = field(default_factory=dict)
    """By layout, measured over predicted memory where it was in use; grows during the run."""

    def seconds(self, choice: Choice, tokens: float, sequences: int) -> float:
        """Predicted seconds of a stage, for contexts with this mean number of tokens."""
        work = self._rollout if choice.stage == "rollout" else self._update
        return (STAGE_SECONDS + work(choice, tokens, sequences)) * self.scale.get(choice.stage, 1.0)

    def obstacle(self, choice: Choice, load: Load) -> str:
        """Why a layout does not fit; empty when it fits."""
        budget = self._budget
        if budget is None:
            return ""
        known = self.filled.get(choice)
        needed = int(self.expected_bytes(choice, load) * (MARGIN if known is None else known * MEASURED_MARGIN))
        return f"{needed / GIB:.2f} GiB of {budget / GIB:.2f} GiB" if needed > budget else ""

    def expected_bytes(self, choice: Choice, load: Load) -> int:
        """Of the process that needs the most, without a margin."""
        return self._sampler_bytes(choice, load) if choice.stage == "rollout" else self._learner_bytes(choice, load)

    @property
    def _budget(self) -> int | None:
        place = self.config.placement
        if place.memory_bytes is not None:
            return place.memory_bytes
        device = of_gpus(place.gpus).device if place.gpus else None
        return device.memory_bytes if device else None

    def _update(self, choice: Choice, tokens: float, sequences: int) -> float:
        shape, layout, learner = self.shape, choice.layout, self.config.learner
        reads = algorithm(self.config.algorithm.name).needs_values + (self.config.algorithm.kl > 0)
        attended = shape.layers * shape.heads * shape.head_dim * tokens / 2
        per_token = (learner.epochs * (8 if choice.recompute else 6) + 2 * reads) * (shape.parameters + 2 * attended)
        own, most = sequences * tokens / layout.dp, choice.micro_batch_tokens or learner.micro_batch_tokens
        learned = learner.epochs * learner.minibatches * ceil(own / learner.minibatches / max(most, tokens))
        passes = learned + reads * ceil(own / max(most, tokens))
        exchanged = self._exchanged(choice, own * (learner.epochs + reads / 2), passes)
        shards = layout.dp * layout.cp
        sharded = passes * 3 * 4 * shape.parameters / layout.tp * (shards - 1) / shards / LINK
        return own * per_token / layout.tp / layout.cp / FLOPS + exchanged + sharded

    def _exchanged(self, choice: Choice, tokens: float, passes: int) -> float:
        """Seconds of a learner's exchanges inside its layers: activations over tp, keys and values over cp. tokens:
        that a cp group trains on, plus half of those that it only reads."""
        shape, tp, cp = self.shape, choice.layout.tp, choice.layout.cp
        again = 3 if choice.recompute else 2
        activations = tokens / cp * shape.hidden * 4 * 2 * (tp - 1) / tp
        seconds = 2 * again * (activations / LINK + passes * LAYER_SECONDS * log2(tp))
        keys = tokens * 2 * shape.kv_heads / tp * shape.head_dim * 4 * (cp - 1) / cp
        return shape.layers * (seconds + again * (keys / LINK + passes * LAYER_SECONDS * log2(cp)))

    def _rollout(self, choice: Choice, tokens: float, sequences: int) -> float:
        shape, layout = self.shape, choice.layout
        own = sequences / layout.dp
        per_token = 2 * (shape.parameters + shape.layers * shape.heads * shape.head_dim * tokens)
        moved = own * tokens * shape.hidden * 4 * (2 * (layout.tp - 1) / layout.tp)
        exchanged = shape.layers * 2 * (moved / LINK + tokens * LAYER_SECONDS * log2(layout.tp))
        return own * tokens * per_token / layout.tp / FLOPS + exchanged

    def _learner_bytes(self, choice: Choice, load: Load) -> int:
        learner, layout = self.config.learner, choice.layout
        share = ceil(load.sequences * load.mean_tokens / layout.dp / learner.minibatches)
        training = Training.of(
            self.config,
            layout.dp,
            layout.tp,
            cp=layout.cp,
            tokens=max(load.longest_tokens, min(choice.micro_batch_tokens or share, share)),
            recompute=choice.recompute,
            offload=choice.offload,
            on_host=self.config.placement.memory_bytes is not None,
        )
        return learner_bytes(self.shape, training).peak

    def _sampler_bytes(self, choice: Choice, load: Load) -> int:
        copies, tp = choice.layout.dp, choice.layout.tp
        held = sampler_bytes(self.shape, tp, 4, load.longest_tokens, ceil(load.sequences / copies))
        if self.config.placement.memory_bytes is None:
            return held.least if self.config.sampler.kv_cache_gib is not None else held.wanted
        # Episodes of a group have separate slots, and share one prefill of the prompt.
        counts = (ceil(number / copies) for number in (load.sequences, self.config.rollout.prompts))
        share, longest = _share(self.shape, tp), load.longest_tokens
        own, prompts = (slot_bytes(share, Sampling(count, longest, longest)) for count in counts)
        return own.peak - own.activations + prompts.activations


def _share(shape: ModelShape, tp: int) -> ModelShape:
    return replace(
        shape,
        parameters=ceil(shape.parameters / tp),
        heads=ceil(shape.heads / tp),
        kv_heads=ceil(shape.kv_heads / tp),
        intermediate=ceil(shape.intermediate / tp),
    )
