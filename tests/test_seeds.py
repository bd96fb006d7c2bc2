from itertools import islice

import numpy as np
import pytest

from earl.seeds import derive, draws, uniforms

MASK = (1 << 64) - 1


def splitmix64(seed, count):
    """The published generator, in plain integers (Vigna's splitmix64.c)."""
    state, numbers = seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        numbers.append(z ^ (z >> 31))
    return numbers


def test_the_plain_generator_gives_the_published_numbers():
    # Of seed 1234567, as listed at rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64.
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1, 1234567, (1 << 63) - 1, MASK])
def test_uniforms_are_the_top_53_bits_of_the_generator(seed):
    expected = [(number >> 11) / 2**53 for number in splitmix64(seed, 20)]
    drawn = [float(uniforms(np.array([seed], dtype=np.uint64), counter)[0]) for counter in range(20)]
    assert drawn == expected == list(islice(draws(seed), 20))


def test_a_seeds_numbers_do_not_depend_on_its_neighbours():
    seeds = np.array([derive("seed", i) for i in range(100)], dtype=np.uint64)
    together = uniforms(seeds, 5)
    assert together.shape == (100,)
    assert together[37] == uniforms(seeds[37:38], 5)[0]
    assert ((together >= 0) & (together < 1)).all()


def test_uniforms_are_uniform_over_seeds_and_over_counters():
    # 20,000 numbers in 20 cells: chi-square with 19 degrees of freedom passes 43.8 once in 1,000.
    seeds = np.array([derive("chi-square", i) for i in range(20_000)], dtype=np.uint64)
    by_seed = uniforms(seeds, 0)
    by_counter = np.array([uniforms(seeds[:1], counter)[0] for counter in range(20_000)])
    for numbers in (by_seed, by_counter):
        counts = np.bincount((numbers * 20).astype(int), minlength=20)
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8


def test_derived_seeds_are_named_by_all_their_parts():
    names = [
        (1, "rollout", 2),
        (1, "rollout", 3),
        (2, "rollout", 2),
        ("rollout", 1, 2),
        (1, "rollout"),
        (12,),
    ]
    seeds = [derive(*parts) for parts in names]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert derive(1, "rollout", 2) == derive("1", "rollout", "2")


def test_derived_seeds_stay_the_same_from_version_to_version():
    # blake2b is specified: a run of an earlier earl resumes with the same draws.
    assert derive(0, "rollout", 1, "episode", 2) == 4216508414058593229
