"""`earl plan`: predicts what a job would need on a cluster, without the cluster."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from earl.batch import Batch
from earl.cli.options import json_option, print_json, recipe_options, runs_option
from earl.cli.recipes import resolve
from earl.cli.text import clean, console, one_line
from earl.config import Config
from earl.dispatch.explain import MIB, Explanation, explain
from earl.dispatch.predicted_cost import RATES, CostLine, DispatchJob, contexts, entry, sizes
from earl.dispatch.rows import Column
from earl.dispatch.rows import columns as named
from earl.errors import EarlError, unknown
from earl.parallel.catalogue import catalogue, known, nearest
from earl.parallel.hardware import ClusterSpec, Device, of_gpus, own_devices
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.step import TENSORRT_LLM, TRITON, VLLM, VLLM_0_5, Precision
from earl.planner.grids import Grid, comparison_grid
from earl.planner.plan import Plan, plan
from earl.planner.question import Question, Wish, question
from earl.planner.sheet import sheet
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
    columns: tuple[Column, ...]
    by_context: tuple[CostLine, ...]
    by_gpus: tuple[CostLine, ...]
    explained: Explanation
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
            "columns": [column.name for column in self.columns],
            "token_bytes": _token_bytes(self.columns),
            "by_context": [asdict(line) for line in self.by_context],
            "by_gpus": [asdict(line) for line in self.by_gpus],
            "explained": asdict(self.explained),
        }


def planned(config: Config, model: str, shape: ModelShape, cluster: ClusterSpec, columns: str | None) -> Planned:
    """Plan a job's transfers. `columns`: comma-separated names; None: all. Raises EarlError for invalid ones."""
    chosen = _columns(columns)
    jobs = contexts(config, shape, cluster)
    lines = [entry(job, chosen) for job in jobs]
    larger: Sequence[DispatchJob] = sizes(config, shape, cluster, jobs[-1].context)
    return Planned(
        env=config.env.name,
        model=model,
        cluster=cluster,
        shared=jobs[-1].shared,
        columns=chosen,
        by_context=tuple(lines),
        by_gpus=tuple(entry(job, chosen) for job in larger),
        explained=explain(jobs[-1].transfer(chosen)),
    )


