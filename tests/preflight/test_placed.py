"""Where fragments are placed and what is refused there, on described hardware: no cluster is needed."""

from dataclasses import replace
from itertools import product

import pytest

from earl.cli.training import more_lines
from earl.config import Config
from earl.errors import EarlError
from earl.parallel.hardware import GIB, ClusterSpec, of_gpus
from earl.parallel.memory import ModelShape, known
from earl.parallel.throughput.step import VLLM, Precision
from earl.planner.plan import plan
from earl.planner.question import Wish, question
from earl.preflight.placement import (
    Placed,
    Site,
    check_placement,
    context_room,
    costs_at,
    fill_open_settings,
    longest_load,
    survey,
)
from earl.preflight.plan import RunPlan
from earl.preflight.prompts import check_batches
from earl.recipe import build
from tests.sampling import sampled

QWEN = known("Qwen2.5-72B").shape
TINY = ModelShape(5248, 1, 16, 2, 2, 8, 16, 106, 1024)
LAPTOP = ClusterSpec("this machine", 1, 2, 8 * GIB)
MACHINES = ("Qwen2.5-72B on 16x8xH100", "Qwen3-30B-A3B on 2x8xH200")


LONG_ROWS = {
    "learner": {"micro_batch_tokens": 4096, "recompute": False},
    "placement": {"tp": 1, "dp": 128},
    "context": {"limit": 4096},
}
"""What all layers keep of 4,096 tokens is more than a GPU has."""


def recipe(**tables: dict):
    game = {"env": {"name": "connect4"}, "rollout": {"episodes": 256, "group_size": 16}}
    return build({**game, **{section: {**game.get(section, {}), **table} for section, table in tables.items()}})


def place(config: Config, shape: ModelShape, site: Site) -> tuple[Config, Placed]:
    """The decided recipe, and where it runs."""
    config = fill_open_settings(config, shape, site)
    check_batches(config, site.kind == "embedded")
    return config, check_placement(config, shape, site)


def layout(config: Config) -> tuple[int, int, int, int]:
    return config.placement.dp, config.placement.tp, config.placement.samplers, config.sampler.tp


def on(gpus: str, kind: str = "colocated", engine: str = "vllm") -> Site:
    return Site(kind, engine, of_gpus(gpus), on_paper=True)


def test_a_large_model_on_128_gpus() -> None:
    config = recipe()
    written, placed = place(config, QWEN, on("16x8xH100"))
    # The correction's pass fetches 145.4 GB over 25 GB/s: 15 / 16 of them in 5.45 s, half of them in 2.91 s where the
    # model lies on two hosts, 8 times. 16 bytes x 72.7 billion / 16 = 67.7 GiB, so that tp 1 would have to offload.
    # The update takes 21.8 s either way. 16 prompts: no more than 16 samplers, which are the faster the more GPUs each
    # has: 8.
    assert (*layout(written), written.placement.replicas) == (64, 2, 16, 8, 8)
    decisions = (written.sampler.engine, written.learner.dtype, written.placement.kind)
    assert decisions == ("vllm", "bfloat16", "colocated")
    assert [(part.name, part.actors, part.devices, part.pool) for part in placed.fragments] == [
        ("learner", 128, 1, "shared"),
        ("rollout", 16, 8, "shared"),
    ]
    assert placed.update["peak"] < placed.device_bytes
    assert place(written, QWEN, on("16x8xH100")) == (written, placed)  # what is decided stays


def test_tokens_over_two_gpus_leave_room_for_whole_layers() -> None:
    written, placed = place(recipe(placement={"cp": 2}), QWEN, on("16x8xH100"))
    assert (*layout(written)[:2], written.placement.cp) == (32, 2, 2)
    assert [part.actors for part in placed.fragments] == [128, 16]
    assert place(written, QWEN, on("16x8xH100")) == (written, placed)


