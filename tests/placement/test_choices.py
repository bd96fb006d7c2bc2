"""What the selector is offered of a learner whose tokens are split, and what it is told of the exchange."""

from earl.engine.model import shape
from earl.parallel.layout import Choice, Layout
from earl.placement.costs import LAYER_SECONDS, LINK, PlacedCosts, candidates, chosen, now
from earl.recipe import build

CONFIG = build(
    {
        "env": {"name": "tictactoe"},
        "model": {"hidden": 16, "layers": 3, "heads": 4, "head_dim": 8, "intermediate": 24},
        "placement": {"kind": "colocated", "dp": 2, "cp": 2},
    }
)
SHAPE = shape(CONFIG.model)


def test_the_tokens_split_stays_as_it_is_set():
    offered = candidates(CONFIG, SHAPE)["update"]
    assert offered[0] == now(CONFIG, "update")
    # 2 x 2 ranks, pairs of which share tokens: dp 2 or tp 2, each with and without recomputation.
    assert {choice.layout for choice in offered} == {Layout(2, 1, 2), Layout(1, 2, 2)}
    assert len(offered) == 4
    place = chosen(CONFIG, Choice("update", Layout(1, 2, 2), 2048)).placement
    assert (place.dp, place.tp, place.cp) == (1, 2, 2)


def test_keys_and_values_are_gathered_forwards_and_their_gradients_backwards():
    # 2 x 4 heads of 8 numbers of 4 bytes, of 100 tokens: 25,600 bytes, half of which come from the other rank.
    once = 12_800 / LINK + 5 * LAYER_SECONDS
    costs = PlacedCosts(CONFIG, SHAPE)
    assert costs._exchanged(Choice("update", Layout(cp=2), 2048), 100, 5) == 3 * 2 * once
    assert costs._exchanged(Choice("update", Layout(cp=2), 2048, recompute=True), 100, 5) == 3 * 3 * once
    assert costs._exchanged(Choice("update", Layout(dp=2), 2048), 100, 5) == 0
