"""Records of an episode: tasks, prompts, turns and trajectories, the first types of the data flow.

    Task ─▶ Episode ─▶ Trajectory ─▶ Group ─▶ Rows ─▶ Batch

A trajectory holds the token ids exactly as sampled and as given. They are never decoded and re-encoded. Groups of
episodes of one task have tokens (`Trajectory`) or not (`TrajectorySummary`). Group baselines need only what both have:
the driver of a cluster sees summaries, tokens stay elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from hashlib import blake2b
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT_TURNS = 64
"""Turns counted separately; the last one also counts all later turns."""


@dataclass(frozen=True, slots=True)
class ContextTokens:
    """Tokens that one author wrote in one turn of a step's episodes."""

    step: int
    turn: int  # from 0, below KEPT_TURNS
    author: int  # a value of Author
    tokens: int  # over all episodes
    episodes: int  # number of episodes that had the turn, whatever its author


class Author(IntEnum):
    """Who wrote a token. Only THINKING and ACTION tokens were sampled by the policy."""

    TEMPLATE = 0
    ENVIRONMENT = 1
    TOOL = 2
    THINKING = 3
    ACTION = 4


class StopReason(StrEnum):
    FINISHED = "finished"
    ILLEGAL_ACTION = "illegal_action"
    TURN_LIMIT = "turn_limit"
    CONTEXT_LIMIT = "context_limit"
    TRUNCATED_TURN = "truncated_turn"
    ENV_TRUNCATED = "env_truncated"  # by the environment, such as a time limit; not charged
    ENV_ERROR = "env_error"
    SAMPLER_ERROR = "sampler_error"


TRUNCATING = frozenset({StopReason.CONTEXT_LIMIT, StopReason.TRUNCATED_TURN})
"""Stop reasons where a token limit ended the episode, not the environment or the policy."""
FORFEITS = TRUNCATING | {StopReason.ILLEGAL_ACTION, StopReason.TURN_LIMIT}
"""Stop reasons that end an episode without a result, to the policy's charge."""
FAULTS = frozenset({StopReason.ENV_ERROR, StopReason.SAMPLER_ERROR})
"""Stop reasons that say nothing about the policy: the environment failed, or a server's reply was invalid."""

Labels = Mapping[int, Sequence[int]]
"""Turn (by its index in the trajectory) → the tokens that a teacher would have written."""


class Outcome(StrEnum):
    """How an episode ended for the agent. Tool tasks use only WIN (solved) and LOSS (not solved)."""

    WIN = "win"
    DRAW = "draw"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Task:
    env: str  # name in the environment registry
    seed: int  # of the environment: the same task is the same problem
    seat: int = 0  # the agent's player number; 0 moves first; always 0 in tool tasks
    opponent: str = ""  # name of the opponent; empty in tool tasks


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. Calls are equal where they came to the same, whatever time they took.

    Example:
        ToolCall("python", 1767225600.0, 0.2, 0.05, cores=1)
    """

    tool: str
    asked: float = field(compare=False)  # seconds since the epoch
    queue_seconds: float = field(compare=False)  # until it began
    run_seconds: float = field(compare=False)
    cores: int = field(default=0, compare=False)  # of its own
    fault: str = ""
    """`refused` by the tool, `timeouts`, `faults`, or "" for none."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One agent-environment round, as offsets into the trajectory's tokens.

    The policy saw tokens[context_start:action_start] and sampled tokens[action_start:end].
    Under full history context_start is 0 in every turn; a history policy that forgets moves it forward.
    """

    context_start: int
    prompt_start: int  # first new token in this turn's prompt
    action_start: int
    end: int
    action: str | None  # as parsed by the environment; None when the reply was invalid
    reward: float
    seconds: float  # wall time of the environment's answer
    summary: bool = False  # whether the policy was asked for a summary of the episode so far, not for an action


class EndedEpisode:
    """Properties derived from how an episode ended."""

    __slots__ = ()
    turns: tuple[Turn, ...]
    stop: StopReason

    @property
    def bootstrapped(self) -> bool:
        """Whether it could have gone on; the prompt that would have followed ends its tokens."""
        return self.stop is StopReason.ENV_TRUNCATED

    @property
    def num_values(self) -> int:
        """Values that a value head estimates: before each turn, and where bootstrapped after the last."""
        return len(self.turns) + self.bootstrapped

    @property
    def reward(self) -> float:
        """The episode's return: the undiscounted sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def truncated(self) -> bool:
        return self.stop in TRUNCATING


