"""The forward pass of the models that earl creates, in fewer operations than that of `transformers`.

In a small model the overhead of calling operations dominates, above all in the backward pass. This pass uses the
weights of the model's own modules. `suits` says which models can use it; others use the pass of `transformers`.

packed_states: for learning. Rows with a common prefix compute it once: the episodes of a group share their prompt, and
games their openings.
TokenDecoder: for sampling, without gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from earl.engine.attention import batched, continued

_ATEN: Any = torch.ops.aten

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer, by its number: queries [T, heads, D], keys and values [T, KV heads, D] to [T, heads, D]."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """T tokens of packed rows, of which S are distinct, counting a token with its prefix: rows [a b c] and [a b d] have
    S = 4. The second row shares 2 tokens with the first and has 1 of its own."""

    classes: tuple[tuple[int, int, int], ...]  # (rows, own tokens, shared tokens) of each class
    first: Tensor  # [S], packed position of each distinct token, class by class
    positions: Tensor  # [S], position in its row
    whole: Tensor  # indices into S of the tokens of each row with own tokens, class by class
    places: Tensor  # [T], index into S of each packed token

    @classmethod
    def of(cls, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> Self:
        """Find the prefixes of packed rows: tokens [T], lengths [N]."""
        position = np.arange(lengths.max())
        inside = position < lengths[:, None]
        padded, place = np.full(inside.shape, -1), np.zeros(inside.shape, np.int64)
        padded[inside], place[inside] = tokens, np.arange(len(tokens))
        order = np.lexsort(padded.T[::-1])  # each row shares its longest prefix with the row before it
        padded, place, inside = padded[order], place[order], inside[order]
        alike = np.logical_and.accumulate(padded[1:] == padded[:-1], axis=1).sum(axis=1)
        shared = np.minimum(np.append(0, alike), lengths[order])
        own = lengths[order] - shared
        classed = np.lexsort((shared, own))
        classed = classed[own[classed] > 0]
        begins = np.zeros(len(own), np.int64)
        begins[classed] = np.cumsum(own[classed]) - own[classed]
        fresh = position >= shared[:, None]
        owner = np.maximum.accumulate(np.where(fresh, np.arange(len(own))[:, None], 0), axis=0)
        number = (begins - shared)[owner] + position  # index into S, [N, longest length]
        places = np.empty(len(tokens), np.int64)
        places[place[inside]] = number[inside]
        mine = (fresh & inside)[classed]
        sizes, counts = np.unique(np.stack((own, shared))[:, classed], axis=1, return_counts=True)
        first, positions = place[classed][mine], np.broadcast_to(position, mine.shape)[mine]
        columns = (first, positions, number[classed][inside[classed]], places)
        return cls(tuple(zip(counts.tolist(), *sizes.tolist(), strict=True)), *map(torch.from_numpy, columns))

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of the S tokens within their rows: queries [S, heads, D], keys and values [S, KV heads, D]."""
        keys, values = key.index_select(0, self.whole), value.index_select(0, self.whole)
        queries = torch.split(query, [count * own for count, own, _ in self.classes])
        known = [count * (own + shared) for count, own, shared in self.classes]
        parts = zip(self.classes, queries, torch.split(keys, known), torch.split(values, known), strict=True)
        return torch.cat([_of_class(*part) for part in parts])


MASKED = 1 << 14
"""Up to this size a mask is built, so that one call of the kernel covers the shared and the own tokens of a row."""


def _of_class(sizes: tuple[int, int, int], *packed: Tensor) -> Tensor:
    count, own, shared = sizes
    query, key, value = (part.view(count, -1, *part.shape[1:]).transpose(1, 2) for part in packed)
    if shared and own * (own + shared) > MASKED:
        return continued(query, key, value, None).transpose(1, 2).flatten(0, 1)
    mask = torch.full((own, own + shared), -torch.inf).triu(shared + 1) if shared and own > 1 else None
    return batched(query, key, value, mask, own > 1 and not shared, None).flatten(0, 1)


