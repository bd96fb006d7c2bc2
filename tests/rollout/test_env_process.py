import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import earl
from earl.config import EnvConfig
from earl.envs import registry
from earl.errors import EarlError
from earl.evaluation import FINAL_GAMES, Match, evaluate
from earl.rollout.drivers import play
from earl.rollout.env_process import EnvProcess, Isolation, isolation, make
from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory
from earl.seeds import derive
from earl.trajectory import StopReason, Task
from tests.rollout.shapes import DOES, RETURNS
from tests.sampling import sampled

pytestmark = pytest.mark.cold  # what is left behind is told by the environment that a process began with

NAME = "tests.rollout.shapes:Shapes"
SECONDS = 2.0
"""Limit of a step where one is to pass it; others have a minute, for the machine may be busy."""
TIMED = ("sleeps", "computes")
HARMLESS = ("floods", "leaves a child", "leaves a daemon", "leaves a thread", "forks")
SAYS = {
    "raises": "KeyError: 'no such board'",
    "exits": "SystemExit: 3",
    "exits at once": "ended its process (exit code 3)",
    "aborts": "killed by SIGABRT",
    "is killed": "killed by SIGKILL",
    "sleeps": "took longer than env.step_timeout_seconds = 2; its process was ended",
    "computes": "took longer than env.step_timeout_seconds = 2",
    "fills memory": "MemoryError",
    "recurses": "RecursionError",
    "closes its files": "",
    "a number": "7",
    "an observation that is bytes": "b'x', not a text",
    "a reward that is no number": "nan, not a finite number",
    "a huge observation": "100000000 characters",
    "half a character": "half a character",
    "an info that is no dict": "info is 5",
    "what JSON cannot hold": "TypeError",
    "an outcome that there is not": "'tie'",
}
CASES = [("step", shape) for shape in [*DOES, *RETURNS]]
CASES += [("reset", shape) for shape in ("raises", "exits at once", "sleeps", "fills memory", "a number", "forks")]
CASES += [("close", shape) for shape in ("raises", "exits at once", "sleeps", "forks")]
ALIKE = [("step", shape) for shape in ("exits", "aborts", "recurses", "a huge observation", "an info that is no dict")]
ALIKE += [
    ("step", shape) for shape in ("computes", "closes its files", "an observation that is bytes", "leaves a child")
]
ALIKE += [("close", "sleeps")]
ALIKE += [(where, shape) for where in ("reset", "close") for shape in ("exits at once", "forks")]
ALIKE += [("reset", shape) for shape in ("fills memory", "a number")]
"""They end as one of the others does, or did in step()."""


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    monkeypatch.setattr(registry, "_allowed", {NAME})


