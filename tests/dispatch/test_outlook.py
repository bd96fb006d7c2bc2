"""Jobs on paper: layouts that fit, real plans, and times that follow from them."""

from dataclasses import replace

import numpy as np
import pytest

from earl.config import Config
from earl.dispatch.plan import volume
from earl.dispatch.predicted_cost import GIGABIT, GPUS, RATES, contexts, entry, job, row_lengths, sizes
from earl.dispatch.rows import columns
from earl.errors import EarlError
from earl.parallel.hardware import of_gpus
from earl.parallel.layout import Layout
from earl.parallel.memory import known

COLUMNS = columns(["tokens", "logprobs"])
QWEN = known("Qwen2.5-72B").shape


def recipe(kind: str = "colocated", episodes: int = 256) -> Config:
    return Config.model_validate(
        {"env": {"name": "connect4"}, "placement": {"kind": kind}, "rollout": {"episodes": episodes}}
    )


def test_the_layouts_are_those_that_a_step_is_planned_with() -> None:
    # 16 prompts are for 16 samplers: tp 8. 16 bytes x 72.7e9 / 128 = 8.5 GiB a rank, but inputs of 80 layers for 32,768
    # tokens are 40 GiB, a whole layer at work 17, gathered ones with what is sent 15: tp 2. Two replicas sum gradients
    # across hosts once for a rank's micro-batches; with 8.5 GiB more each they still fit.
    planned = job(recipe(), QWEN, of_gpus("16x8xH100"), 32_768, 256)
    assert (planned.prepared, planned.learned, planned.shared, planned.fits) == (
        Layout(16, 8),
        Layout(64, 2, replicas=2),
        True,
        True,
    )
    apart = job(recipe("disaggregated"), QWEN, of_gpus("16x8xH100"), 32_768, 256)
    assert (apart.prepared, apart.learned, apart.shared) == (Layout(8, 8), Layout(32, 2), False)
    # 1.16 TB of weights, gradients and moments in 2 x 8 x 80 GB leave no room: the nearest split is shown, and marked.
    small = job(recipe(), QWEN, of_gpus("2x8xH100"), 32_768, 32)
    assert (small.learned, small.fits) == (Layout(2, 8), False)


def test_one_gpu_cannot_be_apart() -> None:
    with pytest.raises(
        EarlError, match="'disaggregated' needs GPUs for the learner and others for samplers, --gpus 1x"
    ):
        job(recipe("disaggregated"), QWEN, of_gpus("1x1xH100"), 1024, 16)


def test_lengths_are_always_the_same_and_within_the_context() -> None:
    lengths = row_lengths(8192, 4096)
    assert lengths.tolist() == row_lengths(8192, 4096).tolist()
    assert lengths.max() == 8192
    assert np.median(lengths) == pytest.approx(4096, rel=0.05)


def test_apart_every_row_crosses_once_into_each_host_that_needs_it() -> None:
    config = recipe("disaggregated").changed(placement={"tp": 2})
    planned = job(config, QWEN, of_gpus("6x8xH100"), 12_288, 512)
    transfer = planned.transfer(COLUMNS)
    tokens = int(transfer.lengths.sum())
    assert volume(transfer).across == 8 * tokens  # not twice as much: a tp pair shares its host
    assert volume(transfer).copies == 2 * 8 * tokens


def test_in_turns_rows_that_lie_right_stay() -> None:
    planned = job(recipe(), QWEN, of_gpus("16x8xH100"), 4096, 4096)
    moved = volume(planned.transfer(COLUMNS))
    assert moved.across < 0.2 * moved.total


def test_times_follow_from_bytes_and_rates() -> None:
    line = entry(job(recipe("disaggregated"), QWEN, of_gpus("16x8xH100"), 8192, 256), COLUMNS)
    assert [own.gbps for own in line.times] == [*RATES]
    for own in line.times:
        assert own.bound_s == pytest.approx(line.bound_bytes / (own.gbps * GIGABIT))
        assert own.bound_s <= own.direct_s < own.centralised_s
    assert line.times[0].centralised_s == pytest.approx(8 * line.times[1].centralised_s, rel=1e-2)


def test_bytes_double_with_the_context() -> None:
    jobs = contexts(recipe(), QWEN, of_gpus("16x8xH100"))
    assert [own.context for own in jobs] == [1024, 2048, 4096, 8192, 16_384, 32_768]
    sizes_in_bytes = [entry(own, COLUMNS).bytes for own in jobs]
    assert np.divide(sizes_in_bytes[1:], sizes_in_bytes[:-1]) == pytest.approx(2, rel=0.01)
    short = replace(QWEN, max_positions=512)
    assert [own.context for own in contexts(recipe(), short, of_gpus("16x8xH100"))] == [512]


def test_rows_grow_with_the_gpus() -> None:
    found = sizes(recipe(), QWEN, of_gpus("16x8xH100"), 1024)
    assert [own.cluster.gpus for own in found] == [*GPUS]
    assert [own.rows for own in found] == [32, 64, 128, 256, 512, 1024, 2048]
    odd = sizes(recipe(), QWEN, of_gpus("3x4xH100"), 1024)
    assert [own.cluster.gpus for own in odd] == [12, *GPUS]
