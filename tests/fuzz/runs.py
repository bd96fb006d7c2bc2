"""Mutated run folders: what is mutated, and the commands that are given it."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from random import Random

from earl.cli.main import run as command_line
from tests.fuzz.guard import Action, Sandbox
from tests.fuzz.mutations import TEXTS, mutate, odd_name

TINY = """
[agent]
max_turn_tokens = 2
[context]
limit = 120
[model]
hidden = 16
layers = 1
heads = 2
head_dim = 8
intermediate = 16
[warm_start]
steps = 1
episodes = 4
minibatches = 1
[rollout]
episodes = 4
group_size = 2
[evaluate]
every = 2
episodes = 2
final_episodes = 2
[run]
steps = 2
processes = 1
keep_trajectories_every = 1
"""
GAME = '[env]\nname = "tictactoe"\n[env.opponents]\nrandom = 1\n"alphabeta:1@0.5" = 1\n' + TINY.replace(
    "[evaluate]", '[evaluate]\nopponents = ["random"]'
)
BASES = {
    "game": GAME,
    "ppo": GAME + '[algorithm]\nname = "ppo"\n',
    "task": '[env]\nname = "arithmetic"\n' + TINY.replace("max_turn_tokens = 2", "max_turn_tokens = 15\nretries = 1"),
    "history": GAME.replace("[agent]", '[agent]\nhistory = "summary:1"\nretries = 1\nthinking = true'),
}
NOT_COPIED = shutil.ignore_patterns("report.html", "run.db-shm", "run.db-wal")


def make_bases(folder: Path, names: Sequence[str] = tuple(BASES)) -> list[Path]:
    """Train the runs that are mutated: finished ones, and of each one that has its last step to do."""
    folder.mkdir()
    for name in names:
        file = folder / f"{name}.toml"
        file.write_text(BASES[name])
        env = "arithmetic" if name == "task" else "tictactoe"
        argv = ["train", env, "--config", str(file), "--runs", str(folder / "runs"), "--name", name]
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            code = command_line(argv)
        assert code == 0, f"the run {name!r} that is to be mutated fails itself: {said.getvalue()}"
        _decided(folder / "runs" / name)
        _unfinished(folder / "runs" / name, folder / "runs" / f"{name}-begun")
    return sorted((folder / "runs").iterdir())


def _decided(run: Path) -> None:
    """Give a run decisions, as a run with layouts to choose from has them."""
    from earl.parallel.layout import Choice, Layout
    from earl.parallel.memory import Load
    from earl.parallel.selector.selector import Selector, inputs_to_json
    from earl.runs.store import RecordedDecision, Store

    class Crossing:
        def seconds(self, choice: Choice, load: Load) -> float:
            return load.mean_tokens / 100 if choice == small else 2.0

        def obstacle(self, choice: Choice, load: Load) -> str:
            return ""

    small = Choice("update", Layout(4))
    selector = Selector({"update": [small, Choice("update", Layout(2, 2))]}, Crossing(), {"update": 3.0})
    with Store(run / "run.db") as store:
        for step, tokens in enumerate((100, 250, 900), start=1):
            selector.record_load(step, Load(64, float(tokens), 2 * tokens, 10_000))
            one = selector.decide("update", step)
            before = None if one.before is None else str(one.before)
            store.decision(
                RecordedDecision(step, "update", str(one.choice), before, one.reason, one.why, inputs_to_json(one))
            )


def _unfinished(run: Path, to: Path) -> None:
    """A copy of a run with one step to do."""
    shutil.copytree(run, to, ignore=NOT_COPIED)
    recipe = (to / "config.toml").read_text()
    assert "[run]\nsteps = 2" in recipe
    (to / "config.toml").write_text(recipe.replace("[run]\nsteps = 2", "[run]\nsteps = 3"))
    with sqlite3.connect(to / "run.db") as connection:
        connection.execute("DELETE FROM matches WHERE phase = 'final'")
    connection.close()


def prepared(random: Random, sandbox: Sandbox, bases: list[Path]) -> tuple[Path, Callable[[], None]]:
    """Where a case's run lies, and what makes it there."""
    base, seed = random.choice(bases), random.randrange(1 << 60)
    folder = sandbox.case / "runs"
    run = odd_name(random, folder) if random.random() < 0.03 else folder / "case"

    def prepare() -> None:
        shutil.copytree(bases[0], folder / "good", ignore=NOT_COPIED)
        shutil.copytree(base, run, ignore=NOT_COPIED)
        for done in mutate(Random(seed), run, sandbox.canary):
            print(ascii(f"{base.name}: {done}"))
        assert not sandbox.changed(), "a mutation itself has touched the canary"

    return run, prepare


