"""`earl plan --trace`: the learner's own code, traced for a cluster that is not here."""

import pytest


@pytest.mark.slow
def test_a_trace_of_a_models_folder(earl, tmp_path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen2", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,'
        ' "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}'
    )
    line = ("plan", "--model", str(tmp_path), "--gpus", "2x4xH100", "--context", "128", "--trace")
    fixed = ("--set", "placement.dp=2", "--set", "placement.tp=2", "--set", "placement.cp=2")
    traced = earl(*line, *fixed, "--json").json["trace"]
    assert traced["job"]["layout"] == {"dp": 2, "tp": 2, "cp": 2, "ep": 1, "replicas": 1, "pp": 1}
    assert [stage["stage"] for stage in traced["stages"]][-2:] == ["weights", "checkpoint"]
    assert {own["group"] for stage in traced["stages"] for own in stage["exchanges"]} >= {"dp x cp", "cp", "tp"}
    assert [each["what"] for each in traced["compared"]][:3] == [
        "held between stages",
        "peak of experience",
        "peak of the update",
    ]
    assert abs(traced["compared"][0]["percent"]) < 1


def test_what_cannot_be_traced_ends_with_what_to_do(earl) -> None:
    line = ("plan", "--model", "Qwen2.5-0.5B", "--gpus", "8xH100", "--context", "1024", "--trace")
    refused = earl(*line, "--set", "learner.offload=true")
    assert refused.code == 2
    assert "learner.offload cannot be traced" in refused.err
