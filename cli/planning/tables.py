"""A plan as tables for the terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from earl.parallel.estimate import Estimate
from earl.parallel.hardware import GIB
from earl.planner.cell import Cell, Stage
from earl.planner.plan import Plan
from earl.planner.speedup import Speedup
from earl.planner.step import Part, Step

if TYPE_CHECKING:
    from rich.table import Table

NO_ROOM = "OOM"
"""Out of memory: not even one response, or one row, of this length fits."""


def rollout_table(plan: Plan) -> "Table":
    """Contexts and splits down, loads across: tokens per GPU and second, waves, the choice."""
    table = _table(["context", "TP", "GiB/GPU", "fit", "80 %", *(f"{load}  " for load in plan.asked.responses)])
    chosen = {(pick.context, pick.responses): pick.tp for pick in plan.choices if pick.stage == "rollout"}
    for cells in _by_layout(cell for cell in plan.cells if cell.stage == "rollout"):
        first, most = cells[0], max(cell.memory_bytes for cell in cells)
        fast = [_speed(cell, chosen.get((cell.context, cell.responses)) == cell.tp) for cell in cells]
        context = f"{first.context:,}" if first.tp == plan.asked.tps[0] else ""
        table.add_row(
            context, str(first.tp), f"{most / GIB:.1f}", short(first.kv_tokens_capacity or 0), _spread(cells), *fast
        )
    return table


def training_table(plan: Plan, stages: Sequence[Stage]) -> "Table":
    """Contexts and splits down, both stages of the learner across."""
    names = [name for stage in stages for name in (f"{stage}\nGiB/GPU", "\nmicro-batch", "\ntokens/GPU/s")]
    table = _table(["\ncontext", "\nTP", *names])
    chosen = {(pick.stage, pick.context): pick.tp for pick in plan.choices}
    first = min(cell.tp for cell in plan.cells if cell.stage in stages)
    for cells in _by_layout(cell for cell in plan.cells if cell.stage in stages):
        shown = [text for cell in cells for text in _trained(cell, chosen[cell.stage, cell.context] == cell.tp)]
        table.add_row(f"{cells[0].context:,}" if cells[0].tp == first else "", str(cells[0].tp), *shown)
    return table


def map_table(plan: Plan, before: int, after: int) -> "Table":
    """Contexts down, loads across: what the larger split gains."""
    table = _table([f"TP {before} → {after}", *(f"{load}" for load in plan.asked.responses)])
    found: dict[tuple[int, int], Speedup] = {
        (entry.context, entry.responses): entry for entry in plan.map if (entry.tp_from, entry.tp_to) == (before, after)
    }
    for context in plan.asked.contexts:
        entries = [found[context, load] for load in plan.asked.responses]
        table.add_row(f"{context:,}", *(_gain(entry) for entry in entries))
    return table


def step_table(steps: Sequence[Step], price: float | None) -> "Table":
    """Contexts down, stages across, then the whole step and what 1,000 episodes take."""
    stages = ("rollout", "dispatch", "experience", "update", "weights")
    last = ["\na step", "\n80 %", "GPU-hours of\n1,000 episodes", *(["their\ncost"] if price is not None else [])]
    table = _table(["\ncontext", *(f"\n{stage}" for stage in stages), *last])
    for each in steps:
        parts = {part.stage: part for part in each.parts}
        took, hours = each.seconds, each.gpu_hours
        if took is None or hours is None:
            table.add_row(f"{each.context:,}", each.verdict)
            continue
        layouts = [_part(part) for part in map(parts.get, stages) if part]
        cost = [] if price is None else [significant(hours.value * price)]
        table.add_row(
            f"{each.context:,}", *layouts, duration(took.value), _range(took), significant(hours.value), *cost
        )
    return table


def comparison_table(plans: Sequence[Plan], price: float | None) -> "Table":
    """Contexts and clusters down: the layouts of a step, its time, what 1,000 episodes take."""
    names = ["context", "GPUs", "rollout", "update", "a step", "GPU-hours", *(["cost"] if price is not None else [])]
    table = _table(names)
    for row in zip(*(plan.steps for plan in plans), strict=True):
        for place, (plan, each) in enumerate(zip(plans, row, strict=True)):
            context = f"{each.context:,}" if place == 0 else ""
            where = plan.asked.cluster.where.removeprefix("--gpus ")
            table.add_row(context, where, *_compared(each, price))
    return table


def _compared(each: Step, price: float | None) -> list[str]:
    took, hours = each.seconds, each.gpu_hours
    if took is None or hours is None:
        return [each.verdict]
    parts = {part.stage: _part(part) for part in each.parts}
    cost = [] if price is None else [significant(hours.value * price)]
    return [parts["rollout"], parts["update"], duration(took.value), significant(hours.value), *cost]


def _by_layout(cells: Iterable[Cell]) -> list[list[Cell]]:
    groups: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.context, cell.tp), []).append(cell)
    return [groups[key] for key in sorted(groups)]


def _speed(cell: Cell, chosen: bool) -> str:
    """Example: "227×2 *": 227 tokens per GPU and second in two waves, the choice."""
    if cell.throughput is None:
        return f"{NO_ROOM}  "
    waves = f"×{cell.waves}" if cell.waves and cell.waves > 1 else ""
    return f"{significant(cell.throughput.value)}{waves}{' *' if chosen else '  '}"


def _trained(cell: Cell, chosen: bool) -> tuple[str, str, str]:
    fast = cell.throughput
    how = f"{short(cell.micro_batch_tokens or 0)}{' R' if cell.recompute else ''}{' O' if cell.offload else ''}"
    speed = f"{significant(fast.value)}{' *' if chosen else '  '}" if fast else f"{NO_ROOM}  "
    return f"{cell.memory_bytes / GIB:.1f}", how, speed


def _spread(cells: Sequence[Cell]) -> str:
    """Half of the widest interval, relative."""
    shares = [(e.high - e.low) / 2 / e.value for cell in cells if (e := cell.throughput)]
    return f"±{max(shares):.0%}" if shares else ""


def _gain(entry: Speedup) -> str:
    return NO_ROOM if entry.percent is None else f"{entry.percent:+.1f} %"


def _part(part: Part) -> str:
    """Example: "TP8 933 s"."""
    if not part.seconds.value:
        return "-"
    return f"TP{part.layout.tp} {duration(part.seconds.value)}" if part.layout else duration(part.seconds.value)


def _range(estimate: Estimate) -> str:
    """Example: "-13 +16 %"."""
    below, above = (round((end / estimate.value - 1) * 100) for end in (estimate.low, estimate.high))
    return f"{below:+} {above:+} %"


def short(tokens: int) -> str:
    """Tokens in a few letters.

    Example:
        >>> short(422342), short(1291715), short(512)
        ('422K', '1.29M', '512')
    """
    for unit, size in (("M", 1e6), ("K", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}" if tokens < 100 * size else f"{tokens / size:.0f}{unit}"
    return str(tokens)


def significant(value: float) -> str:
    """Three digits, thousands with commas.

    Example:
        >>> significant(1234.5), significant(12.345)
        ('1,234', '12.3')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """With its unit.

    Example:
        >>> duration(0.00173), duration(41.84), duration(37250.0)
        ('1.73 ms', '41.8 s', '10.3 h')
    """
    for unit, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{significant(seconds / size)} {unit}"
    return "< 1 ms"


def _table(names: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table
