"""TRL beside earl: the same task, model, prompts and settings in turns, and the numbers of both sides' losses.

TRL is installed into a folder of its own, beside packages that earl has already.
"""

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import earl
from earl import evaluation
from earl.algorithms.base import TokenInputs
from earl.algorithms.loss import aggregated, kl_to_reference
from earl.algorithms.registry import algorithm
from earl.benchmarks.repeats import in_turns, interval
from earl.benchmarks.training import ASIDE, trained
from earl.benchmarks.trl_trainer import JsonArithmetic
from earl.config import Config
from earl.engine.model import load
from earl.envs import registry
from earl.errors import EarlError
from earl.observer import RecordedStep
from earl.placement.embedded import greedy_policy
from earl.recipe import build, load_toml, override
from earl.rollout.tasks import draw
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.store import read_numbers
from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory, Turn

VERSION = "1.16.0"
NAME = "json_arithmetic"
_STATED = load_toml(Path(__file__).with_suffix(".toml"))
RECIPE, CASES, SCALES = (_STATED[name] for name in ("recipe", "losses", "scales"))
WARM_START = ("warm_start.teacher=solver", "warm_start.noise=0.0", "warm_start.episodes=128", "run.steps=0")
"""Of the model that both begin with; without it neither is ever rewarded."""


