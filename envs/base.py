"""The seam between worlds and everything else: a gymnasium environment with text in and text out."""

import reprlib
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from earl.errors import EarlError

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII and the newline: the alphabet of observations and actions."""

LARGEST_REWARD = 1e9
"""Of either sign: next to larger ones, rewards of ordinary size are lost to rounding, and squares overflow."""
MOST_TURNS = 10_000
"""That an environment may say its episodes take."""
ROLES = ("user", "tool")
OUTCOMES = ("win", "draw", "loss")


class Info(TypedDict, total=False):
    """What reset and step tell beside the observation."""

    role: str
    """Who speaks the observation in the chat: "user" or "tool"."""
    legal_actions: tuple[str, ...]
    """Every legal action, where they can be listed."""
    illegal: str
    """The rule that the last action broke; absent when it was legal."""
    outcome: str
    """"win", "draw" or "loss", once the episode has ended by itself."""


@dataclass(frozen=True, slots=True)
class Board:
    """A world that can be drawn: a grid of cells.

    Example:
        Board(cells=(("X", "", ""), ("", "O", ""), ("", "", "")), marked=(0, 0))   # X has just been put there
    """

    cells: tuple[tuple[str, ...], ...]
    """The text of each cell, row by row from the top; empty cells are empty texts."""
    marked: tuple[int, int] | None = None
    """Row and column of what the action put down; None when no action is shown."""


class TextEnv(gymnasium.Env[str, str]):
    """A world that speaks text. One object plays one episode; its only randomness comes from its seed.

    `step` never guesses: an action that breaks the rule leaves the state as it was, costs nothing, and is
    answered with the rule in the observation and in `info["illegal"]`. The agent side counts retries.
    """

    instructions: str
    """The rules in plain words, for models that have not been trained on this environment."""
    max_turns: int
    """No episode needs more turns than this when every action is legal."""

    observation_space = spaces.Text(max_length=4096, min_length=0, charset=CHARACTERS)
    action_space = spaces.Text(max_length=4096, min_length=0, charset=CHARACTERS)

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        """Start the episode. `options["opponent_seed"]` seeds an opponent apart from the problem."""

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """Answer an action: observation, reward, terminated, truncated, info."""

    @abstractmethod
    def rule(self, action: str) -> str | None:
        """The rule that `action` breaks, in words that help; None when it is legal."""

    def draw(self, observation: str, action: str | None = None) -> Board | None:
        """The board that an observation of this environment shows, after `action` where one is given.

        None for worlds without a board, for any other text, and for an action that cannot be taken there.
        """
        del observation, action
        return None


def checked_text(what: str, text: object, longest: int) -> str:
    """A text of an environment. Raises EarlError unless it is a str of at most `longest` characters in UTF-8."""
    if not isinstance(text, str):
        raise EarlError(f"{what} is {reprlib.repr(text)}, not a text; return a str")
    if len(text) > longest:
        raise EarlError(
            f"{what} has {len(text)} characters, more than the {longest} that context.limit allows; "
            "return a shorter text or raise context.limit"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        odd = text[error.start]
        raise EarlError(f"{what} holds {odd!r}, half a character; return text that UTF-8 can encode") from error
    return text


def checked_turns(turns: object) -> int:
    """An environment's `max_turns`. Raises EarlError unless it is a whole number within 1 … MOST_TURNS."""
    if not isinstance(turns, Integral) or not 1 <= int(turns) <= MOST_TURNS:
        raise EarlError(
            f"max_turns is {reprlib.repr(turns)}, not a whole number within 1 … {MOST_TURNS}; set agent.max_turns"
        )
    return int(turns)


def checked_reset(returned: Any, longest: int) -> tuple[str, Info]:
    """What `reset` returned. Raises EarlError that names what does not keep the contract."""
    observation, info = returned
    return checked_text("the observation", observation, longest), _checked_info(info)


def checked_step(returned: Any, longest: int) -> tuple[str, float, bool, bool, Info]:
    """What `step` returned, its numbers as plain ones. Raises EarlError that names what does not keep the contract."""
    observation, reward, terminated, truncated, info = returned
    checked_text("the observation", observation, longest)
    if not _is_reward(reward):
        raise EarlError(
            f"the reward is {reprlib.repr(reward)}, not a finite number within ±{LARGEST_REWARD:g}; "
            "return a float, scaled where it is larger"
        )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise EarlError(f"{name} is {reprlib.repr(flag)}; return True or False")
    told = _checked_info(info)
    if terminated and told.get("outcome") not in OUTCOMES:
        outcome = reprlib.repr(told.get("outcome"))
        raise EarlError(f"info['outcome'] is {outcome} at the end; return one of {', '.join(OUTCOMES)}")
    return observation, float(reward), bool(terminated), bool(truncated), told


def _is_reward(value: object) -> bool:
    if isinstance(value, int):  # too long a one is no float
        return abs(value) <= LARGEST_REWARD
    return isinstance(value, Real | np.bool_) and abs(float(value)) <= LARGEST_REWARD


def _checked_info(info: object) -> Info:
    if not isinstance(info, dict):
        raise EarlError(f"info is {reprlib.repr(info)}; return a dict")
    if info.get("role", "user") not in ROLES:
        raise EarlError(f"info['role'] is {reprlib.repr(info['role'])}; return one of {', '.join(ROLES)}")
    return cast(Info, info)
