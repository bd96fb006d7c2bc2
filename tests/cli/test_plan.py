"""`earl plan`: what dispatch would take on a cluster that is not here."""

import pytest

LINE = ("plan", "connect4", "--model", "Qwen2.5-72B", "--gpus", "16x8xH100")


def test_tables_for_people(earl) -> None:
    said = earl(*LINE, "--dispatch")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert "predicted from bytes alone, nothing was measured" in said.out
    assert "256 rows a step (rollout.episodes)" in said.out
    assert "columns: tokens, mask, targets" in said.out
    assert "30 bytes of a token" in said.out
    for context in ("1,024", "2,048", "4,096", "8,192", "16,384", "32,768"):
        assert any(line.split()[:1] == [context] for line in lines)
    for gpus in ("16", "32", "64", "128", "256", "512", "1,024"):
        assert any(line.split()[:1] == [gpus] for line in lines)
    for word in (
        "25 Gbps",
        "200 Gbps",
        "400 Gbps",
        "bound",
        "central",
        "direct",
    ):
        assert word in said.out
    assert "…" not in said.out


def test_the_same_for_programs(earl) -> None:
    said = earl(*LINE, "--dispatch", "--json")
    told = said.json
    assert told["predicted"] is True
    assert (told["model"], told["gpus"], told["hosts"], told["placement"]) == ("Qwen2.5-72B", 128, 16, "colocated")
    assert told["token_bytes"] == 30  # 4 + 1 + 4 + 4 + 4 + 1 + 4 + 4 + 4
    assert [line["context"] for line in told["by_context"]] == [1024, 2048, 4096, 8192, 16384, 32768]
    assert [line["gpus"] for line in told["by_gpus"]] == [16, 32, 64, 128, 256, 512, 1024]
    for line in told["by_context"] + told["by_gpus"]:
        assert line["bytes"] == 30 * line["tokens"]
        assert line["bound_bytes"] <= line["bytes"]
        assert [time["gbps"] for time in line["times"]] == [25, 200, 400]
        assert all(time["bound_s"] <= time["direct_s"] for time in line["times"])
    assert earl(*LINE, "--dispatch", "--json").out == said.out


def test_columns_and_recipe_may_be_named(earl) -> None:
    told = earl(*LINE, "--dispatch", "--json", "--columns", "reference", "--set", "rollout.episodes=1024").json
    assert (told["columns"], told["token_bytes"]) == (["reference"], 4)
    assert told["by_context"][0]["rows"] == 1024
    clipped = ("algorithm.name=ppo", "algorithm.options.value_clip=0.2")
    told = earl(*LINE, "--dispatch", "--json", *(word for own in clipped for word in ("--set", own))).json
    assert (told["columns"][-1], told["token_bytes"]) == ("values", 34)
    apart = earl(*LINE, "--dispatch", "--json", "--set", "placement.kind=disaggregated").json
    assert apart["placement"] == "disaggregated"
    assert all(line["across_bytes"] >= line["bytes"] for line in apart["by_context"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*LINE, "--columns", "tokens"), ["--columns is read with --dispatch alone"]),
        (("plan", "connect4", "--gpus", "8xH100", "--dispatch"), ["Missing option '--model'"]),
        (("plan", "connect5", *LINE[2:], "--dispatch"), ["unknown environment 'connect5'; did you mean 'connect4'?"]),
        ((*LINE[:3], "Qwen2.5-27B", *LINE[4:], "--dispatch"), ["unknown model 'Qwen2.5-27B'; did you mean 'Qwen2.5-7"]),
        ((*LINE[:5], "16xH1000", "--dispatch"), ["unknown kind of GPU 'H1000'; did you mean 'H100'?"]),
        ((*LINE[:5], "16-8", "--dispatch"), ["'16-8' is not of the form HOSTSxGPUSxKIND", "16x8xH100"]),
        ((*LINE[:5], "9999x8xH100", "--dispatch"), ["79,992 GPUs; earl plans for 16,384 at most"]),
        (
            (*LINE, "--dispatch", "--set", "rollout.episodes=262144"),
            ["2,097,152 rows on 1,024 GPUs", "1,048,576 at most"],
        ),
        ((*LINE, "--dispatch", "--columns", "token"), ["unknown column 'token'; did you mean 'tokens'?"]),
        ((*LINE, "--dispatch", "--set", "rollout.episode=5"), ["did you mean 'rollout.episodes'?"]),
    ],
)
def test_what_is_refused(earl, arguments: tuple[str, ...], words: list[str]) -> None:
    said = earl(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


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
    assert earl(*line, "--dispatch").code == 2
