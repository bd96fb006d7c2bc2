"""How contexts grow, in numbers that are kept: who wrote how much, in which turn."""

from dataclasses import dataclass

KEPT_TURNS = 64
"""Turns that are kept apart; the last of them holds all later ones too."""


@dataclass(frozen=True, slots=True)
class ContextTokens:
    """Tokens that one author wrote in one turn of a step's episodes.

    Example:
        ContextTokens(step=80, turn=2, author=Author.ACTION, tokens=652, episodes=326)   # 2 tokens in each
    """

    step: int
    turn: int
    """Counted from 0, below KEPT_TURNS."""
    author: int
    """A value of Author."""
    tokens: int
    """Over all episodes."""
    episodes: int
    """How many episodes had the turn, whoever wrote in it."""
