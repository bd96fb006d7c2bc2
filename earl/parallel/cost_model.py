"""Seconds and bytes of a stage under a layout, on any device, before it is tried: the one model of plans, checks before
a run, profiles and the running selector.

rollout             `throughput`: what fits beside the weights runs at once, the rest in waves
experience, update  the same rooflines over the tokens of a micro-batch, and FSDP2's fetching of weights
memory              `footprint`, for earl's own sampler `memory.slot_bytes`, against the device's own
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import ceil, exp

from earl.config import Config
from earl.parallel.footprint import FLOAT_BYTES, LearnerBytes, Training, forward_bytes, learner_bytes
from earl.parallel.hardware import GIB, HOST, UNKNOWN_BYTES, ClusterSpec, Device
from earl.parallel.layout import Choice, Layout, Stage, splits, usable, why_not_shared, why_not_split
from earl.parallel.memory import Estimate, Load, ModelShape, Sampling, SlotBytes, slot_bytes
from earl.parallel.throughput import step as serving
from earl.parallel.throughput.measured import Recalibration
from earl.parallel.throughput.rollout import Workload, rollout, tokens_per_second

GIGABIT = 1e9 / 8  # bytes per second
OWN = serving.Software("earl", None, True, 1.0, False, 1 << 16, 1 << 14)
"""earl's own sampler, as a kind of engine."""
VALUES_AT_PEAK = ("memory", "kv", "compute", "narrow", "experts", "attention", "link", "passes", "host", "scale")
HOST_VALUES = {
    **dict.fromkeys(VALUES_AT_PEAK, 1.0),
    **dict.fromkeys(("heads", "tile", "all_reduce_large", "sequence", "reserve", "logits"), 0.0),
    "all_reduce": 3e-4,  # of 256 bytes 0.27 ms, of 4 KiB 0.34 ms
    "layer": 2e-4,
    "step": 1e-3,
}
"""The coefficients of `throughput` for a CPU core: its listed numbers are what it reaches."""
STAGE_SECONDS = 0.3
"""Fixed cost of a stage, such as actor calls. In `earl bench adaptive --arm unbounded`, the intercept of a stage's
seconds over tokens is 0.3 for update, 0.4 for rollout."""
BACKWARD = 2.0
"""Duration of a backward pass in forward passes: gradients of inputs and of weights."""
GRADIENT_BYTES = 4
SPEED = 0.7
"""Learner's arithmetic speed relative to an engine's prompt processing: an assumption, not fitted."""
SPREAD = 0.35
"""Half of the 80 % interval, as a logarithm: the coefficients were fitted to serving engines, not to learners."""
HOST_MARGIN = 1.15  # factor on predicted memory of a process on CPUs, for rows, Python and the allocator
MEASURED_MARGIN = 1.05  # the factor once the prediction has been compared with a measurement
MOST_SHARES = 16  # parts of a cluster that go to the learner or to samplers as a whole; with more a plan takes seconds
MOST_TOKENS = 1 << 16  # of a micro-batch that holds more than one row


