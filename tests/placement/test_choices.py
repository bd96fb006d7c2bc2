"""What the selector is offered of a recipe, and what it is told that this costs."""

from dataclasses import replace

import pytest

from earl.engine.model import shape
from earl.parallel.cost_model import CostModel
from earl.parallel.hardware import ClusterSpec, of_gpus
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load, known
from earl.placement.costs import candidates, costs_of, current_choice, with_choice
from earl.recipe import build

RECIPE = {
    "env": {"name": "tictactoe"},
    "model": {"hidden": 16, "layers": 3, "heads": 4, "head_dim": 8, "intermediate": 24},
    "sampler": {"engine": "local"},
    "placement": {"kind": "colocated", "dp": 2, "cp": 2},
}
CONFIG = build(RECIPE)
SHAPE = shape(CONFIG.model)
HOST = ClusterSpec("this machine", 1, 2, None)
LOAD = Load(8, 100.0, 100, 256)


def offered(config):
    return candidates(CostModel(config, SHAPE, HOST))


def test_a_token_split_that_is_set_stays():
    found = offered(CONFIG)["update"]
    assert found[0] == current_choice(CONFIG, "update")
    # 2 x 2 ranks, pairs of which share tokens: dp 2 or tp 2
    assert {choice.layout for choice in found} == {Layout(2, 1, 2), Layout(1, 2, 2)}
    place = with_choice(CONFIG, Choice("update", Layout(1, 2, 2), 2048)).placement
    assert (place.dp, place.tp, place.cp) == (1, 2, 2)


def test_what_is_left_open_is_varied():
    found = offered(CONFIG.changed(placement={"cp": 1}))["update"]
    assert {choice.layout for choice in found} == {Layout(2, 1, 1), Layout(1, 2, 1), Layout(1, 1, 2)}
    assert {choice.recompute for choice in found} == {False, True}
    assert {choice.micro_batch_tokens for choice in found} == {1024, 2048, 4096}
    assert {choice.offload for choice in found} == {False}  # there is no memory to spare elsewhere
    set_by_hand = CONFIG.changed(learner={"micro_batch_tokens": 512, "recompute": True})
    assert len(offered(set_by_hand)["update"]) == 2
    on_gpus = candidates(CostModel(CONFIG, SHAPE, of_gpus("4xH100")))["update"]
    assert {choice.offload for choice in on_gpus} == {False, True}


def test_what_cannot_be_split_is_not_offered():
    costs = CostModel(CONFIG.changed(placement={"cp": 1}), replace(SHAPE, indivisible="a mixture"), HOST)
    assert {choice.layout.tp for choice in candidates(costs)["update"]} == {1}
    assert costs.obstacle(Choice("update", Layout(1, 2), 2048), LOAD) == "a mixture"


def test_keys_and_values_of_other_ranks_are_waited_for():
    costs = CostModel(CONFIG, SHAPE, HOST)

    def gathering(choice, tokens):
        way = replace(costs.training(choice, LOAD), tokens=tokens)
        return costs._gathering_seconds(way, costs.engine(way.layout.tp))

    # 2 x 3 layers x 4 heads of 8 numbers of 4 bytes, of 100 tokens: 76,800 bytes, half of them from the other rank, at
    # 5e8 bytes per second; and 3 exchanges of 0.3 ms
    assert gathering(Choice("update", Layout(cp=2), 2048), 100) == pytest.approx(38_400 / 5e8 + 9e-4)
    assert gathering(Choice("update", Layout(dp=2), 2048), 100) == 0


def test_a_run_counts_with_the_gpus_that_it_names():
    config = build({**RECIPE, "sampler": {"engine": "auto"}, "placement": {"kind": "colocated", "gpus": "16x8xH100"}})
    costs = costs_of(config, known("Qwen2.5-72B").shape)
    assert (costs.device.kind, costs.software.name, costs.dtype) == ("H100", "vLLM", "bfloat16")
    assert costs.obstacle(Choice("rollout", Layout(128, 1)), LOAD)  # 145 GB of weights
    long = Load(128, 16_384.0, 16_384, 16_384)
    assert not costs.obstacle(Choice("rollout", Layout(1, 8)), long)  # in waves