def show(plan: Planned, as_json: bool) -> None:
    if as_json:
        return print_json(plan.as_object)
    device, last, cluster = plan.cluster.device, plan.by_context[-1], plan.cluster
    where = "on the same GPUs in turns" if plan.shared else "on GPUs of their own"
    names = ", ".join(column.name for column in plan.columns)
    for line in (
        f"{one_line(plan.env)}, {plan.model}: rows from Experience preparation to Update, {where}",
        PREDICTED,
        f"{last.rows:,} rows a step (rollout.episodes), log-normal around half of the context, cut at the context",
        f"columns: {names}; {_token_bytes(plan.columns)} bytes of a token",
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
    click.echo("\n".join(f"  {line}" for line in [*plan.explained.lines, _paper(last)]))
    return None


def _table(first: str, lines: Iterable[tuple[str, CostLine]]) -> "Table":
    """One row per line: layouts, MiB, and for each rate the seconds through a controller and directly."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    rates = [name for gbps in RATES for name in (f"{gbps} Gbps\ncentral", "\ndirect")]
    for name in (f"\n{first}", "\nlayouts", "MiB\nbatch", "\ncrosses", "\nbound", *rates):
        table.add_column(name, justify="right", no_wrap=True)
    for name, line in lines:
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


def _columns(names: str | None) -> tuple[Column, ...]:
    if names is None:
        return named(field.name for field in fields(Batch) if field.name != "offsets")
    return named(dict.fromkeys(name.strip() for name in names.split(",")))


def _token_bytes(columns: Iterable[Column]) -> int:
    return sum(column.size_bytes for column in columns if column.axis == "token")


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


COUNT = click.IntRange(min=1)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("env", required=False)
@click.option(
    "--model",
    metavar="NAME",
    help="A well-known model, such as Qwen2.5-72B, its hub id, or a folder.  [required]",
)
@click.option(
    "--gpus",
    multiple=True,
    metavar="16x8xH100",
    help="Hosts x GPUs x kind; 8xH100 is one host. May be repeated, to compare.  [required]",
)
@click.option(
    "--hardware",
    type=_FILE,
    metavar="FILE.csv",
    help="Own kinds of GPUs for --gpus, in the form of earl/parallel/hardware.csv.",
)
@click.option("--context", "longest", type=COUNT, metavar="N", help="Tokens of the longest episode expected.")
@click.option(
    "--contexts", metavar="N,N", help="The contexts to plan for; unless given, powers of two up to the longest."
)
@click.option("--responses", metavar="N,N", help="Given to one copy of the engine at once.  [default: 8,16,32,64,128]")
@click.option("--tp", "tps", metavar="N,N", help="Splits of one copy of the engine; unless given, all that can be.")
@click.option(
    "--prompt-tokens", type=COUNT, metavar="N", help="Of a context, read and not written; unless given, none."
)
@click.option(
    "--reply-tokens",
    type=COUNT,
    metavar="N",
    help="Of a context, written; unless given, the rest. With --prompt-tokens both make the context.",
)
@click.option("--weights", default="bf16", show_default=True, help="Of the engine: bf16, fp16, fp8, fp4 or fp32.")
@click.option("--kv-cache", default="auto", show_default=True, help="The same for keys and values; auto: 16 bits.")
@click.option("--engine", default="vllm", show_default=True, help="vllm, vllm-0.5, tensorrt-llm or triton.")
@click.option(
    "--memory-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Of a GPU, that the engine takes: sets sampler.memory_share.",
)
@click.option(
    "--network",
    "network_gbps",
    type=float,
    default=200.0,
    show_default=True,
    metavar="GBPS",
    help="Gbit/s of the link between a host and the others, in one direction.",
)
@click.option("--price", type=float, metavar="P", help="Of a GPU-hour, in any currency; absent: no cost is said.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write the plan as a page with plots, too.")
@click.option("--dispatch", is_flag=True, help="Plan only what moving a step's rows between stages would take.")
@click.option(
    "--columns",
    metavar="NAME,NAME",
    help="With --dispatch: columns that are moved; unless given, all that a batch to learn from has.",
)
@click.option("--replay", metavar="RUN", help="Decide again what a run decided; needs neither model nor GPUs.")
@click.option("--margin", type=click.FloatRange(min=0), metavar="M", help="With --replay: in place of the run's own.")
@runs_option
@recipe_options
@json_option
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
    """Say what a job would take on a cluster, without it.

    For each stage and context: the layouts that fit, memory of a GPU, tokens per GPU and second with an 80 % interval,
    the choice and where it changes; what one split gains over another by context and by responses; the time of a step
    of the recipe of ENV, and GPU-hours of 1,000 episodes. Without ENV it is what a recipe leaves unsaid, and --context
    or --contexts says how long episodes get. A context is that of the longest episode, for which there must be room.
    Responses are those that one copy of the engine is given at once: with TP 8 half as many copies share a step's
    episodes as with TP 4. Of the engine `sampler.memory_share` of a GPU is taken.

    With --dispatch: what a step's rows take from Experience preparation to Update, by context and by number of GPUs,
    with 25, 200 and 400 Gbit/s between hosts: through one controller, directly by the Data Dispatcher's plan, and the
    bytes that any plan would move. Rows that lie where they are needed stay there; placement.kind says whether both
    stages share their GPUs, and rollout.episodes how many rows a step has. On more or fewer GPUs there are more or
    fewer in proportion; these numbers are predicted from bytes alone: no latency, no packing.

    With --replay: the layouts that a run decided for, decided again from the inputs that it recorded, and whether the
    decisions are the same; with another --margin, which switches there would have been.

    Nothing is measured, and nothing is asked of the network.
    """
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
