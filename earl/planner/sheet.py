"""A plan in words, in reading order: the same in a terminal and on a page; and as flags of other programs."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import groupby, pairwise
from math import ceil
from operator import attrgetter
from typing import Any

from earl.dispatch.predicted_cost import MIB, CostLine, Time
from earl.formats import duration, short, three_digits
from earl.parallel.cost_model import CostModel
from earl.parallel.hardware import GIB
from earl.parallel.layout import Choice, Layout, Stage
from earl.parallel.memory import Estimate
from earl.parallel.throughput.step import uncalibrated
from earl.planner.plan import Plan, PlanCell, PredictedStep, StageTime, Switch
from earl.planner.tracing import TracedPlan


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text; the first column names each row."""

    title: str
    names: tuple[str, ...]  # of the columns; some in two lines
    rows: tuple[tuple[str, ...], ...]  # each with at most as many values as `names`


def step_grid(steps: Sequence[PredictedStep], price: float | None) -> Grid:
    """Contexts down, stages across, then the whole step and the cost of 1,000 episodes."""
    stages = ("rollout", "dispatch", "experience", "update", "weights")
    rows: list[tuple[str, ...]] = []
    for each in steps:
        parts = {part.stage: part for part in each.parts}
        took, hours = each.seconds, each.gpu_hours
        if took is None or hours is None:
            rows.append((f"{each.context:,}", each.verdict))
            continue
        layouts = [_part(part) for part in map(parts.get, stages) if part]
        rows.append((f"{each.context:,}", *layouts, duration(took.value), _range(took), *_cost(hours, price)))
    title = "A step, each stage in the layout that takes it the least time; GPU-h: GPU-hours of 1,000 episodes"
    return Grid(title, ("context", *stages, "a step", "80 %", *_cost_names(price)), tuple(rows))


def dispatch_grid(lines: Sequence[CostLine], gbps: float) -> Grid:
    """Contexts down: bytes of a step's rows, how many leave their host, and the time of that."""
    rows = tuple((f"{line.context:,}", f"{line.tokens:,}", *transfer(line, line.times[-1:])) for line in lines)
    names = ("context", "tokens", "dp x TP", "MiB", "leave hosts", "busiest link", "controller", "direct")
    return Grid(f"Dispatch of a step's rows, at {gbps:g} Gbit/s between hosts", names, rows)


def transfer(line: CostLine, times: Sequence[Time]) -> list[str]:
    """Layouts, MiB, and at each rate the time through a controller and directly."""
    layouts = f"{layout_text(line.prepared)} → {layout_text(line.learned)}{'' if line.fits else '*'}"
    sizes = [f"{count / MIB:,.1f}" for count in (line.bytes, line.across_bytes, line.bound_bytes)]
    return [layouts, *sizes, *(duration(took) for own in times for took in (own.centralised_s, own.direct_s))]


def comparison_grid(plans: Sequence[Plan], price: float | None) -> Grid:
    """Contexts and clusters down: the layouts of a step, its time, the cost of 1,000 episodes."""
    rows = []
    for row in zip(*(plan.steps for plan in plans), strict=True):
        for place, (plan, each) in enumerate(zip(plans, row, strict=True)):
            where = plan.asked.costs.cluster.where.removeprefix("--gpus ")
            rows.append(("" if place else f"{each.context:,}", where, *_compared(each, price)))
    names = ("context", "GPUs", "rollout", "update", "a step", *_cost_names(price))
    return Grid("The clusters side by side; GPU-h: GPU-hours of 1,000 episodes", names, tuple(rows))


def _compared(each: PredictedStep, price: float | None) -> list[str]:
    took, hours = each.seconds, each.gpu_hours
    if took is None or hours is None:
        return [each.verdict]
    parts = {part.stage: _part(part) for part in each.parts}
    return [parts["rollout"], parts["update"], duration(took.value), *_cost(hours, price)]


def _cost_names(price: float | None) -> list[str]:
    return ["GPU-h", *([] if price is None else ["cost"])]