@pytest.mark.parametrize(
    ("model", "gpus", "ahead", "hosts"),
    [
        # Seconds with 6 sampling hosts: rollout 295.1, learner 49.8, weights 5.9; with 7: 286.1 + 52.7 + 5.9 = 344.7;
        # with 8: 278.5 + 76.6 + 5.9.
        ("Qwen2.5-72B", "16x8xH100", 0, 7),
        # The learner's 94.7 are beside 266.0 of rollout, and 145.4 GB of weights x 11 / 5 over 25 GB/s take 12.8.
        ("Qwen2.5-72B", "16x8xH100", 1, 11),
        # The slower of both, with 1 sampling host: rollout, 952; with 2: rollout, 510.6; with 3: the learner, 867.
        ("Qwen2.5-7B", "4x8xH100", 1, 2),
    ],
)
def test_apart_a_step_takes_the_least(model: str, gpus: str, ahead: int, hosts: int) -> None:
    many = {"rollout": {"episodes": 4096}} if model == "Qwen2.5-7B" else {}
    config = recipe(context={"limit": 16_384}, placement={"max_staleness": ahead}, **many)
    shape, site = known(model).shape, on(gpus, "disaggregated")
    written, placed = place(config, shape, site)
    sampling = written.placement.samplers * written.sampler.tp
    assert (written.placement.ranks, sampling, placed.idle) == (site.cluster.gpus - 8 * hosts, 8 * hosts, ())

    open_ = config.changed(placement={"kind": "disaggregated"}, sampler={"engine": "vllm"})
    costs, load = costs_at(open_, shape, site), longest_load(open_, shape)

    def seconds(sampling_hosts: int) -> float:
        first = costs.best(costs.rollout_choices(8 * sampling_hosts), load)
        last = costs.best_update(costs.learner_layouts(site.cluster.gpus - 8 * sampling_hosts), load)
        took = (costs.seconds(first, load), costs.seconds(last, load))
        return (max(took) if ahead else sum(took)) + costs.weights_seconds(first.layout, last.layout)

    assert seconds(hosts) < min(seconds(hosts - 1), seconds(hosts + 1))


def test_apart_both_fit_their_share() -> None:
    # A learner of one host fetches nothing from others: rollout 4.7 s, learner 7.3, weights 17.5, together 29.5. But
    # of 72.7 billion parameters x 16 bytes each of its GPUs would hold 135 GiB. Three hosts: 6.0 + 19.7 + 5.9 = 31.5.
    written, placed = place(recipe(), QWEN, on("4x8xH100", "disaggregated"))
    assert (written.placement.ranks, placed.update["peak"] < placed.device_bytes) == (24, True)
    # One copy of four GPUs does not fit into fewer.
    written, _ = place(recipe(sampler={"tp": 4}), known("Qwen2.5-7B").shape, on("8xH100", "disaggregated"))
    assert (written.placement.ranks, written.placement.samplers) == (4, 1)


def test_where_no_share_fits_the_learner_is_told() -> None:
    with pytest.raises(EarlError, match=r"the learner needs .* one H100 has 79.6 GiB"):
        place(recipe(), QWEN, on("2x8xH100", "disaggregated"))  # 72.7 billion x 16 bytes / 8 = 135 GiB
    with pytest.raises(EarlError, match=r"sampler.tp 8 = 15 GPUs, --gpus 8xH100 has 8 H100 GPUs"):
        place(recipe(sampler={"tp": 8}), known("Llama-3.1-8B").shape, on("8xH100", "disaggregated"))


def test_samplers_that_are_named_leave_the_others_to_the_learner() -> None:
    written = fill_open_settings(recipe(placement={"samplers": 4}), QWEN, on("16x8xH100", "disaggregated"))
    assert layout(written)[:3] == (48, 2, 4)  # 4 x tp 8 of 128 are the samplers'


def test_what_a_recipe_sets_is_kept() -> None:
    config = recipe(placement={"dp": 8, "tp": 8}, sampler={"tp": 8}, learner={"dtype": "float32"})
    written = fill_open_settings(config, QWEN, on("16x8xH100"))
    assert (*layout(written)[:2], written.sampler.tp, written.learner.dtype) == (8, 8, 8, "float32")


def test_without_gpus_nothing_is_chosen() -> None:
    written, placed = place(recipe(), TINY, Site("colocated", "local", LAPTOP, on_paper=False))
    assert layout(written) == (1, 1, 1, 1)
    assert (written.learner.dtype, placed.device_bytes) == ("float32", None)


@pytest.mark.parametrize(
    ("gpus", "tables", "words"),
    [
        ("2xH100", {}, ["the learner needs", "under dp 2 x tp 1", "one H100 has 79.6 GiB", "take 32 GPUs"]),
        ("16x8xH100", LONG_ROWS, ["learner.recompute to true"]),
        ("16x8xH100", {"sampler": {"tp": 1}}, ["the sampler needs 138.7 GiB", "may take 67.7 GiB", "sampler.tp"]),
        ("16x8xH100", {"placement": {"dp": 64, "tp": 4}}, ["= 256 GPUs", "has 128 H100 GPUs", "lower placement.dp"]),
        (
            "16x8xH100",
            {"placement": {"dp": 8, "tp": 4, "cp": 8}},
            ["placement.dp 8 x placement.tp 4 x placement.cp 8", "= 256 GPUs", "lower placement.dp", "placement.cp"],
        ),
        ("16x8xH100", {"placement": {"tp": 3}}, ["placement.tp = 3: the model has 64 attention heads"]),
        ("16x8xH100", {"placement": {"tp": 16}}, ["placement.tp = 16: the model has 8 key-value heads"]),
        ("16x8xH100", {"sampler": {"tp": 5}}, ["sampler.tp = 5: the model has 64 attention heads"]),
        ("16x8xH100", {"sampler": {"tp": 16}}, ["sampler.tp = 16: one copy of the sampler lies on one host", "has 8"]),
        ("16x8xH100", {"placement": {"samplers": 17}}, ["placement.samplers = 17", "= 16; lower it or raise"]),
    ],
)
def test_what_does_not_fit_is_refused(gpus: str, tables: dict, words: list[str]) -> None:
    with pytest.raises(EarlError) as refusal:
        place(recipe(**tables), QWEN, on(gpus))
    for word in words:
        assert word in str(refusal.value)


