"""Plans the cost of dispatch alone, and prints it as tables and JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from earl.batch import Batch
from earl.cli.options import print_json
from earl.cli.text import console, one_line
from earl.config import Config
from earl.dispatch.explain import MIB, explain, lines
from earl.dispatch.predicted_cost import RATES, CostLine, DispatchJob, contexts, entry, sizes
from earl.dispatch.rows import Columns, token_bytes
from earl.dispatch.rows import columns as named
from earl.parallel.hardware import ClusterSpec
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape

if TYPE_CHECKING:
    from rich.table import Table

PREDICTED = "predicted from bytes alone, nothing was measured: no latency, no packing"


@dataclass(frozen=True, slots=True)
class Planned:
    env: str
    model: str
    cluster: ClusterSpec
    shared: bool
    columns: Columns
    by_context: tuple[CostLine, ...]
    by_gpus: tuple[CostLine, ...]
    explained: dict[str, Any]
    """The plan at the longest context, on the cluster itself."""

    @property
    def as_object(self) -> dict[str, Any]:
        device = self.cluster.device
        return {
            "predicted": True,
            "env": self.env,
            "model": self.model,
            "gpus": self.cluster.gpus,
            "hosts": self.cluster.hosts,
            "kind": device.kind if device else None,
            "placement": "colocated" if self.shared else "disaggregated",
            "columns": [*self.columns],
            "token_bytes": token_bytes(self.columns),
            "by_context": [asdict(line) for line in self.by_context],
            "by_gpus": [asdict(line) for line in self.by_gpus],
            "explained": self.explained,
        }


def planned(config: Config, model: str, shape: ModelShape, cluster: ClusterSpec, columns: str | None) -> Planned:
    """Plan a job's transfers. `columns`: comma-separated names; None: all. Raises EarlError for invalid ones."""
    chosen = _columns(columns)
    jobs = contexts(config, shape, cluster)
    larger: Sequence[DispatchJob] = sizes(config, shape, cluster, jobs[-1].context)
    return Planned(
        env=config.env.name,
        model=model,
        cluster=cluster,
        shared=jobs[-1].shared,
        columns=chosen,
        by_context=tuple(entry(job, chosen) for job in jobs),
        by_gpus=tuple(entry(job, chosen) for job in larger),
        explained=explain(jobs[-1].transfer(chosen)),
    )


def show(plan: Planned, as_json: bool) -> None:
    if as_json:
        return print_json(plan.as_object)
    device, last, cluster = plan.cluster.device, plan.by_context[-1], plan.cluster
    where = "on the same GPUs in turns" if plan.shared else "on GPUs of their own"
    for line in (
        f"{one_line(plan.env)}, {plan.model}: rows from Experience preparation to Update, {where}",
        PREDICTED,
        f"{last.rows:,} rows a step (rollout.episodes), log-normal around half of the context, cut at the context",
        f"columns: {', '.join(plan.columns)}; {token_bytes(plan.columns)} bytes of a token",
        "layouts: dp x tp that prepares → that learns, the smallest tp that fits; *: the model does not fit",
        "batch: all of it once; crosses: what the plan sends between hosts; bound: on the busiest link under any plan",
    ):
        click.echo(line)
    hosts = f"{cluster.hosts:,} host{'s' * (cluster.hosts != 1)}"
    click.echo(f"\n{hosts} of {cluster.gpus_per_host} {device.kind if device else ''}")
    console().print(_table("context", [(f"{line.context:,}", line) for line in plan.by_context]))
    click.echo(f"{last.context:,} tokens, rows in proportion to the GPUs")
    console().print(_table("GPUs", [(f"{line.gpus:,}", line) for line in plan.by_gpus]))
    click.echo(f"{last.context:,} tokens on {hosts}")
    click.echo("\n".join(f"  {line}" for line in [*lines(plan.explained), _paper(last)]))
    return None


def _table(first: str, rows: Iterable[tuple[str, CostLine]]) -> "Table":
    """One row per line: layouts, MiB, and for each rate the seconds through a controller and directly."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    rates = [name for gbps in RATES for name in (f"{gbps} Gbps\ncentral", "\ndirect")]
    for name in (f"\n{first}", "\nlayouts", "MiB\nbatch", "\ncrosses", "\nbound", *rates):
        table.add_column(name, justify="right", no_wrap=True)
    for name, line in rows:
        layouts = f"{_layout(line.prepared)}→{_layout(line.learned)}{'' if line.fits else '*'}"
        sizes = [f"{count / MIB:,.1f}" for count in (line.bytes, line.across_bytes, line.bound_bytes)]
        table.add_row(
            name, layouts, *sizes, *(_time(s) for own in line.times for s in (own.centralised_s, own.direct_s))
        )
    return table


def _paper(line: CostLine) -> str:
    own = line.times[0]
    return (
        f"by the paper's formulas, if every row left its host, at {own.gbps} Gbps: controller at least "
        f"{_time(own.paper_centralised_s)}, all-to-all at least {_time(own.paper_all_to_all_s)}"
    )


def _layout(layout: Layout) -> str:
    return f"{layout.dp}x{layout.tp}"


def _time(seconds: float) -> str:
    """Seconds with a unit, such as 1.7 ms or 41.8 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return "< 1 µs" if seconds else "0"


def _columns(names: str | None) -> Columns:
    if names is None:
        return named(field.name for field in fields(Batch) if field.name != "offsets")
    return named(dict.fromkeys(name.strip() for name in names.split(",")))