@dataclass(frozen=True, slots=True)
class Trajectory(EndedEpisode):
    """One episode, token by token. All arrays have the length of `tokens`.

    Example:
        tokens   = [user, "1", "2", end, assistant, "5", end]
        authors  = [TEMPLATE, ENVIRONMENT, ENVIRONMENT, TEMPLATE, TEMPLATE, ACTION, ACTION]
        logprobs = [0, 0, 0, 0, 0, -0.7, -0.01];  versions = [-1, -1, -1, -1, -1, 3, 3]
    """

    task: Task
    seed: int  # of the sampling and the opponent; differs within a group
    tokens: NDArray[np.int32]  # [T]
    authors: NDArray[np.uint8]  # [T], values of Author
    logprobs: NDArray[np.float32]  # [T], of the sampler, 0 where nothing was sampled
    versions: NDArray[np.int32]  # [T], weight version that sampled the token, -1 where nothing was sampled
    turns: tuple[Turn, ...]
    stop: StopReason
    outcome: Outcome
    illegal: int  # invalid replies, whether or not the episode continued
    error: str | None = None  # one line that names the fault when stop is one of FAULTS
    tools: tuple[ToolCall, ...] = field(default=(), compare=False)
    labels: Labels = field(default_factory=dict, compare=False)
    """Turn → the tokens that a teacher would have written, where it is asked in training; not in the file."""

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """Tokens sampled by the policy in place, [T]. A repeated token keeps its author, but not its version."""
        return self.versions >= 0

    def stretches(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int]]:
        """Author, start and end of each run of tokens by one author."""
        for author, run in groupby(range(len(self.tokens))[start:end], key=lambda place: int(self.authors[place])):
            places = list(run)
            yield author, places[0], places[-1] + 1

    @property
    def states(self) -> tuple[int, ...]:
        """Of each turn a number that stands for what it was asked anew: the tokens between the reply before and its
        own, without what the template wrote. Turns of a group with the same number were asked the same."""
        return tuple(self._asked(turn.prompt_start, turn.action_start) for turn in self.turns)

    def _asked(self, start: int, end: int) -> int:
        told = self.tokens[start:end][self.authors[start:end] != Author.TEMPLATE]
        return int.from_bytes(blake2b(told.astype("<i4").tobytes(), digest_size=7).digest())

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sampled(self) -> int:
        return int(np.count_nonzero(self.sampled))

    @property
    def version_sum(self) -> int:
        """Sum of the weight versions of the sampled tokens."""
        return int(self.versions[self.sampled].sum())

    @property
    def oldest(self) -> int:
        """Oldest of these versions; -1 if no token was sampled."""
        sampled = self.versions[self.sampled]
        return int(sampled.min()) if len(sampled) else -1

    @property
    def author_tokens(self) -> NDArray[np.int64]:
        """Tokens by turn and author, [turns, authors]; tokens after the last reply form a turn of their own."""
        ends = [turn.end for turn in self.turns]
        if not ends or ends[-1] < len(self.tokens):
            ends.append(len(self.tokens))
        turn = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
        counts = np.bincount(turn * len(Author) + self.authors, minlength=len(ends) * len(Author))
        return counts.reshape(len(ends), len(Author))


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """How one trajectory of T tokens and K turns was used in experience preparation and the update."""

    mask: NDArray[np.bool_]  # [T], tokens in the loss
    advantages: NDArray[np.float32]  # [K]
    logprobs: NDArray[np.float32]  # [T] at mask, of the learner after the update


@dataclass(frozen=True, slots=True)
class TrajectorySummary(EndedEpisode):
    """An episode without its tokens. See `Trajectory`."""

    task: Task
    seed: int
    turns: tuple[Turn, ...]
    stop: StopReason
    outcome: Outcome
    illegal: int
    states: tuple[int, ...]
    num_tokens: int
    num_sampled: int
    version_sum: int
    oldest: int
    tools: tuple[ToolCall, ...]
    author_tokens: NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle the array as a list: one summary per episode goes to the driver, and a pickled array is larger."""
        values = [getattr(self, field.name) for field in fields(self)]
        return _unpickled, (*values[:-1], self.author_tokens.tolist())


def _unpickled(*values: Any) -> TrajectorySummary:
    return TrajectorySummary(*(*values[:-1], np.array(values[-1], np.int64).reshape(-1, len(Author))))


def summary_of(trajectory: Trajectory) -> TrajectorySummary:
    return TrajectorySummary(**{field.name: getattr(trajectory, field.name) for field in fields(TrajectorySummary)})


Played = Trajectory | TrajectorySummary
"""An episode wherever its tokens are: what both have is enough for metrics and advantages."""
P_co = TypeVar("P_co", bound=Played, covariant=True)


@dataclass(frozen=True, slots=True)
class GroupOf(Generic[P_co]):
    """Episodes of one task, for group baselines."""

    trajectories: tuple[P_co, ...]

    @property
    def task(self) -> Task:
        return self.trajectories[0].task


PlayedGroups = Sequence[GroupOf[Played]]


class Group(GroupOf[Trajectory]):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    session: int  # names the episode, so that a sampler can keep its KV cache between turns
    tokens: Sequence[int]  # the whole context, exactly as given and sampled so far
    seed: int  # of the sampling: the same seed and context give the same tokens
    max_tokens: int
    greedy: bool = False  # take the most likely token each time
    policy: str = ""  # the policy that replies: the one that learns, or the opponent of this name


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampler's answer. `logprobs` are those of the distribution that was sampled from."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]  # weight version per token; they rise if weights were loaded in between
    finished: bool  # whether the last token is a stop token; if not, `max_tokens` cut the reply
    error: str | None = None  # why the sampler has no reply; ends the episode
