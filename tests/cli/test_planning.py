"""`earl plan` as a user calls it: cells, choices, the map and a step, in words, as JSON and as a page; and refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cold

LINE = ("plan", "connect4", "--model", "Qwen2.5-72B", "--gpus", "16x8xH100")
CONTEXTS = [80, 1024, 2048, 4096, 8192, 16_384, 32_768]
"""That of the recipe, and powers of two."""
NOWHERE = ("plan", "--model", "Qwen2.5-7B", "--gpus", "8xH100")


@pytest.fixture(scope="module")
def planned() -> dict:
    """The plan of the paper's testbed, from a process of its own, with the modules that it loaded."""
    code = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    code += f"sys.argv = ['earl', *{LINE!r}, '--json']\nfrom earl.cli.main import main\nmain()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout) | {"modules": set(ran.stderr.split())}


def rollout(plan: dict) -> dict:
    return {(c["tp"], c["responses"], c["context"]): c for c in plan["cells"] if c["stage"] == "rollout"}


@pytest.mark.slow
def test_nothing_heavy_is_loaded(planned: dict) -> None:
    assert not planned["modules"] & {"torch", "ray", "vllm", "transformers", "plotly"}


def test_every_cell_of_every_stage(planned: dict) -> None:
    contexts, loads, tps = CONTEXTS, (8, 16, 32, 64, 128), (1, 2, 4, 8)
    assert set(rollout(planned)) == {(tp, load, context) for tp in tps for load in loads for context in contexts}
    for stage in ("experience", "update"):
        found = [(c["tp"], c["context"], c["responses"]) for c in planned["cells"] if c["stage"] == stage]
        assert sorted(found) == sorted((tp, context, None) for tp in tps for context in contexts)
    for cell in planned["cells"]:
        assert cell["origin"] == "predicted"
        assert cell["feasible"] == (cell["tokens_per_gpu_s"] is not None)
        assert cell["feasible"] == (cell["memory_gib_per_gpu"] <= cell["room_gib_per_gpu"])
        assert cell["feasible"] != cell["verdict"].startswith("out of memory: ")
        if cell["feasible"]:
            assert cell["tokens_per_gpu_s_low"] < cell["tokens_per_gpu_s"] < cell["tokens_per_gpu_s_high"]


def test_short_contexts_are_for_the_small_split_and_long_ones_for_the_large_one(planned: dict) -> None:
    """What the EARL paper found on this cluster with 32 responses (arXiv 2510.05943)."""
    gains = {(e["tp_from"], e["tp_to"], e["context"], e["responses"]): e["percent"] for e in planned["map"]}
    assert gains[4, 8, 1024, 32] < 0
    assert gains[4, 8, 2048, 32] < 0
    assert gains[4, 8, 16_384, 32] > 0
    assert gains[4, 8, 32_768, 32] > 0
    chosen = {c["context"]: c["tp"] for c in planned["choices"] if (c["stage"], c["responses"]) == ("rollout", 32)}
    assert (chosen[1024], chosen[32_768]) == (4, 8)
    cells = rollout(planned)
    for (before, after, context, load), percent in gains.items():
        a, b = (cells[tp, load, context]["tokens_per_gpu_s"] for tp in (before, after))
        assert (percent is None) == (a is None or b is None)
        if percent is not None:
            assert percent == pytest.approx((b - a) / a * 100, abs=0.06)  # numbers in JSON have five digits


