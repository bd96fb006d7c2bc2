"""A plan as tables for the terminal."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from earl.parallel.hardware import GIB
from earl.planner.cell import Cell
from earl.planner.choice import Choice
from earl.planner.plan import Plan
from earl.planner.speedup import Speedup

if TYPE_CHECKING:
    from rich.table import Table

NO_ROOM = "OOM"
"""Out of memory: not even one response, or one row, of this length fits."""


def rollout_table(plan: Plan) -> "Table":
    """Contexts and splits down, loads across: tokens per GPU and second, waves, the choice."""
    loads = plan.asked.responses
    table = _table(["context", "TP", "GiB/GPU", "fit", "", *(f"{load}" for load in loads)])
    chosen = {(pick.context, pick.responses): pick.tp for pick in plan.choices if pick.stage == "rollout"}
    rows = _grouped(cell for cell in plan.cells if cell.stage == "rollout")
    for cells in rows:
        first = cells[0]
        widest = max(cells, key=lambda cell: cell.memory_bytes)
        fast = [_speed(cell, chosen.get((cell.context, cell.responses)) == cell.tp) for cell in cells]
        table.add_row(
            f"{first.context:,}" if first.tp == plan.asked.tps[0] else "",
            str(first.tp),
            f"{widest.memory_bytes / GIB:.1f}",
            _short(first.kv_tokens_capacity or 0),
            _spread(cells),
            *fast,
            end_section=first.tp == plan.asked.tps[-1],
        )
    return table


def map_table(plan: Plan, before: int, after: int) -> "Table":
    """Contexts down, loads across: what the larger split gains."""
    table = _table([f"TP {before} → {after}", *(f"{load} responses" for load in plan.asked.responses)])
    found: dict[tuple[int, int], Speedup] = {
        (entry.context, entry.responses): entry for entry in plan.map if (entry.tp_from, entry.tp_to) == (before, after)
    }
    for context in plan.asked.contexts:
        entries = [found[context, load] for load in plan.asked.responses]
        table.add_row(f"{context:,}", *(_gain(entry) for entry in entries))
    return table


def switch_lines(plan: Plan) -> list[str]:
    """Where the choice changes as contexts grow, a line for each stage and load.

    Example:
        "rollout, 32 responses: TP 4 up to 8,192 tokens, TP 8 from 16,384"
    """
    lines = []
    for stage, load in dict.fromkeys((run.stage, run.responses) for run in plan.switches):
        runs = [run for run in plan.switches if (run.stage, run.responses) == (stage, load)]
        parts = [
            f"{f'TP {run.tp}' if run.tp else 'nothing fits'} "
            + (f"up to {run.last:,}" if run is runs[0] and len(runs) > 1 else f"from {run.first:,}")
            for run in runs
        ]
        if len(runs) == 1:
            parts = [f"TP {runs[0].tp} at every context" if runs[0].tp else "nothing fits"]
        lines.append(f"{stage}{f', {load} responses' if load else ''}: {', '.join(parts)}")
    return lines


def uncertain(choices: Iterable[Choice]) -> int:
    """Choices whose interval overlaps that of the next best."""
    return sum(not choice.certain for choice in choices if choice.tp is not None)


def _grouped(cells: Iterable[Cell]) -> list[list[Cell]]:
    groups: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.context, cell.tp), []).append(cell)
    return list(groups.values())


def _speed(cell: Cell, chosen: bool) -> str:
    """Example: "227 ×2 *": 227 tokens per GPU and second in two waves, the choice."""
    if cell.throughput is None:
        return NO_ROOM
    waves = f" ×{cell.waves}" if cell.waves and cell.waves > 1 else ""
    return f"{significant(cell.throughput.value)}{waves}{' *' if chosen else '  '}"


def _spread(cells: Sequence[Cell]) -> str:
    """Half of the widest interval, relative."""
    shares = [(e.high - e.low) / 2 / e.value for cell in cells if (e := cell.throughput)]
    return f"±{max(shares):.0%}" if shares else ""


def _gain(entry: Speedup) -> str:
    return entry.why.replace(" does not fit", " OOM") if entry.percent is None else f"{entry.percent:+.1f} %"


def _short(tokens: int) -> str:
    """Example: 422342 as "422K"."""
    for unit, size in (("M", 1e6), ("K", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}" if tokens < 100 * size else f"{tokens / size:.0f}{unit}"
    return str(tokens)


def significant(value: float) -> str:
    """Three digits, thousands with commas."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(names: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table
