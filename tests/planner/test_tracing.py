"""What of a plan is traced, and how the trace is told beside its sums."""

from dataclasses import replace

import pytest

from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.parallel.traced import Exchange, StageTrace, Trace, TraceJob
from earl.planner.plan import plan
from earl.planner.sheet import Grid, blocks
from earl.planner.tracing import trace_question
from tests.planner.asked import asked

GIB = 1 << 30


def made_up(job: TraceJob, held: int, peaks: tuple[int, int], gathered: int) -> Trace:
    exchanges = (
        Exchange("all-gather", "dp x cp", 128, 324, gathered),
        Exchange("all-reduce", "dp", 128, 2, 8),
        Exchange("reduce-scatter", "dp x cp", 128, 162, gathered),
    )
    flops = {"mm": 3 * 10**15, "_scaled_dot_product_flash_attention_for_cpu": 10**15}
    nothing = StageTrace("experience", held, held, "", (), {})
    return Trace(
        job,
        (
            nothing,
            StageTrace("update", held, peaks[1], "mul", exchanges, flops),
            replace(nothing, stage="recording", peak_bytes=peaks[0]),
        ),
    )


def test_the_update_of_the_longest_context_is_traced_in_full_micro_batches() -> None:
    wanted = trace_question(asked(contexts="1024,4096"), 128)
    job, learner = wanted.job, wanted.config.learner
    assert job.layout.size == 128
    assert (learner.dtype, learner.recompute) == ("bfloat16", wanted.choice.recompute)
    tokens = wanted.costs.training(wanted.choice, wanted.load).tokens
    assert learner.micro_batch_tokens == tokens
    assert tokens - job.rows // 2 < job.row_tokens * job.rows / 2 <= tokens  # rows of one length, that fill it
    assert job.row_tokens <= 4096


def test_a_recipe_may_fix_the_layout() -> None:
    wanted = trace_question(asked(contexts="2048", recipe={"placement": {"dp": 4, "tp": 8, "cp": 4}}), 128)
    assert replace(wanted.job.layout, replicas=1) == Layout(4, 8, 4)  # replicas are the plan's to choose


def test_what_does_not_fit_is_not_traced() -> None:
    with pytest.raises(EarlError, match="no update fits on --gpus 1xRTX4090, so there is nothing to trace"):
        trace_question(asked("1xRTX4090", "Qwen2.5-7B", contexts="1024"), 1)


def test_a_reference_of_its_own_is_not_traced() -> None:
    question = asked(contexts="4096")
    other = replace(question, costs=replace(question.costs, reference=question.costs.shape))
    with pytest.raises(EarlError, match=r"leave algorithm\.reference out"):
        trace_question(other, 128)


def test_a_trace_is_told_beside_the_plan() -> None:
    question = asked(contexts="4096", recipe={"placement": {"dp": 128, "tp": 1}})
    wanted = trace_question(question, 128)
    sums = wanted.costs.learner_peak(wanted.choice, wanted.load)
    gathered = 2 * 4 * question.costs.shape.parameters  # twice two micro-batches in 2 bytes, once in 4
    told = wanted.answered(made_up(wanted.job, 6 * GIB, (9 * GIB, round(1.1 * sums.peak)), gathered))
    differs = {each.what: each.percent for each in told.comparisons}
    assert differs["peak of the update"] == pytest.approx(10, abs=1e-6)
    assert differs["weights gathered in the update"] == differs["gradients scattered in the update"] == 0
    assert told.as_object["compared"][2]["percent"] == 10.0
    products = next(each for each in told.comparisons if each.unit == "TFLOP")
    assert products.traced == 3 * 10**15  # without attention

    without = plan(question)
    assert without.as_object(None)["trace"] is None
    shown, more = ([*blocks(one, None)] for one in (without, replace(without, traced=told)))
    assert more[: len(shown)] == shown
    grids = [grid for grid in more[len(shown) :] if isinstance(grid, Grid)]
    assert len(grids) == len(more) - len(shown) == 4
    assert "rank 0 of 128" in grids[0].title
    assert grids[0].rows[1] == (
        "update",
        "6.00",
        f"{1.1 * sums.peak / GIB:.2f}",
        f"{2 * gathered / GIB:.2f}",
        "4000.00",
    )
    assert grids[1].rows[2][0] == "peak of the update"
    assert grids[1].rows[2][-1] == "+10.0 %"
    assert ("update", "all-reduce, dp", "128", "2", "0.000") in grids[2].rows
    for grid in grids:
        assert all(len(row) == len(grid.names) for row in grid.rows)