def packed_states(model: Any, tokens: Tensor, lengths: tuple[int, ...], wanted: Tensor) -> Tensor:
    """The last hidden states [M, H] at the positions `wanted` [M] of packed rows, tokens [T]."""
    rows = Prefixes.of(tokens.numpy(), np.array(lengths))
    kept, places = torch.unique(rows.places[wanted], return_inverse=True)
    states = states_of(model, tokens[rows.first], rows.positions, lambda _, *packed: rows.attended(*packed), kept)
    return states.index_select(0, places)


def suits(model: Any) -> bool:
    """Whether a model has plain Qwen3 layers in float32 on a CPU, neither sharded by FSDP2 nor recomputed."""
    if type(model) is not Qwen3ForCausalLM:
        return False
    weight, config = model.model.embed_tokens.weight, model.config
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] == "default"
        and set(config.layer_types) == {"full_attention"}
        and all(type(layer) is Qwen3DecoderLayer and "forward" not in vars(layer) for layer in model.model.layers)
    )


def _joined(*modules: Any) -> Tensor:
    """Concatenate the weights of modules; the modules' weights become views of the result."""
    whole = torch.cat([module.weight.detach() for module in modules])
    for module, part in zip(modules, torch.split(whole, [len(module.weight) for module in modules]), strict=True):
        module.weight.data = part
    return whole


class _Weights(NamedTuple):
    """A layer's weights in the order of use, sharing memory with the model."""

    before: NDArray[np.float32]  # [H], of the norm
    projections: Tensor  # [(heads + 2 KV heads) D, H]
    head_norms: NDArray[np.float32]  # [2, D], of queries and of keys
    out: Tensor  # [heads D, H]
    between: NDArray[np.float32]  # [H]
    gates: Tensor  # [2 x inner width, H]
    down: Tensor  # [inner width, H]

    @classmethod
    def of(cls, layer: Any) -> Self:
        own, mlp = layer.self_attn, layer.mlp
        return cls(
            layer.input_layernorm.weight.detach().numpy(),
            _joined(own.q_proj, own.k_proj, own.v_proj),
            _joined(own.q_norm, own.k_norm).view(2, -1).numpy(),
            own.o_proj.weight.detach().t(),
            layer.post_attention_layernorm.weight.detach().numpy(),
            _joined(mlp.gate_proj, mlp.up_proj),
            mlp.down_proj.weight.detach().t(),
        )


