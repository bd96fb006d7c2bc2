"""Models that cannot be split are refused by name."""

import pytest
from transformers import MixtralConfig, MixtralForCausalLM

from earl.engine.sharding.tensor_parallel import check
from earl.errors import EarlError


def test_heads_that_cannot_be_shared_are_refused(architectures):
    check(architectures["qwen2"]().model, 2)
    with pytest.raises(EarlError, match="2 key-value heads, which 4 devices cannot share"):
        check(architectures["qwen2"]().model, 4)


def test_a_model_without_a_plan_is_refused(architectures):
    with pytest.raises(EarlError, match="GPT2LMHeadModel has no tensor-parallel plan"):
        check(architectures["gpt2"]().model, 2)


def test_a_plan_that_earl_cannot_follow_is_refused():
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_local_experts": 2}
    model = MixtralForCausalLM(MixtralConfig(vocab_size=11, num_attention_heads=2, num_key_value_heads=2, **shape))
    with pytest.raises(EarlError, match="which earl does not do; use tp = 1"):
        check(model, 2)