def test_the_cell_that_ran_out_of_memory_in_the_paper_is_the_most_oversubscribed_and_says_why(planned: dict) -> None:
    cells = {key: cell for key, cell in rollout(planned).items() if cell["oversubscription"]}
    assert max(cells, key=lambda key: cells[key]["oversubscription"]) == (4, 128, 32_768)
    worst = cells[4, 128, 32_768]
    fits = worst["kv_tokens_capacity"]
    assert worst["oversubscription"] == pytest.approx(128 * 32_768 / fits, rel=1e-4)
    assert worst["waves"] == -(-128 // (fits // 32_768))
    assert f"{fits:,} tokens of context fit" in worst["verdict"]
    assert f"in {worst['waves']} waves" in worst["verdict"]
    assert "an engine that cannot let responses wait runs out of memory" in worst["verdict"]


def test_a_step_and_its_cost(planned: dict, earl) -> None:
    for step, cost in zip(planned["step"], planned["cost"], strict=True):
        whole = sum(stage["seconds"]["value"] for stage in step["stages"].values())
        assert step["seconds"]["value"] == pytest.approx(whole, rel=1e-3)
        hours = cost["gpu_hours_per_1000_episodes"]["value"]
        assert hours == pytest.approx(whole * 128 / 3600 * 1000 / 256, rel=1e-3)  # connect4 plays 256 episodes a step
        assert cost["cost_per_1000_episodes"] is None  # earl knows no prices
    assert [step["context"] for step in planned["step"]] == CONTEXTS
    assert planned["dispatch"][0]["rows"] == 256
    paid = earl(*LINE, "--json", "--price", "2.5").json["cost"]
    for free, dear in zip(planned["cost"], paid, strict=True):
        expected = 2.5 * free["gpu_hours_per_1000_episodes"]["value"]
        assert dear["cost_per_1000_episodes"]["value"] == pytest.approx(expected, rel=1e-3)


def test_lists_name_what_is_planned_for(earl) -> None:
    told = earl(*LINE, "--json", "--contexts", "32768,1024", "--responses", "128,8", "--tp", "8,4").json
    assert set(rollout(told)) == {
        (tp, load, context) for tp in (4, 8) for load in (8, 128) for context in (1024, 32_768)
    }
    assert len(told["map"]) == 4


def test_without_an_environment(earl) -> None:
    told = earl(*NOWHERE, "--context", "2048", "--json").json
    assert [step["context"] for step in told["step"]] == [1024, 2048]
    assert told["episodes"] == 384  # what a recipe leaves unsaid
    assert earl(*NOWHERE, "--context", "2048", "--json", "--set", "rollout.episodes=64").json["episodes"] == 64


def test_prompt_and_reply_as_published_tables_name_them(earl) -> None:
    line = (*NOWHERE, "--prompt-tokens", "2048", "--json", "--responses", "1000", "--engine", "tensorrt-llm")
    told = earl(*line, "--reply-tokens", "128", "--weights", "fp8", "--kv-cache", "fp8").json
    assert {cell["context"] for cell in told["cells"]} == {2176}
    assert (told["weights"], told["kv_cache"], told["engine"]) == ("fp8", "fp8", "TensorRT-LLM")
    wide = earl(*line, "--reply-tokens", "128").json
    room = [rollout(plan)[1, 1000, 2176]["kv_tokens_capacity"] for plan in (told, wide)]
    assert room[0] > 2 * room[1]  # half the bytes of a token, and more room beside narrower weights


def test_the_share_of_memory_that_an_engine_takes(earl) -> None:
    line = (*LINE, "--json", "--contexts", "1024", "--responses", "8", "--tp", "4")
    rooms = [
        earl(*line, *more).json["cells"][0]["kv_tokens_capacity"]
        for more in ((), ("--memory-share", "0.9"), ("--set", "sampler.memory_share=0.9"))
    ]
    assert rooms[0] < rooms[1] == rooms[2]


def test_a_step_has_the_layouts_that_are_chosen(planned: dict) -> None:
    updates = {one["context"]: (one["dp"], one["tp"]) for one in planned["choices"] if one["stage"] == "update"}
    for step in planned["step"]:
        for stage in ("experience", "update"):
            assert (step["stages"][stage]["dp"], step["stages"][stage]["tp"]) == updates[step["context"]]
        idle = 128 - step["stages"]["rollout"]["dp"] * step["stages"]["rollout"]["tp"]
        assert bool(step["idle"]) == (idle > 0)


def test_rows_of_ones_own_recalibrate_the_rollout(earl, tmp_path: Path) -> None:
    """TP 8 measured at half of what the tables tell, at three loads: every speed falls, and is surer than before."""
    line = (*LINE, "--contexts", "2048", "--tp", "4,8", "--responses", "8,32,128", "--json")
    before = earl(*line).json
    told = rollout(before)
    rows = [f"8,2048,{load},{told[8, load, 2048]['tokens_per_gpu_s'] * 8 / 2}" for load in (8, 32, 128)]
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["tp,context,concurrency,tokens_per_second", *rows]))
    after = earl(*line, "--measured", own).json
    assert (before["uncalibrated"], before["recalibrated"]) == (["version"], None)
    assert (after["uncalibrated"], after["recalibrated"][:31]) == ([], "recalibrated by 3 measured rows")
    for key, cell in rollout(after).items():
        ranges = [one["tokens_per_gpu_s_low"] / one["tokens_per_gpu_s_high"] for one in (told[key], cell)]
        assert ranges[0] < ranges[1]
        assert cell["tokens_per_gpu_s"] < 0.8 * told[key]["tokens_per_gpu_s"]
    assert "rollout: recalibrated by 3 measured rows: predictions" in earl(*line[:-1], "--measured", own).out
    refused = earl(*line, "--measured", own, "--gpus", "8xH100")
    assert (refused.code, refused.out) == (2, "")
    assert "--measured is of one cluster, --gpus names 2; leave all but one out" in refused.err
    own.write_text("tp,context\n8,2048\n")
    assert "row 1 has no 'concurrency'; it has to have tp,context" in earl(*line, "--measured", own).err


