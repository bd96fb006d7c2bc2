"""Reads and checks the options of `earl plan`, makes the plans, and prints them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from earl.cli.options import print_json
from earl.cli.recipes import resolve
from earl.cli.text import clean, console, one_line
from earl.cli.transfers import Planned, planned
from earl.config import Config
from earl.errors import EarlError, unknown
from earl.parallel.catalogue import catalogue, known, nearest
from earl.parallel.hardware import Device, of_gpus, own_devices
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.step import TENSORRT_LLM, TRITON, VLLM, VLLM_0_5, Precision
from earl.planner.grids import Grid, comparison_grid
from earl.planner.plan import Plan, plan
from earl.planner.question import Question, Wish, question
from earl.planner.sheet import sheet
from earl.recipe import build, load_toml, override


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
