"""The base of the adapters of other libraries: an episode seen from one seat; an opponent has the other."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from earl.envs.base import MOST_TURNS, ForeignEnv, Info, outcome_of
from earl.errors import EarlError, translated
from earl.seeds import draws

OPPONENT = 1 << 63
"""Sets the opponent's draws apart from those of the environment, where one seed gives both."""


class Mover(Protocol):
    def act(self, env: Any, rng: Random) -> str:
        """An action of the player to move; `rng` is the only source of randomness."""


class Adapted(ForeignEnv, ABC):
    """An environment of another library. Where two play, `opponent` has the other seat; without one its moves are
    random. An action that is not listed is answered with the rule and changes nothing."""

    instructions = ""
    max_turns = MOST_TURNS
    over = truncated = False
    """Whether the episode has ended, and whether by truncation; `begin` and `apply` set them."""

    def __init__(self, seat: int = 0, opponent: Mover | None = None) -> None:
        self.seat, self._opponent = seat, opponent
        self.player = seat
        """The seat of the player to move; `begin` and `apply` set it."""
        self.legal: tuple[str, ...] = ()
        """The legal actions of the player to move; none after the end, or if they cannot be listed."""
        self._rng: Random | None = None

    @abstractmethod
    def begin(self, seed: int) -> None:
        """Start an episode whose chance comes from `seed` alone."""

    @abstractmethod
    def apply(self, action: str) -> None:
        """Carry out an action of the player to move."""

    @abstractmethod
    def observation(self) -> str:
        """What the player to move sees; after the end, what this seat sees."""

    def total(self) -> float:
        """The rewards of this seat so far: what `apply` has added up, unless the library does."""
        return self._total

    def actions(self) -> tuple[str, ...]:
        """What `legal` becomes when a turn begins."""
        return ()

    def random_action(self, rng: Random) -> str:
        return rng.choice(self.legal)

    def move_at_random(self) -> None:
        """Carry out a random action of the opponent."""
        self.legal = self.actions()
        self.apply(self.random_action(self._chance()))

    def rule(self, action: str) -> str | None:
        """List the legal actions unless `action` is one of them, or none are listed."""
        if action in self.legal or not self.legal:
            return None
        return f"illegal: choose one of {', '.join(self.legal)}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        """The first observation of this seat. `options["opponent_seed"]` seeds the opponent, else `seed` does."""
        own = Random().getrandbits(31) if seed is None else seed
        self._opponent_seed = options.get("opponent_seed", own) if options else own
        self._draw = draws(self._opponent_seed ^ OPPONENT).__next__
        self._rng = None
        self.over = self.truncated = False
        self._total = 0.0
        self.begin(own & 0x7FFFFFFF)
        self._given = 0.0
        self._go_on()
        return self.observation(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        if action not in self.legal and (broken := self.rule(action)) is not None:
            return broken, 0.0, False, False, {**self._info(), "illegal": broken}
        if not self.over:  # else the opponent's first move has ended it
            self.apply(action)
            self._go_on()
        before, self._given = self._given, self.total()
        over, truncated = self.over, self.truncated
        return self.observation(), self._given - before, over and not truncated, over and truncated, self._info()

    def _chance(self) -> Random:
        """The opponent's generator, one for each episode; `_draw` is a faster one."""
        self._rng = self._rng or Random(f"opponent {self._opponent_seed}")
        return self._rng

    def _go_on(self) -> None:
        """Let the opponent move while it is its turn."""
        while self.player != self.seat and not self.over:
            self._opponent_moves()
        self.legal = () if self.over else self.actions()

    def _opponent_moves(self) -> None:
        if self._opponent is None:
            return self.move_at_random()
        self.legal = self.actions()
        return self.apply(self._opponent.act(self, self._chance()))

    def _info(self) -> Info:
        """Beside an observation."""
        if self.legal:
            return {"role": "user", "legal_actions": self.legal}
        if self.over and not self.truncated:
            return {"role": "user", "outcome": outcome_of(self.total())}
        return {"role": "user"}


def factory(adapter: Callable[..., object], name: str, players: int) -> Callable[..., object]:
    """A factory of an environment for `players`; for two it has the options `seat` and `opponent`. Other options go to
    the library. Raises EarlError for three or more."""

    def made(**options: Any) -> object:
        with translated(lambda fault: f"{name!r} cannot be made with {options}: {fault}; mend them or install it"):
            return adapter(name, **options)

    def seated(seat: int = 0, opponent: Mover | None = None, **options: Any) -> object:
        return made(seat=seat, opponent=opponent, **options)

    if players > 2:
        raise EarlError(f"{name!r} is for {players} players; choose one for one or two")
    return seated if players == 2 else made
