"""The policy: a `transformers` causal language model with its tokenizer, newly made or loaded."""

import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from earl.agents.chat import stop_ids
from earl.agents.template import EARL_TEMPLATE
from earl.config import Config, ModelConfig
from earl.engine.attention import ATTENTION
from earl.engine.checkpoint_tensors import Stored, check_finite
from earl.engine.sharding.tensor_parallel import indivisible
from earl.engine.source import folder_of, known_shape
from earl.envs.base import CHARACTERS
from earl.errors import EarlError, outside, setting
from earl.parallel.memory import ModelShape

CONTROL = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MOST_CELLS = 6
"""Of one token: a column of stones in Connect Four."""


def _runs(cells: str) -> tuple[list[str], str]:
    """The words of more than one cell, and the pattern of cells that are one token."""
    marks = cells.replace("\n", "")
    longest = MOST_CELLS if len(marks) == 2 else 4  # else there would be thousands of them
    runs = ["".join(run) for length in range(1, longest + 1) for run in product(marks, repeat=length)]
    pattern = f"[{re.escape(marks)}]{{1,{longest}}}|"
    if marks == cells:
        return runs[len(marks) :], pattern
    return [*runs[len(marks) :], *(f"\n{run}" for run in runs)], rf"\n?{pattern}"


def character_tokenizer(alphabet: Literal["ascii", "unicode"] = "ascii", cells: str = "") -> Any:
    """A `transformers` fast tokenizer of 106 ids: 6 control tokens, 4 tags, 96 characters, no unknown token.

    `unicode` has 256 more, a byte each: every other character is the bytes of its UTF-8. `cells` are characters of
    which up to four in a row, of two characters up to six, are one token: the row "..XO.X." of a board is read as
    "..XO" and ".X.". If a line break is one of them, it is part of the token behind it.
    """
    words = [*CONTROL, *TAGS, *CHARACTERS]
    runs, together = _runs(cells) if cells else ([], "")
    words += runs
    if alphabet == "ascii":
        tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
        tokenizer.decoder = decoders.Fuse()
    else:
        words += [f"<0x{byte:02X}>" for byte in range(256)]
        known = {word: index for index, word in enumerate(words)}
        tokenizer = Tokenizer(models.BPE(known, [], byte_fallback=True))
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(together + r"[\s\S]"), behavior="isolated")
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in CONTROL])
    # Tags are text that the model may write: decoding keeps them.
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        chat_template=EARL_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def meta_model(config: Any) -> Any:
    """The model of a configuration on the meta device: shapes without data."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=ATTENTION, trust_remote_code=False
        ).eval()


def allocated(model: Any) -> Any:
    """A model of the meta device with uninitialised weights; tied weights are tied."""
    model.to_empty(device="cpu").tie_weights()
    make_buffers(model, torch.device("cpu"))
    return model


def make_buffers(model: Any, device: torch.device) -> None:
    """Compute buffers that follow from the configuration, such as rotary frequencies, as the model's family does."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True  # so that the weights beside a buffer stay as they are
    for module in model.modules():
        if buffers := [*module.named_buffers(recurse=False)]:
            model._init_weights(module)
            for name, buffer in buffers:
                setattr(module, name, buffer.to(device))


def layers(model: Any) -> list[nn.Module]:
    """The repeated blocks of a transformer. Raises EarlError when the architecture does not name them."""
    repeated = set(model._no_split_modules or ())
    found = [module for module in model.modules() if type(module).__name__ in repeated]
    if not found:
        raise EarlError(
            f"{type(model).__name__} does not say which layers it repeats, so it can be neither sharded nor "
            "recomputed; use another family, such as Qwen3 or Llama"
        )
    return found


def recompute(model: Any) -> None:
    """Activation checkpointing: every layer keeps only its input and recomputes the rest in the backward pass."""
    for layer in layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


disable_progress_bar()  # earl shows its own
set_verbosity_error()  # a warning would print names from an untrusted file unescaped
ALIGNED_BYTES = 64  # of every tensor that PyTorch allocates on a CPU
CLOSED: Final = {"trust_remote_code": False, "local_files_only": True}
"""No remote code, and no access to the hub."""


