"""Compiled loops of the sampler's forward pass: each replaces many calls of torch on a few numbers."""

import math

import numpy as np
from numpy.typing import NDArray

from earl.compiled import compiled

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@compiled
def norm(states: Floats, weight: Floats, epsilon: float, normed: Floats) -> None:
    """RMSNorm (arXiv 1910.07467) of the rows of states [N, H] into `normed`."""
    rows, width = states.shape
    for row in range(rows):
        total = np.float32(0)
        for place in range(width):
            total += states[row, place] ** 2
        scale = np.float32(1 / math.sqrt(total / width + epsilon))
        for place in range(width):
            normed[row, place] = states[row, place] * scale * weight[place]


@compiled
def norm_and_turn(heads: Floats, weights: Floats, epsilon: float, queries: int, cos: Floats, sin: Floats) -> None:
    """In place, of heads [T, queries + 2 KV heads, D]: RMSNorm of queries and keys by `weights` [2, D], and rotary
    positions (arXiv 2104.09864), of which cos and sin are [T, D / 2]. The values, behind the keys, stay."""
    tokens, count, _ = heads.shape
    for token in range(tokens):
        turned = heads[token, : (queries + count) // 2]
        norm(turned[:queries], weights[0], epsilon, turned[:queries])
        norm(turned[queries:], weights[1], epsilon, turned[queries:])
        half = cos.shape[1]
        for head in turned:
            for place in range(half):
                first, second = head[place], head[place + half]
                head[place] = first * cos[token, place] - second * sin[token, place]
                head[place + half] = second * cos[token, place] + first * sin[token, place]


@compiled
def attend(heads: Floats, store: Floats, slots: Integers, positions: Integers, attended: Floats) -> None:
    """Attention of one token a row to those before it and itself, into `attended` [B, heads, D]. heads: its queries,
    keys and values [B, heads + 2 KV heads, D], of which the latter two are written into the store [2, slots, KV heads,
    positions, D] at its slot [B] and position [B]."""
    rows, queries, size = attended.shape
    shared, scale = store.shape[2], np.float32(size**-0.5)
    shares = np.empty(store.shape[3], np.float32)
    for row in range(rows):
        last, slot = positions[row], slots[row]
        for head in range(2 * shared):
            for number in range(size):
                store[head // shared, slot, head % shared, last, number] = heads[row, queries + head, number]
        for head in range(queries):
            query, made = heads[row, head], attended[row, head]
            keys, values = store[0, slot, head * shared // queries], store[1, slot, head * shared // queries]
            top, total = np.float32(-np.inf), np.float32(0)
            for place in range(last + 1):
                score = np.float32(0)
                for number in range(size):
                    score += query[number] * keys[place, number]
                shares[place] = score * scale
                top = max(top, shares[place])
            for place in range(last + 1):
                shares[place] = math.exp(shares[place] - top)
                total += shares[place]
            made[:] = 0
            for place in range(last + 1):
                share = shares[place] / total
                for number in range(size):
                    made[number] += share * values[place, number]


# Compiled, or loaded, when this is imported, so that no pass waits for it.
_one, _number = np.ones((1, 3, 2), np.float32), np.zeros(1, np.int64)
norm(_one[0], _one[0, 0], 1.0, _one[0])
norm_and_turn(_one, _one[0, :2], 1.0, 1, _one[0, :1, :1].copy(), _one[0, :1, :1].copy())
attend(_one, np.ones((2, 1, 1, 1, 2), np.float32), _number, _number, _one[:, :1].copy())
