"""Policies: made from a seed, saved as plain Hugging Face folders, loaded or refused."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
    MistralConfig,
    Qwen3NextConfig,
)

from earl.config import ModelConfig
from earl.engine.model import ALIGNED_BYTES, Policy, load, make, shape
from earl.errors import EarlError

TINY = {"vocab_size": 106, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def weights(policy):
    return torch.cat([tensor.flatten() for tensor in policy.model.state_dict().values()])


def test_the_seed_makes_the_weights():
    config = ModelConfig(hidden=16, layers=1, heads=2)
    assert torch.equal(weights(make(config, 1)), weights(make(config, 1)))
    assert not torch.equal(weights(make(config, 1)), weights(make(config, 2)))


def test_the_default_model_has_about_a_fifth_of_a_million_parameters():
    assert 150_000 < shape(ModelConfig()).parameters < 250_000
    assert shape(ModelConfig()).parameters == sum(p.numel() for p in make(ModelConfig(), 0).model.parameters())


def test_a_saved_policy_is_the_same_policy(policy, plain, tmp_path):
    policy.save(tmp_path)
    again = load(tmp_path)
    tokens = [2, 20, 30, 5, 3, 40]
    assert torch.equal(plain(policy.model, tokens), plain(again.model, tokens))
    assert torch.equal(weights(again), weights(policy))
    assert again.stop_ids == policy.stop_ids


def test_loaded_weights_lie_as_new_ones_do_wherever_the_file_has_them(small, tmp_path):
    small().save(tmp_path)
    file, weighed = tmp_path / "model.safetensors", small().model.state_dict()
    for more in (0, 8):  # bytes by which the tensors lie further in the file: at least one place is odd
        save_file(weighed, file, {"format": "pt", "more": "." * more})
        assert {parameter.data_ptr() % ALIGNED_BYTES for parameter in load(tmp_path).model.parameters()} == {0}
    assert torch.empty(3).data_ptr() % ALIGNED_BYTES == 0


def test_a_saved_tokenizer_is_the_same_tokenizer(small, tmp_path):
    small().save(tmp_path)
    ours, theirs = small().tokenizer, load(tmp_path).tokenizer
    text = "<|user|>X 12\n<think>?</think><|end|>"
    assert theirs(text).input_ids == ours(text).input_ids
    assert theirs.get_vocab() == ours.get_vocab()
    assert theirs.chat_template == ours.chat_template


def test_a_saved_policy_needs_no_earl_to_be_loaded(small, tmp_path):
    small().save(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_weights_are_trained_in_full_precision(small, tmp_path):
    policy = small()
    Policy(policy.model.to(torch.bfloat16), policy.tokenizer).save(tmp_path)
    assert {parameter.dtype for parameter in load(tmp_path).model.parameters()} == {torch.float32}


def test_a_tokenizer_without_a_chat_template_is_refused(small, tmp_path):
    policy = small()
    policy.tokenizer.chat_template = None
    policy.save(tmp_path)
    with pytest.raises(EarlError, match="no chat template"):
        load(tmp_path)


def test_a_model_that_changes_its_logits_after_the_head_is_refused(small, tmp_path):
    config = CohereConfig(logit_scale=0.01, **TINY)
    Policy(CohereForCausalLM(config), small().tokenizer).save(tmp_path)
    with pytest.raises(EarlError, match="changes its logits"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"model_type": "no-such-model"})])
def test_a_folder_whose_configuration_says_nothing_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(EarlError, match="no model can be loaded"):
        load(tmp_path)


def test_folders_without_a_model_are_refused(tmp_path):
    with pytest.raises(EarlError, match=r"no config\.json"):
        load(tmp_path)
    with pytest.raises(EarlError, match="no such folder"):
        load(tmp_path / "nothing here")


def test_damaged_weights_are_refused(small, tmp_path):
    small().save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(EarlError, match="no model can be loaded"):
        load(tmp_path)


def test_a_sliding_window_bounds_the_context(tmp_path):
    MistralConfig(sliding_window=128, max_position_embeddings=512, **TINY).save_pretrained(tmp_path)
    assert shape(ModelConfig(path=str(tmp_path))).max_positions == 128
    MistralConfig(sliding_window=None, max_position_embeddings=512, **TINY).save_pretrained(tmp_path)
    assert shape(ModelConfig(path=str(tmp_path))).max_positions == 512


def test_layers_that_keep_no_keys_and_values_are_refused(tmp_path):
    Qwen3NextConfig(layer_types=["linear_attention"], **TINY).save_pretrained(tmp_path)
    with pytest.raises(EarlError, match="layers of 'linear_attention'"):
        shape(ModelConfig(path=str(tmp_path)))
