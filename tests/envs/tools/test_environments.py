"""Environments from tools, and the tools that come with earl, where they run for real."""

import json
from math import radians
from random import Random

import pytest

from earl.envs.registry import make
from earl.envs.tools.aircraft import GRAVITY, AircraftEnv, Flight, runge_kutta
from earl.envs.tools.base import ToolEnv
from earl.envs.tools.kit import Passages, Workspace, calculator
from earl.errors import EarlError


def solved(env, seed):
    """An episode as the environment itself would play it: the replies and answers, and the last step."""
    said = [env.reset(seed=seed)[0]]
    while True:
        action = env.solve(Random(0))
        step = env.step(action)
        said += [action, step[0]]
        if step[2] or step[3]:
            env.close()
            return said, step


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("arithmetic", {"num_operations": 9}),
        ("lookup", {}),
        ("lookup", {"hops": 5}),
        ("table", {}),
        ("code", {"steps": 6}),
    ],
)
def test_every_task_can_be_solved_by_its_tools(name, options):
    for seed in range(3 if name == "table" else 9 if name == "code" else 50):
        said, (_, reward, terminated, _, info) = solved(make(name, **options), seed)
        assert (reward, terminated, info["outcome"]) == (1.0, True, "win"), said


@pytest.mark.parametrize(("name", "episodes"), [("lookup", 300), ("table", 9)])
def test_random_play_knows_the_form_and_no_more(name, episodes):
    env, rng, called, won = make(name), Random(0), 0, 0
    for seed in range(episodes):
        env.reset(seed=seed)
        while not (step := env.step(env.random_action(rng)))[2] and not step[3]:
            called += step[4]["role"] == "tool"
            assert "illegal" not in step[4] and "error" not in step[0]
        won += step[1]
    env.close()
    # By guessing, a town of 12 is right in 8 % of the tasks; of 9 programs one fits a question.
    assert called > episodes / 2 and won < episodes / 3


def outcomes(info):
    return [(call.tool, call.fault) for call in info["tool_calls"]]


def test_the_answer_is_not_known_without_the_tools():
    env = make("table")
    question, _ = env.reset(seed=1)
    assert question == f"What is the sum of units of kind {env.kind}?"
    # What Python reads of the file is what the answer was worked out from.
    program = "kind, total = '%s', 0\nfor line in open('data.csv'):\n    if line.startswith(kind + ','):\n"
    program += "        total += int(line.split(',')[1])\nprint(total)"
    step = env.step(f"python({program % env.kind!r})")
    *told, info = step
    assert told == [str(env.answer), 0.0, False, False]
    assert outcomes(info) == [("prepare", ""), ("python", "")]
    assert env.step(str(env.answer + 1))[:3] == ("wrong", 0.0, True)
    env.close()


def test_what_a_program_does_wrong_is_an_observation():
    env = make("table", sandbox={"seconds": 0.5})
    env.reset(seed=1)
    steps = [env.step(f"python({code!r})") for code in ("1/0", "while True: pass", "import os; os._exit(3)")]
    told, records = [step[0] for step in steps], [outcomes(step[4])[-1] for step in steps]
    assert records == [("python", what) for what in ("faults", "timeouts", "faults")]
    assert told[0].endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert told[1:] == ["[ended: it took too long]", "[exit code 3]"]
    assert env.step('python("print(1)", 2)')[4]["illegal"] == "illegal: python takes code, each once"
    env.close()


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("def f(x): return None", True),
        ("f = 1", True),
        ("def f(x): 1/0", True),
        ("def f(x)", True),
        ("import os; os._exit(0)", True),
        ("while True: pass", True),
        ("print('[]')\n{solution}\nprint(1)", False),  # what it prints is no result
        # What the agent's own programs left behind is gone, and the tests' process has no expected value.
        ("import os; assert os.listdir() == ['solution.py']\n{solution}", False),
        ("import gc; assert {secret!r} not in str(gc.get_objects())\n{solution}", False),
    ],
)
def test_hidden_tests_decide_and_are_told_to_nobody(code, wrong):
    env = make("code", steps=2, sandbox={"seconds": 1})
    question, _ = env.reset(seed=3)
    assert env.step("python(\"open('left.py', 'w').write('x')\")")[1:3] == (0.0, False)
    secret = json.dumps([json.dumps(value) for _, value in env._hidden])
    step = env.step(f"submit({code.replace('{solution}', env._solution).replace('{secret!r}', repr(secret))!r})")
    assert step[:3] == (("wrong", 0.0, True) if wrong else ("right", 1.0, True))
    assert not any(str(value) in question for value in env._hidden)
    env.close()


