"""`earl plan`: predicts what a job would need on a cluster, without the cluster."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from earl.batch import Batch
from earl.cli.options import declared, print_json
from earl.cli.recipes import resolve
from earl.cli.text import clean, console, one_line
from earl.config import Config
from earl.dispatch.predicted_cost import MIB, RATES, CostLine, DispatchJob, contexts, entry, explain, lines, sizes
from earl.dispatch.rows import Columns, token_bytes
from earl.dispatch.rows import columns as named
from earl.errors import EarlError, unknown
from earl.parallel.hardware import ClusterSpec, Device, of_gpus, own_devices
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape, catalogue, known, nearest
from earl.parallel.throughput.step import TENSORRT_LLM, TRITON, VLLM, VLLM_0_5, Precision
from earl.planner.plan import Plan, plan
from earl.planner.question import Question, Wish, question
from earl.planner.sheet import Grid, comparison_grid, sheet
from earl.recipe import build, load_toml, override

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


def shape_named(model: str) -> tuple[str, ModelShape]:
    """Name and shape of a model; a folder takes precedence over a catalogue name. Offline. Raises EarlError."""
    if (Path(model) / "config.json").is_file():
        return Path(model).resolve().name, _described(model)
    found = known(model)
    if found is not None:
        return found.name, found.shape
    near = nearest(model)
    hint = f"; did you mean {near!r}?" if near else "."
    raise EarlError(
        f"unknown model {model!r}{hint} Planned for can be a folder with a config.json, or: "
        f"{', '.join(sorted(catalogue()))}"
    )


def _described(folder: str) -> ModelShape:
    from earl.config import ModelConfig
    from earl.engine.model import shape  # imports torch, which nothing else of a plan needs

    return shape(ModelConfig(path=folder))


ENGINES = {"vllm": VLLM, "vllm-0.5": VLLM_0_5, "tensorrt-llm": TENSORRT_LLM, "triton": TRITON}
MOST_CLUSTERS = 8
ANY = "any"
"""The name of the environment if none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Wish):
    env: str | None
    model: str
    gpus: tuple[str, ...]
    hardware: Path | None
    weights: str
    kv_cache: str
    engine: str
    memory_share: float | None
    price: float | None
    config: Path | None
    assignments: tuple[str, ...]


def questions(given: Options) -> list[Question]:
    """One question for each cluster. Raises EarlError for invalid options."""
    if len(given.gpus) > MOST_CLUSTERS:
        raise EarlError(f"{len(given.gpus)} times --gpus; a plan compares {MOST_CLUSTERS} clusters at most, name fewer")
    for option, value, what in (
        ("--price", given.price, "a price; give what an hour of one GPU costs, such as 2.5"),
        ("--network", given.network_gbps, "a rate; give Gbit/s of a host's link to the others, such as 200"),
    ):
        if value is not None and not 0 < value < math.inf:
            raise EarlError(f"{option} {value} is not {what}")
    if given.engine not in ENGINES:
        raise unknown("engine", given.engine, ENGINES)
    config, (name, shape), kinds = recipe(given), shape_named(given.model), _kinds(given.hardware)
    precision = Precision(given.weights, given.kv_cache)
    clusters = [of_gpus(gpus, kinds) for gpus in given.gpus]
    return [question(config, name, shape, cluster, precision, ENGINES[given.engine], given) for cluster in clusters]


def transfers_of(given: Options, columns: str | None) -> Planned:
    """Plan only the dispatch, on one cluster. Raises EarlError for several clusters or invalid options."""
    if len(given.gpus) > 1:
        raise EarlError(f"--dispatch plans for one cluster, --gpus names {len(given.gpus)}; leave all but one out")
    name, shape = shape_named(given.model)
    return planned(recipe(given), name, shape, of_gpus(given.gpus[0], _kinds(given.hardware)), columns)


def recipe(given: Options) -> Config:
    share = () if given.memory_share is None else (f"sampler.memory_share={given.memory_share}",)
    assignments = (*share, *given.assignments)  # --set takes precedence
    if given.env is not None:
        return resolve(given.env, given.config, {}, assignments)
    told = given.longest is not None or given.contexts is not None
    if not told and (given.prompt_tokens is None or given.reply_tokens is None):
        raise EarlError(
            "nothing says what to plan for; name an environment, such as connect4, or how long contexts get, such as "
            "--context 8192"
        )
    tree = load_toml(given.config) if given.config else {}
    env = tree.get("env", {})
    named = {"name": ANY, **env} if isinstance(env, dict) else env
    return build(override({**tree, "env": named}, assignments))


def _kinds(path: Path | None) -> Mapping[str, Device] | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EarlError(f"--hardware {path} is not a text in UTF-8: {error.reason}; give a table in CSV") from error
    return own_devices(text, str(path))


def plans(asked: Sequence[Question], price: float | None, page: Path | None, as_json: bool) -> None:
    """Plan for every cluster and print the plans, with a comparison if there are several. `price` is of a GPU-hour."""
    found = [plan(one) for one in asked]
    if page:
        from earl.report.planning import write

        write(page, found, price)
    if as_json:
        objects = [one.as_object(price) for one in found]
        return print_json(objects[0] if len(objects) == 1 else {"plans": objects})
    for one in found:
        _show(one, price)
    if len(found) > 1:
        _print(comparison_grid(found, price))
    if page:
        click.echo(clean(page), err=True)
    return None


def _show(one: Plan, price: float | None) -> None:
    told = sheet(one, price)
    click.echo("\n".join(one_line(line) for line in told.head))
    for grid in told.grids:
        click.echo()
        _print(grid)
    click.echo("\nThe choice, by context")
    click.echo("\n".join(f"  {line}" for line in told.choices))
    for grid in told.step:
        click.echo()
        _print(grid)


def _print(grid: Grid) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in grid.names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row)
    click.echo(grid.title)
    console().print(table)


@click.command(**declared("plan"))
def command(
    env: str | None,
    dispatch: bool,
    columns: str | None,
    price: float | None,
    html: Path | None,
    replay: str | None,
    margin: float | None,
    root: Path,
    as_json: bool,
    **given: Any,
) -> None:
    from earl.cli import plan, replayed

    if replay is not None:
        return replayed.show(replayed.replayed_run(root, replay, margin), as_json)
    for name in ("model", "gpus"):
        if not given[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
    if margin is not None:
        raise click.UsageError("--margin is read with --replay alone; leave it out, or name a run.")
    options = plan.Options(env=env, price=price, **given)
    if dispatch:
        return plan.show(plan.transfers_of(options, columns), as_json)
    if columns is not None:
        raise click.UsageError("--columns is read with --dispatch alone; leave it out, or add --dispatch.")
    return plan.plans(plan.questions(options), price, html, as_json)
