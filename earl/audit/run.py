"""The run under audit: its recipe, its numbers, its stored weights, each loaded once."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from earl.config import MOST, Config
from earl.engine.model import Policy, load, make
from earl.errors import EarlError
from earl.placement.world import world_of
from earl.recipe import build
from earl.rollout.tasks import World
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.signing import SignatureError, Signer, signer
from earl.runs.storage import step_name
from earl.runs.store import Store
from earl.runs.tables import Series


@dataclass
class Run:
    """A run's folder, read for an audit.

    Raises:
        EarlError: when its recipe cannot be read.
    """

    folder: RunFolder
    config: Config = field(init=False)
    problems: list[str] = field(default_factory=list)
    """What is damaged beside the stored trajectories."""
    signers: list[Signer] = field(default_factory=list)
    """Who signed the run, and each of its checkpoints."""
    forged: list[str] = field(default_factory=list)
    """Signatures that do not fit, or are demanded and missing."""

    def __post_init__(self) -> None:
        self.config = build(self.folder.recipe())
        try:
            self.signers.append(signer(self.folder))
        except SignatureError as error:
            self.forged.append(str(error))
        except EarlError as error:
            self.problems.append(str(error))

    @cached_property
    def checkpoints(self) -> dict[int, checkpoint.Checkpoint]:
        """The sound checkpoints by step."""
        sound = {}
        for step in checkpoint.all_steps(self.folder.checkpoints):
            try:
                sound[step] = checkpoint.load(self.folder.checkpoints / step_name(step))
                self.signers.append(sound[step].signed)
            except SignatureError as error:
                self.forged.append(str(error))
            except EarlError as error:
                self.problems.append(str(error))
        return sound

    @cached_property
    def metrics(self) -> Series | None:
        """The recorded metrics; None when they cannot be read."""
        try:
            with Store(self.folder.database, read_only=True) as store:
                return store.metrics()
        except EarlError as error:
            self.problems.append(str(error))
            return None

    def policy(self, step: int) -> Policy | None:
        """The policy whose weights were stored at a step."""
        if step not in self.checkpoints:
            return None
        if step not in self._policies:
            self._policies.clear()  # one at a time: a model may be large
            self._policies[step] = load(self.checkpoints[step].path)
        return self._policies[step]

    @cached_property
    def _policies(self) -> dict[int, Policy]:
        return {}

    @cached_property
    def world(self) -> World:
        """The episodes of the run, with the recipe's first context limit."""
        stored = self.policy(max(self.checkpoints, default=-1))
        policy = stored or make(self.config.model, self.config.run.seed)
        return world_of(self.config, policy.tokenizer)

    def world_at(self, step: int) -> World:
        """The same with the context limit that held when the episodes of a step began."""
        began = max(step - self.config.placement.max_staleness, min(step, self.config.warm_start.steps + 1))
        limit = self.number("context/limit", began)
        if limit is None or not 1 <= limit <= MOST:
            return self.world
        return replace(self.world, rules=replace(self.world.rules, context_limit=int(limit)))

    def versions(self, step: int) -> range:
        """The weights that may have sampled a step's episodes: one version where rollout and learner take turns."""
        ahead = self.config.placement.max_staleness
        return range(max(step - 1 - ahead, min(step - 1, self.config.warm_start.steps)), step)

    def number(self, name: str, step: int) -> float | None:
        """A metric of a step, if it was recorded."""
        return self.numbers(step).get(name)

    def numbers(self, step: int) -> dict[str, float]:
        """All metrics of a step."""
        return self._by_step.get(step, {})

    @cached_property
    def _by_step(self) -> dict[int, dict[str, float]]:
        steps: dict[int, dict[str, float]] = {}
        for name, points in (self.metrics or {}).items():
            for step, value in points:
                steps.setdefault(step, {})[name] = value
        return steps

    def model(self, step: int) -> Any:
        """The model of `policy`, ready to score; None where there is none."""
        policy = self.policy(step)
        return None if policy is None else policy.model.eval()