def marked(token):
    """Processes that began with this word in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [path.parent.name] * (token in path.read_bytes())
        except OSError:
            continue  # it has ended
    return found


@pytest.fixture
def isolated(monkeypatch, tmp_path):
    """How to play in one process. It ends with the test, and nothing that it started may outlive it."""
    monkeypatch.setenv("EARL_TEST", str(tmp_path))
    process = EnvProcess(512 << 20)
    monkeypatch.setattr("earl.rollout.env_process._processes", lambda *_: iter(lambda: process, None))
    yield Isolation(1, 60.0, 512 << 20)
    assert marked(str(tmp_path).encode()), "the word does not reach those that are looked for"
    process.end()
    assert not marked(str(tmp_path).encode())


def played(chat, script, isolation, **options):
    world = EpisodeFactory(NAME, options, chat, Rules(context_limit=4096), isolation=isolation)
    episodes = [world.episode(Task(NAME, seed), seed, seed) for seed in range(5)]
    return play(episodes, script(*[["a", "b", "c"]] * 5))


@pytest.mark.slow
@pytest.mark.parametrize(("where", "shape"), sampled(CASES, always={*CASES} - {*ALIKE}))
def test_the_run_goes_on_and_the_record_names_the_fault(chat, script, isolated, where, shape):
    alone = played(chat, script, None)
    if shape in TIMED:
        isolated = replace(isolated, seconds=SECONDS)
    told = played(chat, script, isolated, where=where, shape=shape)
    for seed in (0, 1, 2, 4):
        assert told[seed].tokens.tolist() == alone[seed].tokens.tolist()
        assert (told[seed].stop, told[seed].error) == (StopReason.FINISHED, None)
    guilty = told[3]
    if shape in HARMLESS:
        assert (guilty.stop, guilty.error) == (StopReason.FINISHED, None)
    elif where == "close":
        assert guilty.stop is StopReason.FINISHED
        assert guilty.error.startswith("close(): ")
        assert SAYS[shape] in guilty.error
    else:
        assert guilty.stop is StopReason.ENV_ERROR
        assert SAYS[shape] in guilty.error
        assert len(guilty.turns) == (0 if where == "reset" else 2)


JUDGED = [
    ("step", shape) for shape in ("raises", "exits at once", "sleeps", "fills memory", "floods", "forks", "a number")
]
JUDGED += [("reset", "raises"), ("reset", "sleeps"), ("close", "raises")]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "shape"), sampled(JUDGED, every=5))
def test_an_evaluation_goes_on_and_counts_the_fault(chat, script, isolated, where, shape):
    if shape in TIMED:
        isolated = replace(isolated, seconds=SECONDS)
    drawn = ((seed, [derive(FINAL_GAMES, seed, "", 0, number) % 4 for number in range(3)]) for seed in range(99))
    seed = next(seed for seed, own in drawn if own.count(3) == 1)  # one of three episodes is guilty
    world = EpisodeFactory(NAME, {"where": where, "shape": shape}, chat, Rules(), isolation=isolated)
    result = evaluate(world, script(*[["a", "b", "c"]] * 3), Match("", 0, episodes=3), seed)
    if shape in HARMLESS or where == "close":
        assert (result.win, result.faults) == (1.0, ())
    else:
        assert (round(3 * result.win), len(result.faults)) == (2, 1)
        assert SAYS[shape] in result.faults[0]


@pytest.mark.slow
def test_what_does_not_follow_from_its_seed_is_not_played_again(chat, script, isolated):
    told = played(chat, script, isolated, where="step", shape="exits at once", moody=True)
    assert told[3].error == "step() ended its process (exit code 3)"
    assert {told[seed].stop for seed in (0, 1, 2)} == {StopReason.ENV_ERROR}
    assert told[0].error.startswith("another episode ended its process, and played again from its seed it goes other")


def test_limits_take_processes():
    assert isolation(EnvConfig(name=NAME)) is None
    assert isolation(EnvConfig(name=NAME, processes=2)) == Isolation(2, None, 4096 << 20)
    with pytest.raises(ValidationError, match=r"set env\.processes to 1 or more"):
        EnvConfig(name=NAME, step_timeout_seconds=5)


def test_a_class_of_the_script_itself_cannot_be_kept_apart(isolated, monkeypatch):
    own = type("Own", (), {"__module__": "__main__"})
    registry.register("own", own)
    with pytest.raises(EarlError, match=r"move it to a file, or leave out env\.processes"):
        make("own", {}, isolated)
    monkeypatch.setitem(registry._targets, "own", sys.modules["tests.rollout.shapes"].Shapes)
    assert make("own", {"where": "step"}, isolated).max_turns == 3


def test_a_game_has_its_seat_and_its_opponent(isolated):
    alone, apart = (make("tictactoe", {}, way, seat=1, opponent="perfect") for way in (None, isolated))
    options = {"opponent_seed": 4}
    assert apart.reset(seed=3, options=options) == alone.reset(seed=3, options=options)
    assert apart.rule("17") == alone.rule("17")
    assert apart.rule("1") is None or apart.rule("1") == alone.rule("1")
    assert [*apart.step("9")] == [*alone.step("9")]
    assert (apart.instructions, apart.max_turns) == (alone.instructions, alone.max_turns)
    apart.close()


SMALL = {
    "model.hidden": 16,
    "model.layers": 1,
    "warm_start.episodes": 8,
    "rollout.episodes": 8,
    "rollout.group_size": 2,
    "agent.max_turn_tokens": 4,
    "run.processes": 2,
    "env.processes": 2,
    "env.step_timeout_seconds": 1.0,
    "env.memory_mb": 512,
    "evaluate.episodes": 8,
    "evaluate.final_episodes": 8,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "shape", "taught"),
    # Of the first replies after three steps of imitation none is whole, and no episode comes to its fault in step().
    sampled(
        [("reset", "sleeps", 3), ("step", "exits at once", 6), ("close", "aborts", 3)],
        always=[("step", "exits at once", 6)],
    ),
)
@pytest.mark.exhaustive
def test_a_run_goes_on_in_training_and_in_evaluation(where, shape, taught, tmp_path, capfd):
    settings = {**SMALL, "warm_start.steps": taught, "env.options": {"where": where, "shape": shape}}
    run = earl.train(NAME, steps=2, seed=3, settings=settings, runs=tmp_path)
    assert run.state == "finished"
    said = capfd.readouterr().err
    if where != "close":
        assert f"episodes ended by a fault of {NAME}, and are not learned from" in said
        assert f"episodes of evaluation against the tasks ended by a fault, and count as lost: {where}() " in said
    assert run.matches[0].win > 0
