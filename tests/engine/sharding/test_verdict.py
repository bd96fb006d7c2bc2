"""What plans and checks say can be built is what the engine builds, for every family and layout of up to 8 processes.

The engine's own preparation of a learner runs in this process, as one rank of a group without the others (torch's fake
group, whose exchanges send nothing): it splits, shards and allocates the model, and scores two rows.
"""

from dataclasses import replace
from itertools import pairwise, product
from random import Random
from unittest.mock import patch

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig

from earl.config import Config, LearnerConfig
from earl.engine.attention import spans
from earl.engine.model import meta_model, shape_of
from earl.engine.sharding import mesh as meshes
from earl.engine.sharding.expert_parallel import SpreadExperts
from earl.engine.sharding.shards import Shards
from earl.errors import EarlError
from earl.parallel.cost_model import OWN, CostModel
from earl.parallel.hardware import ClusterSpec
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load, catalogue
from tests.sampling import sampled

SIZES = {"vocab_size": 37, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 8}
"""37 and 40 over 3, 5, 6 or 7 processes: uneven parts."""
SMALL = {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": 37, "n_positions": 64}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
FAMILIES = {
    "qwen2": {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2},
    "qwen3": {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 4},
    "llama": {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 6},
    "mistral": {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 8},
    "gemma": {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 3},
    "phi3": {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "pad_token_id": 0},
    "olmo": {**SIZES, "num_attention_heads": 6, "num_key_value_heads": 6},
    "qwen3_moe": {**SIZES, **EXPERTS, "num_attention_heads": 8, "num_key_value_heads": 4},
    "mixtral": {**SIZES, **EXPERTS, "num_attention_heads": 8, "num_key_value_heads": 8},
    "gpt2": SMALL,
}
PLAIN = [Layout(*sizes) for sizes in product(range(1, 9), repeat=3) if Layout(*sizes).size <= 8]
SHARED = [
    replace(layout, ep=ep, replicas=replicas)
    for layout in PLAIN
    for ep, replicas in product((1, 2, 3, 4, 8), (1, 2, 3, 4))
    if 1 < ep * replicas <= 2 * layout.size
]
"""The same with experts spread or in replicas, also such as cannot be."""


def some_shared(family: str) -> list[Layout]:
    """12 whose ranks can be grouped so, without tensor parallelism, and 12 of the others."""
    random = Random(family)
    likely = [layout for layout in SHARED if layout.tp == 1 and not layout.uneven]
    others = [layout for layout in SHARED if layout not in likely]
    return [*random.sample(likely, 12), *random.sample(others, 12)]


LOAD = Load(8, 12.0, 12, 12)
HOST = ClusterSpec("this machine", 1, 2, None)


def described(family: str):
    return AutoConfig.for_model(family, **FAMILIES[family])


def refused(shape, layout: Layout) -> str:
    costs = CostModel(Config.model_validate({"env": {"name": "tictactoe"}}), shape, HOST, OWN)
    return costs.obstacle(Choice("update", layout, 64), LOAD)


def evenly(experts: SpreadExperts, chosen: torch.Tensor) -> tuple[list[list[int]], list[list[int]]]:
    """Counts of tokens as if every expert got as many and every process sent what it gets: the fake group carries no
    tokens, so what it says of the others cannot be true."""
    size, total = distributed.get_world_size(experts.group), chosen.numel()
    bounds = [total * number // (size * experts.count) for number in range(size * experts.count + 1)]
    sent = [stop - start for start, stop in pairwise(bounds)]
    rows = [sent[start : start + experts.count] for start in range(0, len(sent), experts.count)]
    return rows, rows


def build(config, layout: Layout, rank: int) -> None:
    """As `join` makes a mesh, in a group of one, and as a learner makes its shards."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.size)
    try:
        with patch.object(meshes, "join_group"):
            mesh = meshes.join(rank, layout, None)
        shards = Shards(mesh, stored=None)
        shards._made = config, LearnerConfig()
        scorer = shards._built(values=True, frozen=False)
        tokens, learned, turns = torch.arange(12)[None] % 37, torch.tensor([2, 3, 9]), torch.tensor([1, 8])
        with patch.object(SpreadExperts, "_counts", evenly):
            scores = scorer(tokens, spans((7, 5), torch.device("cpu")), learned, tokens[0, learned], turns, 1.0)
        assert [len(own) for own in scores] == [3, 3, 2]
    finally:
        distributed.destroy_process_group()


def built(config, layout: Layout) -> bool:
    """Whether the first and the last rank can be built; an error that is not a refusal is one of the test."""
    try:
        for rank in {0, layout.size - 1}:
            build(config, layout, rank)
    except EarlError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("every", sampled([4, 1], every=2))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_verdict_is_what_building_shows(family: str, every: int) -> None:
    config = described(family)
    shape = shape_of(meta_model(config))
    layouts = [*PLAIN, *some_shared(family)]
    said = {layout: not refused(shape, layout) for layout in layouts}
    assert (len(PLAIN), len(layouts)) == (38, 62)
    assert {said[layout] for layout in layouts[38:]} == {True, False}
    for layout in layouts[list(FAMILIES).index(family) % every :: every]:
        assert said[layout] == built(config, layout), layout


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma", "olmo"])
def test_what_is_refused_for_its_heads_could_not_compute(family: str) -> None:
    config = described(family)
    shape = shape_of(meta_model(config))
    layouts = [Layout(1, tp) for tp in range(2, 9) if refused(shape, Layout(1, tp))]
    assert layouts
    for layout in layouts:
        with patch("earl.engine.sharding.shards.check_shared"), pytest.raises(RuntimeError):
            build(config, layout, 0)


def test_the_catalogue_says_of_its_families_what_the_engine_says() -> None:
    for model in catalogue().values():
        shape = shape_of(meta_model(described(model.type)))
        assert bool(model.shape.indivisible) == bool(shape.indivisible), model.name
