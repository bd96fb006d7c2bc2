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
from earl.parallel.selector.selector import Selector, inputs_to_json
from earl.placement.costs import candidates, costs_of
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.profiling.kept import Profile
from earl.runs.journal import Clock, Journal
from earl.runs.store import RecordedDecision

Result = TypeVar("Result")
SWITCH_SECONDS = 5.0
"""Assumed cost of a switch until one is measured."""
ACTIVITIES: dict[Stage, tuple[str, ...]] = {
    "rollout": ("rollout",),
    "update": ("values", "preparation", "update"),
}
"""Activities whose measured memory is compared with the prediction for a stage."""
LEAST_MEASURED_SHARE = 0.8
"""A smaller share of the predicted memory is ignored: unmeasured processes of an engine hold the rest."""
MOST_COUNT = 4
"""Most step measurements that one measurement from before the run counts as."""
HOLDING_EPISODES = ("rows", "dispatch", "recording")
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
        self._current: dict[Stage, Choice] = {}
        limit = config.context.first_limit
        self._load = Load(config.rollout.episodes, float(limit), limit, limit)
        self._load_known = False
        self._memory_events: list[tuple[int, str]] = []
        self._changed_in_step: set[Stage] = set()
        self._rollout_seconds: float | None = None
        self._selector: Selector | None = None
        self._unused: set[Stage] = set()  # stages whose layout has not been in use yet
        if config.selector.kind == "auto":
            self._costs = costs_of(config, pipeline.shape)
            self._candidates = candidates(self._costs)
            self._unused.update(self._candidates)
            switches = dict.fromkeys(self._candidates, SWITCH_SECONDS)
            self._selector = Selector(self._candidates, self._costs, switches, steps=config.total_steps)
            self._current = {stage: choices[0] for stage, choices in self._candidates.items()}
            state = self._selector.state()
            for stage, choice in self._current.items():
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
        for at, message in self._memory_events:
            if at > step:
                self._journal.event(step, "out_of_memory", f"at step {at}: {message}")
        if self._selector and state and not self._load_known:
            self._costs.scale.update(state["scale"])
            self._costs.filled.update({Choice.of(own["choice"]): own["times"] for own in state.get("filled", ())})
            self._selector.restore(state["selector"])
            self._load_known = bool(state["selector"]["loads"])

    def alone(self) -> list[str]:
        """In words, the stages of a run with a selector that have one layout."""
        if self._selector is None:
            return []
        single = {stage: choices[0] for stage, choices in self._candidates.items() if not choices[1:]}
        none_left = "is the only layout there is, so there is nothing to choose"
        return [f"{stage}: {choice} {none_left}" for stage, choice in single.items()]

    def take(self, profile: Profile) -> None:
        """Add measurements from before the run, weighted as a few each, so that those of the run soon outweigh them."""
        if self._selector is None:
            return
        for point, timing in profile.timings.items():
            if point.choice in self._candidates.get(point.choice.stage, ()):
                for _ in range(min(timing.count, MOST_COUNT)):
                    self._record_time(point.choice, point.load, timing.seconds)
        for choice, seconds in profile.switches.items():
            self._selector.switched(choice, seconds)

    def record_load(self, step: int, load: Load) -> None:
        """Record the context lengths of a step."""
        self._load, self._load_known = load, True
        if self._selector:
            self._selector.record_load(step, load)
        if self._rollout_seconds is not None:  # the load of that rollout is known only now
            self._record_time(self._current.get("rollout"), load, self._rollout_seconds)
            self._rollout_seconds = None

    def record_peak_memory(self, peaks: Mapping[str, float]) -> None:
        """Record the peak memory of a step, in bytes by activity."""
        for stage, choice in self._current.items():
            took = max((peaks.get(name, 0.0) for name in ACTIVITIES[stage]), default=0.0)
            if took and self._load_known and stage not in self._changed_in_step:
                times = took / self._costs.expected_bytes(choice, self._load)
                if times >= LEAST_MEASURED_SHARE:
                    self._costs.filled[choice] = max(times, self._costs.filled.get(choice, 1.0))
        self._changed_in_step.clear()

    def choose_layout(self, stage: Stage, step: int, clock: Clock) -> None:
        """Choose a stage's layout for the coming work; unchanged until context lengths have been seen.
        Raises WorkerLost when the switch fails; the run then continues from its last checkpoint."""
        if self._selector is None or not self._load_known or len(self._candidates.get(stage, ())) < 2:
            return
        # Only where the speed of these machines is known, or the current layout does not fit.
        if stage in self._costs.scale or self._selector.obstacle(self._current[stage], self._load):
            decision = self._decide(self._selector, stage, step)
            if decision.choice != self._current[stage]:
                with clock("switch"):
                    self._switch(decision, None)

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
                self._change_layout(error, step)
            else:
                seconds = time.perf_counter() - began
                if stage in self._unused:  # the first time under a layout includes what it starts with
                    self._unused.discard(stage)
                elif stage == "rollout":
                    self._rollout_seconds = seconds
                elif stage:
                    self._record_time(self._current.get(stage), self._load, seconds)
                return done

    def once(self, step: int, work: Callable[[], Result]) -> Result | None:
        """Run work that cannot be repeated, since other processes have continued; None if memory ran out."""
        try:
            return work()
        except OutOfMemory as error:
            self._change_layout(error, step)
            return None

    def _change_layout(self, error: OutOfMemory, step: int) -> None:
        stage: Stage = "update" if error.who.startswith("learner") else "rollout"
        current = self._current.get(stage)
        context = f"contexts of up to {self._load.longest_tokens} tokens"
        if self._selector is None or current is None:
            raise EarlError(f"{error}, with {context}; {CURES}, or selector.kind = 'auto'; then continue with --resume")
        message = f"{error}, under {current} with {context}: it is not taken again"
        self._memory_events.append((step, message))
        self._changed_in_step.add(stage)  # no single layout caused this step's peaks
        self._journal.event(step, "out_of_memory", message)
        if not self._load_known:
            self._selector.record_load(step, self._load)
        for choice in self._no_smaller(current):
            self._selector.out_of_memory(choice, self._load, step)
        decision = self._decide(self._selector, stage, step)
        if decision.choice == current:
            raise EarlError(f"{error}, with {context}, and {current} is still the best there is; {CURES}")
        self._switch(decision, error)
        if stage == "rollout" and error.stage in HOLDING_EPISODES:
            raise WorkerLost(f"{error}, and what it had played is to be played again")

    def _no_smaller(self, current: Choice) -> list[Choice]:
        """A choice, and those that differ from it in micro-batches alone and need no less memory."""
        least = self._costs.expected_bytes(current, self._load)
        found = [current]
        for choice in self._candidates[current.stage]:
            alike = replace(choice, micro_batch_tokens=current.micro_batch_tokens) == current
            if alike and choice != current and self._costs.expected_bytes(choice, self._load) >= least:
                found.append(choice)
        return found

    def _decide(self, selector: Selector, stage: Stage, step: int) -> Decision:
        """Let the selector decide, and log the decision with its inputs."""
        decision = selector.decide(stage, step)
        before, choice = None if decision.before is None else str(decision.before), str(decision.choice)
        inputs = inputs_to_json(decision)
        recorded = RecordedDecision(step, stage, choice, before, decision.reason, decision.why, inputs)
        self._journal.decision(recorded)
        return decision

    def _switch(self, decision: Decision, after: OutOfMemory | None) -> None:
        began, choice = time.perf_counter(), decision.choice
        self._unused.add(choice.stage)
        before, self._current[choice.stage] = self._current[choice.stage], choice
        self._pipeline.lay_out(choice, after)
        seconds = time.perf_counter() - began
        assert self._selector is not None
        self._selector.switched(choice, seconds)
        message = f"{choice.stage}: from {before} to {choice} in {seconds:.1f} s: {decision.why}"
        self._journal.event(decision.step, "layout", message)

    def _record_time(self, choice: Choice | None, load: Load, seconds: float) -> None:
        """Record the time of a layout; the first one of a stage calibrates the cost model to these machines."""
        if self._selector is None or choice is None:
            return
        stage = choice.stage
        if stage not in self._costs.scale:
            self._costs.scale[stage] = seconds / self._costs.seconds(choice, load)
        self._selector.measured(choice, load, seconds)
