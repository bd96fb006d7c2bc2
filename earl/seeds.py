"""Stateless randomness: each draw's seed is derived from the names of what it is for."""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def derive(*parts: int | str) -> int:
    """A seed of 63 bits derived from `parts`, such as (run_seed, "rollout", step, episode)."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def uniforms(seeds: NDArray[np.uint64], counter: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """One uniform number in [0, 1) per seed and counter: the SplitMix64 generator of the seed at that position.
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    with np.errstate(over="ignore"):
        z: NDArray[np.uint64] = seeds + np.uint64(0x9E3779B97F4A7C15) * np.asarray(counter + 1, np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draws(seed: int) -> Iterator[float]:
    """The `uniforms` of one seed, one after the other. Seeding costs nothing, where a `Random` takes 5 us."""
    low = (1 << 64) - 1
    while True:
        seed = seed + 0x9E3779B97F4A7C15 & low
        z = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & low
        z = (z ^ z >> 27) * 0x94D049BB133111EB & low
        yield ((z ^ z >> 31) >> 11) * 2.0**-53
