"""What is predicted of memory lies where processes really are: some of the configurations of `earl bench footprint`."""

import json
from pathlib import Path

import pytest

from earl.benchmarks import footprint
from earl.benchmarks.footprint import CASES, MemoryCase, cases_of, model, predicted, run
from earl.errors import EarlError

MIB = 1 << 20
UNTIED = model("llama", num_key_value_heads=2, vocab_size=20_000, tie_word_embeddings=False)
SMALL = (
    MemoryCase("update", "update", model(num_hidden_layers=3, vocab_size=8000), tokens=1024, micro_batches=2),
    MemoryCase("pass", "forward", model(intermediate_size=2048), tokens=2048),
    MemoryCase("shares", "update", UNTIED, {}, 2, tokens=256, micro_batches=2),
    MemoryCase("sample", "sample", model("qwen2", num_hidden_layers=8), tokens=200, contexts=64, new_tokens=4),
)


@pytest.mark.slow
def test_predictions_are_within_a_tenth_and_hardly_ever_under(monkeypatch):
    monkeypatch.setattr(footprint, "CASES", SMALL)
    result = run(None, None)
    assert [row["name"] for row in result["rows"]] == ["update", "pass", "shares", "sample"]
    for row in result["rows"]:
        assert -0.03 <= row["error"] <= 0.1, row
        assert row["predicted_bytes"] == sum(row["parts"].values())
        assert row["measured_bytes"] > 60 * MIB
    assert result["under"] <= 0 <= result["over"]


SHARED = [case for case in CASES if case.ep > 1 or case.replicas > 1]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.name)
def test_experts_and_replicas_take_what_is_predicted_within_a_twentieth(case, monkeypatch):
    assert len(SHARED) == 6
    monkeypatch.setattr(footprint, "CASES", [case])
    errors = {row["name"]: row["error"] for row in run(None, None)["rows"]}
    assert max(map(abs, errors.values())) <= 0.05, errors


def test_there_are_enough_configurations_of_every_stage():
    assert len(CASES) == len({case.name for case in CASES}) >= 30
    assert {case.stage for case in CASES} == {"update", "forward", "reference", "sample"}
    assert {case.layout.size for case in CASES} == {1, 2, 4}
    assert all(100 * MIB < predicted(case).peak < 2000 * MIB for case in CASES)


def test_other_configurations_come_from_a_file(tmp_path: Path):
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([{"name": "mine", "stage": "forward", "model": model(), "tokens": 64}]))
    (case,) = cases_of(None, path)
    assert case == MemoryCase("mine", "forward", model(), tokens=64)
    with pytest.raises(EarlError, match="no configuration's name has 'other' in it"):
        cases_of("other", path)
    path.write_text('[{"name": "mine", "size": 3}]')
    with pytest.raises(EarlError, match="is not a JSON list of configurations"):
        cases_of(None, path)


@pytest.mark.slow
def test_a_rank_that_fails_is_told():
    broken = MemoryCase("broken", "forward", model() | {"num_key_value_heads": 3}, tokens=64)
    with pytest.raises(RuntimeError, match=r"a process of the case 'broken' ended early: ."):
        footprint._measured(broken)
