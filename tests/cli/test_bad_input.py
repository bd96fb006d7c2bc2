"""What a user may get wrong: each is said in one line with exit code 2, no traceback, and nothing is left behind."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.cli.main import run as command_line
from earl.errors import EarlError
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, lock
from earl.runs.store import Store
from tests.sampling import sampled

pytestmark = pytest.mark.cold

SMALL_DISK_BYTES = 1 << 20


def assert_refused(said, *words: str) -> None:
    """Exit code 2, nothing on stdout, the words on stderr in one line without a traceback."""
    assert said.code == 2, said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


LARGE = ["--set", "model.hidden=65536", "--set", "model.intermediate=65536", "--set", "model.layers=256"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tictactoo"], ["unknown environment 'tictactoo'; did you mean 'tictactoe'?"]),
        (["connect4"], ["is for the environment 'tictactoe', not for 'connect4'", "--config"]),
        (["tictactoe", "--set", "env.opponents.perfct=1"], ["env.opponents: unknown opponent 'perfct'", "'perfect'"]),
        (["tictactoe", "--set", 'evaluate.opponents=["rndom"]'], ["evaluate.opponents: unknown opponent 'rndom'"]),
        (["tictactoe", "--set", "warm_start.teacher=perfekt"], ["warm_start.teacher", "did you mean 'perfect'?"]),
        (["tictactoe", "--set", "algorithm.name=gppo"], ["unknown algorithm 'gppo'"]),
        (["tictactoe", "--set", "learner.learningrate=1"], ["did you mean 'learner.learning_rate'?"]),
        (["tictactoe", "--set", "lerner.learning_rate=1"], ["unknown key 'lerner'; did you mean 'learner'?"]),
        (["tictactoe", "--set", "steps=5"], ["--set 'steps=5' is not of the form section.key=value"]),
        (
            [
                "tictactoe",
                "--set",
                "algorithm.kl_in=reward",
                "--set",
                "algorithm.kl=0.1",
                "--set",
                "algorithm.name=rae",
            ],
            ["algorithm.kl_in = 'reward' with rae's running baselines", "leave algorithm.kl_in out"],
        ),
        (
            [
                *("tictactoe", "--set", "algorithm.kl_in=reward", "--set", "algorithm.kl=0.1"),
                *("--set", "context.learn_truncated=false"),
            ],
            ["algorithm.kl_in = 'reward' with episodes that a limit cut off", "set context.learn_truncated to true"],
        ),
        (["tictactoe", "--set", "algorithm.kl_in=reward"], ["algorithm.kl_in = 'reward' places a divergence"]),
        (
            ["tictactoe", "--set", "algorithm.reference=x"],
            ["algorithm.reference = 'x' sets the reference of a divergence"],
        ),
        (
            ["tictactoe", "--set", "algorithm.reference=nowhere", "--set", "algorithm.kl=0.1"],
            ["algorithm.reference: no model at 'nowhere'"],
        ),
        (["tictactoe", "--set", "model.cells=XX"], ["model.cells", "have to be different characters of ASCII"]),
        (["tictactoe", "--set", 'model.cells="X\\t"'], ["model.cells", "have to be different characters of ASCII"]),
        (["tictactoe", "--set", 'model.cells="\\n"'], ["model.cells", "have to be different characters of ASCII"]),
        (
            ["table", "--set", 'sandbox.read=["/data","/tmp/x/"]'],
            ["sandbox.read", "names /tmp/x/; a sandbox has its own /tmp, so copy it"],
        ),
        (["table", "--set", 'sandbox.read=["//data/../proc"]'], ["sandbox.read", "its own /proc"]),
        (
            ["tictactoe", "--set", "model.cells=XO", "--set", "model.alphabet=unicode"],
            ["cells are tokens of alphabet = 'ascii' only", "leave one of the two out"],
        ),
        (["tictactoe", "--set", "rollout.top_p=0"], ["rollout.top_p", "greater than 0"]),
        (["tictactoe", "--set", "rollout.group_size=16"], ["episodes = 8 must be a multiple of group_size = 16"]),
        (["tictactoe", "--set", "learner.minibatches=9"], ["learner.minibatches = 9", "rollout.episodes = 8"]),
        (["tictactoe", "--set", "context.limit=9"], ["context.limit is 9 tokens", "16", "at least 18"]),
        (["tictactoe", "--set", "context.limit=2048"], ["context.limit = 2048", "model.max_positions"]),
        (["tictactoe", "--set", "agent.max_turn_tokens=1"], ["agent.max_turn_tokens = 1 is too short", "at least 2"]),
        (["tictactoe", "--steps", "-1"], ["run.steps = -1", "greater than or equal to 0"]),
        (["tictactoe", "--seed", "-1"], ["run.seed = -1"]),
        (["tictactoe", "--seed", "x"], ["'x' is not a valid integer"]),
        (["tictactoe", "--set", 'run.seed="x"'], ["run.seed = 'x'"]),
        (["tictactoe", "--set", "learner.learning_rate=nan"], ["learner.learning_rate = nan", "finite"]),
        (["tictactoe", "--set", "learner.learning_rate=inf"], ["learner.learning_rate = inf"]),
        (["tictactoe", "--set", "rollout.temperature=0"], ["rollout.temperature = 0"]),
        (["tictactoe", "--set", "env.opponents.random=-2"], ["env.opponents.random = -2"]),
        (["tictactoe", "--set", "rollout.episodes=1000000000"], ["1,000,000,000 episodes", "this machine has"]),
        (["tictactoe", "--set", "rollout.episodes=100000000000"], ["rollout.episodes", "at most 1,000,000,000"]),
        (["tictactoe", *LARGE], ["parameters needs", "TiB"]),
        (["tictactoe", "--set", "run.processes=5"], ["run.processes = 5 must not be larger than"]),
        (["tictactoe", "--name", "../x"], ["run name '../x' is not a plain name"]),
        (["tictactoe", "--model", "nowhere"], ["no model at 'nowhere'", "ORGANISATION/NAME"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_training_that_is_refused(earl, tiny: Path, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    runs = tmp_path / "runs"
    for mode in ([], ["--dry-run"]):
        assert_refused(earl("train", *arguments, "--config", tiny, "--runs", runs, *mode), *words)
        assert not runs.exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"steps: 5\n", "is not TOML"),
        (b"\xff\xfe\x00", "is not TOML"),
        (b"env = 5\n", "env = 5"),
        (b"run = 5\n[env]\nname = 'tictactoe'\n", "run = 5"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_recipe_that_is_none(earl, tmp_path: Path, text: bytes | None, word: str) -> None:
    path = tmp_path / "recipe.toml"
    if text is not None:
        path.write_bytes(text)
    assert_refused(earl("train", "tictactoe", "--config", path, "--runs", tmp_path / "runs", "--steps", "3"), word)
    assert not (tmp_path / "runs").exists()


def test_a_folder_without_a_model(earl, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--model", tmp_path / "empty")
    assert_refused(said, "holds no model: there is no config.json", "save_pretrained")
    assert not (tmp_path / "runs").exists()


def test_a_run_in_place_of_its_checkpoint(earl, tiny: Path, tmp_path: Path) -> None:
    last = tmp_path / "one" / "checkpoints" / "step-000020"
    last.mkdir(parents=True)
    last.with_name("step-000010").mkdir()
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", "--model", tmp_path / "one")
    assert_refused(said, f"give {last}, a checkpoint of this run")


def test_a_name_that_is_taken(earl, tiny: Path, trained: Path, everything) -> None:
    before = everything(trained.parent)
    for mode in ([], ["--dry-run"]):
        said = earl("train", "tictactoe", "--config", tiny, "--runs", trained.parent, "--name", "done", *mode)
        assert_refused(said, "run 'done' exists already", "--name", "--resume")
    assert everything(trained.parent) == before


def test_resume_of_nothing(earl, tmp_path: Path, trained: Path) -> None:
    assert_refused(earl("train", "--resume", "a", "--runs", tmp_path / "none"), "is not a run", "none yet")
    assert_refused(earl("train", "--resume", "dome", "--runs", trained.parent), "did you mean 'done'?")
    assert not (tmp_path / "none").exists()


def test_resume_takes_no_changes(earl, trained: Path) -> None:
    changes = ["--steps", "5", "--seed", "1", "--model", "m", "--config", "f", "--name", "n"]
    said = earl("train", "--resume", "done", "--runs", trained.parent, *changes)
    assert_refused(said, "its own recipe; leave out --steps --seed --model --config --name")
    said = earl("train", "connect4", "--resume", "done", "--runs", trained.parent)
    assert_refused(said, "run 'done' was trained in tictactoe, not in connect4")


def unfinished(trained: Path, root: Path) -> Path:
    """A copy of a run whose last evaluation has not been recorded."""
    shutil.copytree(trained, root / "again")
    for path in (root / "again").glob("run.db*"):
        path.unlink()
    return root / "again"


DAMAGES = {
    "model.safetensors has changed": lambda last: (last / "model.safetensors").write_bytes(
        (last / "model.safetensors").read_bytes()[:-1] + b"!"
    ),
    "config.json is missing": lambda last: (last / "config.json").unlink(),
    "config.json has 0 bytes": lambda last: (last / "config.json").write_bytes(b""),
    "state.json is missing": lambda last: (last / "state.json").unlink(),
    "model.safetensors is no plain file": lambda last: (
        (last / "model.safetensors").rename(last.parent / "elsewhere")
        and (last / "model.safetensors").symlink_to(last.parent / "elsewhere")
    ),
    "is a link or no folder": lambda last: (
        last.rename(last.parent / "elsewhere") and last.symlink_to(last.parent / "elsewhere")
    ),
}


DISTINCT = ("model.safetensors has changed", "model.safetensors is no plain file", "is a link or no folder")
"""tests/runs/test_checkpoint.py has the others."""


@pytest.fixture(scope="module")
def undisturbed(stopped: Path, tmp_path_factory: pytest.TempPathFactory, weights_and_numbers) -> object:
    """What the run leaves behind that goes on from its last checkpoint."""
    run = shutil.copytree(stopped, tmp_path_factory.mktemp("undisturbed") / "run")
    assert command_line(["train", "--resume", str(run)]) == 0
    return weights_and_numbers(RunFolder(run))


@pytest.mark.slow
@pytest.mark.parametrize("damage", sampled(DAMAGES, always=DISTINCT))
def test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before_to_the_same_end(
    earl, stopped: Path, tmp_path: Path, damage: str, undisturbed: object, weights_and_numbers
) -> None:
    run = RunFolder(shutil.copytree(stopped, tmp_path / "damaged"))
    DAMAGES[damage](checkpoint.latest(run.checkpoints))
    assert earl("train", "--resume", "damaged", "--runs", tmp_path, "--dry-run").code == 0
    assert checkpoint.all_steps(run.checkpoints)[-1] == 2  # nothing is put aside by a dry run
    said = earl("train", "--resume", "damaged", "--runs", tmp_path)
    assert said.code == 0, said.err
    told = [line for line in said.err.splitlines() if "checkpoints/step-000002 is damaged: " in line]
    assert len(told) == 1
    assert damage in told[0]
    assert f"kept aside as {run.checkpoints}/damaged-step-000002, the run goes on from step 1" in told[0]
    with Store(run.database, read_only=True) as store:
        events = [(event.step, event.kind) for event in store.events()]
    assert events.index((1, "damaged")) < events.index((1, "resume"))
    assert os.path.lexists(run.checkpoints / "damaged-step-000002")
    assert weights_and_numbers(run) == undisturbed
    for line in (["eval", run.path, "--opponent", "random"], ["report", run.path], ["runs", "--runs", tmp_path]):
        assert earl(*line).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["run.processes=2"], id="processes"),
        pytest.param(["--placement", "colocated"], id="ray", marks=pytest.mark.exhaustive),
    ],
)
def test_all_processes_of_a_run_go_on_from_the_same_whole_checkpoint(
    earl, stopped: Path, tmp_path: Path, options: list[str], weights_and_numbers
) -> None:
    if "--placement" in options:
        pytest.importorskip("ray")
    for name in ("damaged", "expected"):
        config = shutil.copytree(stopped, tmp_path / name) / "config.toml"
        if "run.processes=2" in options:
            config.write_text(config.read_text().replace("processes = 1", "processes = 2"))
    run = RunFolder(tmp_path / "damaged")
    (checkpoint.latest(run.checkpoints) / "model.safetensors").write_bytes(b"")
    shutil.rmtree(tmp_path / "expected" / "checkpoints" / "step-000002")  # it goes on from step 1 in any case
    more = options if "--placement" in options else []
    said = earl("train", "--resume", "damaged", "--runs", tmp_path, *more)
    assert said.code == 0, said.err
    assert "the run goes on from step 1" in said.err
    if not more:
        assert earl("train", "--resume", "expected", "--runs", tmp_path).code == 0
        assert weights_and_numbers(run) == weights_and_numbers(RunFolder(tmp_path / "expected"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_without_a_whole_checkpoint_is_refused_and_left_as_it_is(earl, stopped: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "again")
    for path in (run / "checkpoints").rglob("model.safetensors"):
        path.write_bytes(b"")
    before = files(run)
    for mode in ([], ["--dry-run"]):
        said = earl("train", "--resume", "again", "--runs", tmp_path, *mode)
        assert_refused(said, "step-000002 is damaged: model.safetensors has 0 bytes", "start a new run")
        assert "removed" not in said.err
    assert {name: files(run).get(name) for name in before} == before


def test_a_damaged_checkpoint_does_not_play_and_a_whole_one_is_offered(earl, stopped: Path, tmp_path: Path) -> None:
    run = shutil.copytree(stopped, tmp_path / "again")
    best = checkpoint.load(run / "checkpoints" / "step-000002").state["best_step"]
    whole = max(step for step in checkpoint.all_steps(run / "checkpoints") if step != best)
    (run / "checkpoints" / f"step-{best:06d}" / "model.safetensors").write_bytes(b"")
    lines = (
        ["eval", run, "--opponent", "random", "--episodes", "2"],
        ["export", run, tmp_path / "out"],
        ["play", "tictactoe", "--against", run],
    )
    for line in lines:
        said = earl(*line)
        assert_refused(said, "is damaged: model.safetensors has 0 bytes", f"a whole one with --checkpoint {whole}")
    for line in lines[:2]:
        assert earl(*line, "--checkpoint", whole).code == 0
    for path in (run / "checkpoints").rglob("model.safetensors"):
        path.write_bytes(b"")
    for line in lines:
        assert_refused(earl(*line), "no other checkpoint is whole")


def test_a_run_whose_checkpoints_are_gone_is_never_removed(
    earl, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EarlError("the disk failed")

    run = shutil.copytree(stopped, tmp_path / "again")
    shutil.rmtree(run / "checkpoints")
    (run / "thesis.tex").write_text("mine")
    before = files(run)
    monkeypatch.setattr("earl.trainer.run", fail)
    said = earl("train", "--resume", "again", "--runs", tmp_path)
    assert_refused(said, "error: the disk failed\n")
    assert set(before) <= set(files(run))
    assert (run / "thesis.tex").read_text() == "mine"


def test_two_processes_on_one_run(earl, trained: Path, tmp_path: Path) -> None:
    run = unfinished(trained, tmp_path)
    with lock(RunFolder(run)):
        said = earl("train", "--resume", "again", "--runs", tmp_path)
    assert_refused(said, f"run 'again' is being written by process {os.getpid()}", "wait for that process or end it")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB, mounted for one test."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("a full disk is made by mounting a tmpfs, and there is no mount command here")
    command = [mount, "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(disk)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.skip(f"a full disk is made by mounting a tmpfs, which is refused: {answer.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_is_full_before_the_run(earl, tiny: Path, small_disk: Path, everything) -> None:
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - 8192))
    said = earl("train", "tictactoe", "--config", tiny, "--runs", small_disk / "runs")
    assert_refused(said, "no space left at", "4 checkpoints of 125.5 KiB", "--runs")
    assert everything(small_disk) == ["filler"]


@pytest.mark.slow
def test_a_disk_that_fills_up_during_the_run(earl, tiny: Path, small_disk: Path, everything) -> None:
    sizes = ["--set", "run.steps=200", "--set", "evaluate.every=1", "--set", "run.keep_trajectories_every=1"]
    said = earl("train", "tictactoe", "--config", tiny, "--runs", small_disk, *sizes)
    assert said.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    last = said.err.splitlines()[-1]
    assert last.startswith("error: no space left at ")
    assert "--resume" in last
    assert not [name for name in everything(small_disk) if name.endswith(".tmp")]
    kept = small_disk / "tictactoe-1" / "checkpoints"
    for step in checkpoint.all_steps(kept):  # what there is is whole
        checkpoint.load(kept / f"step-{step:06d}")


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(earl, tiny: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # about 62,000 parameters take more
        wide = ["--set", "model.hidden=192"]
        said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path / "runs", *wide)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.code == 2
    last = said.err.splitlines()[-1]
    assert last.startswith("error: no space left at ")
    assert "it had no checkpoint yet and was removed: start it again" in last
    assert list((tmp_path / "runs").iterdir()) == []
