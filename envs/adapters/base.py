"""The base of the adapters of other libraries: an episode seen from one seat; an opponent has the other."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from earl.envs.base import MOST_TURNS
from earl.errors import EarlError, translated


class Mover(Protocol):
    def act(self, env: Any, rng: Random) -> str:
        """An action of the player to move; `rng` is the only source of randomness."""


class Adapted(ABC):
    """An environment of another library, for `earl.envs.base.Plain`. Where two play, `opponent` has the other seat;
    without one its moves are random. An action that is not listed is answered with the rule and changes nothing."""

    instructions = ""
    max_turns = MOST_TURNS
    truncated = False

    def __init__(self, seat: int = 0, opponent: Mover | None = None) -> None:
        self.seat, self._opponent = seat, opponent

    @abstractmethod
    def begin(self, seed: int) -> None:
        """Start an episode whose chance comes from `seed` alone."""

    @abstractmethod
    def apply(self, action: str) -> None:
        """Carry out an action of the player to move."""

    @abstractmethod
    def observation(self) -> str:
        """What the player to move sees; after the end, what this seat sees."""

    @abstractmethod
    def total(self) -> float:
        """The rewards of this seat so far."""

    @abstractmethod
    def over(self) -> bool:
        """Whether the episode has ended, by itself or by truncation."""

    def player(self) -> int:
        """The seat of the player to move."""
        return self.seat

    def actions(self) -> tuple[str, ...]:
        """The legal actions of the player to move; none if they cannot be listed."""
        return ()

    def random_action(self, rng: Random) -> str:
        return rng.choice(self.actions())

    def move_at_random(self, rng: Random) -> None:
        """Carry out a random action of the player to move."""
        self.apply(self.random_action(rng))

    def rule(self, action: str) -> str | None:
        """List the legal actions unless `action` is one of them, or none are listed."""
        legal = self._legal_now
        return f"illegal: choose one of {', '.join(legal)}" if legal and action not in legal else None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first observation of this seat. `options["opponent_seed"]` seeds the opponent, else `seed` does."""
        own = Random().getrandbits(31) if seed is None else seed
        self._chance = Random(f"opponent {(options or {}).get('opponent_seed', own)}")
        self.truncated = False
        self.begin(own & 0x7FFFFFFF)
        self._given = 0.0
        self._opponent_moves()
        return self.observation(), self._shown()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        broken = self.rule(action)
        if broken is not None:
            return broken, 0.0, False, False, {**self._shown(), "illegal": broken}
        over = self.over()  # the opponent's first move may have ended it
        if not over:
            self.apply(action)
            over = self._opponent_moves()
        total = self.total()
        reward, self._given = total - self._given, total
        return self.observation(), reward, over and not self.truncated, over and self.truncated, self._shown()

    def _opponent_moves(self) -> bool:
        """Let the opponent move while it is its turn; returns whether the episode is over."""
        while not (over := self.over()) and self.player() != self.seat:
            if self._opponent:
                self._legal_now = self.actions()
                self.apply(self._opponent.act(self, self._chance))
            else:
                self.move_at_random(self._chance)
        self._legal_now = () if over else self.actions()
        return over

    def _shown(self) -> dict[str, Any]:
        """The info beside an observation."""
        return {"role": "user", "legal_actions": self._legal_now} if self._legal_now else {"role": "user"}


def factory(adapter: Callable[..., object], name: str, players: int) -> Callable[..., object]:
    """What makes an environment of `players`; two have the options `seat` and `opponent`. Others go to the library.
    Raises EarlError for three or more."""

    def made(options: dict[str, Any]) -> object:
        with translated(lambda fault: f"{name!r} cannot be made with {options}: {fault}; mend them or install it"):
            return adapter(name, **options)

    def alone(**options: Any) -> object:
        return made(options)

    def seated(seat: int = 0, opponent: Mover | None = None, **options: Any) -> object:
        return made({"seat": seat, "opponent": opponent, **options})

    if players > 2:
        raise EarlError(f"{name!r} is for {players} players; choose one for one or two")
    return seated if players == 2 else alone
