"""What an episode leaves behind: the first nouns of the flow.

    Task ─▶ Episode ─▶ Trajectory ─▶ Group ─▶ Rows ─▶ Batch

A trajectory holds the token ids exactly as sampled and as given. Nothing in it is ever decoded and re-encoded.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

# How contexts grow, in numbers that are kept: who wrote how much, in which turn.

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


class Author(IntEnum):
    """Who wrote a token. Only THINKING and ACTION tokens were sampled by the policy."""

    TEMPLATE = 0
    ENVIRONMENT = 1
    TOOL = 2
    THINKING = 3
    ACTION = 4


FIRST_POLICY_AUTHOR = Author.THINKING
"""Authors from here on are the policy."""


class StopReason(StrEnum):
    """Why an episode ended."""

    FINISHED = "finished"
    ILLEGAL_ACTION = "illegal_action"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    TRUNCATED_TURN = "truncated_turn"
    ENV_ERROR = "env_error"
    SAMPLER_ERROR = "sampler_error"


TRUNCATING = frozenset({StopReason.CONTEXT_LIMIT, StopReason.TRUNCATED_TURN})
"""The stop reasons where a token limit, not the environment or the policy, ended the episode."""
FAULTS = frozenset({StopReason.ENV_ERROR, StopReason.SAMPLER_ERROR})
"""The stop reasons where the episode says nothing of the policy: its environment failed, or a server's reply."""


class Outcome(StrEnum):
    """How an episode ended for the agent. Tool tasks know WIN (solved) and LOSS (not solved) only."""

    WIN = "win"
    DRAW = "draw"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Task:
    """Where an episode starts.

    Example:
        Task(env="tictactoe", seed=7, seat=1, opponent="heuristic")   # the agent moves second
    """

    env: str
    """Name in the environment registry."""
    seed: int
    """Seeds the environment: the same task is the same problem."""
    seat: int = 0
    """Which player the agent is; 0 moves first. Always 0 in tool tasks."""
    opponent: str = ""
    """Name of the scripted opponent; empty in tool tasks."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One agent-environment round, as offsets into the trajectory's tokens.

    The policy saw tokens[context_start:action_start] and sampled tokens[action_start:end].
    Under full history context_start is 0 in every turn; a history policy that forgets moves it forward.
    """

    context_start: int
    prompt_start: int
    """First token that is new in this turn's prompt."""
    action_start: int
    end: int
    action: str | None
    """The action as the environment took it; None when the reply broke the rule."""
    reward: float
    seconds: float
    """Wall time the environment took to answer."""
    summary: bool = False
    """Whether the policy was asked for a summary of the episode so far, not for an action."""


class Ended:
    """What follows from how an episode went."""

    __slots__ = ()
    turns: tuple[Turn, ...]
    stop: StopReason

    @property
    def reward(self) -> float:
        """The episode's return: its turns' rewards, undiscounted."""
        return sum(turn.reward for turn in self.turns)

    @property
    def truncated(self) -> bool:
        """Whether a token limit ended the episode."""
        return self.stop in TRUNCATING


@dataclass(frozen=True, slots=True)
class Trajectory(Ended):
    """One episode, token by token. All arrays have the length of `tokens`.

    Example:
        tokens   = [user, "1", "2", end, assistant, "5", end]
        authors  = [TEMPLATE, ENVIRONMENT, ENVIRONMENT, TEMPLATE, TEMPLATE, ACTION, ACTION]
        logprobs = [0, 0, 0, 0, 0, -0.7, -0.01];  versions = [-1, -1, -1, -1, -1, 3, 3]
    """

    task: Task
    seed: int
    """Seeds the sampling of this episode and its opponent; differs within a group."""
    tokens: NDArray[np.int32]  # [T]
    authors: NDArray[np.uint8]  # [T], values of Author
    logprobs: NDArray[np.float32]  # [T], the sampler's, 0 where nothing was sampled
    versions: NDArray[np.int32]  # [T], weight version that sampled the token, -1 where nothing was sampled
    turns: tuple[Turn, ...]
    stop: StopReason
    outcome: Outcome
    illegal: int
    """Replies that broke the rule, whether or not the episode went on."""
    error: str | None = None
    """One line that names the fault when stop is one of FAULTS."""

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """Tokens that the policy sampled at their place, [T]. What is given again keeps its author, not its version."""
        return self.versions >= 0

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.tokens)

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled at their place."""
        return int(np.count_nonzero(self.sampled))

    @property
    def version_sum(self) -> int:
        """The versions of the weights that sampled them, added up."""
        return int(self.versions[self.sampled].sum())

    @property
    def oldest(self) -> int:
        """The first of these versions; -1 where nothing was sampled."""
        sampled = self.versions[self.sampled]
        return int(sampled.min()) if len(sampled) else -1

    @property
    def author_tokens(self) -> NDArray[np.int64]:
        """[turns, authors], tokens of each turn; what came after the last reply belongs to a turn of its own."""
        ends = [turn.end for turn in self.turns]
        if not ends or ends[-1] < len(self.tokens):
            ends.append(len(self.tokens))
        turn = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
        counts = np.bincount(turn * len(Author) + self.authors, minlength=len(ends) * len(Author))
        return counts.reshape(len(ends), len(Author))


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """What experience preparation and the update made of one trajectory of T tokens and K turns.

    Example:
        mask = [0 0 0 0 0 1 1];  advantages = [0.8];  logprobs = [0, 0, 0, 0, 0, -0.6, -0.01]
    """

    mask: NDArray[np.bool_]  # [T], tokens that were learned from
    advantages: NDArray[np.float32]  # [K]
    logprobs: NDArray[np.float32]  # [T] at mask, the learner's after the update
