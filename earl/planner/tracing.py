"""A trace of the learner beside the plan's own sums: what to trace, and where the two differ. Pure; the trace itself is
made in `earl/engine/trace.py`."""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from earl.config import Config
from earl.errors import EarlError
from earl.parallel.cost_model import BACKWARD, GRADIENT_BYTES, CostModel
from earl.parallel.footprint import Training
from earl.parallel.layout import Choice
from earl.parallel.memory import Load
from earl.parallel.throughput.step import parts
from earl.parallel.traced import Trace, TraceJob
from earl.planner.question import Question


@dataclass(frozen=True, slots=True)
class Comparison:
    what: str
    unit: str  # "GiB" or "TFLOP"; the values are in bytes or operations
    traced: float
    planned: float

    @property
    def percent(self) -> float:
        """The difference of the trace from the plan."""
        return (self.traced / self.planned - 1) * 100 if self.planned else 0.0


@dataclass(frozen=True, slots=True)
class TracedPlan:
    choice: Choice
    trace: Trace
    comparisons: tuple[Comparison, ...]

    @property
    def as_object(self) -> dict[str, Any]:
        compared = [{**asdict(one), "percent": round(one.percent, 2)} for one in self.comparisons]
        return {"choice": str(self.choice), **self.trace.as_object, "compared": compared}


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """The update of a plan's longest context that fits, as a step to trace."""

    costs: CostModel
    choice: Choice
    load: Load
    config: Config
    job: TraceJob

    def answered(self, trace: Trace) -> TracedPlan:
        return TracedPlan(self.choice, trace, tuple(compare(self.costs, self.choice, self.load, trace)))


def trace_question(asked: Question, learning: int) -> TraceQuestion:
    """The update to trace in a plan whose learner has `learning` GPUs. Raises EarlError when nothing fits, and for a
    reference whose weights would have to be here."""
    costs = asked.costs
    if costs.reference:
        raise EarlError("--trace traces a reference that is a copy of the policy; leave algorithm.reference out")
    for context in reversed(asked.contexts):
        load = costs.largest(asked.load(context))
        choice = asked.update_choice(context, learning)
        if not costs.obstacle(choice, load):
            tokens = costs.training(choice, load).tokens
            changed = {"dtype": costs.dtype, "recompute": choice.recompute, "offload": choice.offload}
            learner = costs.config.learner.model_copy(update={**changed, "micro_batch_tokens": tokens})
            config = costs.config.model_copy(update={"learner": learner})
            rows = ceil(tokens / context)  # that fill a micro-batch, all of one length
            return TraceQuestion(costs, choice, load, config, TraceJob(choice.layout, tokens // rows, tokens))
    raise EarlError(f"no update fits on {costs.cluster.where}, so there is nothing to trace; name more GPUs")


def compare(costs: CostModel, choice: Choice, load: Load, trace: Trace) -> list[Comparison]:
    """The plan's sums beside the trace's."""
    update, experience = choice, replace(choice, stage="experience")
    passes, learned = costs.learner_peak(experience, load), costs.learner_peak(update, load)
    held = passes.weights + passes.optimizer + passes.reference
    before = max(trace.stage(name).peak_bytes for name in ("experience", "recording"))
    way, traced = costs.training(choice, load), trace.stage("update")
    # Without attention, which a trace counts as if it were not causal.
    products = sum(number for name, number in traced.flops.items() if "attention" not in name)
    return [
        Comparison("held between stages", "GiB", traced.held_bytes, held),
        Comparison("peak of experience", "GiB", before, passes.peak),
        Comparison("peak of the update", "GiB", traced.peak_bytes, learned.peak),
        *_exchanges(costs, way, trace),
        Comparison("matrix products of the update", "TFLOP", products, _planned_products(costs, way, trace)),
    ]


def _exchanges(costs: CostModel, way: Training, trace: Trace) -> list[Comparison]:
    """Compare the exchanges of ranks that share the weights of one tensor-parallel part: the plan fetches weights twice
    for every micro-batch, for the forward and the backward pass, and sends gradients once."""
    if way.layout.shards == 1:
        return []
    numbers = costs.shape.parameters / way.layout.tp * trace.job.micro_batches
    gathered, scattered = (
        sum(one.bytes for one in trace.stage("update").exchanges if (one.operation, one.group[:2]) == (operation, "dp"))
        for operation in ("all-gather", "reduce-scatter")
    )
    return [
        Comparison("weights gathered in the update", "GiB", gathered, 2 * way.float_bytes * numbers),
        Comparison("gradients scattered in the update", "GiB", scattered, GRADIENT_BYTES * numbers),
    ]


def _planned_products(costs: CostModel, way: Training, trace: Trace) -> float:
    """Operations in matrix products, with the passes that the plan counts."""
    own = parts(costs.shape)
    forward = 2 * (own.dense + own.experts * own.share + own.head) * way.portion / way.layout.tp
    return forward * (1 + BACKWARD + way.recompute) * trace.job.micro_batches
