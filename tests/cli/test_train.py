"""`earl train`: what it says, what it leaves behind, what it answers in JSON."""

import tomllib
from pathlib import Path

import pytest

from earl.cli.main import run
from earl.recipe import build, load_toml
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.store import Store
from earl.runs.summary import summarize
from tests.sampling import sampled


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The recipes that earl brings."""
    return sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("[!_]*.toml"))


def test_a_run_from_start_to_end(earl, tiny: Path, tmp_path: Path, everything) -> None:
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--seed", 7)
    folder = RunFolder(tmp_path / "runs" / "tictactoe-1")
    assert said.code == 0
    assert said.out.splitlines()[-1] == str(folder.report)
    assert "opponent   seat" in said.out
    assert "6 games" in said.out
    assert "loss after imitation" in said.out
    for line in (
        "tictactoe: 4 prompts x 2 = 8 episodes per step; 1 step of imitation, then 2 steps of grpo",
        "a new model of 5,248 parameters, 1 process; opponents: random 50%, perfect 50%",
        "step 0/3: ",
        "step 3/3: ",
        "at the end, the best weights: ",
    ):
        assert line in said.err
        assert line in folder.log.read_text()
    assert tomllib.loads(folder.config.read_text())["run"]["seed"] == 7
    assert folder.report.read_text().lstrip().lower().startswith("<!doctype html>")
    assert summarize(folder).state == "finished"
    assert not [name for name in everything(tmp_path) if name.endswith(".tmp")]


def test_json_is_one_object(trained: Path, earl) -> None:
    said = earl("train", "--resume", trained, "--json")
    assert said.code == 0
    assert set(said.json) == {"run", "path", "report", "steps", "evaluation", "after_imitation"}
    assert (said.json["run"], said.json["path"], said.json["steps"]) == ("done", str(trained), 3)
    assert [entry["opponent"] for entry in said.json["evaluation"]] == ["perfect", "random"]
    assert Path(said.json["report"]).is_file()


def test_a_new_run_answers_in_json_too(earl, tiny: Path, tmp_path: Path) -> None:
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--json", "--name", "mine")
    assert (said.code, said.json["run"], said.json["steps"]) == (0, "mine", 3)


def test_resuming_a_finished_run_writes_the_report_and_nothing_else(earl, trained: Path) -> None:
    weights = checkpoint.latest(trained / "checkpoints") / "model.safetensors"
    before = weights.stat().st_mtime_ns, (trained / "log.txt").read_text()
    (trained / "report.html").unlink()
    said = earl("train", "--resume", "done", "--runs", trained.parent)
    assert (said.code, said.out.splitlines()[-1]) == (0, str(trained / "report.html"))
    assert said.err == "run 'done' is finished, after 3 of 3 steps\n"
    assert (weights.stat().st_mtime_ns, (trained / "log.txt").read_text()) == before


@pytest.mark.slow
def test_names_count_up(earl, tiny: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        said = earl(
            "train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--set", "warm_start.steps=0", "--steps", 0
        )
        assert said.code == 0
        assert (tmp_path / f"tictactoe-{number}" / "report.html").is_file()
    with Store(tmp_path / "tictactoe-2" / "run.db", read_only=True) as store:
        assert store.last_step() == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_says_the_plan_and_writes_nothing(
    earl, tiny: Path, tmp_path: Path, everything, as_json: bool
) -> None:
    before = everything(tmp_path)
    flags = ["--json"] if as_json else []
    said = earl(
        "train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--dry-run", "--steps", 300, *flags
    )
    assert (said.code, said.err) == (0, "")
    if as_json:
        assert (said.json["recipe"]["rollout"]["episodes"], said.json["recipe"]["run"]["steps"]) == (8, 300)
    else:
        plan, _, settings = said.out.partition("settings, and where they come from\n")
        *lines, learner, sampler = plan.splitlines()
        assert lines == [
            "tictactoe: 4 prompts x 2 = 8 episodes per step; 1 step of imitation, then 300 steps of grpo",
            "a new model of 5,248 parameters, 1 process; opponents: random 50%, perfect 50%",
            "context: first prompt 16 of at most 120 tokens",  # 13 characters of board, user, end, assistant
            "disk: 125.5 KiB for each checkpoint",  # 3 x 4 x 5,248 bytes, and 64 KiB for the tokenizer
            "placement: embedded on this machine; sampler local, float32",
            "  1 x learner and sampler, in turns",
            "memory of each process, at least",
        ]
        # 4 x 5,248 bytes of weights, twice that of moments; of gradients the same and once more 16 x 106 of the words
        assert learner.startswith(
            "  update   weights 20.5 KiB + gradients 27.1 KiB + optimizer 41.0 KiB + activations "
        )
        # 8 contexts of 120 tokens of 2 x 1 layer x 2 heads x 8 x 4 bytes
        assert sampler == "  rollout  weights 20.5 KiB + contexts 120.0 KiB; at once 140.5 KiB"
        *settings, end = settings.splitlines()
        assert "  run.steps                    300        the command line" in settings
        assert end == "nothing was written"
    assert everything(tmp_path) == before


def test_a_dry_run_of_a_finished_run(earl, trained: Path) -> None:
    assert earl("train", "--resume", trained, "--dry-run").out == "run 'done' is finished, after 3 of 3 steps\n"


def test_the_last_word_is_that_of_set(earl, tiny: Path, tmp_path: Path) -> None:
    sets = ["--set", "run.steps=5", "--set", 'env.opponents={"perfect@0.5"=1}']
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--dry-run", "--json", "--steps", 4, *sets)
    assert said.json["recipe"]["run"]["steps"] == 5
    assert said.json["shares"] == [{"env": "tictactoe", "opponent": "perfect@0.5", "share": 1.0}]


def test_every_packaged_recipe_passes_the_preflight(earl, packaged: list[str], tmp_path: Path) -> None:
    assert packaged
    for env in packaged:
        said = earl("train", env, "--runs", tmp_path, "--dry-run", "--json")
        assert (said.code, said.err) == (0, "")
        assert said.json["recipe"]["env"]["name"] == env


@pytest.mark.slow
@pytest.mark.parametrize("every", sampled([4, 1], every=2))
def test_an_environment_without_a_recipe_has_one_to_begin_with(
    earl, packaged: list[str], tmp_path: Path, every: int
) -> None:
    from earl.envs import registry

    for env in sorted({*registry.names()} - {*packaged})[::every]:
        said = earl("train", env, "--runs", tmp_path, "--dry-run", "--json", "--set", "agent.max_turn_tokens=128")
        assert (said.code, said.json["recipe"]["env"]["name"]) == (0, env), said.err


def test_a_model_of_a_run_can_be_trained_on(earl, tiny: Path, trained: Path, tmp_path: Path) -> None:
    model = checkpoint.latest(trained / "checkpoints")
    flags = ["--model", model, "--runs", tmp_path, "--name", "more", "--set", "warm_start.steps=0", "--steps", 1]
    said = earl("train", "tictactoe", "--config", tiny, *flags)
    assert said.code == 0, said.err
    assert f"{model} of 5,248 parameters" in said.err
    assert build(load_toml(tmp_path / "more" / "config.toml")).model.path == str(model)


@pytest.mark.slow
def test_runs_with_two_processes(earl, tiny: Path, tmp_path: Path) -> None:
    code = run(["train", "tictactoe", "--config", str(tiny), "--runs", str(tmp_path), "--set", "run.processes=2"])
    assert code == 0
    assert summarize(RunFolder(tmp_path / "tictactoe-1")).state == "finished"


@pytest.mark.slow
def test_a_finished_run_is_given_more_steps(earl, tiny: Path, tmp_path: Path) -> None:
    assert earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "a").code == 0
    said = earl("train", "--resume", "a", "--runs", tmp_path, "--steps", "5")
    assert (said.code, "--steps +100 adds 100 steps" in said.err) == (2, True)
    said = earl("train", "--resume", "a", "--runs", tmp_path, "--steps", "+3")
    assert said.code == 0, said.err
    assert "then 5 steps of grpo" in said.err
    assert "warning:" not in said.err
    assert earl("runs", "--runs", tmp_path, "--json").json[0]["step"] == 6  # one of imitation, two and three more
    assert earl("audit", "a", "--runs", tmp_path).code == 0
    assert earl("train", "--resume", "a", "--runs", tmp_path).err.startswith("run 'a' is finished, after 6 of 6 steps")


@pytest.mark.parametrize(
    ("steps", "said"),
    [("+3", "--steps +N adds to a run"), ("x", "is not a whole"), ("-1", "run.steps = -1: input should be greater")],
)
def test_steps_are_a_number_and_a_plus_belongs_to_a_run(earl, steps: str, said: str) -> None:
    refused = earl("train", "tictactoe", "--steps", steps)
    assert (refused.code, said in refused.err) == (2, True)
