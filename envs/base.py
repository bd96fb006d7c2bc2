"""The seam between worlds and everything else: a gymnasium environment with text in and text out."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, TypedDict

import gymnasium
from gymnasium import spaces

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII and the newline: the alphabet of observations and actions."""


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
