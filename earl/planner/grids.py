"""Cells and maps of a plan as tables of words, for a terminal or a page."""

from collections.abc import Iterable, Sequence

from earl.parallel.choice import Stage
from earl.parallel.hardware import GIB
from earl.planner.cell import Cell
from earl.planner.plan import Plan
from earl.planner.speedup import Speedup
from earl.planner.spoken import Grid, short, significant

NO_ROOM = "OOM"
"""Out of memory: not even one response, or one row, of this length fits."""


def rollout_grid(plan: Plan) -> Grid:
    """Contexts and splits down, loads across: tokens per GPU and second, waves, the choice."""
    chosen = {(pick.context, pick.responses): pick.tp for pick in plan.choices if pick.stage == "rollout"}
    rows = []
    tps = plan.fitting
    for cells in _by_layout(cell for cell in plan.cells if cell.stage == "rollout" and cell.tp in tps):
        first, most = cells[0], max(cell.memory_bytes for cell in cells)
        context = f"{first.context:,}" if first.tp == tps[0] else ""
        fast = [_speed(cell, chosen.get((cell.context, cell.responses)) == cell.tp) for cell in cells]
        told = [str(first.tp), f"{most / GIB:.1f}", short(first.kv_tokens_capacity or 0), _spread(cells)]
        rows.append((context, *told, *fast))
    return Grid(
        "Rollout: tokens per GPU and second, by responses that one copy of the engine is given at once",
        ("context", "TP", "GiB/GPU", "fit", "80 %", *(f"{load}  " for load in plan.asked.responses)),
        tuple(rows),
    )


def training_grid(plan: Plan) -> Grid:
    """Contexts and splits down, both stages of the learner across."""
    stages: tuple[Stage, ...] = ("experience", "update")
    names = [name for stage in stages for name in (f"{stage}\nGiB/GPU", "\nmicro-batch", "\ntokens/GPU/s  ")]
    chosen = {(pick.stage, pick.context): pick.tp for pick in plan.choices}
    cells = [cell for cell in plan.cells if cell.stage in stages]
    first = min(cell.tp for cell in cells)
    rows = []
    for group in _by_layout(cells):
        shown = [text for cell in group for text in _trained(cell, chosen[cell.stage, cell.context] == cell.tp)]
        rows.append((f"{group[0].context:,}" if group[0].tp == first else "", str(group[0].tp), *shown))
    title = "Learner: tokens per GPU and second; R: activations are recomputed, O: moments are in host memory"
    return Grid(title, ("\ncontext", "\nTP", *names), tuple(rows))


def map_grid(plan: Plan, before: int, after: int) -> Grid:
    """Contexts down, loads across: what the larger split gains."""
    found: dict[tuple[int, int], Speedup] = {
        (entry.context, entry.responses): entry for entry in plan.map if (entry.tp_from, entry.tp_to) == (before, after)
    }
    rows = [
        (f"{context:,}", *(_gain(found[context, load]) for load in plan.asked.responses))
        for context in plan.asked.contexts
    ]
    title = f"What TP {after} gains over TP {before}, (TGS({after}) - TGS({before})) / TGS({before}), by responses"
    return Grid(title, ("context", *(f"{load}" for load in plan.asked.responses)), tuple(rows))


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
    how = f"{cell.micro_batch_tokens:,}{' R' if cell.recompute else ''}{' O' if cell.offload else ''}"
    speed = f"{significant(fast.value)}{' *' if chosen else '  '}" if fast else f"{NO_ROOM}  "
    return f"{cell.memory_bytes / GIB:.1f}", how, speed


def _spread(cells: Sequence[Cell]) -> str:
    """Half of the widest interval, relative."""
    shares = [(e.high - e.low) / 2 / e.value for cell in cells if (e := cell.throughput)]
    return f"±{max(shares):.0%}" if shares else ""


def _gain(entry: Speedup) -> str:
    return NO_ROOM if entry.percent is None else f"{entry.percent:+.1f} %"
