"""Known models: what their shapes add up to is what their hub states, and transformers counts the same."""

from dataclasses import replace

import pytest

from earl.parallel.memory import catalogue, known, nearest

MODELS = [*catalogue().values()]


def counted(model) -> int:
    """Parameters from the shape, written out."""
    shape = model.shape
    heads, kv, size = shape.heads, shape.kv_heads, shape.head_dim
    attention = shape.hidden * size * (2 * heads + 2 * kv)  # queries, keys, values, output
    biases = (heads + 2 * kv) * size if model.type == "qwen2" else 0
    norms = 2 * shape.hidden + (2 * size if model.type.startswith("qwen3") else 0)
    routed = shape.intermediate // per_token(model)
    feed_forward = 3 * shape.hidden * routed * model.shape.experts
    router = shape.hidden * model.shape.experts if model.shape.experts > 1 else 0
    words = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return words + shape.layers * (attention + biases + norms + feed_forward + router) + shape.hidden


def per_token(model) -> int:
    return {"mixtral": 2, "qwen3_moe": 8}.get(model.type, 1)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_shape_adds_up_to_the_published_number_of_parameters(model) -> None:
    assert counted(model) == model.shape.parameters


@pytest.mark.parametrize(
    "name", ["Qwen2.5-0.5B", "Qwen3-0.6B", "Llama-3.2-1B", "Mistral-7B", "Gemma-2B", "Qwen3-30B-A3B"]
)
def test_transformers_makes_the_same_shape(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from earl.engine.model import shape_of

    model = known(name)
    shape = model.shape
    width = shape.intermediate // per_token(model)
    mixture = {
        "num_experts": shape.experts,
        "moe_intermediate_size": width,
        "num_experts_per_tok": per_token(model),
    }
    config = AutoConfig.for_model(
        model.type,
        hidden_size=shape.hidden,
        intermediate_size=width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=model.shape.tied,
        **(mixture if model.shape.experts > 1 else {}),
        **({"sliding_window": None} if model.type == "mistral" else {}),
    )
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    found = shape_of(made)
    assert bool(found.indivisible) == bool(shape.indivisible)  # the engine names the operation that it lacks
    assert replace(found, indivisible="") == replace(shape, indivisible="")


def test_names() -> None:
    assert known("Qwen2.5-72B").hub == "Qwen/Qwen2.5-72B-Instruct"
    assert known("qwen2.5-72b") is known("Qwen/Qwen2.5-72B-Instruct") is known("Qwen2.5-72B-Instruct")
    assert known("Qwen/Qwen2.5-72B") is None  # the base model, which does not chat
    assert known("nowhere") is None
    assert nearest("Qwen2.5-27B") == "Qwen2.5-7B"
    assert nearest("meta-llama/Llama3.1-8B-Instruct") == "Llama-3.1-8B"
    assert nearest("nowhere") is None


def test_names_are_unique() -> None:
    assert len({model.hub for model in MODELS}) == len(MODELS)
