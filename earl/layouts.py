"""The layouts of a run's stages: chosen before each stage, changed when a process runs out of memory.

before a stage   load ─▶ selector ─▶ another layout, if it pays off or the current one does not fit
out of memory    the layout is barred for such a load ─▶ selector ─▶ another layout ─▶ the same work again
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from earl.errors import EarlError, OutOfMemory
from earl.parallel.layout import Choice, Stage
from earl.parallel.memory import Load
from earl.parallel.selector.decide import Decision
from earl.parallel.selector.selector import Selector, text_of
from earl.placement.costs import candidates, costs_of
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.profiling.kept import Profile
from earl.runs.journal import Clock, Journal
from earl.runs.store import RecordedDecision

Result = TypeVar("Result")
SWITCH_SECONDS = 5.0
"""Assumed cost of a switch until one is measured."""
FULLEST: dict[Stage, tuple[str, ...]] = {
    "rollout": ("rollout",),
    "update": ("values", "preparation", "update"),
}
"""Activities whose measured memory is compared with the prediction for a stage."""
ALL_SEEN = 0.8
"""A smaller share of the predicted memory is ignored: an engine's own processes hold the rest, unmeasured."""
TRUSTED = 4
"""Most step measurements that one measurement from before the run counts as."""
PLAYED = ("rows", "dispatch", "recording")
"""Activities in which rollout workers still hold their episodes; a new layout loses them."""
CURES = (
    "raise placement.tp, placement.cp or sampler.tp, set learner.recompute, lower learner.micro_batch_tokens or "
    "context.limit, or raise placement.memory_gib"
)