def test_one_gpu_is_not_two() -> None:
    with pytest.raises(EarlError, match="= 2 GPUs, --gpus 1xH100 has 1 H100 GPU;"):
        place(recipe(), TINY, on("1xH100", "disaggregated"))


def test_every_cure_that_is_named_cures() -> None:
    with pytest.raises(EarlError) as refusal:
        place(recipe(**LONG_ROWS), QWEN, on("16x8xH100"))
    cures = str(refusal.value).rpartition("; ")[2].split(" or ")
    assert cures[0] == "set learner.recompute to true"
    for cure in cures:
        key, value = cure.removeprefix("set ").split(" to ")
        section, name = key.split(".")
        cured = {**LONG_ROWS, section: {**LONG_ROWS[section], name: True if value == "true" else int(value)}}
        if key == "placement.tp":
            cured[section]["dp"] = 128 // int(value)
        place(recipe(**cured), QWEN, on("16x8xH100"))


def test_processes_need_the_processors_of_somebody_s_cluster_and_memory_everywhere() -> None:
    many = {"placement": {"dp": 6, "address": "10.0.0.1:6379"}}
    site = Site(
        "disaggregated", "local", ClusterSpec("the Ray cluster at 10.0.0.1:6379", 2, 4, 8 * GIB), on_paper=False
    )
    with pytest.raises(EarlError, match=r"= 7 CPUs, the Ray cluster at 10.0.0.1:6379 has 4 CPUs and no GPU"):
        place(recipe(**many), TINY, site)
    here = Site("disaggregated", "local", LAPTOP, on_paper=False)
    place(recipe(placement={"dp": 6}), TINY, here)  # on one machine processes may share cores
    with pytest.raises(EarlError, match=r"= 1000 \+ 1 processes need .* of memory, this machine has 8.0 GiB"):
        place(recipe(placement={"dp": 1000}), TINY, here)


def test_environments_apart_are_a_fragment_of_processors() -> None:
    config = recipe(placement={"environments": 12})
    for kind in ("colocated", "disaggregated"):
        written, placed = place(config, QWEN, on("16x8xH100", kind))
        _, without = place(recipe(), QWEN, on("16x8xH100", kind))
        assert [(part.name, part.actors, part.pool, part.processors) for part in placed.fragments] == [
            ("learner", *_size(without, "learner"), False),
            ("sampler", *_size(without, "rollout"), False),
            ("environments", 12, "environments", True),
        ]
        assert "  environments 12 x 1 CPU, joined by objects, on any node" in more_lines(
            RunPlan(written, 1, None, 1, placed)
        )


def _size(placed: Placed, name: str) -> tuple[int, str]:
    return next((part.actors, part.pool) for part in placed.fragments if part.name == name)


def test_environments_need_processors_a_share_each_and_samplers_in_turns_with_the_learner() -> None:
    address = {"address": "10.0.0.1:6379"}
    cpus = Site(
        "disaggregated", "local", ClusterSpec("the Ray cluster at 10.0.0.1:6379", 2, 4, 8 * GIB), on_paper=False
    )
    place(recipe(placement={"environments": 2, **address}), TINY, cpus)  # 4 less a rank and a sampler
    with pytest.raises(EarlError, match=r"placement.environments = 3 CPUs, the Ray cluster at .* has 2 for them"):
        place(recipe(placement={"environments": 3, **address}), TINY, cpus)
    gpus = Site("colocated", "vllm", replace(of_gpus("8xH100"), cpus=4), on_paper=False)
    place(recipe(placement={"environments": 4, **address}), TINY, gpus)
    with pytest.raises(EarlError, match=r"placement.environments = 5 CPUs, .* has 4 for them"):
        place(recipe(placement={"environments": 5, **address}), TINY, gpus)
    with pytest.raises(EarlError, match=r"placement.environments = 17 must not be larger than .* = 16"):
        place(recipe(placement={"environments": 17}), TINY, on("8xH100"))
    with pytest.raises(EarlError, match=r"placement.environments = 2 and placement.max_staleness = 1: .* leave one"):
        place(recipe(placement={"environments": 2, "max_staleness": 1}), TINY, on("8xH100", "disaggregated"))