def actions(
    random: Random, case: str, sandbox: Sandbox, bases: list[Path], run: Path, everything: bool = False
) -> list[Action]:
    """What a case's run is given: `runs`, half of the quick commands, now and then a slow one; or everything."""
    root, work = sandbox.case / "runs", sandbox.case / "work"
    name = str(run)
    json = ["--json"] * (random.random() < 0.3)
    step = ["--step", str(random.choice([0, 1, 2, 3, 3, 3, 10**9]))] * (random.random() < 0.2)
    which = ["--checkpoint", random.choice(["best", "last", "0", "3", "9", "-1", *TEXTS[:4]])] * (random.random() < 0.3)
    quick = [
        ["watch", name, *json],
        ["replay", name, random.choice(["0", "0", "1", "2/0", "3/1", "3/9999", *TEXTS[:3]]), *step, *json],
        ["train", "--resume", name, "--dry-run", *json],
        ["export", name, str(work / "exported"), *which, *(["--dtype", "bfloat16"] * (random.random() < 0.5))],
        ["report", name, *json],
    ]
    slow = [
        ["audit", name, *step, *json], ["eval", name, "--episodes", "2", "--opponent", "random", *which, *json],
        ["eval", name, "--episodes", "1"], ["play", "tictactoe", "--against", name],
        ["play", "arithmetic", "--against", name],
        ["report", name, "--out", str(work / "out.html")],
        ["report", name, "good", *json], ["train", "--resume", name, *json],
    ]  # fmt: skip
    chosen = random.sample(quick, 3)
    if random.random() < 0.4:
        chosen.append(random.choice(slow))
    if random.random() < 0.1:  # it looks most closely
        chosen.append(slow[0])
    if everything:
        chosen = [*quick, *slow]
    recipes = {(base / "config.toml").read_bytes() for base in bases}
    return [_action(case, argv, root, recipes) for argv in (["runs", *json], *chosen)]


def _action(case: str, argv: list[str], root: Path, recipes: set[bytes]) -> Action:
    told = [word for word in argv if word in ("--dry-run", "--replay", "--resume", "good")]
    codes = {"audit": (0, 1, 2), "runs": (0,)}.get(argv[0], (0, 2))  # 1: the audit has found something

    def call() -> int:
        recipe = Path(argv[2] if len(argv) > 2 else "") / "config.toml"
        if argv[:2] == ["train", "--resume"] and "--dry-run" not in argv and not _known(recipe, recipes):
            return 0  # by another recipe it may rightly take long
        place = os.lseek(1, 0, os.SEEK_END)
        code = command_line([*argv, "--runs", str(root)])
        sys.stdout.flush()
        if argv[0] == "runs":
            assert b"good" in os.pread(1, 1 << 20, place), "a good run beside the case's is not listed"
        return code

    return Action(case, " ".join([argv[0], *told]), call, codes)


def _known(recipe: Path, recipes: set[bytes]) -> bool:
    if not recipe.is_file() or recipe.is_symlink() or recipe.stat().st_size > max(map(len, recipes)):
        return False
    return recipe.read_bytes() in recipes