def test_layouts_as_flags_of_other_programs(earl) -> None:
    said = earl(*LINE, "--contexts", "2048", "--tp", "8", "--emit", "vllm")
    assert (said.code, said.err) == (0, "")
    comment, flags = said.out.splitlines()
    assert comment.startswith("# context 2048: rollout 16 x TP 8, update")
    assert flags.startswith("--tensor-parallel-size 8 --pipeline-parallel-size 1 --max-model-len 2048 --max-num-seqs ")
    assert "Invalid value for '--emit'" in earl(*LINE, "--emit", "sglang").err


def test_words_for_people(earl) -> None:
    said = earl(*LINE, "--tp", "4,8", "--price", "2")
    assert (said.code, said.err) == (0, "")
    assert "…" not in said.out
    assert max(map(len, said.out.splitlines())) <= 120
    for words in (
        "Qwen2.5-72B on 16 hosts of 8 H100 = 128 GPUs, in turns",
        "all is predicted",
        "What TP 8 gains over TP 4, (TGS(8) - TGS(4)) / TGS(4), by responses",
        "rollout, a copy given 32 responses: TP 4 up to",
        "the recipe's 256 episodes, 80 to 32,768 tokens: rollout 16x8, experience and update 32x4",
        "GPU-hours of 1,000 episodes",
        "cost",
        "Dispatch of a step's rows, at 200 Gbit/s between hosts",
    ):
        assert words in said.out
    assert "cost" not in earl(*LINE, "--tp", "4,8").out


def test_several_clusters_side_by_side(earl) -> None:
    line = (*LINE, "--gpus", "4x8xH200", "--contexts", "8192")
    told = earl(*line, "--json").json["plans"]
    assert [(plan["gpus"], plan["kind"]) for plan in told] == [(128, "H100"), (32, "H200")]
    said = earl(*line).out
    last = said[said.index("The clusters side by side") :]
    assert "16x8xH100" in last
    assert "4x8xH200" in last


def test_what_does_not_fit_is_shown_and_said(earl) -> None:
    said = earl("plan", "connect4", "--model", "Qwen2.5-72B", "--gpus", "8xH100").out
    assert "rollout, TP 1 at every context: out of memory: weights and workspace alone take" in said
    assert "update: no layout fits" in said
    assert "OOM" in said


def test_a_kind_of_ones_own(earl, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        "kind,memory_gib,bf16_tflops,memory_gb_per_second,link_gb_per_second,fewest_bits\nGB200,186,2500,8000,900,4\n"
    )
    told = earl(*LINE[:5], "2x4xGB200", "--hardware", table, "--json").json
    assert (told["kind"], told["gpus"], told["gpus_per_host"]) == ("GB200", 8, 4)
    assert {cell["tp"] for cell in told["cells"]} == {1, 2, 4}
    missing = earl(*LINE[:5], "2x4xGB200", "--hardware", tmp_path / "none.csv")
    assert (missing.code, missing.out) == (2, "")
    assert "none.csv: No such file or directory" in missing.err


