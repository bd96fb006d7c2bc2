"""earl from Python, by the functions that its command line calls. `import earl` gives these names.

    run = earl.train(Guess, steps=20)
    run.contexts()                      # a plotly figure, which a notebook draws
    earl.evaluate(run, episodes=100)

In a notebook a run is shown as its report, and training as a progress bar.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from earl import reports
from earl.cli import training
from earl.cli.contestants import contestant, of_run
from earl.cli.duel import play_episode
from earl.cli.recipes import resolve
from earl.config import Config
from earl.envs import registry
from earl.errors import EarlError
from earl.evaluation import evaluate as measured
from earl.evaluation import matches
from earl.matches import MatchResult
from earl.recipe import build
from earl.reports.context_plots import heat_figure
from earl.reports.data import ReportedRun
from earl.rollout.tasks import EVALUATION
from earl.runs.folder import RunFolder, open_run
from earl.runs.store import Store, read_from
from earl.runs.summary import summarize
from earl.seeds import derive
from earl.trajectory import Author, Task

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from earl.planner.plan import Plan

Environment = str | Callable[..., object]
"""A name that `earl train` takes, or a class or function that makes an environment."""
FRAME = '<iframe srcdoc="{}" width="100%" height="720" style="border: 0"></iframe>'


@dataclass(frozen=True)
class Run:
    """A training run: what lies in its folder. Every property reads it anew, while it trains too."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Config:
        return build(RunFolder(self.path).recipe())

    @property
    def state(self) -> str:
        """ "finished", "running" or "stopped"."""
        return summarize(RunFolder(self.path)).state

    @property
    def matches(self) -> list[MatchResult]:
        """The last evaluation; that of the best weights once the run is finished."""
        return [match.result for match in summarize(RunFolder(self.path)).last_evaluation]

    @property
    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """(step, value) of every metric by its name, such as "reward" or "context/p95"."""
        return read_from(RunFolder(self.path).database, Store.metrics)

    def contexts(self) -> "Figure":
        """Tokens of each turn at each step, as a plotly figure. Raises EarlError before the first step."""
        from plotly.graph_objects import Figure

        drawn = heat_figure(ReportedRun(RunFolder(self.path), 0)).spec
        if drawn is None:
            raise EarlError(f"run {self.name!r} has no step yet; train it first")
        return Figure(drawn)

    def _repr_html_(self) -> str:
        return FRAME.format(escape(report(self).read_text(encoding="utf-8")))


def train(
    env: Environment,
    *,
    model: str | Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    name: str | None = None,
    runs: str | Path = "runs",
) -> Run:
    """Train, as `earl train` does, and return the run; an interrupt ends it after its step. A class that is defined in
    a notebook or script is known to this process alone: its run has one process.

    Args:
        settings: values by key of the recipe, such as {"agent.max_turns": 8}, over those of `config` or the default.
        name: of a new run; None: the next free one.
        runs: the folder of runs.

    Raises:
        EarlError: for what is wrong with the recipe or the environment, before anything is written.
    """
    named, own = _named(env)
    given = {**({"run.processes": 1} if own else {}), **(settings or {})}
    given |= {"model.path": None if model is None else str(model), "run.steps": steps, "run.seed": seed}
    for key in given:
        if key.count(".") != 1:
            raise EarlError(f"settings key {key!r} is not SECTION.KEY; write one such as 'agent.max_turns'")
    recipe = resolve(named, None if config is None else Path(config), given)
    registry.allow(*recipe.code)
    job = training.new(recipe, True, Path(runs), name, dry=False)
    folder, _ = training.carry_out(job, reports.write)
    return Run(folder.path)


def resume(run: str | Run, *, more: int = 0, runs: str | Path = "runs") -> Run:
    """Continue a run to its last step, and `more` beyond it."""
    job = training.continued(Path(runs), _of(run), None, [], {}, [], False, more)
    folder, _ = training.carry_out(job, reports.write)
    return Run(folder.path)


def load(run: str, runs: str | Path = "runs") -> Run:
    """A run by its name or path. Raises EarlError if there is none."""
    return Run(open_run(Path(runs), run).path)


def evaluate(
    player: str | Run,
    *opponents: str,
    env: Environment | None = None,
    episodes: int | None = None,
    exact: bool = False,
    seed: int = 0,
    runs: str | Path = "runs",
) -> list[MatchResult]:
    """Measure how a run, or a model in `env`, plays: a result for each opponent and seat; in a task for the held-out
    tasks. Other arguments as of `earl eval`."""
    named = None if env is None else _named(env)[0]
    config, judge = contestant(Path(runs), _of(player), named)
    planned = matches(judge.world, opponents, exact, episodes or config.evaluate.final_episodes)
    return [measured(judge.world, judge.sampler, match, seed) for match in planned]


def play(run: Run | str, opponent: str = "", seat: int = 0, seed: int = 0, runs: str | Path = "runs") -> list[str]:
    """One held-out episode of a run, as what was said by each author in turn, such as "policy: 5"."""
    folder = open_run(Path(runs), _of(run))
    _, judge = of_run(folder, None)
    task = Task(judge.world.env, derive(EVALUATION, seed, opponent, seat, 0), seat, opponent)
    _, played = play_episode(judge, task)
    said = [(author, played.tokens[start:end]) for author, start, end in played.stretches() if author]  # no template
    return [f"{Author(author).name.lower()}: {judge.world.chat.decode(tuple(text.tolist()))}" for author, text in said]


def report(*compared: Run | str, out: str | Path | None = None, runs: str | Path = "runs") -> Path:
    """Write the report of a run, or of several side by side; returns the page's path."""
    folders = [open_run(Path(runs), _of(run)) for run in compared]
    return reports.write(*folders, out=None if out is None else Path(out))


def plan(model: str, gpus: str, env: str | None = None, **options: object) -> "Plan":
    """What a job would take on a cluster; `options` as of `earl plan`, such as context=8192, network=400."""
    from earl.cli.plan import Options, command, questions
    from earl.planner.plan import plan as planned

    flags = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    line = [*filter(None, [env]), "--model", model, "--gpus", gpus, *flags]
    parsed = command.make_context("plan", line).params
    asked = {key: value for key, value in parsed.items() if key in Options.__dataclass_fields__}
    [question] = questions(Options(**asked))
    return planned(question)


def _of(run: Run | str) -> str:
    return str(run.path) if isinstance(run, Run) else run


def _named(env: Environment) -> tuple[str, bool]:
    """The name of an environment, and whether only this process knows it."""
    if isinstance(env, str):
        return env, False
    module, name = env.__module__, env.__qualname__
    if module != "__main__" and name.isidentifier():
        registry.allow(f"{module}:{name}")
        return f"{module}:{name}", False
    short = env.__name__.lower()
    registry.register(short, env, again=True)
    return short, True
