"""A trace counts what real tensors take by the learner's own code, and refuses what it cannot stand for."""

import pytest
import torch
from torch import distributed
from transformers import AutoConfig

from earl.config import Config
from earl.engine import trace as tracing
from earl.engine.model import meta_model, shape_of
from earl.engine.trace import FakeNumbers, Recorder, record_step, trace_step, transformers_config
from earl.errors import EarlError
from earl.parallel.footprint import Training, forward_bytes, learner_bytes
from earl.parallel.layout import Layout
from earl.parallel.memory import catalogue
from earl.parallel.traced import TraceJob
from tests.engine.traced_processes import CASES, rows_of
from tests.sampling import sampled

NAMED = {case["name"]: case for case in CASES["cases"]}
SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


def small(kind: str = "qwen2", **changes):
    return AutoConfig.for_model(kind, **{**SMALL, **changes})


def recipe(tokens: int = 64, name: str = "grpo", kl: float = 0.0, **learner) -> Config:
    learned = {"micro_batch_tokens": tokens, **learner}
    return Config.model_validate({"env": {"name": "any"}, "learner": learned, "algorithm": {"name": name, "kl": kl}})


def with_numbers(config, own: Config, job: TraceJob):
    """A rank with real tensors, whose exchanges reach no other."""
    with tracing._single_rank(job) as mesh:
        return record_step(mesh, config, own, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "changes", "own"),
    [
        (Layout(4), {}, recipe()),
        (Layout(4, replicas=2), {}, recipe()),
        (Layout(2, 2, 2), {}, recipe(name="ppo", kl=0.1)),
        (Layout(2, 2), {"kind": "qwen3", "tie_word_embeddings": True}, recipe(dtype="bfloat16", recompute=True)),
    ],
    ids=["dp", "dp in replicas", "dp, tp, cp, reference, values", "dp, tp, tied, recomputed"],
)
def test_fake_tensors_take_what_real_ones_take(layout: Layout, changes, own: Config) -> None:
    config, job = small(**changes), TraceJob(layout, 32, 64)
    for fake, real in zip(trace_step(config, own, job).stages, with_numbers(config, own, job).stages, strict=True):
        assert (fake.stage, fake.exchanges, fake.flops) == (real.stage, real.exchanges, real.flops)
        # Log-probs of a reference, 4 bytes a token, are kept as an array: this is no tensor in a trace.
        assert 0 <= real.held_bytes - fake.held_bytes <= 4 * 128
        assert 0 <= real.peak_bytes - fake.peak_bytes <= 4 * 128


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled([*NAMED], always=["dp 2, tp 2, cp 2, values"]))
def test_eight_processes_take_what_is_traced(name: str) -> None:
    rows = rows_of(NAMED[name])
    assert {row["name"] for row in rows} == {name}
    assert {row["stage"] for row in rows} >= {"experience", "update", "recording", "weights", "checkpoint"}
    for row in rows:
        assert abs(row["peak_error"]) <= 0.03, row
        assert abs(row["exchange_error"]) <= 0.03, row
    assert [row["exchanged_bytes"] > 1 << 20 for row in rows if row["stage"] == "update"] == [True]


@pytest.mark.slow
def test_exchanges_and_products_add_up() -> None:
    own = recipe(tokens=32)
    config, job = small(), TraceJob(Layout(4), 32, 32)
    update = trace_step(config, own, job).stage("update")
    numbers = shape_of(meta_model(config)).parameters
    found = {(one.operation, one.group): one for one in update.exchanges}
    # 2 micro-batches: weights are gathered for the forward and the backward pass of each, gradients sent once, all in
    # 4 bytes; 2 layers and the module around them. A tensor whose rows 4 ranks cannot share evenly is padded.
    gathered, scattered = found["all-gather", "dp"], found["reduce-scatter", "dp"]
    assert (gathered.count, scattered.count) == (2 * 2 * 3, 2 * 3)
    assert gathered.bytes == pytest.approx(2 * 2 * 4 * numbers, rel=1e-3)
    assert scattered.bytes == pytest.approx(2 * 4 * numbers, rel=1e-3)
    # Products of 2 x 32 tokens: three passes of the layers; the output layer, of 2 x 31 learned tokens, once more, as
    # its logits are computed again. Queries and output are 64 x 64, keys and values 64 x 32, the others 64 x 96.
    layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96)
    products = sum(count for name, count in update.flops.items() if "attention" not in name)
    assert products == 2 * (64 * 3 * layers + 62 * 4 * 64 * 300)


