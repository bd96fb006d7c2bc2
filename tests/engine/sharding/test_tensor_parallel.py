"""Models that cannot be split are refused by name."""

from dataclasses import replace

import pytest
from transformers import MixtralConfig, MixtralForCausalLM, Phi3Config, Phi3ForCausalLM

from earl.engine.model import shape_of
from earl.engine.sharding.tensor_parallel import indivisible
from earl.errors import EarlError
from earl.parallel.layout import Layout, check_shared, check_split


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


SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}


def test_a_plan_that_earl_cannot_follow_is_refused():
    model = Phi3ForCausalLM(Phi3Config(**SIZES, num_key_value_heads=2, pad_token_id=0))
    assert indivisible(model).endswith("which earl does not do; use tp = 1")


def test_experts_that_cannot_be_shared_are_refused():
    model = MixtralForCausalLM(MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=6))
    shape = shape_of(model)
    check_shared(shape, Layout(4, ep=2, replicas=2))
    with pytest.raises(EarlError, match=r"6 experts, which 4 ranks cannot share evenly; set placement\.ep to"):
        check_shared(shape, Layout(4, ep=4))
    with pytest.raises(EarlError, match="6 ranks of a replica are not in whole groups of ep = 4"):
        check_shared(replace(shape, experts=8), Layout(12, ep=4, replicas=2))
    with pytest.raises(EarlError, match="dp = 4 ranks cannot be shared by 3 replicas evenly"):
        check_shared(shape, Layout(4, replicas=3))