def trl_settings(config: Config) -> dict[str, Any]:
    """The recipe in TRL's words; what it leaves open is set to what is faster on a CPU."""
    learner = config.learner
    return {
        "max_steps": config.run.steps,
        "per_device_train_batch_size": config.rollout.episodes,
        "num_generations": config.rollout.group_size,
        "learning_rate": learner.learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": learner.clip_grad_norm,
        "adam_beta1": learner.beta1,
        "adam_beta2": learner.beta2,
        "loss_type": "dapo",  # its default: the mean over tokens
        "epsilon": config.algorithm.options["clip"],
        "beta": config.algorithm.kl,
        "temperature": config.rollout.temperature,
        "max_completion_length": config.context.first_limit,
        "max_tool_calling_iterations": JsonArithmetic(**dict[str, Any](config.env.options)).max_turns - 1,
        "generation_kwargs": {"max_new_tokens": config.agent.max_turn_tokens},
        "shuffle_dataset": False,
        "seed": config.run.seed,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def installed() -> Path:
    """The interpreter of TRL's environment, which is made once. Raises EarlError if it cannot be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "earl" / f"trl-{VERSION}"
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, stdout=sys.stderr)
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            own = folder / "lib" / version / "site-packages" / "earl.pth"
            shared = sysconfig.get_path("purelib")  # with what its own .pth files name
            own.write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")
            command: list[str | Path] = [python, "-m", "pip", "install", "--quiet", f"trl=={VERSION}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as error:
            raise EarlError(
                f"TRL {VERSION} cannot be installed in {folder}: {error}; see what pip says above"
            ) from error
        done.touch()
    return python


def in_trl(folder: Path, job: Mapping[str, Any]) -> Any:
    """The result of a job of `trl_trainer`."""
    folder.mkdir(parents=True, exist_ok=True)
    asked, result = folder / "job.json", folder / "result.json"
    asked.write_text(json.dumps({**job, "out": str(folder), "result": str(result)}), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(earl.__path__[0]).parent),
        "OMP_NUM_THREADS": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command: list[str | Path] = [installed(), "-W", "ignore", "-m", "earl.benchmarks.trl_trainer", asked]
    if subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode:
        raise EarlError(f"TRL's side failed, as it says above; its job is {asked}")
    return json.loads(result.read_text(encoding="utf-8"))


@dataclass(slots=True)
class Ends:
    """The time and the processor time at the end of each step."""

    ends: list[tuple[float, float]] = field(default_factory=list)

    def step(self, record: RecordedStep) -> None:
        if record.phase != "final":
            self.ends.append((time.perf_counter(), time.process_time()))

    def event(self, step: int, kind: str, message: str) -> None:
        pass

    def stopping(self) -> None:
        pass


def run(root: Path, steps: int, episodes: int, repeats: int, warm: int, assignments: Sequence[str]) -> dict[str, Any]:
    """For the result see `earl bench trl --help`."""
    if root.exists():
        raise EarlError(f"{root} exists, and steps of runs that are there cannot be timed; name a new folder")
    registry.register(NAME, JsonArithmetic, again=True)
    recipe = override(RECIPE, [f"rollout.episodes={episodes}", f"run.steps={steps}", *assignments])
    begin = trained(root, "start", build(override(recipe, [f"warm_start.steps={warm}", *WARM_START])))
    model = _model(begin)

    def configured(seed: int) -> Config:
        return build(override(recipe, [f"model.path={model}", f"run.seed={seed}"]))

    ways = {
        "earl": lambda seed: earl_side(root, configured(seed)),
        "trl": lambda seed: trl_side(root, configured(seed)),
    }
    made = in_turns(ways, repeats)
    policy, sides = load(model), {name: _summary(rows, episodes) for name, rows in made.items()}
    return {
        "versions": {**made["trl"][0]["versions"], "torch": torch.__version__},
        "parameters": sum(one.numel() for one in policy.model.parameters()),
        "episodes": episodes * steps,
        "start_strength": strength(configured(0), model),
        **sides,
        **{
            f"ratio{kind}": sides["earl"][name]["median"] / sides["trl"][name]["median"]
            for kind, name in (("", "episodes_per_second"), ("_processor", "episodes_per_processor_second"))
        },
        "settings": {"earl": recipe, "trl": trl_settings(configured(0))},
    }


def _model(run: RunFolder) -> str:
    latest = checkpoint.latest(run.checkpoints)
    assert latest is not None, "a run that ended has a checkpoint"
    return str(latest)


def earl_side(root: Path, config: Config) -> dict[str, Any]:
    observed = Ends()
    folder = trained(root, f"earl-{config.run.seed}", config, observed)
    numbers = read_numbers(folder.database)
    stages = {name: sum(took for step, took in points if step > 1) for name, points in numbers.timings.items()}
    return {
        "ends": observed.ends[-config.run.steps :],
        "stages": {name: took for name, took in stages.items() if name not in ASIDE},
        "rewards": [value for _, value in numbers.metrics["reward"]],
        "strength": strength(config, _model(folder)),
    }


def trl_side(root: Path, config: Config) -> dict[str, Any]:
    folder = root / f"trl-{config.run.seed}"
    seeds = [task.seed for step in range(1, config.run.steps + 1) for task in draw(config, step).tasks]
    job = {"model": config.model.path, "options": config.env.options, "seeds": seeds, "settings": trl_settings(config)}
    made: dict[str, Any] = in_trl(folder, {"kind": "train", **job})
    return {**made, "strength": strength(config, str(folder))}


def strength(config: Config, model: str, episodes: int = 300) -> float:
    """The share of held-out tasks that a model solves, the likeliest token first."""
    player = greedy_policy(config, load(model))
    [match] = evaluation.matches(player.world, [], False, episodes)
    return evaluation.evaluate(player.world, player.sampler, match).win


def _summary(rows: Sequence[Mapping[str, Any]], episodes: int) -> dict[str, Any]:
    """Of the repeats of one side. The first step is left out, and the last, whose end earl checks and evaluates."""
    steps = [np.diff(np.array(row["ends"])[:-1], axis=0) for row in rows]
    wall, processor = (episodes / np.concatenate(steps)).T
    spent = {name: sum(row["stages"][name] for row in rows) for name in rows[0]["stages"]}
    last = max(1, len(rows[0]["rewards"]) // 5)
    return {
        "episodes_per_second": interval(wall.tolist()),
        "episodes_per_processor_second": interval(processor.tolist()),
        "seconds_a_step": {name: took / sum(len(row["rewards"]) - 1 for row in rows) for name, took in spent.items()},
        "reward_at_the_end": median(float(np.mean(row["rewards"][-last:])) for row in rows),
        "strength": [row["strength"] for row in rows],
    }


# The same numbers into both sides' losses and advantages.

BATCHES, ROWS, TOKENS, GROUP = 200, 8, 12, 4


def compared(root: Path) -> dict[str, Any]:
    """The largest differences over random batches. See `earl bench losses --help`."""
    registry.register(NAME, JsonArithmetic, again=True)
    begin = trained(root, "start", build(override(RECIPE, ["warm_start.steps=1", *WARM_START])))
    draws = [np.random.default_rng(seed) for seed in range(BATCHES)]
    batches, rewards = [*map(_batch, draws)], [one.normal(size=ROWS).tolist() for one in draws]
    job = {
        "model": _model(begin),
        "cases": {name: case["trl"] for name, case in CASES.items()},
        "scales": {f"scale {name}": (case["kind"], case["trl"]) for name, case in SCALES.items()},
        "batches": batches,
        "rewards": rewards,
        "size": ROWS,
        "group": GROUP,
    }
    found = in_trl(root / "losses", {"kind": "losses", **job})
    rows = []
    for name, case in CASES.items():
        pairs = [(_loss(case, batch), one) for batch, one in zip(batches, found[name], strict=True)]
        loss = max(abs(mine - other) for (mine, _), (other, _) in pairs)
        gradient = max(float(np.abs(mine - np.array(other)).max()) for (_, mine), (_, other) in pairs)
        rows.append({"of": name, "value": loss, "gradient": gradient})
    for name, case in SCALES.items():
        others = map(np.array, found[f"scale {name}"])
        apart = [np.abs(_advantages(case, mine) - other).max() for mine, other in zip(rewards, others, strict=True)]
        rows.append({"of": f"advantages, {name}", "value": float(max(apart)), "gradient": None})
    return {"batches": BATCHES, "trl": VERSION, "largest_difference": rows}


def _advantages(case: Mapping[str, Any], rewards: Sequence[float]) -> Any:
    """Of episodes of one turn. TRL's deviation is of n - 1, earl's of n, to both of which 1e-4 is added."""
    how, groups = algorithm(case["own"], **case["options"]), np.array(rewards).reshape(-1, GROUP)
    made = [Group(tuple(_episode(float(reward)) for reward in group)) for group in groups]
    found = how.advantages(made, np.zeros(ROWS, np.float32)).turns.astype(np.float64)
    if case["own"] != "grpo":
        return found
    own, theirs = (groups.std(axis=1, ddof=less) + 1e-4 for less in (0, 1))
    return found * np.repeat(own / theirs, GROUP)


def _episode(reward: float) -> Trajectory:
    whole, real = np.zeros(1, np.int32), np.zeros(1, np.float32)
    turn, task = Turn(0, 0, 0, 1, "", reward, 0.0), Task("", 0)
    return Trajectory(
        task, 0, whole, whole.astype(np.uint8), real, whole, (turn,), StopReason.FINISHED, Outcome.LOSS, 0
    )


def _batch(rng: np.random.Generator) -> dict[str, Any]:
    """Rows [ROWS, TOKENS] of 1 token or more, whose log-probs differ from the old ones."""
    old = -rng.exponential(size=(ROWS, TOKENS))
    mask = np.arange(TOKENS) < rng.integers(1, TOKENS + 1, ROWS)[:, None]
    columns = {"now": old + rng.normal(0, 0.3, old.shape), "old": old, "reference": old - 0.1, "mask": mask.astype(int)}
    return {"advantages": rng.normal(size=ROWS).tolist(), **{name: own.tolist() for name, own in columns.items()}}


def _loss(case: Mapping[str, Any], batch: Mapping[str, Any]) -> tuple[float, Any]:
    how, mask = algorithm(case["own"], **case["options"]), np.array(batch["mask"], bool)
    rows = np.repeat(np.arange(ROWS), mask.sum(axis=1))
    now, old, reference = (torch.tensor(np.array(batch[key])[mask]) for key in ("now", "old", "reference"))
    worth, turns = torch.tensor(np.array(batch["advantages"])[rows]), torch.arange(len(rows))
    inputs = TokenInputs(now.requires_grad_(), torch.zeros_like(now), old, worth, reference, torch.tensor(rows), turns)
    losses = how.loss(inputs)[0] + case["trl"].get("beta", 0.0) * kl_to_reference(inputs)
    loss = aggregated(losses, inputs.rows, how.aggregation, len(rows), ROWS, how.constant_tokens) / len(rows)
    [gradient] = torch.autograd.grad(loss, [now])
    whole = np.zeros(mask.shape)
    whole[mask] = gradient.numpy()
    return float(loss.detach()), whole