class TokenDecoder:
    """The forward pass without gradients of a model that `suits`: products with the same input are joined, and small
    operations are compiled loops. It shares memory with the model, so new weights of the model are used at once."""

    def __init__(self, model: Any) -> None:
        from earl.engine import kernels  # imported here, since numba takes half a second

        decoder, config = model.model, model.config
        self._kernels, self._heads, self._epsilon = kernels, config.num_attention_heads, config.rms_norm_eps
        self._embedding, self._norm = decoder.embed_tokens.weight.detach(), decoder.norm.weight.detach().numpy()
        self._frequencies = decoder.rotary_emb.inv_freq
        self._layers = [_Weights.of(layer) for layer in decoder.layers]

    def states(
        self, tokens: Tensor, positions: Tensor, attend: Callable[[int, Tensor], Tensor], wanted: Tensor | None = None
    ) -> Tensor:
        """The last hidden states [T, H] of tokens [T] at their positions [T], or of the `wanted` of them. attend:
        attention of a layer by number: queries, keys and values [T, heads + 2 KV heads, D] to [T, heads, D]."""
        turns = positions[:, None] * self._frequencies  # [T, D / 2]
        cos, sin = turns.cos().numpy(), turns.sin().numpy()
        states = self._embedding.index_select(0, tokens)
        for number, own in enumerate(self._layers):
            heads = linear(self._normed(own.before, states), own.projections).view(len(tokens), -1, 2 * cos.shape[1])
            self._kernels.norm_and_turn(heads.numpy(), own.head_norms, self._epsilon, self._heads, cos, sin)
            attended = attend(number, heads).flatten(1)
            if wanted is not None and number == len(self._layers) - 1:  # after the last attention, tokens are alone
                attended, states = attended.index_select(0, wanted), states.index_select(0, wanted)
            states.addmm_(attended, own.out)
            gate, up = linear(self._normed(own.between, states), own.gates).chunk(2, dim=-1)
            states.addmm_(silu(gate).mul_(up), own.down)
        return self._normed(self._norm, states)

    def of_one(self, heads: Tensor, store: Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Attention [B, heads, D] of one token a row; see `kernels.attend`."""
        attended = torch.empty(len(heads), self._heads, heads.shape[2])
        self._kernels.attend(heads.numpy(), store.numpy(), slots, positions, attended.numpy())
        return attended

    def apart(self, heads: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        shared = (heads.shape[1] - self._heads) // 2
        return torch.split(heads, [self._heads, shared, shared], dim=1)

    def _normed(self, weight: NDArray[np.float32], states: Tensor) -> Tensor:
        normed = torch.empty_like(states)
        self._kernels.norm(states.numpy(), weight, self._epsilon, normed.numpy())
        return normed


def states_of(model: Any, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None = None) -> Tensor:
    """The last hidden states [T, H] of tokens [T] at their positions [T], or of the `wanted` of them."""
    decoder = model.model
    turns = positions[:, None, None] * decoder.rotary_emb.inv_freq  # [T, 1, D / 2]
    cos, sin = turns.cos(), turns.sin()
    states: Tensor = decoder.embed_tokens(tokens)
    for number, layer in enumerate(decoder.layers):
        own = layer.self_attn
        heads = (-1, own.head_dim)
        normed = _normed(layer.input_layernorm, states)
        query = _rotated(_normed(own.q_norm, own.q_proj(normed).unflatten(-1, heads)), cos, sin)
        key = _rotated(_normed(own.k_norm, own.k_proj(normed).unflatten(-1, heads)), cos, sin)
        attended = attend(number, query, key, own.v_proj(normed).unflatten(-1, heads))
        if wanted is not None and number == len(decoder.layers) - 1:  # after the last attention, tokens are alone
            attended, states = attended.index_select(0, wanted), states.index_select(0, wanted)
        states = states + own.o_proj(attended.flatten(-2))
        normed = _normed(layer.post_attention_layernorm, states)
        states = states + layer.mlp.down_proj(silu(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed))
    return _normed(decoder.norm, states)


def _normed(module: Any, states: Tensor) -> Tensor:
    normed: Tensor = _Norm.apply(states, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return normed


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated: Tensor = _Rotation.apply(states, cos, sin)  # type: ignore[no-untyped-call]
    return rotated


class _Norm(torch.autograd.Function):
    """RMSNorm (arXiv 1910.07467) over the last axis."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        scales = lengths.square_().div_(states.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(states, weight, scales)
        return (states * scales).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """torch's kernel for LayerNorm, whose gradient lacks only the mean that LayerNorm takes off."""
        states, weight, scales = ctx.saved_tensors
        width, trained = states.shape[-1], ctx.needs_input_grad[1]
        of_states, of_weight, _ = _ATEN.native_layer_norm_backward(
            gradients[0], states, [width], torch.zeros_like(scales), scales, weight, None, [True, trained, False]
        )
        return of_states.addcmul_((gradients[0] @ weight)[..., None], scales, value=1 / width), of_weight, None


class _Rotation(torch.autograd.Function):
    """Rotary positions (arXiv 2104.09864); a number turns with that half of the head away from it."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(states, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradients[0], cos, -sin), None, None


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States [T, heads, D] by the angles of their positions [T, 1, D / 2]."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.empty_like(states)
    one, other = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=one).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=other).addcmul_(first, sin)
    return turned
