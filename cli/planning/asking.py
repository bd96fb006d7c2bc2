"""From options to questions: the files and names that a user gives are read and checked here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.cli.recipes import resolve
from earl.cli.shapes import shape_named
from earl.cli.transfers import Planned, planned
from earl.config import Config
from earl.errors import EarlError, unknown
from earl.parallel.hardware import Device, of_gpus, own_devices
from earl.parallel.throughput.precision import Precision
from earl.parallel.throughput.software import TENSORRT_LLM, TRITON, VLLM, VLLM_0_5
from earl.planner.question import Question, Wish, question
from earl.recipe import build, load_toml, override

ENGINES = {"vllm": VLLM, "vllm-0.5": VLLM_0_5, "tensorrt-llm": TENSORRT_LLM, "triton": TRITON}
MOST_CLUSTERS = 8
ANY = "any"
"""Stands for an environment where none is named."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was given, as click names it."""

    env: str | None
    model: str
    gpus: tuple[str, ...]
    hardware: Path | None
    wish: Wish
    weights: str
    kv_cache: str
    engine: str
    price: float | None
    config: Path | None
    assignments: tuple[str, ...]


def questions(given: Options) -> list[Question]:
    """One for each cluster.

    Raises:
        EarlError: for whatever cannot be planned for.
    """
    if len(given.gpus) > MOST_CLUSTERS:
        raise EarlError(f"{len(given.gpus)} times --gpus; a plan compares {MOST_CLUSTERS} clusters at most, name fewer")
    for option, value, what in (
        ("--price", given.price, "a price; give what an hour of one GPU costs, such as 2.5"),
        ("--network", given.wish.network_gbps, "a rate; give Gbit/s of a host's link to the others, such as 200"),
    ):
        if value is not None and not 0 < value < math.inf:
            raise EarlError(f"{option} {value} is not {what}")
    if given.engine not in ENGINES:
        raise unknown("engine", given.engine, ENGINES)
    config, (name, shape), kinds = recipe(given), shape_named(given.model), _kinds(given.hardware)
    precision = Precision(given.weights, given.kv_cache)
    clusters = [of_gpus(gpus, kinds) for gpus in given.gpus]
    return [
        question(config, name, shape, cluster, precision, ENGINES[given.engine], given.wish) for cluster in clusters
    ]


def transfers_of(given: Options, columns: str | None) -> Planned:
    """What dispatch alone would take, on one cluster.

    Raises:
        EarlError: for several clusters, and for whatever cannot be planned for.
    """
    if len(given.gpus) > 1:
        raise EarlError(f"--dispatch plans for one cluster, --gpus names {len(given.gpus)}; leave all but one out")
    name, shape = shape_named(given.model)
    return planned(recipe(given), name, shape, of_gpus(given.gpus[0], _kinds(given.hardware)), columns)


def recipe(given: Options) -> Config:
    """That of the environment, or what a recipe leaves unsaid where none is named."""
    if given.env is not None:
        return resolve(given.env, given.config, {}, given.assignments)
    wish = given.wish
    told = wish.longest is not None or wish.contexts is not None
    if not told and (wish.prompt_tokens is None or wish.reply_tokens is None):
        raise EarlError(
            "nothing says what to plan for; name an environment, such as connect4, or how long contexts get, such as "
            "--context 8192"
        )
    tree = load_toml(given.config) if given.config else {}
    env = tree.get("env", {})
    named = {"name": ANY, **env} if isinstance(env, dict) else env
    return build(override({**tree, "env": named}, given.assignments))


def _kinds(path: Path | None) -> Mapping[str, Device] | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EarlError(f"--hardware {path} is not a text in UTF-8: {error.reason}; give a table in CSV") from error
    return own_devices(text, str(path))


def options(
    env: str | None,
    longest: int | None,
    contexts: str | None,
    responses: str | None,
    tps: str | None,
    prompt_tokens: int | None,
    reply_tokens: int | None,
    network: float,
    memory_share: float | None,
    assignments: tuple[str, ...],
    **others: Any,
) -> Options:
    """The options of the command, those of the axes together."""
    if memory_share is not None:
        assignments = (f"sampler.memory_share={memory_share}", *assignments)  # --set has the last word
    wish = Wish(contexts, longest, responses, tps, prompt_tokens, reply_tokens, network)
    return Options(env, wish=wish, assignments=assignments, **others)
