"""earl from Python: in a script, in a notebook, and by its names alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import earl

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[1]
SMALL = {"model.hidden": 16, "model.layers": 1, "rollout.episodes": 8, "rollout.group_size": 4, "agent.max_turns": 3}
SMALL |= {"evaluate.episodes": 2, "evaluate.final_episodes": 3, "warm_start.steps": 2, "warm_start.episodes": 8}
GUESS = '''
class Guess:
    """Guess a number from 1 to 9. Answer with a digit."""

    def reset(self, seed=None):
        self.number = seed % 9 + 1
        return "?"

    def step(self, answer):
        right = answer == str(self.number)
        return "right" if right else "wrong", float(right), right, False, {}

    def random_action(self, rng):
        return str(rng.randint(1, 9))
'''


@pytest.fixture(scope="module")
def guess():
    space = {"__name__": "__main__"}  # as a class is named that a script or a notebook defines
    exec(GUESS, space)
    return space["Guess"]


@pytest.fixture(scope="module")
def run(guess, tmp_path_factory):
    return earl.train(guess, steps=2, seed=3, settings=SMALL, runs=tmp_path_factory.mktemp("runs"))


def test_the_names_are_few_and_cost_nothing_until_they_are_used():
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, earl; print(len(dir(earl)), 'torch' in sys.modules, 'rich' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["14", "False", "False"]
    assert {*dir(earl)} - {"__version__"} == {*earl.__all__}
    for name in earl.__all__:
        assert getattr(earl, name).__doc__, name
    with pytest.raises(AttributeError, match="module 'earl' has no attribute 'trian'"):
        _ = earl.trian


@pytest.mark.slow
def test_a_run_is_trained_read_and_continued(run, guess, tmp_path):
    assert (run.state, run.config.env.name, run.config.run.processes) == ("finished", "guess", 1)
    assert run.config.run.seed == 3
    assert [step for step, _ in run.metrics["reward"]] == [3, 4]
    assert [match.episodes for match in run.matches] == [3]
    assert earl.load(run.name, run.path.parent) == run
    assert earl.load(str(run.path)) == run
    again = earl.train(guess, steps=2, seed=3, settings=SMALL, runs=tmp_path, name="again")
    assert again.metrics["reward"] == run.metrics["reward"]
    assert earl.resume(again, more=1).state == "finished"
    assert [step for step, _ in again.metrics["reward"]] == [3, 4, 5]


def test_a_run_is_measured_played_and_shown(run, tmp_path):
    [result] = earl.evaluate(run, episodes=4, seed=1)
    assert (result.env, result.episodes) == ("guess", 4)
    told = earl.play(run)
    assert told[0] == "environment: ?"
    assert {line.partition(":")[0] for line in told} <= {"environment", "action"}
    assert run.contexts().data[0].type == "heatmap"
    assert earl.report(run, out=tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert run._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


def test_a_class_of_a_module_is_named_by_its_import_string(tmp_path, monkeypatch):
    (tmp_path / "guess_of_a_module.py").write_text(GUESS)
    monkeypatch.syspath_prepend(tmp_path)
    from guess_of_a_module import Guess

    run = earl.train(Guess, steps=1, settings={**SMALL, "run.processes": 1}, runs=tmp_path)
    assert run.config.env.name == "guess_of_a_module:Guess"
    assert run.name == "guess_of_a_module-Guess-1"


def test_a_plan():
    plan = earl.plan("Qwen2.5-7B", "8xH100", context=8192)
    assert {choice.cell.context for choice in plan.choices} >= {8192}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: earl.train("tictactoo"), "unknown environment 'tictactoo'; did you mean 'tictactoe'"),
        (lambda: earl.train("tictactoe", settings={"episodes": 3}), "settings key 'episodes' is not SECTION.KEY"),
        (lambda: earl.train("tictactoe", settings={"rollout.nope": 3}), "rollout.nope"),
        (lambda: earl.load("nobody"), "nobody"),
        (lambda: earl.evaluate("nobody"), "nobody"),
        (lambda: earl.plan("Qwen2.5-7C", "8xH100", context=8192), "unknown model 'Qwen2.5-7C'; did you mean"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(earl.EarlError, match=re.escape(said)):
        call()
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_script_of_the_readme(tmp_path):
    [script] = re.findall(r"```python\n(import earl\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in script.splitlines() if line.strip()]) <= 15
    sizes = {"steps=10": "steps=2", '"agent.max_turns": 8': '"agent.max_turns": 8, "warm_start.steps": 2'}
    for size, smaller in sizes.items():
        assert size in script
        script = script.replace(size, smaller)
    (tmp_path / "script.py").write_text(script)
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=500)
    assert (tmp_path / "contexts.html").stat().st_size > 1000


CELLS = [
    "import earl\n" + GUESS,
    f"run = earl.train(Guess, steps=2, settings={SMALL!r})",
    GUESS,  # run again, as one does
    f"earl.train(Guess, steps=1, settings={SMALL!r}).name",
    "run.contexts()",
    "run",
    "from gast.welt import Raten",  # a package outside of earl, in German, Chinese and emoji
    f"gast = earl.train(Raten, steps=5, settings={ {**SMALL, 'run.processes': 2, 'warm_start.steps': 0}!r})",
    "earl.evaluate(gast, episodes=2)",
    "earl.play(gast)",
    "earl.report(gast, run).name",
    "gast",
]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_notebook(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    from nbformat import v4

    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'cli' / 'guest'}")
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=500, resources={"metadata": {"path": tmp_path}}).execute()
    kinds = [{kind for out in cell.outputs for kind in out.get("data", {})} for cell in notebook.cells]
    assert "application/vnd.jupyter.widget-view+json" in kinds[1]  # the progress bar
    assert "application/vnd.plotly.v1+json" in kinds[4]
    assert "text/html" in kinds[5]
    assert "guess-2" in json.dumps(notebook.cells[3].outputs)
    shown = [json.dumps(cell.outputs, ensure_ascii=False) for cell in notebook.cells[8:]]
    assert "MatchResult(env='gast.welt:Raten'" in shown[0]
    assert "environment: Ist „" in shown[1]
    assert "text/html" in kinds[11]
    assert "gast.welt:Raten" in (tmp_path / "runs" / "gast.welt-Raten-1" / "report.html").read_text()