@dataclass(frozen=True, slots=True)
class Policy:
    model: Any
    tokenizer: Any

    @property
    def stop_ids(self) -> frozenset[int]:
        return stop_ids(self.tokenizer)

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def shape(config: ModelConfig) -> ModelShape:
    """The shape of a recipe's model, without allocating weights. Raises EarlError when the recipe's path leads to no
    model that earl can train."""
    known = None if config.path is None else known_shape(config.path)
    return known or shape_of(_without_weights(config))


def reference_shape(config: Config) -> ModelShape | None:
    """The shape of the model that `algorithm.reference` names. Raises EarlError as `shape` does."""
    path = config.algorithm.reference
    if path is None:
        return None
    with setting("algorithm.reference"):
        return shape(ModelConfig(path=path))


def _without_weights(config: ModelConfig) -> Any:
    """A recipe's model on the meta device."""
    folder = None if config.path is None else folder_of(config.path, weights=False)
    with _loading(config.path or "the recipe"):
        if folder is None:
            return meta_model(_small(config, character_tokenizer(config.alphabet, config.cells)))
        return meta_model(AutoConfig.from_pretrained(folder, **CLOSED))


def shape_of(model: Any) -> ModelShape:
    """The shape of a model, with or without weights. Raises EarlError for layers that earl cannot sample from."""
    text = model.config.get_text_config()
    _check_layers(text)
    experts_per_token = getattr(text, "num_experts_per_tok", None) or 1
    width = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return ModelShape(
        parameters=_numbers(model),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        # Per token; in a mixture of experts, of the experts that a token is sent to.
        intermediate=int((getattr(text, "moe_intermediate_size", None) or width) * experts_per_token),
        vocab=text.vocab_size,
        # Beyond a sliding window the sampler's own mask would show more than the model's.
        max_positions=min(text.max_position_embeddings, getattr(text, "sliding_window", None) or sys.maxsize),
        tied=bool(text.tie_word_embeddings),
        head_norms=any(name.endswith(".q_norm") for name, _ in model.named_modules()),
        experts=getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1,
        experts_per_token=experts_per_token,
        indivisible=indivisible(model),
    )


def _check_layers(text: Any) -> None:
    """The sampler caches only keys and values; a layer with other state would silently restart every turn."""
    others = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if others:
        raise EarlError(
            f"a model of the type {text.model_type!r} has layers of {min(others)!r}, and earl samples from layers of "
            "attention only; use another family, such as Qwen3 or Llama"
        )


def tensors_once(model: Any) -> dict[str, Tensor]:
    """A model's saved tensors by name, without copies; tied tensors once, under their first name."""
    once = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if name in once}


def make(config: ModelConfig, seed: int) -> Policy:
    if config.path is not None:
        return load(config.path)
    tokenizer = character_tokenizer(config.alphabet, config.cells)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(_small(config, tokenizer), attn_implementation=ATTENTION)
    if config.cells:
        _compose(model.get_input_embeddings().weight, config.cells, tokenizer.convert_tokens_to_ids)
    return Policy(model, tokenizer)


@torch.no_grad()
def _compose(embeddings: Tensor, cells: str, index: Callable[[str], int]) -> None:
    """Let a token of several cells begin as the sum of a vector for each cell at its place, and that of a line break,
    so that what is learned of one holds for tokens that differ in one cell. Embeddings [V, H]."""
    parts = {mark: embeddings.std() * torch.randn(MOST_CELLS, embeddings.shape[1]) for mark in cells if mark != "\n"}
    for run in _runs(cells)[0]:
        vectors = [parts[mark][place] for place, mark in enumerate(run.removeprefix("\n"))]
        vectors += [embeddings[index("\n")]] * run.startswith("\n")
        embeddings[index(run)] = torch.stack(vectors).sum(0)


def tokenizer_of(config: ModelConfig) -> Any:
    if config.path is None:
        return character_tokenizer(config.alphabet, config.cells)
    return read_tokenizer(config.path, folder_of(config.path, weights=False))