def test_a_folder_with_a_config(earl, tmp_path: Path) -> None:
    described = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described))
    told = earl("plan", "--context", "2048", "--model", folder, "--gpus", "8xH100", "--json").json
    assert told["model"] == "mine"
    assert {cell["tp"] for cell in told["cells"] if cell["stage"] == "rollout"} == {1, 2, 4, 8}  # heads are copied
    assert {cell["tp"] for cell in told["cells"] if cell["stage"] == "update"} == {1, 2}  # but not by the learner
    above = earl("plan", "--context", "4096", "--model", folder, "--gpus", "8xH100")
    assert "mine was made for contexts of 2048 tokens at most" in above.err
    (folder / "config.json").write_text("{")
    broken = earl("plan", "--context", "2048", "--model", folder, "--gpus", "8xH100")
    assert (broken.code, broken.out) == (2, "")
    assert f"no model can be loaded: {folder}/config.json is not JSON" in broken.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (NOWHERE, "nothing says what to plan for; name an environment, such as connect4, or how long contexts get"),
        ((*LINE[:5], "16x8xH1000"), "unknown kind of GPU 'H1000'; did you mean 'H100'?"),
        ((*LINE[:5], "0x8xH100"), "'0x8xH100' has no hosts; name one at least, such as 1x8xH100"),
        ((*LINE[:5], "16x0xH100"), "'16x0xH100' has no GPUs; name one at least, such as 16x1xH100"),
        ((*LINE[:5], "sixteen"), "'sixteen' is not of the form HOSTSxGPUSxKIND"),
        ((*LINE[:5], "9999x8xH100"), "79,992 GPUs; earl plans for 16,384 at most"),
        (
            (*LINE[:3], "Qwen2.5-27B", *LINE[4:]),
            "unknown model 'Qwen2.5-27B'; did you mean 'Qwen2.5-7B'? Planned for can",
        ),
        ((*LINE[:3], "somebody/their-own", *LINE[4:]), "unknown model 'somebody/their-own'"),
        ((*LINE, "--tp", "3"), "--tp 3: Qwen2.5-72B has 64 attention heads and 8 key-value heads"),
        ((*LINE, "--tp", "3"), "nearest valid: 2 (possible: 1, 2, 4, 8)"),
        (
            (*LINE, "--tp", "16"),
            "one copy lies on one host, and a host of --gpus 16x8xH100 has 8 GPUs; nearest valid: 8",
        ),
        (
            (*LINE, "--contexts", "1024,65536"),
            "--contexts 65536: Qwen2.5-72B was made for contexts of 32768 tokens at most",
        ),
        ((*LINE, "--context", "65536"), "--context 65536: Qwen2.5-72B was made for contexts of 32768 tokens at most"),
        ((*LINE, "--contexts", ""), "--contexts '': an empty item is not a whole number from 1"),
        ((*LINE, "--contexts", "1k,2k"), "'1k' is not a whole number from 1"),
        ((*LINE, "--responses", "8,-1"), "'-1' is not a whole number from 1"),
        ((*LINE, "--responses", "1000000"), "earl plans for 65,536 at once per engine at most"),
        ((*LINE, "--context", "0"), "Invalid value for '--context'"),
        ((*LINE, "--context", "2048", "--contexts", "1024"), "--contexts and --context both say how long contexts are"),
        (
            (*LINE, "--contexts", "512", "--prompt-tokens", "512"),
            "--prompt-tokens 512 leaves no room in a context of 512",
        ),
        ((*LINE, "--weights", "int3"), "unknown kind of number 'int3'. Known: bf16"),
        ((*LINE, "--kv-cache", "half"), "unknown kind of number 'half'"),
        ((*LINE, "--engine", "vlm"), "unknown engine 'vlm'; did you mean 'vllm'?"),
        ((*LINE, "--memory-share", "1.5"), "Invalid value for '--memory-share'"),
        ((*LINE, "--memory-share", "nan"), "memory_share"),
        ((*LINE, "--price", "nan"), "--price nan is not a price; give what an hour of one GPU costs, such as 2.5"),
        ((*LINE, "--price", "-1"), "--price -1.0 is not a price"),
        (
            (*LINE, "--network", "0"),
            "--network 0.0 is not a rate; give Gbit/s of a host's link to the others, such as 200",
        ),
        (
            (*LINE[:5], "1x1xRTX4090"),
            "Qwen2.5-72B fits in no layout of --gpus 1x1xRTX4090: TP 1 comes nearest and needs",
        ),
        ((*LINE[:5], "1x1xRTX4090"), "of which the engine may take 20.3; nearest that fits: --gpus 8xRTX4090"),
        ((*LINE[:5], "1xH100", "--set", "placement.kind=disaggregated"), "needs GPUs for the learner and others"),
        ((*LINE, *("--gpus", "8xH100") * 8), "9 times --gpus; a plan compares 8 clusters at most"),
        ((*LINE, "--gpus", "8xH100", "--dispatch"), "--dispatch plans for one cluster, --gpus names 2"),
        (("plan", "connect5", *LINE[2:]), "unknown environment 'connect5'; did you mean 'connect4'?"),
        ((*LINE, "--set", "rollout.episode=5"), "did you mean 'rollout.episodes'?"),
    ],
)
def test_what_is_refused(earl, arguments: tuple[str, ...], words: str) -> None:
    said = earl(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    assert words in said.err
