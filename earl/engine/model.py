"""The policy: a `transformers` causal language model with its tokenizer, made small or loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from earl.config import ModelConfig
from earl.engine.tokenizer import character_tokenizer
from earl.errors import EarlError

disable_progress_bar()  # earl shows its own


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and the tokenizer that speaks for it."""

    model: Any
    tokenizer: Any

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a reply."""
        return frozenset({self.tokenizer.eos_token_id})

    def save(self, folder: Path) -> None:
        """Write both as a plain Hugging Face folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def make(config: ModelConfig, seed: int) -> Policy:
    """The policy that a recipe starts from: loaded when it names a path, else new and small."""
    if config.path is not None:
        return load(config.path)
    tokenizer = character_tokenizer()
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    torch.manual_seed(seed)
    return Policy(Qwen3ForCausalLM(shape), tokenizer)


def load(path: str | Path) -> Policy:
    """Load a policy from a Hugging Face folder or hub id.

    Raises:
        EarlError: when there is no model, no chat template, or a shape that earl cannot train.
    """
    folder = Path(path)
    if folder.exists() and not (folder / "config.json").is_file():
        raise EarlError(f"{folder} holds no model: there is no config.json; give a folder written by save_pretrained")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EarlError(f"no model can be loaded from {str(path)!r}: {reason}; give a folder or hub id") from error
    if not tokenizer.chat_template:
        raise EarlError(f"the tokenizer of {str(path)!r} has no chat template; choose an instruction-tuned model")
    if not tokenizer.is_fast:
        raise EarlError(f"the tokenizer of {str(path)!r} gives no character offsets; it needs a fast tokenizer")
    policy = Policy(model, tokenizer)
    _check_head(policy)
    return policy


def hidden_states(model: Any, tokens: Tensor, **arguments: Any) -> Tensor:
    """The last hidden states [B, T, H] of token ids [B, T]."""
    states: Tensor = model.get_decoder()(input_ids=tokens, **arguments).last_hidden_state
    return states


def head(model: Any) -> nn.Module:
    """The layer from hidden states to logits."""
    layer: nn.Module = model.get_output_embeddings()
    return layer


@torch.no_grad()
def _check_head(policy: Policy) -> None:
    """Logits are computed at the learned positions only; refuse a model that does more than its head there."""
    probe = torch.arange(1, 5)[None]
    policy.model.eval()
    ours = head(policy.model)(hidden_states(policy.model, probe, use_cache=False))
    theirs = policy.model(input_ids=probe, use_cache=False).logits
    if not torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4):
        name = type(policy.model).__name__
        raise EarlError(f"{name} changes its logits after the output layer, which earl does not support; use another family")