def test_tests_and_tasks_of_code_follow_from_the_seed():
    def drawn(seed):
        env = make("code")
        return env.reset(seed=seed)[0], env._hidden

    assert drawn(5) == drawn(5) and len({drawn(seed)[0] for seed in range(50)}) > 40


def test_files_stay_for_an_episode_and_no_longer():
    class Desk(Workspace, ToolEnv):
        """A task of files."""

        instructions = "Use the files."
        tools = (Workspace.shell, Workspace.read_file, Workspace.write_file)

        def task(self, rng):
            return "Go on."

        def score(self, answer):
            return 1.0

    env = Desk()
    env.reset(seed=0)
    assert env.step('write_file("a/b.txt", "one\\ntwo\\n")')[0] == "written"
    assert env.step('[shell("wc -l < a/b.txt"), read_file("a/b.txt")]')[0] == "1: 2\n2: one\ntwo"
    assert env.step('read_file("../etc/passwd")')[0].startswith("cat: ../etc/passwd: No such file")
    assert env.step("shell(\"printf '\\\\033[2J\\\\033[H'\")")[0] == "\\x1b[2J\\x1b[H"
    env.reset(seed=0)
    assert env.step('shell("ls")')[0] == ""
    env.close()


def test_the_calculator_is_no_interpreter():
    assert calculator("2*(3+4)-5") == 9
    for hostile in ("9**9**9", "__import__('os')", "1/0", "(" * 100, "9" * 65):
        with pytest.raises(ValueError):
            calculator(hostile)


def test_passages_are_found_by_any_of_their_words():
    passages = Passages(["Ada works for Bo.", "Bo lives in Oslo.", "Cy lives in York."])
    assert passages.search("Where does Bo live?", 1) == ["Bo lives in Oslo."]
    assert passages.search("ada") == ["Ada works for Bo."]
    for nothing in ("", "zzz", '" OR text MATCH "', "* NEAR(", "a" * 10_000):
        assert passages.search(nothing) == []


def test_flight_keeps_its_energy():
    # Lift stands upright on the path, so V²/2 + g h stays: 150²/2 + 9.81 · 1000 = 21,060 m²/s².
    state = Flight(0.05, 0.1, -0.5, 150.0, 1000.0)
    for number in range(100):
        state = runge_kutta(state, (-1) ** (number // 10), 0.1)
    assert state.speed**2 / 2 + GRAVITY * state.height == pytest.approx(21_060, rel=1e-4)


def test_runge_kutta_is_of_fourth_order():
    # Half the step: a sixteenth of the error, against a hundred times finer steps.
    def flown(steps):
        state = Flight(0.05, 0.1, -0.5, 150.0, 1000.0)
        for _ in range(steps):
            state = runge_kutta(state, 0.5, 2.0 / steps)
        return state.attack

    exact = flown(800)
    assert (flown(8) - exact) / (flown(16) - exact) == pytest.approx(16, rel=0.25)


@pytest.mark.parametrize(
    ("state", "stick", "said"),
    [
        (Flight(0.05, 0.0, -0.7, 150, 60), 0, "ground strike"),
        (Flight(0.3, 0.3, -0.5, 180, 1000), 4, "broken at 5."),
        (Flight(0.0, -0.3, 0.5, 180, 1000), -4, "broken at -2."),
        (Flight(0.06, 0.0, 0.0, 160, 1000), 0, "level flight"),
    ],
)
def test_how_a_flight_ends(state, stick, said):
    env = AircraftEnv()
    env.reset(seed=0)
    env.state = state
    observation, reward, terminated, _, info = env.step(f"stick({stick})")
    assert observation.startswith(said)
    assert terminated and info["outcome"] == ("win" if said == "level flight" else "loss")
    assert reward == (pytest.approx(0.99) if said == "level flight" else 0)


def test_the_controller_recovers_from_every_start_and_a_still_stick_does_not():
    env, still = AircraftEnv(), 0
    for seed in range(100):
        assert solved(env, seed)[1][4]["outcome"] == "win"
        env.reset(seed=seed)
        assert abs(env.state.path) >= radians(8)
        step = env.step("stick(0)")
        while not (step[2] or step[3]):
            step = env.step("stick(0)")
        still += step[4].get("outcome") == "win"
    assert still < 50


def test_options_are_checked():
    for name, options in (
        ("aircraft", {"steepest": 90}),
        ("lookup", {"hops": 0}),
        ("table", {"rows": 0}),
        ("code", {"steps": 7}),
        ("code", {"tests": 0}),
    ):
        with pytest.raises(EarlError, match="is not within"):
            make(name, **options)
