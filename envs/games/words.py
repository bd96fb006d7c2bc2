"""A word is guessed by marks, as in Mastermind: a task for one seat, with a list of common words of its own."""

from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from earl.envs.base import Info, TextEnv
from earl.errors import EarlError

LIST = Path(__file__).with_name("words.txt")
LENGTHS = (3, 4, 5)
MOST_GUESSES = 100
RIGHT, ELSEWHERE, ABSENT = "*+-"


@cache
def words(length: int) -> tuple[str, ...]:
    return tuple(word for word in LIST.read_text(encoding="ascii").split() if len(word) == length)


def marks(guess: str, secret: str) -> str:
    """A mark for each letter of a guess. A letter that stands in the secret once is marked once, at its place first."""
    left = Counter(own for own, other in zip(secret, guess, strict=True) if own != other)
    found = []
    for own, letter in zip(secret, guess, strict=True):
        if own == letter:
            found.append(RIGHT)
        elif left[letter]:
            left[letter] -= 1
            found.append(ELSEWHERE)
        else:
            found.append(ABSENT)
    return "".join(found)


class WordsEnv(TextEnv):
    """Any letters may be guessed. The last step is rewarded with 1 if the word was found."""

    def __init__(self, length: int = 4, guesses: int = 8) -> None:
        if length not in LENGTHS or not 1 <= guesses <= MOST_GUESSES:
            raise EarlError(
                f"words has no {length} letters and {guesses} guesses; use one of {', '.join(map(str, LENGTHS))} "
                f"letters and 1 … {MOST_GUESSES} guesses"
            )
        self.length, self.max_turns = length, guesses
        self.instructions = (
            f"Find a common English word of {length} letters within {guesses} guesses. Each guess is answered with a "
            f"mark for each letter: {RIGHT} at its right place, {ELSEWHERE} elsewhere in the word, {ABSENT} not in the "
            f"word, or not so often. Answer with {length} small letters and nothing else."
        )
        self.guesses: list[tuple[str, str]] = []
        """The guesses so far, and their marks."""
        self._secret = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        self.keep_seed(seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        self._secret, self.guesses = Random(f"words {seed}").choice(words(self.length)), []
        return f"{self.length} letters, {self.max_turns} guesses", {"role": "user"}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """Raises EarlError before `reset` and after the end."""
        if not self._secret:
            raise EarlError("step() outside an episode; call reset() to begin one")
        if (broken := self.rule(action)) is not None:
            return broken, 0.0, False, False, {"role": "user", "illegal": broken}
        self.guesses.append((action, marks(action, self._secret)))
        left = self.max_turns - len(self.guesses)
        shown = f"{action} {self.guesses[-1][1]}"
        if action != self._secret and left:
            return f"{shown}\n{left} left", 0.0, False, False, {"role": "user"}
        secret, self._secret = self._secret, ""
        if action == secret:
            return f"{shown}\nfound", 1.0, True, False, {"role": "user", "outcome": "win"}
        return f"{shown}\nit was {secret}", 0.0, True, False, {"role": "user", "outcome": "loss"}

    def rule(self, action: str) -> str | None:
        if len(action) == self.length and all(letter in ascii_lowercase for letter in action):
            return None
        return f"illegal: answer with {self.length} small letters"

    def random_action(self, rng: Random) -> str:
        """Any word of the list."""
        return rng.choice(words(self.length))

    def solve(self, rng: Random) -> str:
        """Any word that the marks allow."""
        return rng.choice(self.possible())

    def possible(self) -> list[str]:
        """The words that all marks so far allow."""
        return [word for word in words(self.length) if all(marks(guess, word) == own for guess, own in self.guesses)]