def test_live_bytes_and_their_peak() -> None:
    with Recorder({}, None) as recorder:
        kept = torch.ones(1000)  # 4,000 bytes

        def work() -> torch.Tensor:
            more = kept + 1  # 8,000 are live
            del more
            wide = kept.double()  # 4,000 + 8,000
            assert wide[:10].numel() == 10  # a view takes nothing
            wide.untyped_storage().resize_(0)
            return torch.zeros(250)

        told, result = recorder.stage("update", work)
        assert (told.held_bytes, told.peak_bytes, told.moment) == (4000, 12_000, "_to_copy")
        assert recorder.live == 5000
        del result
        assert recorder.live == 4000


def test_code_branches_on_indices_and_finds_no_numbers() -> None:
    with FakeNumbers():
        places = torch.nonzero(torch.arange(10) % 3 == 0)
        assert places.flatten().tolist() == [0, 3, 6, 9]
        numbers = torch.randn(6, 4)
        assert float(numbers.sum()) == 1.0
        _, chosen = torch.topk(numbers, 2)
        assert chosen.tolist() == [[0, 1], [2, 3]] * 3  # each of the four 3 times
    assert type(numbers).__name__ == "FakeTensor"


@pytest.mark.slow
def test_the_experts_of_a_mixture_are_given_alike() -> None:
    config = small("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
    found = trace_step(config, recipe(dtype="bfloat16"), TraceJob(Layout(2, 1, 2), 32, 64))
    # Two passes over 2 x 64 / 2 tokens and three over their gradients; 2 experts of 3 x 64 x 32 each in 2 layers.
    assert found.stage("update").flops["_grouped_mm"] == 3 * 2 * 64 * 2 * (2 * 3 * 64 * 32)


@pytest.mark.slow
def test_experience_of_a_mixture_takes_what_is_planned() -> None:
    # Experts narrower than the stream, as in Qwen3-30B-A3B: states for each expert of a token are the peak.
    experts = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "head_dim": 32}
    config = small("qwen3_moe", hidden_size=256, num_hidden_layers=3, **experts)
    own, tokens = recipe(tokens=4096, dtype="bfloat16", recompute=True), 4096
    found = trace_step(config, own, TraceJob(Layout(8), 1024, tokens))
    way = Training.of(own, Layout(8), tokens=tokens, ragged=False)
    planned = forward_bytes(shape_of(meta_model(config)), way).peak
    assert found.stage("recording").peak_bytes == pytest.approx(planned, rel=0.05)


@pytest.mark.slow
def test_what_cannot_be_traced_is_refused() -> None:
    job = TraceJob(Layout(2), 32, 64)
    with pytest.raises(EarlError, match=r"learner.offload cannot be traced: .*; set it to false"):
        trace_step(small(), recipe(offload=True), job)
    mixture = small("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
    with pytest.raises(EarlError, match="a qwen3_moe learner cannot be traced in this layout: Expected inputs of BF16"):
        trace_step(mixture, recipe(), job)
    with pytest.raises(EarlError, match=r"placement.tp = 4: the model has 2 key-value heads"):
        trace_step(small(), recipe(), TraceJob(Layout(1, 4), 32, 64))
    assert not distributed.is_initialized()
    assert trace_step(small(), recipe(), job).stage("update").peak_bytes > 0  # and nothing of it is left behind


@pytest.mark.slow
def test_known_models_are_described_as_the_catalogue_has_them() -> None:
    for model in catalogue().values():
        assert shape_of(meta_model(transformers_config(model.name))).parameters == model.shape.parameters, model.name


def against_plan(name: str, layers: int | None, layout: Layout, tokens: int, rows: int):
    """Peaks of the update and of a pass without gradients over what the plan says, for a model with fewer layers."""
    config = transformers_config(name)
    if layers is not None:
        config.num_hidden_layers, config.layer_types = layers, config.layer_types[:layers]
    found = trace_step(config, recipe(tokens, dtype="bfloat16", recompute=True), TraceJob(layout, rows, tokens))
    shape = shape_of(meta_model(config))
    way = Training(layout, tokens, 2, True, False, 0, False)
    update, before = learner_bytes(shape, way), forward_bytes(shape, way)
    return (found.stage("update").peak_bytes / update.peak, found.stage("recording").peak_bytes / before.peak)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    sampled(
        [
            ("Qwen2.5-7B", Layout(2, 2, 2)),
            ("Qwen2.5-7B", Layout(8)),
            ("Qwen3-8B", Layout(1, 8)),  # the norms' copies in 32 bits are its peak
        ],
        every=3,
    ),
    ids=str,
)
def test_the_plan_is_right_for_two_layers_of_7b(name: str, layout: Layout) -> None:
    for ratio in against_plan(name, 2, layout, 2048, 512):
        assert 0.95 <= ratio <= 1.05


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_plan_is_right_for_7b() -> None:
    for ratio in against_plan("Qwen2.5-7B", None, Layout(32, 4), 4096, 4096):
        assert 0.95 <= ratio <= 1.05
