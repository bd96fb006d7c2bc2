"""The forward pass of the models that earl creates, in fewer operations than that of `transformers`.

In a small model the overhead of calling operations dominates, above all in the backward pass. This pass uses the
weights of the model's own modules. `suits` says which models can use it; others use the pass of `transformers`.

packed_states: for learning. Rows with a common prefix compute it once: the episodes of a group share their prompt, and
games their openings. In the last layer only the end of a row attends, from the first state that is wanted on.
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


@dataclass(frozen=True, slots=True)
class Queries:
    """The tokens that attend in a layer: the last ones of each row, from some position on."""

    classes: tuple[tuple[int, int, int], ...]  # (rows, tokens that attend, tokens before them) of each class
    tokens: Tensor  # [Q], index of each token that attends, class by class
    rows: Tensor  # indices of all tokens of the rows that have such, class by class

    @classmethod
    def of(cls, number: NDArray[np.int64], lengths: NDArray[np.int64], starts: NDArray[np.int64]) -> Self:
        """number: the index of each token of each row, [N, longest]; starts: the position of the first that attends."""
        order = in_classes(lengths, starts)
        sizes, counts = np.unique(np.stack((lengths - starts, starts))[:, order], axis=1, return_counts=True)
        position, known = np.arange(number.shape[1]), number[order]
        inside = position < lengths[order, None]
        asked = inside & (position >= starts[order, None])
        classes = tuple(zip(counts.tolist(), *sizes.tolist(), strict=True))
        return cls(classes, torch.from_numpy(known[asked]), torch.from_numpy(known[inside]))

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of Q tokens within their rows: queries [Q, heads, D], keys and values [S, KV heads, D]."""
        keys, values = key.index_select(0, self.rows), value.index_select(0, self.rows)
        queries = torch.split(query, [count * own for count, own, _ in self.classes])
        known = [count * (own + before) for count, own, before in self.classes]
        parts = zip(self.classes, queries, torch.split(keys, known), torch.split(values, known), strict=True)
        return torch.cat([_of_class(*part) for part in parts])


def in_classes(lengths: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that are longer than their start, those of as many tokens behind and before it next to each other."""
    order: NDArray[np.int64] = np.lexsort((starts, lengths - starts))
    return order[(lengths > starts)[order]]


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Packed rows, of whose tokens S are distinct, counting a token with its prefix: rows [a b c] and [a b d] have S =
    4. The second row shares 2 tokens with the first and has 1 of its own."""

    every: Queries  # all S tokens, in their order
    last: Queries  # of the last layer, of which only some tokens are wanted: the rows' ends that hold those
    first: Tensor  # [S], packed position of each distinct token, class by class
    positions: Tensor  # [S], position in its row
    wanted: Tensor  # [W], the distinct tokens that are wanted, as indices into `last.tokens`
    places: Tensor  # [M], the index of each wanted token among the W

    @classmethod
    def of(cls, tokens: NDArray[np.int64], lengths: NDArray[np.int64], wanted: NDArray[np.int64]) -> Self:
        """Find the prefixes of packed rows: tokens [T], lengths [N], wanted positions [M]."""
        position = np.arange(lengths.max())
        inside = position < lengths[:, None]
        padded, place = np.full(inside.shape, -1), np.zeros(inside.shape, np.int64)
        padded[inside], place[inside] = tokens, np.arange(len(tokens))
        order = np.lexsort(padded.T[::-1])  # each row shares its longest prefix with the row before it
        padded, place, lengths = padded[order], place[order], lengths[order]
        inside = position < lengths[:, None]
        alike = np.logical_and.accumulate(padded[1:] == padded[:-1], axis=1).sum(axis=1)
        shared = np.minimum(np.append(0, alike), lengths)
        own, classed = lengths - shared, in_classes(lengths, shared)
        begins = np.zeros(len(own), np.int64)
        begins[classed] = np.cumsum(own[classed]) - own[classed]
        fresh = position >= shared[:, None]
        owner = np.maximum.accumulate(np.where(fresh, np.arange(len(own))[:, None], 0), axis=0)
        number = (begins - shared)[owner] + position  # index into S, [N, longest length]
        numbers = np.empty(len(tokens), np.int64)
        numbers[place[inside]] = number[inside]
        kept, places = np.unique(numbers[wanted], return_inverse=True)
        mine = (fresh & inside)[classed]
        first, positions = place[classed][mine], np.broadcast_to(position, mine.shape)[mine]
        starts = lengths.copy()
        np.minimum.at(starts, np.repeat(classed, own[classed])[kept], positions[kept])
        last = Queries.of(number, lengths, starts)
        found = np.empty(len(first), np.int64)
        found[last.tokens.numpy()] = np.arange(len(last.tokens))
        every = Queries.of(number, lengths, shared)
        columns = (torch.from_numpy(column) for column in (first, positions, found[kept], places))
        return cls(every, last, *columns)


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
    some = wanted if len(wanted) else wanted.new_zeros(1)  # a class of no rows cannot be attended to
    rows = Prefixes.of(tokens.numpy(), np.array(lengths), some.numpy())
    return states_of(model, tokens[rows.first], rows).index_select(0, rows.places)[: len(wanted)]


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


def states_of(model: Any, tokens: Tensor, rows: Prefixes) -> Tensor:
    """The last hidden states [W, H] of the distinct tokens [S] of packed rows, where they are wanted."""
    decoder = model.model
    turns = rows.positions[:, None, None] * decoder.rotary_emb.inv_freq  # [S, 1, D / 2]
    cos, sin = turns.cos(), turns.sin()
    states: Tensor = decoder.embed_tokens(tokens)
    for layer in decoder.layers:
        own, queries = layer.self_attn, rows.every
        heads = (-1, own.head_dim)
        normed = _normed(layer.input_layernorm, states)
        key = _rotated(_normed(own.k_norm, own.k_proj(normed).unflatten(-1, heads)), cos, sin)
        value = own.v_proj(normed).unflatten(-1, heads)
        if layer is decoder.layers[-1]:  # no later token reads its states
            queries = rows.last
            normed, cos, sin = (some.index_select(0, queries.tokens) for some in (normed, cos, sin))
        query = _rotated(_normed(own.q_norm, own.q_proj(normed).unflatten(-1, heads)), cos, sin)
        attended = queries.attended(query, key, value)
        if layer is decoder.layers[-1]:
            attended = attended.index_select(0, rows.wanted)
            states = states.index_select(0, queries.tokens[rows.wanted])
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
