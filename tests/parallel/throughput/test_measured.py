"""Recalibration: what an installation's own rows say, how outliers count, and files that cannot be read."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from earl.errors import EarlError
from earl.parallel.hardware import devices
from earl.parallel.memory import known
from earl.parallel.throughput.measured import EngineMeasurement, posterior, read, recalibrated
from earl.parallel.throughput.rollout import Workload, rollout
from earl.parallel.throughput.step import Engine, fitted

QWEN = known("Qwen2.5-72B").shape
HEAD = "tp,context,concurrency,tokens_per_second\n"


def engine(tp: int) -> Engine:
    return Engine(QWEN, devices()["H100"], tp)


def rows(factor: float) -> list[EngineMeasurement]:
    """What an installation measures whose steps all take `factor` times as long."""
    own = dict(fitted(engine(4)).values)
    own["scale"] *= factor
    loads = [(4, Workload(0, 2048, 16)), (8, Workload(0, 8192, 32)), (4, Workload(512, 512, 64))]
    blank = [EngineMeasurement(engine(tp), load, 1.0) for tp, load in loads]
    return [EngineMeasurement(row.engine, row.workload, row.predicted(own)) for row in blank]


def test_three_rows_of_a_slower_machine_move_all_predictions_and_narrow_them() -> None:
    told = recalibrated(rows(1.3))
    moved, before, after = map(int, re.findall(r"[-+±](\d+)\.?\d*%", told.text))
    assert moved == pytest.approx(100 - 100 / 1.3, abs=4)  # 30 % longer: 23 % fewer tokens per second
    assert after < 0.6 * before
    elsewhere = Workload(0, 4096, 8)
    own = Engine(QWEN, devices()["H100"], 8, measured=told.known)
    before, after = (rollout(one, elsewhere).tokens_per_gpu_s.value for one in (engine(8), own))
    assert after / before == pytest.approx(1 / 1.3, rel=0.08)


def test_one_disturbed_row_of_five_hardly_counts() -> None:
    """Values 1 and one of 3, known to 0.1: the mean is 1.4."""
    values = np.array([1.0, 1.02, 0.98, 1.0, 3.0])
    point, covariance = posterior(np.zeros(1), np.eye(1) * 4, lambda at: (at[0] - values, np.ones((5, 1))), 0.1)
    assert point[0] == pytest.approx(1.0, abs=0.06)
    assert covariance[0, 0] < 0.01


def test_the_same_row_in_every_form(tmp_path: Path) -> None:
    """320 requests of 512 + 256 tokens at 64 at once; a profile's two copies write 8 contexts of 1,000 in 4 s: 1,000
    tokens per second each."""
    done = {"completed": 320, "total_input_tokens": 320 * 512, "total_output_tokens": 320 * 256}
    bench = {"tp": "4", "output_throughput": 2150.0, "max_concurrency": 64, **done}
    cell = {"choice": {"stage": "rollout", "layout": {"dp": 2, "tp": 4}}, "tokens": 1000, "sequences": 8, "seconds": 4}
    files = {
        "rows.csv": "tp,prompt_tokens,reply_tokens,concurrency,tokens_per_second\n4,512,256,64,2150\n",
        "bench.json": json.dumps(bench),
        "profile.json": json.dumps({"cells": [cell, {"choice": {"stage": "update"}}]}),
    }
    found = {}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        found[name] = read(tmp_path / name, engine)
    assert found["rows.csv"] == found["bench.json"] == [EngineMeasurement(engine(4), Workload(512, 256, 64), 2150)]
    assert found["profile.json"] == [EngineMeasurement(engine(4), Workload(0, 1000, 4), 1000)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, "has no rows; give one at least: tp,context,concurrency"),
        ("tp,context\n4,100\n", "row 1 has no 'concurrency'; it has to have tp,context"),
        (HEAD + "4,8192,64,-5\n", "tokens_per_second = '-5' is not a number above 0"),
        (HEAD + "4,8192,64,nan\n", "tokens_per_second = 'nan' is not a number above 0"),
        (HEAD + "3,8192,64,2150\n", "tp = 3 does not divide the model's 64 heads"),
        (HEAD + "4,8192,64\n", "tokens_per_second = None is not a number above 0"),
        ("[1, 2]", "cannot be read"),
        ('{"cells": [3]}', "cannot be read"),
        ("{", "not JSON"),
        ('{"output_throughput": 5}', "KeyError('total_input_tokens')"),
    ],
)
def test_a_bad_file_is_refused_with_value_rule_and_cure(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    with pytest.raises(EarlError) as error:
        read(path, engine)
    assert words in str(error.value)
    assert "--measured" in str(error.value)
