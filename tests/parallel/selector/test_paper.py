"""A run's own selector on the cells of the EARL paper (arXiv 2510.05943): Qwen2.5-72B on 16 hosts of 8 H100, contexts
of 1K to 32K tokens, 8 to 128 responses for each copy of the engine.

The paper compares tokens per GPU and second at the same responses for each copy, of which TP 4 has twice as many. A
step has one number of episodes, of which each copy of TP 8 then gets twice as many. So both are asked: once with the
costs of a response at the paper's load, once with those of a step.
"""

from itertools import pairwise, product

import pytest

from earl.layouts import Layouts
from earl.parallel.hardware import of_gpus
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load, known
from earl.parallel.selector.selector import Selector
from earl.parallel.throughput.step import VLLM, Precision
from earl.placement.costs import candidates, costs_of
from earl.planner.plan import plan
from earl.planner.question import Wish, question
from earl.recipe import build

CONTEXTS, RESPONSES = (1024, 2048, 4096, 8192, 16_384, 32_768), (8, 16, 32, 64, 128)
QWEN = known("Qwen2.5-72B").shape
CONFIG = build(
    {
        "env": {"name": "connect4"},
        "placement": {"kind": "colocated", "gpus": "16x8xH100", "dp": 64, "tp": 2, "samplers": 16},
        "sampler": {"engine": "vllm", "tp": 8},
        "rollout": {"episodes": 4096, "group_size": 16},
        "context": {"limit": 32_768},
        "selector": {"kind": "auto"},
    }
)
TP4, TP8 = Choice("rollout", Layout(32, 4)), Choice("rollout", Layout(16, 8))
GPUS = 128


class Run:
    """What layouts need of a run's stages and journal."""

    config, shape = CONFIG, QWEN

    def event(self, *_: object) -> None:
        """Nothing is told."""


class PerCopy:
    """A run's costs of one response, when every copy is given `load.sequences` of them."""

    def __init__(self, costs) -> None:
        self.costs = costs

    def seconds(self, choice, load):
        return self.costs.seconds(choice, self._whole(choice, load)) / (load.sequences * choice.layout.dp)

    def obstacle(self, choice, load):
        return self.costs.obstacle(choice, self._whole(choice, load))

    def _whole(self, choice, load):
        return Load(load.sequences * choice.layout.dp, load.mean_tokens, load.longest_tokens, load.limit_tokens)


def at(context: int, sequences: int) -> Load:
    return Load(sequences, float(context), context, context)


def per_copy() -> Selector:
    costs = costs_of(CONFIG, QWEN)
    return Selector({"rollout": candidates(costs)["rollout"]}, PerCopy(costs), {"rollout": 1e-6})


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, int], float]:
    """What TP 8 gains over TP 4 by the plan's map, in percent."""
    lists = {"contexts": ",".join(map(str, CONTEXTS)), "tps": "4,8"}
    asked = question(CONFIG, "Qwen2.5-72B", QWEN, of_gpus("16x8xH100"), Precision(), VLLM, Wish(**lists))
    return {(one.context, one.responses): one.percent for one in plan(asked).map}


def test_the_signs_of_the_plan_s_map(expected) -> None:
    # TP 4 ran out of memory in the paper at 128 responses of 32,768 tokens: 29 cells compare the two.
    assert len(expected) == 30
    for (context, responses), percent in expected.items():
        selector = per_copy()
        selector.record_load(0, at(context, responses))
        decision = selector.decide("rollout", 1)
        assert decision.choice == (TP8 if percent > 0 else TP4), (context, responses)
        slower, faster = (selector._costs.seconds(own, at(context, responses)) for own in (TP4, TP8))
        assert (slower / faster - 1) * 100 == pytest.approx(percent, abs=1.5)


def test_a_step_takes_the_fastest_layout_that_fits_in_every_cell() -> None:
    for context, responses in product(CONTEXTS, RESPONSES):
        layouts = Layouts(Run(), Run())
        load = at(context, responses * 16)
        layouts.record_load(1, load)
        decision = layouts._selector.decide("rollout", 2)
        assert not layouts._costs.obstacle(decision.choice, load)
        feasible = [own for own in layouts._candidates["rollout"] if not layouts._costs.obstacle(own, load)]
        assert {own.layout.tp for own in feasible} <= {4, 8}  # 145 GB of weights in less than 4 times 68 GB
        fastest = min(feasible, key=lambda own: layouts._costs.seconds(own, load))
        if decision.choice != fastest:  # the switch from TP 8, which the run begins with, has to pay
            assert decision.reason == "stays"
            assert layouts._costs.seconds(TP8, load) < layouts._costs.seconds(fastest, load) + 5


def grown(selector: Selector, sequences: int) -> list[Choice]:
    """The choices of 120 steps over which contexts grow from 1K to 32K."""
    choices = []
    for step in range(120):
        selector.record_load(step, at(round(1024 * 32 ** (step / 119)), sequences))
        choices.append(selector.decide("rollout", step + 1).choice)
    return choices


@pytest.mark.slow
def test_a_run_whose_contexts_grow_switches_where_the_map_does() -> None:
    for responses, most in ((8, 0), (32, 1), (64, 1), (128, 1)):
        choices = grown(per_copy(), responses)
        assert choices[0] == TP4
        assert sum(a != b for a, b in pairwise(choices)) == most
        if most:
            switched = 1024 * 32 ** (choices.index(TP8) / 119)
            assert {32: 8192, 64: 4096, 128: 2048}[responses] < switched < {32: 20_000, 64: 9000, 128: 4500}[responses]


def test_a_run_s_steps_never_meet_a_choice_that_does_not_fit() -> None:
    layouts = Layouts(Run(), Run())
    for choice in grown(layouts._selector, 2048):
        assert not layouts._costs.obstacle(choice, at(32_768, 2048))
