"""`earl plan`: predicts what a job would need on a cluster, without the cluster."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from earl.batch import Batch
from earl.cli.options import declared, print_json
from earl.cli.recipes import resolve
from earl.cli.text import one_line, print_table
from earl.config import Config, ModelConfig
from earl.dispatch.predicted_cost import RATES, CostLine, contexts, entry, sizes
from earl.dispatch.rows import Columns, token_bytes
from earl.dispatch.rows import columns as named
from earl.errors import EarlError, unknown
from earl.formats import duration
from earl.parallel.hardware import Device, of_gpus, own_devices
from earl.parallel.memory import ModelShape, catalogue, known, nearest
from earl.parallel.throughput.measured import read, recalibrated
from earl.parallel.throughput.step import TENSORRT_LLM, TRITON, VLLM, VLLM_0_5, Precision
from earl.planner.plan import Plan, plan
from earl.planner.question import ANY, Question, Wish, question
from earl.planner.sheet import Grid, blocks, comparison_grid, head, launch_flags, transfer
from earl.planner.tracing import trace_question
from earl.planner.workload import TracedCall, read_calls, recorded_call
from earl.planner.workload import sizes as sizes_of_tools
from earl.recipe import build, load_toml, override
from earl.runs import trajectories
from earl.runs.folder import open_run


def transfers(given: "Options", names: str | None, as_json: bool) -> None:
    """Plan only the dispatch, on one cluster, and print it. `names`: of columns, with commas between them.

    Raises EarlError for several clusters or invalid options.
    """
    if len(given.gpus) > 1:
        raise EarlError(f"--dispatch plans for one cluster, --gpus names {len(given.gpus)}; leave all but one out")
    (model, shape), config = shape_named(given.model), recipe(given)
    cluster, columns = of_gpus(given.gpus[0], _kinds(given.hardware)), _columns(names, config)
    jobs = contexts(config, shape, cluster)
    longest = jobs[-1]
    by_context = [entry(job, columns) for job in jobs]
    by_gpus = [entry(job, columns) for job in sizes(config, shape, cluster, longest.context)]
    facts = {
        "predicted": True,
        "env": config.env.name,
        "model": model,
        "gpus": cluster.gpus,
        "hosts": cluster.hosts,
        "kind": cluster.device.kind if cluster.device else None,
        "placement": "colocated" if longest.shared else "disaggregated",
        "columns": [*columns],
        "token_bytes": token_bytes(columns),
        "by_context": [asdict(line) for line in by_context],
        "by_gpus": [asdict(line) for line in by_gpus],
    }
    if as_json:
        return print_json(facts)
    return _show_transfers(facts, by_context, by_gpus, cluster.gpus_per_host)


def _show_transfers(
    facts: Mapping[str, Any], by_context: Sequence[CostLine], by_gpus: Sequence[CostLine], gpus_per_host: int
) -> None:
    last = by_context[-1]
    where = "on the same GPUs in turns" if facts["placement"] == "colocated" else "on GPUs of their own"
    hosts = f"{last.hosts:,} host{'s' * (last.hosts != 1)}"
    click.echo(
        f"{one_line(facts['env'])}, {facts['model']}: rows from Experience preparation to Update, {where}\n"
        "predicted from bytes alone, nothing was measured: no latency, no packing\n"
        f"{last.rows:,} rows a step (rollout.episodes), log-normal around half of the context, cut at the context\n"
        f"columns: {', '.join(facts['columns'])}; {facts['token_bytes']} bytes of a token\n"
        "layouts: dp x tp that prepares → that learns, the fastest that fit; *: the model does not fit\n"
        "batch: all of it once; crosses: what the plan sends between hosts; bound: on the busiest link under any plan\n"
    )
    title = f"{hosts} of {gpus_per_host} {facts['kind'] or ''}"
    _print(_costs(title, "context", [(f"{line.context:,}", line) for line in by_context]))
    title = f"{last.context:,} tokens, rows in proportion to the GPUs"
    _print(_costs(title, "GPUs", [(f"{line.gpus:,}", line) for line in by_gpus]))


def _costs(title: str, first: str, lines: Iterable[tuple[str, CostLine]]) -> Grid:
    rates = [name for gbps in RATES for name in (f"{gbps} Gbps\ncentral", "\ndirect")]
    rows = tuple((name, *transfer(line, line.times)) for name, line in lines)
    return Grid(title, (f"\n{first}", "\nlayouts", "MiB\nbatch", "\ncrosses", "\nbound", *rates), rows)


def _columns(names: str | None, config: Config) -> Columns:
    """Unless named, those of a batch that its loss reads: the old values only where they are clipped."""
    if names is None:
        unread = {"offsets"} if config.algorithm.options.get("value_clip") else {"offsets", "values"}
        return named(field.name for field in fields(Batch) if field.name not in unread)
    return named(dict.fromkeys(name.strip() for name in names.split(",")))


def shape_named(model: str) -> tuple[str, ModelShape]:
    """Name and shape of a model; a folder takes precedence over a catalogue name. Offline. Raises EarlError."""
    if (Path(model) / "config.json").is_file():
        from earl.engine.model import shape  # imports torch, which nothing else of a plan needs

        return Path(model).resolve().name, shape(ModelConfig(path=model))
    found = known(model)
    if found is not None:
        return found.name, found.shape
    near = nearest(model)
    hint = f"; did you mean {near!r}?" if near else "."
    raise EarlError(
        f"unknown model {model!r}{hint} Planned for can be a folder with a config.json, or: "
        f"{', '.join(sorted(catalogue()))}"
    )


ENGINES = {"vllm": VLLM, "vllm-0.5": VLLM_0_5, "tensorrt-llm": TENSORRT_LLM, "triton": TRITON}
MOST_CLUSTERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Wish):
    env: str | None
    model: str
    gpus: tuple[str, ...]
    hardware: Path | None
    measured: Path | None
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
    precision, engine = Precision(given.weights, given.kv_cache), ENGINES[given.engine]
    named = config.algorithm.reference
    reference = None if named is None else shape_named(named)[1]
    clusters = [of_gpus(gpus, kinds) for gpus in given.gpus]
    asked = [question(config, name, shape, one, precision, engine, given, reference) for one in clusters]
    if given.measured is None:
        return asked
    if len(asked) > 1:
        raise EarlError(f"--measured is of one cluster, --gpus names {len(asked)}; leave all but one out")
    costs = asked[0].costs
    measured = recalibrated(read(given.measured, costs.engine))
    return [replace(asked[0], costs=replace(costs, measured=measured))]


def recipe(given: Options) -> Config:
    share = () if given.memory_share is None else (f"sampler.memory_share={given.memory_share}",)
    assignments = (*share, *given.assignments)  # --set takes precedence
    if given.env is not None:
        no_imitation = {} if given.config else {"warm_start.steps": 0}  # as where a pretrained model is trained
        return resolve(given.env, given.config, no_imitation, assignments)
    lengths_given = given.longest is not None or given.contexts is not None
    if not lengths_given and (given.prompt_tokens is None or given.reply_tokens is None):
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


def with_trace(one: Plan, model: str) -> Plan:
    """The plan with a trace of its update. Raises EarlError for what cannot be traced."""
    from earl.engine.trace import trace_step, transformers_config  # imports torch, which nothing else of a plan needs

    wanted = trace_question(one.asked, one.learning)
    return replace(one, traced=wanted.answered(trace_step(transformers_config(model), wanted.config, wanted.job)))


def plans(found: Sequence[Plan], price: float | None, as_json: bool, target: str | None) -> None:
    """Print the plans, with a comparison if there are several. `price` is of a GPU-hour. With a `target`, print the
    layouts as its flags instead."""
    if target:
        flags = [line for one in found for line in launch_flags(one, target)]
        return print_json(flags) if as_json else click.echo("\n".join(flags))
    if as_json:
        objects = [one.as_object(price) for one in found]
        return print_json(objects[0] if len(objects) == 1 else {"plans": objects})
    for one in found:
        _show(one, price)
    if len(found) > 1:
        _print(comparison_grid(found, price))
    return None


def _show(one: Plan, price: float | None) -> None:
    click.echo("\n".join(map(one_line, head(one))))
    for block in blocks(one, price):
        click.echo()
        if isinstance(block, Grid):
            _print(block)
        else:
            click.echo("\n".join(block))


def _print(grid: Grid) -> None:
    click.echo(grid.title)
    print_table(grid.names, grid.rows, right=grid.names)


def recorded_calls(root: Path, name: str) -> list[TracedCall]:
    """The calls of tools in a run's kept steps. Raises EarlError where there is no such run."""
    kept = [trajectories.read(path) for path in trajectories.files(open_run(root, name).trajectories)]
    played = [(step, one) for step, groups in kept for group in groups for one in group.trajectories]
    return [recorded_call(f"{step} {number}", call) for number, (step, one) in enumerate(played) for call in one.tools]


