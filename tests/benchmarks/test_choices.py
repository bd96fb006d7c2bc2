"""Choices of TP, judged by what was measured."""

import pytest

from earl.benchmarks.calibration import choices, measured


def cell(context: tuple[float, float]):
    """70B on H100 with TensorRT-LLM, TP 1 to 8."""
    return [
        row
        for row in measured()
        if (row.model, row.gpu) == ("Llama-3.1-70B", "H100")
        and (row.workload.prompt_tokens, row.workload.reply_tokens) == context
        and row.source == "trtllm-0.17"
    ]


def test_right_guesses_lose_nothing() -> None:
    rows = cell((128, 2048)) + cell((20_000, 2000))
    found = choices({row: row.tokens_per_second for row in rows})
    assert found == {"cells": 2, "right": 1, "near": 1, "mean_regret": 0, "worst_regret": 0}


def test_a_wrong_one_loses_what_the_best_has_more() -> None:
    """Tokens per GPU of TP 2 and TP 4: 6169.58 / 2 and 11511.93 / 4."""
    rows = cell((128, 2048))
    found = choices({row: 1e6 if row.engine.tp == 4 else 1.0 for row in rows})
    assert found["worst_regret"] == pytest.approx(1 - 11_511.93 / 4 / (6169.58 / 2))
    assert (found["right"], found["near"]) == (0, 0)
