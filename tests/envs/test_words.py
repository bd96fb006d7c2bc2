from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.agents.scripted.registry import agent, names
from earl.envs import registry
from earl.envs.games.words import marks, words
from earl.errors import EarlError


def naive_marks(guess: str, secret: str) -> str:
    """Letters at their places are crossed out first; then each other letter crosses out one that is left."""
    found, left = ["-"] * len(guess), list(secret)
    for place, letter in enumerate(guess):
        if secret[place] == letter:
            found[place] = "*"
            left.remove(letter)
    for place, letter in enumerate(guess):
        if found[place] == "-" and letter in left:
            found[place] = "+"
            left.remove(letter)
    return "".join(found)


def test_marks_of_letters_that_come_twice():
    assert marks("geese", "these") == "--***"  # both e of the word stand at their places
    assert marks("eerie", "these") == "+---*"
    assert marks("hello", "hello") == "*****"


@given(st.text("abc", min_size=5, max_size=5), st.text("abc", min_size=5, max_size=5))
def test_marks_are_those_of_crossing_out(guess, secret):
    assert marks(guess, secret) == naive_marks(guess, secret)


def test_the_list_has_small_letters_and_no_word_twice():
    listed = [word for length in (3, 4, 5) for word in words(length)]
    assert len(listed) == len(set(listed)) > 1000
    assert all(word.isascii() and word.islower() and word.isalpha() for word in listed)


def test_only_a_word_that_is_found_pays():
    env = registry.make("words", length=3, guesses=2)
    assert env.reset(seed=4) == ("3 letters, 2 guesses", {"role": "user"})
    secret = Random("words 4").choice(words(3))
    for wrong in ("", "ab", "abcd", "Abc", "a c", "äbc", "abc\n"):
        assert env.step(wrong)[1:4] == (0.0, False, False) and env.rule(wrong)
    assert env.step("zzz") == ("zzz ---\n1 left", 0.0, False, False, {"role": "user"})
    found = env.step(secret)
    assert found == (f"{secret} ***\nfound", 1.0, True, False, {"role": "user", "outcome": "win"})
    env.reset(seed=4)
    env.step("zzz")
    assert env.step("zzz")[0] == f"zzz ---\nit was {secret}"


@pytest.mark.parametrize("length", [3, 4, 5])
def test_the_solver_finds_most_words(length):
    env, won = registry.make("words", length=length, guesses=8), 0
    for seed in range(50):
        env.reset(seed=seed)
        rng, ended = Random(seed), False
        while not ended:
            *_, ended, _, info = env.step(agent("solver", "words").act(env, rng))
        won += info["outcome"] == "win"
    assert won >= 35


def test_teachers_and_options_that_mean_nothing_are_refused():
    assert names("words") == ("random", "solver")
    with pytest.raises(EarlError, match="BoardGameEnv has no solve, so this teacher cannot act in it"):
        agent("solver", "words").act(registry.make("tictactoe"), Random(0))
    for options in ({"length": 6}, {"guesses": 0}):
        with pytest.raises(EarlError, match="words has no"):
            registry.make("words", **options)