def read_tokenizer(path: str | Path, folder: Path) -> Any:
    """The tokenizer of a checked folder. Raises EarlError when there is none that earl can use."""
    with _loading(path):
        tokenizer = AutoTokenizer.from_pretrained(folder, **CLOSED)
        if not tokenizer.chat_template:
            raise EarlError(f"the tokenizer of {str(path)!r} has no chat template; choose an instruction-tuned model")
        if not tokenizer.is_fast:
            raise EarlError(f"the tokenizer of {str(path)!r} gives no character offsets; it needs a fast tokenizer")
        if tokenizer.eos_token_id is None:
            raise EarlError(f"the tokenizer of {str(path)!r} has no token that ends a reply; set its eos_token")
        tokenizer.stop_ids = _generation_stops(folder, len(tokenizer))
    return tokenizer


def _generation_stops(folder: Path, vocabulary: int) -> frozenset[int]:
    """End-of-turn tokens of a model's generation settings, if it has any; of other numbers none can be sampled."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return frozenset()
    given = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    named = given if isinstance(given, list) else [given]
    return frozenset(token for token in named if type(token) is int and 0 <= token < vocabulary)


def load(path: str | Path) -> Policy:
    """Load a policy from a Hugging Face folder or hub id. Raises EarlError when there is no model, no chat template, or
    a shape that earl cannot train."""
    folder = folder_of(path)
    with _loading(path):  # the configuration first: its error for an unknown model is the clearest
        described = AutoConfig.from_pretrained(folder, **CLOSED)
        tokenizer = read_tokenizer(path, folder)
        try:
            needed, held = _numbers(meta_model(described)), Stored(folder).numbers
        except EarlError as error:
            raise EarlError(f"no model can be loaded from {str(path)!r}: {error}") from error
        if needed > held:  # before allocating memory
            raise EarlError(f"the weights in {str(path)!r} are {held} numbers of {needed}; give a whole language model")
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation=ATTENTION,
            output_loading_info=True,
            use_safetensors=True,
            **CLOSED,
        )
        if missing := sorted(info["missing_keys"]):
            raise EarlError(f"the weights in {str(path)!r} lack {missing[0]!r}; give a whole causal language model")
        for name, tensor in model.state_dict().items():
            check_finite(f"{name} in {path}", tensor, "use an earlier checkpoint or another model")
        _align(model)
        policy = Policy(model, tokenizer)
        _check_layers(model.config.get_text_config())
        _check_head(policy)
    return policy


def _align(model: Any) -> None:
    """Move weights that lie at odd addresses, as in a mapped file, to where new ones lie: matrix products round by the
    address, so a resumed run would part from one that never stopped."""
    for parameter in model.parameters():
        if parameter.data_ptr() % ALIGNED_BYTES:
            parameter.data = parameter.data.clone()


def meta_policy(config: ModelConfig) -> Policy:
    """The policy that a recipe starts from, without weights, for callers that load only parts of them or get them
    later. Raises EarlError as `load` does."""
    model = _without_weights(config)
    _check_layers(model.config.get_text_config())
    return Policy(model, tokenizer_of(config))


def _numbers(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _small(config: ModelConfig, tokenizer: Any) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=False,
        # The usual 0.02 suits wide models; here the layers' outputs would be nearly zero at first.
        initializer_range=config.hidden**-0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def _loading(path: str | Path) -> AbstractContextManager[None]:
    """For libraries that read untrusted files; exceptions of those in Rust are no `Exception`."""
    return outside(f"no model can be loaded from {str(path)!r}", "give a folder or hub id")


def hidden_states(model: Any, tokens: Tensor, **arguments: Any) -> Tensor:
    """The last hidden states [B, T, H] of token ids [B, T]."""
    states: Tensor = model.get_decoder()(input_ids=tokens, **arguments).last_hidden_state
    return states


def head(model: Any) -> nn.Module:
    layer: nn.Module = model.get_output_embeddings()
    return layer


@torch.no_grad()
def _check_head(policy: Policy) -> None:
    """Logits are computed at trained positions only; refuse a model whose logits are changed after the output layer."""
    probe = torch.arange(1, 5)[None]
    policy.model.eval()
    ours = head(policy.model)(hidden_states(policy.model, probe, use_cache=False))
    theirs = policy.model(input_ids=probe, use_cache=False).logits
    if not torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4):
        name = type(policy.model).__name__
        raise EarlError(
            f"{name} changes its logits after the output layer, which earl cannot train; use another family"
        )