def layout_text(layout: Layout) -> str:
    return f"{layout.dp}x{layout.tp}" + f"x{layout.pp}" * (layout.pp > 1)


def _cost(hours: Estimate, price: float | None) -> list[str]:
    return [three_digits(hours.value), *([] if price is None else [three_digits(hours.value * price)])]


def _part(part: StageTime) -> str:
    """Example: "TP8 933 s"."""
    if not part.seconds.value:
        return "-"
    took, layout = duration(part.seconds.value), part.layout
    return f"TP{layout.tp}{f'xPP{layout.pp}' * (layout.pp > 1)} {took}" if layout else took


def _range(estimate: Estimate) -> str:
    """Example: "-13 +16 %"."""
    below, above = (round((end / estimate.value - 1) * 100) for end in (estimate.low, estimate.high))
    return f"{below:+} {above:+} %"


NO_ROOM = "OOM"  # out of memory: not one response, or one row, of this length fits


def rollout_grid(plan: Plan) -> Grid:
    """Contexts and splits down, loads across: tokens per GPU and second, waves, the choice."""
    chosen = {pick.cell for pick in plan.choices}
    rows = []
    tps = plan.fitting
    for cells in _by_layout(cell for cell in plan.cells if cell.stage == "rollout" and cell.tp in tps):
        first, most = cells[0], max(cell.need.needed_bytes for cell in cells)
        context = f"{first.context:,}" if first.tp == tps[0] else ""
        fast = [_speed(cell, cell in chosen) for cell in cells]
        pp = first.choice.layout.pp
        split = f"{first.tp}" + f" x PP {pp}" * (pp > 1)
        columns = [split, f"{most / GIB:.1f}", short(first.kv_tokens_capacity or 0), _spread(cells)]
        rows.append((context, *columns, *fast))
    return Grid(
        "Rollout: tokens per GPU and second, by responses that one copy of the engine is given at once",
        ("context", "TP", "GiB/GPU", "fit", "80 %", *(f"{load}  " for load in plan.asked.responses)),
        tuple(rows),
    )


def training_grid(plan: Plan) -> Grid:
    """Contexts and splits down, both stages of the learner across."""
    stages: tuple[Stage, ...] = ("experience", "update")
    names = [name for stage in stages for name in (f"{stage}\nGiB/GPU", "\nmicro-batch", "\ntokens/GPU/s  ")]
    # Experience is prepared in the layout of the update.
    chosen = {(pick.cell.context, pick.tp) for pick in plan.choices if pick.cell.stage == "update"}
    cells = [cell for cell in plan.cells if cell.stage in stages]
    first = min(cell.tp for cell in cells)
    rows = []
    for group in _by_layout(cells):
        shown = [text for cell in group for text in _trained(cell, (cell.context, cell.tp) in chosen)]
        rows.append((f"{group[0].context:,}" if group[0].tp == first else "", str(group[0].tp), *shown))
    title = "Learner: tokens per GPU and second; R: activations are recomputed, O: moments in host memory"
    title += ", E8: experts spread over 8 GPUs" * any(cell.choice.layout.ep > 1 for cell in cells)
    title += ", H2: 2 replicas" * any(cell.choice.layout.replicas > 1 for cell in cells)
    return Grid(title, ("\ncontext", "\nTP", *names), tuple(rows))


def map_grid(plan: Plan, before: int, after: int) -> Grid:
    """Contexts down, loads across: the gain of the larger split."""
    percents = {(e.context, e.responses): e.percent for e in plan.map if (e.tp_from, e.tp_to) == (before, after)}
    gains = {place: NO_ROOM if gain is None else f"{gain:+.1f} %" for place, gain in percents.items()}
    loads = plan.asked.responses
    rows = [(f"{context:,}", *(gains[context, load] for load in loads)) for context in plan.asked.contexts]
    title = f"What TP {after} gains over TP {before}, (TGS({after}) - TGS({before})) / TGS({before}), by responses"
    return Grid(title, ("context", *map(str, loads)), tuple(rows))