def tool_sizes(root: Path, trace: str, wanted: float | None, as_json: bool) -> None:
    """Print what the calls of a run, or of a CSV file, need. Raises EarlError where they cannot be read."""
    given = Path(trace)
    found = sizes_of_tools(read_calls(given) if given.is_file() else recorded_calls(root, trace), wanted)
    if as_json:
        return print_json([asdict(one) for one in found])
    rows = [
        (
            one_line(one.resource),
            f"{one.units:,}",
            duration(one.completion_seconds),
            duration(one.queue_seconds),
            f"{one.use:.0%}",
        )
        for one in found
    ]
    names = ("\nof", "\nunits", "mean\ncompletion", "of it\nwaiting", "\nin use")
    return _print(Grid("the recorded calls, played again", names, tuple(rows)))


@declared("plan")
def command(
    env: str | None,
    dispatch: bool,
    columns: str | None,
    price: float | None,
    root: Path,
    emit: str | None,
    trace: bool,
    tools: str | None,
    completion: float | None,
    as_json: bool,
    **given: Any,
) -> None:
    if tools is not None:
        return tool_sizes(root, tools, completion, as_json)
    if completion is not None:
        raise click.UsageError("--completion is read with --tools alone; leave it out, or name a run or a CSV file.")
    for name in ("model", "gpus"):
        if not given[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
    options = Options(env=env, price=price, **given)
    if dispatch:
        if trace:
            raise click.UsageError("--trace is of a whole plan; leave it or --dispatch out.")
        return transfers(options, columns, as_json)
    if columns is not None:
        raise click.UsageError("--columns is read with --dispatch alone; leave it out, or add --dispatch.")
    found = [plan(one) for one in questions(options)]
    traced = [with_trace(one, options.model) for one in found] if trace else found
    return plans(traced, price, as_json, emit)