@cache
def _host_values() -> serving.Values:
    return {**serving.fitted().values, **HOST_VALUES}


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a stage needs on one device, and the verdict."""

    needed_bytes: int
    room_bytes: int
    why_not: str  # empty: it can be built, and fits


def policies_differ(config: Config, served: bool, dtype: str) -> bool:
    """Whether the samplers' policy is another than the learner's as an update begins; `served`: by vLLM or the like."""
    return config.placement.max_staleness > 0 or served or dtype != "float32"


def with_interval(value: float) -> Estimate:
    """A value of which nothing was fitted, with its 80 % interval."""
    return Estimate(value, value * exp(-SPREAD), value * exp(SPREAD))


@dataclass(frozen=True, slots=True)
class CostModel:
    config: Config
    shape: ModelShape
    cluster: ClusterSpec
    software: serving.Software = serving.VLLM  # of the samplers
    precision: serving.Precision | None = None  # of the samplers; None: as the recipe's run
    prompt_tokens: int | None = None  # of a context, read; with the other None as well, all is written
    reply_tokens: int | None = None
    network_gbps: float = 200.0
    """Of the link between a host and the others, in one direction: that of the EARL paper's testbed."""
    pipelines: bool = False
    """Whether a copy of the engine may reach over several hosts: a plan's may, a run's own samplers do not."""
    reference: ModelShape | None = None
    """Of the model that `algorithm.reference` names."""
    measured: Recalibration | None = None
    """Of the samplers, by a user's measurements; None: by the tables alone."""
    scale: dict[Stage, float] = field(default_factory=dict)
    """By stage, measured over predicted seconds; set by a run's first measurement."""
    filled: dict[Choice, float] = field(default_factory=dict)
    """By layout, measured over predicted memory where it was in use; grows during a run."""

    # The devices.

    @property
    def on_host(self) -> bool:
        return not self.cluster.gpus

    @property
    def device(self) -> Device:
        return self.cluster.each

    @property
    def memory_bytes(self) -> int:
        """The memory of one device; on CPUs `placement.memory_gib` of a process."""
        return (self.config.placement.memory_bytes or UNKNOWN_BYTES) if self.on_host else self.device.memory_bytes

    @property
    def values(self) -> serving.Values:
        return _host_values() if self.on_host else serving.fitted(self.engine(1)).values

    @property
    def network_bandwidth(self) -> float:
        """Bytes per second of a host's link to the others."""
        return self.network_gbps * GIGABIT

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second that collectives reach between the devices of a host."""
        return self.device.link_bandwidth * self.values["link"]

    @property
    def host_devices(self) -> int:
        """Devices of one host; of CPUs as many as are asked for."""
        return self.cluster.gpus_per_host or self.config.placement.ranks

    @property
    def paged(self) -> bool:
        """Whether the engine lets contexts wait that do not fit beside the others."""
        return self.software is not OWN or self.config.sampler.cache_bytes is not None

    @property
    def dtype(self) -> str:
        """The dtype in which the learner computes."""
        learner = self.config.learner
        named = self.on_host or "dtype" in learner.model_fields_set
        return learner.dtype if named else "bfloat16"

    def engine(self, tp: int) -> serving.Engine:
        """One copy of the engine. earl gives vLLM `sampler.memory_share` of a GPU; another engine uses its own default,
        unless the recipe sets the share."""
        sampler = self.config.sampler
        kind = "bf16" if self.software is not OWN and self.dtype == "bfloat16" else "fp32"
        precision = self.precision or serving.Precision(kind)
        own = self.software is serving.VLLM or "memory_share" in sampler.model_fields_set
        share = sampler.memory_share if own and self.software is not OWN else None
        known = self.measured.known if self.measured else None
        engine = serving.Engine(self.shape, self.device, tp, precision, self.software, share, known)
        if not self.on_host:
            return replace(engine, pp=self._stages(engine)) if self.pipelines else engine
        cache = sampler.cache_bytes or (GIB if self.software is serving.VLLM else UNKNOWN_BYTES)
        memory = engine.weight_bytes + engine.reserve_bytes(self.values) + cache
        return replace(engine, device=replace(HOST, memory_bytes=memory), utilization=1.0)

    def _stages(self, engine: serving.Engine) -> int:
        """Hosts that a copy reaches over, a stage of layers on each: 1, unless one host cannot hold the weights; then
        the fewest that hold the longest context beside them."""
        values, hosts = serving.fitted(engine).values, self.cluster.hosts
        if engine.tp < self.host_devices or engine.kv_tokens(values):
            return 1
        stages = (replace(engine, pp=pp) for pp in range(2, hosts + 1))
        return next((one.pp for one in stages if one.kv_tokens(values) >= self.shape.max_positions), 1)

    # What can be built, and fits.

    def need(self, choice: Choice, load: Load) -> Need:
        """The verdict on a layout for a load, of which the longest context has to fit."""
        if choice.stage == "rollout":
            why, sizes = why_not_split(self.shape, choice.layout.tp, self.software is not OWN), self._sampling_bytes
        else:
            why, sizes = why_not_shared(self.shape, choice.layout), self._learning_bytes
        if why:
            return Need(0, 0, why)
        needed, room = sizes(choice, load)
        return Need(needed, room, f"{needed / GIB:.2f} GiB of {room / GIB:.2f} GiB" if needed > room else "")

    def obstacle(self, choice: Choice, load: Load) -> str:
        return self.need(choice, load).why_not

    def expected_bytes(self, choice: Choice, load: Load) -> int:
        """The memory of the process that needs the most, without a margin."""
        if choice.stage != "rollout":
            return self.learner_peak(choice, load).peak
        return self._slots(choice, load) if self.on_host else self._sampling_bytes(choice, load)[0]

    def _margin(self, choice: Choice, default: float) -> float:
        """The factor on predicted memory: measured, or the default."""
        return self.filled[choice] * MEASURED_MARGIN if choice in self.filled else default

    def _sampling_bytes(self, choice: Choice, load: Load) -> tuple[int, int]:
        """Needed and available bytes. An engine that lets contexts wait has to hold one."""
        engine = self.engine(choice.layout.tp)
        held = engine.weight_bytes + engine.reserve_bytes(self.values)
        room = max(0, held + engine.room_bytes(self.values))
        contexts = 1 if self.paged else ceil(load.sequences / choice.layout.dp)
        needed = int(held + contexts * load.longest_tokens * engine.token_bytes)
        if not self.on_host or needed > room:
            return needed, room
        return int(self._slots(choice, load) * self._margin(choice, HOST_MARGIN)), self.memory_bytes

    def _slots(self, choice: Choice, load: Load) -> int:
        """The memory of a sampling process on CPUs. Episodes of a group have separate slots, and share one prefill."""
        tp, copies, longest = choice.layout.tp, choice.layout.dp, load.longest_tokens
        at_once = self.engine(tp).kv_tokens(self.values) // longest
        split = ("parameters", "heads", "kv_heads", "intermediate")
        part = replace(self.shape, **{name: ceil(getattr(self.shape, name) / tp) for name in split})

        def held(episodes: int) -> SlotBytes:
            return slot_bytes(part, Sampling(max(1, min(ceil(episodes / copies), at_once)), longest, longest))

        own, prompts = held(load.sequences), held(self.config.rollout.prompts)
        return own.peak - own.activations + prompts.activations

    def _learning_bytes(self, choice: Choice, load: Load) -> tuple[int, int]:
        """Needed and available bytes."""
        peak = self.learner_peak(choice, load).peak
        if self.on_host:
            return int(peak * self._margin(choice, HOST_MARGIN)), self.memory_bytes
        # The driver and libraries take some, too.
        return int(peak * self._margin(choice, 1.0)) + serving.CONTEXT_BYTES, usable(self.memory_bytes)

    def learner_peak(self, choice: Choice, load: Load) -> LearnerBytes:
        """Memory of one learner rank, by purpose, when the stage is at its peak."""
        return (learner_bytes if choice.stage == "update" else forward_bytes)(self.shape, self.training(choice, load))

    def training(self, choice: Choice, load: Load) -> Training:
        """A micro-batch holds at least the longest row, at most a rank's share of a minibatch."""
        layout = choice.layout
        share = ceil(load.sequences * load.mean_tokens / layout.dp / self.config.learner.minibatches)
        most = choice.micro_batch_tokens or self.config.learner.micro_batch_tokens
        return Training.of(
            self.config,
            layout,
            tokens=max(load.longest_tokens, min(most, share)),
            float_bytes=FLOAT_BYTES[self.dtype],
            recompute=choice.recompute,
            offload=choice.offload,
            on_host=self.on_host,
            reference_shape=self.reference,
        )

    # What it takes.

    def seconds(self, choice: Choice, load: Load) -> float:
        """Predicted seconds of a run's stage. The learner's ranks also prepare experience."""
        if choice.stage == "rollout":
            took = self._written(choice, load) / tokens_per_second(*self._served(choice, load), self.values)
        else:
            took = sum(self.learner_seconds(own, load) for own in (choice, replace(choice, stage="experience")))
        return (STAGE_SECONDS + took) * self.scale.get(choice.stage, 1.0)

    def estimate(self, choice: Choice, load: Load) -> Estimate:
        """Predicted seconds of one stage of a step on GPUs, with the 80 % interval."""
        if choice.stage == "rollout":
            fast = rollout(*self._served(choice, load)).tokens_per_gpu_s
            assert fast is not None, "the longest one fits"
            written = self._written(choice, load) / (choice.layout.tp * choice.layout.pp)
            return Estimate(written / fast.value, written / fast.high, written / fast.low)
        return with_interval(self.learner_seconds(choice, load))

    def split(self, context: int) -> tuple[int, int]:
        """Tokens of prompt and reply. With neither given, all are written: the decode phase alone."""
        if self.reply_tokens is not None:
            return context - self.reply_tokens, self.reply_tokens
        prompt = self.prompt_tokens or 0
        return prompt, context - prompt

    def _served(self, choice: Choice, load: Load) -> tuple[serving.Engine, Workload]:
        """The fullest copy and its work: no more copies play than there are prompts."""
        copies = max(1, min(choice.layout.dp, self.config.rollout.prompts))
        prompt, reply = (part / load.longest_tokens for part in self.split(load.longest_tokens))
        mean, longest = load.mean_tokens, load.longest_tokens
        ends = longest * reply if longest > mean else None  # None: all end at once
        work = Workload(mean * prompt, mean * reply, ceil(load.sequences / copies), ends)
        return self.engine(choice.layout.tp), work

    def _written(self, choice: Choice, load: Load) -> float:
        _, work = self._served(choice, load)
        return work.responses * work.reply_tokens

    @property
    def passes(self) -> float:
        """Passes without gradients that prepare experience: of the reference, of values, for the correction. That of
        another reference counts by its size."""
        corrects = self.config.algorithm.correction != "none"
        if "correction" not in self.config.algorithm.model_fields_set:
            corrects = policies_differ(self.config, self.software is not OWN, self.dtype)  # as a run decides
        compared = self.reference.parameters / self.shape.parameters if self.reference else 1.0
        return compared * (self.config.algorithm.kl > 0) + self._needs_values + corrects

    @property
    def _needs_values(self) -> bool:
        own = self.config.algorithm
        if ":" not in own.name:
            return own.name == "ppo"
        from earl.algorithms.registry import algorithm_of  # loads torch, which a plan of earl's own ones does without

        return algorithm_of(self.config).needs_values

    def learner_seconds(self, choice: Choice, load: Load) -> float:
        times = self.config.learner.epochs if choice.stage == "update" else self.passes
        return times * self.batch_seconds(choice, load)

    def batch_seconds(self, choice: Choice, load: Load) -> float:
        """One pass of the learner over a step's rows. Each rank has its share of a minibatch, or one longest row, in
        equal micro-batches; experience is one batch."""
        batches = self.config.learner.minibatches if choice.stage == "update" else 1
        way = self.training(choice, load)
        share = max(load.sequences * load.mean_tokens / batches / way.layout.dp, float(load.longest_tokens))
        count = ceil(share / max(way.tokens, choice.micro_batch_tokens or 0))
        own = replace(way, tokens=max(1, round(share / count)))
        replicating = self._replicating_seconds(way) if choice.stage == "update" else 0.0
        return batches * (count * self.pass_seconds(own, load.mean_tokens, choice.stage) + replicating)

    def pass_seconds(self, way: Training, row_tokens: float, stage: Stage) -> float:
        """The time of one micro-batch: forward alone, or forward and backward, while the weights are fetched."""
        passes, copies = 1.0, 1.0  # of the model's weights, fetched
        if stage == "update":
            passes += BACKWARD + way.recompute
            copies = 2 + GRADIENT_BYTES / way.float_bytes
        computing, fetching = passes * self._forward_seconds(way, row_tokens), self._fetching_seconds(way, copies)
        return computing + fetching if self.on_host else max(computing, fetching)  # a CPU does one or the other

    def _forward_seconds(self, way: Training, row_tokens: float) -> float:
        """An engine's prompt processing, the output layer for every token, and keys and values of other cp ranks."""
        kind = "bf16" if way.float_bytes == 2 else "fp32"
        software = OWN if self.on_host else serving.VLLM
        engine = serving.Engine(self.shape, self.device, way.layout.tp, serving.Precision(kind), software)
        own = _host_values() if self.on_host else serving.fitted(engine).values
        batch = serving.StepLoad(sequences=0, context=0, prompt_tokens=way.portion, prompt_context=row_tokens / 2)
        speed = engine.precision.flops(self.device) * own["compute"]
        head = 2 * serving.parts(self.shape).head * way.portion / way.layout.tp / speed
        computing = (serving.step_seconds(engine, batch, own) + head) / SPEED
        return computing + self._gathering_seconds(way, engine) + self._travelling_seconds(way)

    def _gathering_seconds(self, way: Training, engine: serving.Engine) -> float:
        if way.layout.cp == 1:
            return 0.0
        others = way.tokens * engine.token_bytes * (way.layout.cp - 1) / way.layout.cp
        return others / self.link_bandwidth + self.shape.layers * self.values["all_reduce"]

    def _travelling_seconds(self, way: Training) -> float:
        """The time of tokens to their experts and back, in a forward pass; every rank gets as many as it sends."""
        if way.layout.ep == 1:
            return 0.0
        sent = way.portion / way.layout.tp * self.shape.experts_per_token * self.shape.hidden * way.float_bytes
        crossing = sent * (way.layout.ep - 1) / way.layout.ep / self.link_bandwidth
        return 2 * self.shape.layers * (crossing + self.values["all_reduce"])

    def _fetching_seconds(self, way: Training, copies: float) -> float:
        """Time to fetch remote shards, once per pass: into a host over its link, then to each of its devices."""
        hosts = ceil(way.layout.shards * way.layout.tp / self.host_devices) if not self.on_host else 1
        size = copies * self.shape.parameters * way.float_bytes
        experts = copies * serving.parts(self.shape).experts * way.float_bytes
        dense = (size - experts) / way.layout.tp * (way.layout.shards - 1) / way.layout.shards
        inside = dense + experts / way.layout.ep * (way.layout.expert_shards - 1) / way.layout.expert_shards
        return max(inside / self.link_bandwidth, size * (hosts - 1) / hosts / self.network_bandwidth)

    def _replicating_seconds(self, way: Training) -> float:
        """The time to sum gradients over the replicas: over the links of hosts, unless one host holds them all."""
        ranks, host = way.layout.shards * way.layout.tp, self.host_devices
        own = 2 * (way.layout.replicas - 1) / way.layout.replicas * GRADIENT_BYTES * self.shape.parameters / ranks
        if self.on_host or ranks * way.layout.replicas <= host:
            return own / self.link_bandwidth
        return own * min(host, ranks) / self.network_bandwidth

    def weights_seconds(self, sampler: Layout, learner: Layout) -> float:
        """The time of a weight sync: the model once into each sampling host, less its present part, then to its
        GPUs."""
        size = serving.weight_bytes(self.shape, self.engine(1).precision)
        given, taken = (ceil(layout.size / self.cluster.gpus_per_host) for layout in (learner, sampler))
        apart = self.config.placement.kind == "disaggregated"
        crossing = size * max(1.0, taken / given) if apart else size * (given - 1) / given
        return crossing / self.network_bandwidth + size / (sampler.tp * sampler.pp) / self.device.link_bandwidth

    # The layouts to choose from, and the best of them.

    def shares(self, load: Load) -> tuple[int, int]:
        """GPUs for the learner and for samplers: all in turns; apart those with which a step takes the least, by whole
        hosts if there are several. Rollout ahead of the learner takes its time beside the learner's, else before it."""
        place, gpus = self.config.placement, self.cluster.gpus
        named = place.model_fields_set
        if place.kind != "disaggregated":
            return gpus, gpus
        if "samplers" in named:
            sampling = self.best(self.rollout_choices(gpus // 2), load).layout.size
        elif {"dp", "tp"} <= named:
            sampling = gpus - place.ranks
        else:
            unit = self.host_devices if self.cluster.hosts > 1 else 1
            unit *= ceil(gpus // unit / MOST_SHARES)
            sampling = min(range(unit, gpus, unit), key=lambda count: self._apart(count, load), default=0)
        return max(1, gpus - sampling), max(1, sampling)

    def _apart(self, sampling: int, load: Load) -> tuple[int, float]:
        """The number of stages that do not fit with so many GPUs for sampling, and the seconds of a step."""
        learning, most = self.cluster.gpus - sampling, self.largest(load)
        first = self.best(self.rollout_choices(sampling), load)
        last = self.best_update(self.learner_layouts(learning), load)
        sides = ((first, sampling, load), (last, learning, most))
        missing = sum(own.layout.size > gpus or self.obstacle(own, at) != "" for own, gpus, at in sides)
        times = (self.seconds(first, load), self.seconds(last, load))
        both = max(times) if self.config.placement.max_staleness else sum(times)
        return missing, both + self.weights_seconds(first.layout, last.layout)

    def splits(self, stage: Stage, gpus: int) -> list[int]:
        """Splits of one copy that its heads allow, and that fill a host and the devices evenly."""
        served = stage == "rollout" and self.software is not OWN
        host = max(1, gpus if self.on_host else min(self.host_devices, gpus))
        return [tp for tp in splits(self.shape, host, served) if self.on_host or self.host_devices % tp == 0]

    def ways(self, layout: Layout, load: Load) -> Iterator[Choice]:
        """How the learner may update under a layout: what the recipe sets is fixed."""
        learner, context = self.config.learner, self.config.context
        named = learner.model_fields_set | ({"micro_batch_tokens"} if context.automatic else set())  # it bounds growth
        least = most = max(load.longest_tokens, learner.micro_batch_tokens)
        if "micro_batch_tokens" not in named:  # all rows between two optimizer steps, as if as long as the longest
            share = load.sequences // learner.minibatches * load.longest_tokens // layout.dp
            most = max(least, min(MOST_TOKENS, share))
        tokens = [least << by for by in range(most.bit_length()) if least << by <= most]
        recompute = [learner.recompute] if "recompute" in named else [False, True]
        offload = [learner.offload] if "offload" in named or self.on_host else [False, True]
        for away, again, count in product(offload, recompute, tokens):
            yield Choice("update", layout, count, again, away)

    def rollout_choices(self, gpus: int) -> list[Choice]:
        """A choice for every split of `gpus` devices; no more copies than prompts, since the others would idle."""
        place, sampler = self.config.placement, self.config.sampler
        fixed = "tp" in sampler.model_fields_set or self.software is OWN
        tps = [sampler.tp] if fixed else self.splits("rollout", gpus)
        most, named = self.config.rollout.prompts, "samplers" in place.model_fields_set
        choices = []
        for tp, pp in ((tp, self.engine(tp).pp) for tp in tps):
            copies = place.samplers if named else min(gpus // (tp * pp), most)
            choices.append(Choice("rollout", Layout(max(1, copies), tp, pp=pp)))
        return choices

    def learner_layouts(self, gpus: int) -> list[Layout]:
        """A layout for every split of `gpus` devices."""
        place = self.config.placement
        named, cp = place.model_fields_set, place.cp
        tps = [place.tp] if "tp" in named else self.splits("update", max(1, gpus // cp))
        layouts = [Layout(place.dp if "dp" in named else max(1, gpus // (tp * cp)), tp, cp) for tp in tps]
        fitting = [layout for layout in layouts if layout.size <= gpus] or layouts[:1]
        return [own for layout in fitting for own in self._shared(layout)]

    def _shared(self, layout: Layout) -> list[Layout]:
        """How the ranks of a layout may share the model: experts spread within a host, replicas of whole hosts; what
        the recipe sets is fixed."""
        place, experts, hosts = self.config.placement, self.shape.experts, max(1, layout.size // self.host_devices)
        eps = [ep for ep in range(1, self.host_devices + 1) if experts % ep == 0]
        copies = [count for count in range(1, hosts + 1) if hosts % count == 0]
        own = [
            replace(layout, ep=ep, replicas=replicas)
            for ep in ([place.ep] if "ep" in place.model_fields_set else eps)
            for replicas in ([place.replicas] if "replicas" in place.model_fields_set else copies)
        ]
        return [layout for layout in own if not layout.uneven] or own[:1]

    def idle(self, choice: Choice, gpus: int) -> str:
        """In words, why devices have nothing to do in a stage; empty if all are at work."""
        layout, left = choice.layout, gpus - choice.layout.size
        if left <= 0:
            return ""
        prompts = self.config.rollout.prompts
        enough = choice.stage == "rollout" and layout.dp == prompts
        cause = f"{prompts} prompts are for so many copies" if enough else f"the layout is {choice}"
        return f"{left} of {gpus} GPUs idle in {choice.stage}: {cause}"

    def best_update(self, layouts: Sequence[Layout], load: Load) -> Choice:
        """The best way to learn under any of the layouts, which the largest step has to fit as well."""
        most = self.largest(load)
        return self.best([way for layout in layouts for way in self.ways(layout, most)], load, most)

    def largest(self, load: Load) -> Load:
        """The load of the recipe's largest step: a warm start may have more episodes."""
        warm = self.config.warm_start
        return replace(load, sequences=max(load.sequences, warm.episodes if warm.steps else 0))

    def best(self, choices: Sequence[Choice], load: Load, most: Load | None = None) -> Choice:
        """The fastest at a load of those that `most`, if given, fits too; the first of equally fast ones, offloading
        only where nothing else fits; if none fits, the one that comes nearest."""
        needs = {choice: self.need(choice, most or load) for choice in choices}
        fitting = [choice for choice, need in needs.items() if not need.why_not]
        resting = [choice for choice in fitting if not choice.offload] or fitting
        if resting:
            return min(resting, key=lambda choice: round(self.seconds(choice, load), 6))
        return min(choices, key=lambda choice: needs[choice].needed_bytes - needs[choice].room_bytes)
