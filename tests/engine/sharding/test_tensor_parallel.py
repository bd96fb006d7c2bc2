"""Models that cannot be split are refused by name."""

import pytest
from transformers import MixtralConfig, MixtralForCausalLM

from earl.engine.model import shape_of
from earl.engine.sharding.tensor_parallel import indivisible
from earl.errors import EarlError
from earl.parallel.layout import check_split


def test_heads_that_cannot_be_shared_are_refused(architectures):
    shape = shape_of(architectures["qwen2"]().model)
    check_split(shape, "placement.tp", 2, replicated=False)
    with pytest.raises(EarlError, match="2 key-value heads, which 4 devices cannot share"):
        check_split(shape, "placement.tp", 4, replicated=False)


def test_a_model_without_a_plan_is_refused(architectures):
    shape = shape_of(architectures["gpt2"]().model)
    with pytest.raises(EarlError, match="GPT2LMHeadModel has no tensor-parallel plan"):
        check_split(shape, "placement.tp", 2, replicated=False)
    check_split(shape, "placement.tp", 1, replicated=False)


def test_a_plan_that_earl_cannot_follow_is_refused():
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_local_experts": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=11, num_attention_heads=2, num_key_value_heads=2, **shape))
    assert indivisible(model).endswith("which earl does not do; use tp = 1")