class Layouts:
    """The current layout of each stage, and the selector that changes it. Without a selector the layouts are fixed, and
    running out of memory ends the run."""

    def __init__(self, pipeline: StepPipeline, journal: Journal) -> None:
        self._pipeline, self._journal = pipeline, journal
        config = pipeline.config
        self._laid: dict[Stage, Choice] = {}
        limit = config.context.first_limit
        self._load = Load(config.rollout.episodes, float(limit), limit, limit)
        self._seen = False
        self._barred: list[tuple[int, str]] = []
        self._mixed: set[Stage] = set()
        self._played: float | None = None
        self._selector: Selector | None = None
        self._cold: set[Stage] = set()  # stages whose layout has not been in use yet
        if config.selector.kind == "auto":
            self._costs = costs_of(config, pipeline.shape)
            self._offered = candidates(self._costs)
            self._cold.update(self._offered)
            switches = dict.fromkeys(self._offered, SWITCH_SECONDS)
            self._selector = Selector(self._offered, self._costs, switches, steps=config.total_steps)
            self._laid = {stage: choices[0] for stage, choices in self._offered.items()}
            state = self._selector.state()
            for stage, choice in self._laid.items():
                state["stages"][stage]["current"] = asdict(choice)
            self._selector.restore(state)

    def state(self) -> dict[str, Any]:
        if self._selector is None:
            return {}
        filled = [{"choice": asdict(choice), "times": times} for choice, times in self._costs.filled.items()]
        return {"scale": dict(self._costs.scale), "filled": filled, "selector": self._selector.state()}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Continue from a checkpoint's state; what this process has seen since takes precedence. Out-of-memory events
        of steps that are repeated are logged again at the checkpoint's step."""
        for at, said in self._barred:
            if at > step:
                self._journal.event(step, "out_of_memory", f"at step {at}: {said}")
        if self._selector and state and not self._seen:
            self._costs.scale.update(state["scale"])
            self._costs.filled.update({Choice.of(own["choice"]): own["times"] for own in state.get("filled", ())})
            self._selector.restore(state["selector"])
            self._seen = bool(state["selector"]["loads"])

    def alone(self) -> list[str]:
        """In words, the stages of a run with a selector that have one layout."""
        if self._selector is None:
            return []
        single = {stage: choices[0] for stage, choices in self._offered.items() if not choices[1:]}
        none_left = "is the only layout there is, so there is nothing to choose"
        return [f"{stage}: {choice} {none_left}" for stage, choice in single.items()]

    def take(self, profile: Profile) -> None:
        """Add measurements from before the run, weighted as a few each, so that those of the run soon outweigh them."""
        if self._selector is None:
            return
        for point, timing in profile.timings.items():
            if point.choice in self._offered.get(point.choice.stage, ()):
                for _ in range(min(timing.count, TRUSTED)):
                    self._measured(point.choice, point.load, timing.seconds)
        for choice, seconds in profile.switches.items():
            self._selector.switched(choice, seconds)

    def record_load(self, step: int, load: Load) -> None:
        """Record the context lengths of a step."""
        self._load, self._seen = load, True
        if self._selector:
            self._selector.record_load(step, load)
        if self._played is not None:  # the load of that rollout is known only now
            self._measured(self._laid.get("rollout"), load, self._played)
            self._played = None

    def record_peak_memory(self, peaks: Mapping[str, float]) -> None:
        """Record the peak memory of a step, in bytes by activity."""
        for stage, choice in self._laid.items():
            took = max((peaks.get(name, 0.0) for name in FULLEST[stage]), default=0.0)
            if took and self._seen and stage not in self._mixed:
                times = took / self._costs.expected_bytes(choice, self._load)
                if times >= ALL_SEEN:
                    self._costs.filled[choice] = max(times, self._costs.filled.get(choice, 1.0))
        self._mixed.clear()

    def choose_layout(self, stage: Stage, step: int, clock: Clock) -> None:
        """Choose a stage's layout for the coming work; unchanged until context lengths have been seen.
        Raises WorkerLost when the switch fails; the run then continues from its last checkpoint."""
        if self._selector is None or not self._seen or len(self._offered.get(stage, ())) < 2:
            return
        # Only where the speed of these machines is known, or the current layout does not fit.
        if stage in self._costs.scale or self._selector.obstacle(self._laid[stage], self._load):
            decision = self._decided(self._selector, stage, step)
            if decision.choice != self._laid[stage]:
                with clock("switch"):
                    self._lay(decision, None)

    def run_with_oom_retry(self, stage: Stage | None, step: int, work: Callable[[], Result]) -> Result:
        """Run a stage's work, which must be repeatable; when memory runs out, run it again under another layout.

        The time is recorded unless `stage` is None. Raises EarlError when no layout is left, and WorkerLost when the
        episodes of the rollout workers were lost.
        """
        while True:
            began = time.perf_counter()
            try:
                done = work()
            except OutOfMemory as error:
                self._give_way(error, step)
            else:
                seconds = time.perf_counter() - began
                if stage in self._cold:  # the first time under a layout includes what it starts with
                    self._cold.discard(stage)
                elif stage == "rollout":
                    self._played = seconds
                elif stage:
                    self._measured(self._laid.get(stage), self._load, seconds)
                return done

    def once(self, step: int, work: Callable[[], Result]) -> Result | None:
        """Run work that cannot be repeated, since other processes have continued; None if memory ran out."""
        try:
            return work()
        except OutOfMemory as error:
            self._give_way(error, step)
            return None

    def _give_way(self, error: OutOfMemory, step: int) -> None:
        stage: Stage = "update" if error.who.startswith("learner") else "rollout"
        under = self._laid.get(stage)
        context = f"contexts of up to {self._load.longest_tokens} tokens"
        if self._selector is None or under is None:
            raise EarlError(f"{error}, with {context}; {CURES}, or selector.kind = 'auto'; then continue with --resume")
        said = f"{error}, under {under} with {context}: it is not taken again"
        self._barred.append((step, said))
        self._mixed.add(stage)  # no single layout caused this step's peaks
        self._journal.event(step, "out_of_memory", said)
        if not self._seen:
            self._selector.record_load(step, self._load)
        for choice in self._alike(under):
            self._selector.out_of_memory(choice, self._load, step)
        decision = self._decided(self._selector, stage, step)
        if decision.choice == under:
            raise EarlError(f"{error}, with {context}, and {under} is still the best there is; {CURES}")
        self._lay(decision, error)
        if stage == "rollout" and error.stage in PLAYED:
            raise WorkerLost(f"{error}, and what it had played is to be played again")

    def _alike(self, under: Choice) -> list[Choice]:
        """A choice, and those that differ from it in micro-batches alone and need no less memory."""
        least = self._costs.expected_bytes(under, self._load)
        found = [under]
        for choice in self._offered[under.stage]:
            alike = replace(choice, micro_batch_tokens=under.micro_batch_tokens) == under
            if alike and choice != under and self._costs.expected_bytes(choice, self._load) >= least:
                found.append(choice)
        return found

    def _decided(self, selector: Selector, stage: Stage, step: int) -> Decision:
        """Let the selector decide, and log the decision with its inputs."""
        made = selector.decide(stage, step)
        before, choice = None if made.before is None else str(made.before), str(made.choice)
        recorded = RecordedDecision(step, stage, choice, before, made.reason, made.why, text_of(made))
        self._journal.decision(recorded)
        return made

    def _lay(self, decision: Decision, after: OutOfMemory | None) -> None:
        began, choice = time.perf_counter(), decision.choice
        self._cold.add(choice.stage)
        before, self._laid[choice.stage] = self._laid[choice.stage], choice
        self._pipeline.lay_out(choice, after)
        seconds = time.perf_counter() - began
        assert self._selector is not None
        self._selector.switched(choice, seconds)
        message = f"{choice.stage}: from {before} to {choice} in {seconds:.1f} s: {decision.why}"
        self._journal.event(decision.step, "layout", message)

    def _measured(self, choice: Choice | None, load: Load, seconds: float) -> None:
        """Record the time of a layout; the first one of a stage calibrates the cost model to these machines."""
        if self._selector is None or choice is None:
            return
        stage = choice.stage
        if stage not in self._costs.scale:
            self._costs.scale[stage] = seconds / self._costs.seconds(choice, load)
        self._selector.measured(choice, load, seconds)