def _by_layout(cells: Iterable[PlanCell]) -> list[list[PlanCell]]:
    key = attrgetter("context", "tp")
    return [[*group] for _, group in groupby(sorted(cells, key=key), key)]


def _speed(cell: PlanCell, chosen: bool) -> str:
    """Example: "227×2 *": 227 tokens per GPU and second in two waves, the choice."""
    if cell.throughput is None:
        return f"{NO_ROOM}  "
    waves = f"×{cell.waves}" if cell.waves and cell.waves > 1 else ""
    return f"{three_digits(cell.throughput.value)}{waves}{' *' if chosen else '  '}"


def _trained(cell: PlanCell, chosen: bool) -> tuple[str, str, str]:
    own, ep, replicas = cell.choice, cell.choice.layout.ep, cell.choice.layout.replicas
    marks = {"R": own.recompute, "O": own.offload, f"E{ep}": ep > 1, f"H{replicas}": replicas > 1}
    how = " ".join([f"{own.micro_batch_tokens:,}", *(mark for mark, on in marks.items() if on)])
    return f"{cell.need.needed_bytes / GIB:.1f}", how, _speed(cell, chosen)


def _spread(cells: Sequence[PlanCell]) -> str:
    """Half of the widest interval, relative."""
    shares = [(e.high - e.low) / 2 / e.value for cell in cells if (e := cell.throughput)]
    return f"±{max(shares):.0%}" if shares else ""


def head(plan: Plan) -> list[str]:
    """Lines on the question, the assumptions, and the meaning of the marks."""
    asked, costs = plan.asked, plan.asked.costs
    config, cluster, precision = costs.config, costs.cluster, costs.engine(1).precision
    hosts = f"{cluster.hosts:,} host{'s' * (cluster.hosts != 1)} of {cluster.gpus_per_host}"
    kv = "" if precision.kv == "auto" else f", keys and values in {precision.kv}"
    where = "in turns" if plan.sampling == plan.learning == cluster.gpus else f"{plan.learning} of them learn"
    prompt = costs.split(asked.contexts[-1])[0]
    read = f"{prompt:,} tokens of the longest read, the rest written" if prompt else "all of it written, none read"
    return [
        f"{asked.model} on {hosts} {costs.device.kind} = {cluster.gpus:,} GPUs, {where}",
        "all is predicted: rollout by a model fitted to published tables, the learner by the same one unfitted",
        f"rollout: {costs.software.name}, weights in {precision.weights}{kv}; {read}",
        *_calibrated(costs),
        f"learner: {costs.dtype}, FSDP2 x TP; {costs.network_gbps:g} Gbit/s between hosts",
        f"{config.rollout.episodes:,} episodes a step, log-normal around half of the context, cut at the context",
        "context: the longest episode, for which there must be room; 80 %: holds the true value in four of five cases",
        "*: the choice; ×2: in two waves, as not all fit at once; OOM: out of memory; fit: tokens that one copy holds",
    ]


def _calibrated(costs: CostModel) -> list[str]:
    """A line on the measurements behind the rollout's intervals, or on those that are missing."""
    if costs.measured:
        return [f"rollout: {costs.measured.text}"]
    engine = costs.engine(1)
    named = {
        "version": f"this version of {costs.software.name}",
        "device": engine.device.kind,
        "precision": f"weights in {engine.precision.weights}",
    }
    new = [named[factor] for factor in uncalibrated(engine)]
    return [f"rollout: never calibrated: {', '.join(new)}; intervals are wide, --measured narrows them"] if new else []


def switch_lines(plan: Plan) -> list[str]:
    """A line for each stage and load: the contexts at which the choice changes."""
    lines = []
    for (stage, load), runs in groupby(plan.switches, attrgetter("stage", "responses")):
        first, *others = runs
        until = f"up to {first.last:,} tokens" if others else "at every context"
        parts = [f"{_split(first)} {until}", *(f"{_split(run)} from {run.first:,}" for run in others)]
        what = f"{stage}, a copy given {load} responses" if load else "experience and update"
        lines.append(f"{what}: {', '.join(parts)}")
    return lines