def test_memory_bounds_the_context() -> None:
    config = recipe()
    site = on("16x8xH100")
    config, _ = place(config, QWEN, site)
    # 0.85 x 79.6 GiB less 16.9 GiB of weights, by 40 KiB a token, and what vLLM keeps beside both.
    room = int(int(79.6 * GIB) * 0.85) - 72_706_203_648 // 4
    assert 0.93 * room < 40 * 1024 * context_room(config, QWEN, site) < room


def test_what_bounds_the_cache_bounds_a_context() -> None:
    config = recipe(sampler={"kv_cache_gib": 0.5, "tp": 2}, rollout={"episodes": 32, "group_size": 4})
    site = Site("disaggregated", "local", LAPTOP, on_paper=False)
    config, _ = place(config, TINY, site)
    # A token takes 2 x 1 layer x 2 heads x 8 numbers x 4 bytes = 128 B, 64 of them on each of two processes.
    assert context_room(config, TINY, site) == (GIB // 2) // 64


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"sampler": {"tp": 3}}, "sampler.tp = 3: the model has 2 attention heads"),
        ({"sampler": {"tp": 4}}, "sampler.tp = 4: the model has 2 attention heads"),
        ({"sampler": {"tp": 2}, "placement": {"environments": 1}}, "sampler.tp = 2 and placement.environments = 1"),
        ({"sampler": {"tp": 2}, "placement": {"max_staleness": 1}}, "sampler.tp = 2 and placement.max_staleness = 1"),
    ],
)
def test_how_earls_own_sampler_is_not_split(tables: dict, words: str) -> None:
    with pytest.raises(EarlError) as refusal:
        place(recipe(**tables), TINY, Site("disaggregated", "local", LAPTOP, on_paper=False))
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("tables", "kind"),
    [
        ({}, "embedded"),
        ({"placement": {"gpus": "8xH100"}}, "colocated"),
        ({"placement": {"kind": "disaggregated", "gpus": "8xH100"}}, "disaggregated"),
    ],
)
def test_the_kind_that_auto_is(tables: dict, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as on a machine without GPUs
    site = survey(recipe(**tables), dry=True)
    assert (site.kind, site.on_paper) == (kind, kind != "embedded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "kind", "limit"),
    sampled(product(MACHINES, ["colocated", "disaggregated"], [80, 1024, 16_384]), every=5),
)
def test_a_dry_run_has_the_layouts_of_the_plan(machine: str, kind: str, limit: int) -> None:
    model, gpus = machine.split(" on ")
    config, shape = recipe(context={"limit": limit}, placement={"kind": kind}), known(model).shape
    asked = question(config, model, shape, of_gpus(gpus), Precision(), VLLM, Wish())
    assert limit in asked.contexts and asked.contexts[0] == min(limit, 1024)
    (planned,) = (each for each in plan(asked).steps if each.context == limit)
    layouts = {part.stage: part.layout for part in planned.parts}
    written, placed = place(config, shape, on(gpus, kind))
    assert layout(written) == (
        layouts["update"].dp,
        layouts["update"].tp,
        layouts["rollout"].dp,
        layouts["rollout"].tp,
    )
    idle = of_gpus(gpus).gpus - layouts["rollout"].size - (layouts["update"].size if kind == "disaggregated" else 0)
    assert bool(placed.idle) == (idle > 0)


def test_gpus_that_idle_are_explained() -> None:
    _, placed = place(recipe(rollout={"episodes": 64}), QWEN, on("16x8xH100"))
    assert placed.idle == ("96 of 128 GPUs idle in rollout: 4 prompts are for so many copies",)


def test_a_correction_is_the_default_where_another_policy_samples() -> None:
    ahead = recipe(placement={"kind": "disaggregated", "max_staleness": 1})
    assert fill_open_settings(ahead, QWEN, on("16x8xH100")).algorithm.correction == "token"
    said = recipe(placement={"kind": "disaggregated", "max_staleness": 1}, algorithm={"correction": "none"})
    assert fill_open_settings(said, QWEN, on("16x8xH100")).algorithm.correction == "none"


def test_another_reference_takes_the_memory_of_its_own_size() -> None:
    shape, site, held = known("Qwen2.5-1.5B").shape, on("8xH100"), {}
    for name in (None, "Qwen2.5-7B"):
        config = recipe(algorithm={"kl": 0.1, "reference": name}, placement={"tp": 1, "dp": 8})
        costs = costs_at(fill_open_settings(config, shape, site), shape, site)
        choice = costs.best_update(costs.learner_layouts(8), longest_load(config, shape))
        held[name] = costs.learner_peak(choice, longest_load(config, shape)).reference * choice.layout.shards
    assert held[None] == pytest.approx(4 * shape.parameters, rel=1e-6)
    assert held["Qwen2.5-7B"] == pytest.approx(4 * known("Qwen2.5-7B").shape.parameters, rel=1e-6)
