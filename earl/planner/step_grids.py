"""Steps of a plan as tables of words: stages, dispatch, and clusters side by side."""

from collections.abc import Sequence

from earl.dispatch.explain import MIB
from earl.parallel.estimate import Estimate
from earl.parallel.layout import Layout
from earl.planner.plan import Plan
from earl.planner.spoken import Grid, duration, significant
from earl.planner.step import Part, Step


def step_grid(steps: Sequence[Step], price: float | None) -> Grid:
    """Contexts down, stages across, then the whole step and what 1,000 episodes take."""
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


def dispatch_grid(steps: Sequence[Step], gbps: float) -> Grid:
    """Contexts down: what a step's rows weigh, what of it leaves its host, and how long that takes."""
    rows = []
    for entry in (each.dispatch for each in steps if each.dispatch):
        sizes = [f"{count / MIB:,.1f}" for count in (entry.bytes, entry.across_bytes, entry.bound_bytes)]
        took = [duration(seconds) for seconds in (entry.times[-1].centralised_s, entry.times[-1].direct_s)]
        between = f"{_layout(entry.prepared)} → {_layout(entry.learned)}"
        rows.append((f"{entry.context:,}", f"{entry.tokens:,}", between, *sizes, *took))
    names = ("context", "tokens", "dp x TP", "MiB", "leave hosts", "busiest link", "controller", "direct")
    return Grid(f"Dispatch of a step's rows, at {gbps:g} Gbit/s between hosts", names, tuple(rows))


def comparison_grid(plans: Sequence[Plan], price: float | None) -> Grid:
    """Contexts and clusters down: the layouts of a step, its time, what 1,000 episodes take."""
    rows = []
    for row in zip(*(plan.steps for plan in plans), strict=True):
        for place, (plan, each) in enumerate(zip(plans, row, strict=True)):
            where = plan.asked.cluster.where.removeprefix("--gpus ")
            rows.append(("" if place else f"{each.context:,}", where, *_compared(each, price)))
    names = ("context", "GPUs", "rollout", "update", "a step", *_cost_names(price))
    return Grid("The clusters side by side; GPU-h: GPU-hours of 1,000 episodes", names, tuple(rows))


def _compared(each: Step, price: float | None) -> list[str]:
    took, hours = each.seconds, each.gpu_hours
    if took is None or hours is None:
        return [each.verdict]
    parts = {part.stage: _part(part) for part in each.parts}
    return [parts["rollout"], parts["update"], duration(took.value), *_cost(hours, price)]


def _cost_names(price: float | None) -> list[str]:
    return ["GPU-h", *([] if price is None else ["cost"])]


def _layout(layout: Layout) -> str:
    return f"{layout.dp}x{layout.tp}"


def _cost(hours: Estimate, price: float | None) -> list[str]:
    """GPU-hours, and what they cost."""
    return [significant(hours.value), *([] if price is None else [significant(hours.value * price)])]


def _part(part: Part) -> str:
    """Example: "TP8 933 s"."""
    if not part.seconds.value:
        return "-"
    return f"TP{part.layout.tp} {duration(part.seconds.value)}" if part.layout else duration(part.seconds.value)


def _range(estimate: Estimate) -> str:
    """Example: "-13 +16 %"."""
    below, above = (round((end / estimate.value - 1) * 100) for end in (estimate.low, estimate.high))
    return f"{below:+} {above:+} %"