def step_lines(plan: Plan) -> list[str]:
    """The layouts of the recipe's own step, a line for each run of contexts with the same ones, and what idles."""
    lines = []
    for text, run in groupby(plan.steps, _step_text):
        steps = [*run]
        contexts = f"{steps[0].context:,}" + (f" to {steps[-1].context:,}" if steps[1:] else "")
        lines.append(f"the recipe's {steps[0].episodes:,} episodes, {contexts} tokens: {text}")
    return lines


def _step_text(each: PredictedStep) -> str:
    parts = {part.stage: part.layout for part in each.parts if part.layout}
    if not parts:
        return each.verdict
    layouts = f"rollout {layout_text(parts['rollout'])}, experience and update {layout_text(parts['update'])}"
    return "; ".join([layouts, *each.idle])


def without_fit(plan: Plan) -> list[str]:
    """Splits that fit at no context, with the reason."""
    found = {cell.tp: cell for cell in reversed(plan.cells) if cell.stage == "rollout" and cell.tp not in plan.fitting}
    return [f"rollout, TP {tp} at every context: {found[tp].verdict}" for tp in sorted(found)]


def uncertain_choices(plan: Plan) -> str:
    """The number of choices that lie within the model's error."""
    picks = [choice for choice in plan.choices if choice.tp is not None]
    count = sum(not choice.certain for choice in picks)
    return f"{count} of {len(picks)} choices lie within 80 % of the next best: measure these before relying on them"


def _split(run: Switch) -> str:
    return f"TP {run.tp}" if run.tp else "no layout fits"


def trace_grids(traced: TracedPlan) -> tuple[Grid, ...]:
    """The tables of a trace of the learner's code, and its differences from the plan."""
    stages, job = traced.trace.stages, traced.trace.job
    of_stages, exchanges, operators, sums, units = [], [], [], [], {"GiB": GIB, "TFLOP": TERA}
    for own in stages:
        sizes = [f"{size / GIB:.2f}" for size in (own.held_bytes, own.peak_bytes, own.exchanged())]
        of_stages.append((own.stage, *sizes, f"{sum(own.flops.values()) / TERA:.2f}"))
        operators += [(own.stage, name, f"{count / TERA:.3f}") for name, count in sorted(own.flops.items())]
        for one in own.exchanges:
            counts = (f"{one.ranks}", f"{one.count:,}", f"{one.bytes / GIB:.3f}")
            exchanges.append((own.stage, f"{one.operation}, {one.group}", *counts))
    for each in traced.comparisons:
        sizes = [f"{size / units[each.unit]:.2f}" for size in (each.traced, each.planned)]
        sums.append((each.what, each.unit, *sizes, f"{each.percent:+.1f} %"))
    title = (
        f"Traced: {traced.choice}, rank {job.rank} of {job.layout.size:,}, {job.micro_batches} micro-batches with rows "
        f"of {job.row_tokens:,} tokens; the learner's own code on tensors without numbers"
    )
    return (
        Grid(title, ("stage", "GiB held", "at the peak", "exchanged", "TFLOP"), tuple(of_stages)),
        Grid("Traced, and by the plan's own sums", ("", "unit", "traced", "planned", "differs"), tuple(sums)),
        Grid("Exchanges traced", ("stage", "operation", "ranks", "times", "GiB"), tuple(exchanges)),
        Grid("Arithmetic traced, attention as if not causal", ("stage", "operator", "TFLOP"), tuple(operators)),
    )


TERA = 1e12


def blocks(plan: Plan, price: float | None) -> Iterator[Grid | list[str]]:
    """What follows the head: tables and lines. `price` is per GPU-hour; None: without cost."""
    yield rollout_grid(plan)
    for before, after in pairwise(plan.fitting):
        yield map_grid(plan, before, after)
    yield training_grid(plan)
    chosen = (*step_lines(plan), *switch_lines(plan), *without_fit(plan), uncertain_choices(plan), *fp8_hint(plan))
    yield ["The choice, by context", *(f"  {line}" for line in chosen)]
    yield step_grid(plan.steps, price)
    if dispatched := [each.dispatch for each in plan.steps if each.dispatch]:
        yield dispatch_grid(dispatched, plan.asked.costs.network_gbps)
    if plan.traced:
        yield from trace_grids(plan.traced)


def fp8_hint(plan: Plan) -> list[str]:
    """Lines on the longest step's rollout with weights in 8 bits, and the risk."""
    costs, steps = plan.asked.costs, [step for step in plan.steps if step.parts]
    precision = costs.engine(1).precision
    if not steps or costs.measured or precision.weights not in ("bf16", "fp16") or costs.device.fewest_bits > 8:
        return []
    own, load = steps[-1], plan.asked.load(steps[-1].context)
    narrow = replace(costs, precision=replace(precision, weights="fp8", kv=precision.weights))
    choice = narrow.best(narrow.rollout_choices(plan.sampling), load)
    took, before = narrow.estimate(choice, load).value, own.parts[0].seconds.value
    return [
        f"--weights fp8 instead of {precision.weights}: rollout {duration(took)} instead of {duration(before)} at "
        f"{own.context:,} tokens, {choice}",
        "its risk: what samples is then not the policy that learns; with it set algorithm.correction and watch "
        "kl_to_sampler",
    ]


# The layouts of a step as flags of other programs, whose names are in emit.toml.

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def launch_flags(plan: Plan, target: str) -> list[str]:
    """A comment and a line of flags for each context."""
    flags = tomllib.loads(files("earl.planner").joinpath("emit.toml").read_text(encoding="utf-8"))[target]
    updates = {(cell.context, cell.choice.layout): cell.choice for cell in plan.cells if cell.stage == "update"}
    lines = []
    for step in plan.steps:
        layouts = {part.stage: part.layout for part in step.parts if part.layout}
        if "rollout" in layouts and "update" in layouts:
            own, other = layouts["rollout"], layouts["update"]
            pipeline = f" x PP {own.pp}" * (own.pp > 1)
            layout = f"rollout {own.dp} x TP {own.tp}{pipeline}, update {other.dp} x TP {other.tp}"
            values = _values(plan.asked.costs, step, own, updates[step.context, other])
            lines += [f"# context {step.context}: {layout}"]
            lines += [" ".join(filter(None, (flag.format(**values) for flag in flags)))]
        else:
            lines += [f"# context {step.context}: {step.verdict}"]
    return lines


def _values(costs: CostModel, step: PredictedStep, rollout: Layout, update: Choice) -> dict[str, Any]:
    engine = costs.engine(rollout.tp)
    precision = engine.precision
    prompt, reply = costs.split(step.context)
    megatron = f"actor_rollout_ref.actor.megatron.tensor_model_parallel_size={update.layout.tp}"
    return {
        **{"costs": costs, "step": step, "rollout": rollout, "update": update, "reply": reply},
        "prompt": f"data.max_prompt_length={prompt}" if prompt else "",
        "sequences": ceil(step.episodes / rollout.dp),
        "memory_share": engine.software.utilization if engine.utilization is None else engine.utilization,
        "dtype": DTYPES.get(precision.weights, "auto"),
        "executor": "--distributed-executor-backend ray" if rollout.pp > 1 else "",
        "sharding": update.layout.dp // update.layout.replicas,
        "quantization": "--quantization fp8" if precision.weights == "fp8" else "",
        "kv_cache": "--kv-cache-dtype fp8" if precision.kv == "fp8" else "",
        "strategy": ("megatron", "megatron") if update.layout.tp > 1 else ("fsdp2", "fsdp_config"),
        "megatron": megatron if update.layout.tp > 1 else "",
        "rows": max(1, (update.micro_batch_tokens or 0) // step.context),
        "checkpointing": "full" if update.recompute else "none",
    }
