"""The agent loop of one episode, without I/O: it gives a prompt, takes the completion, and continues.

prompt() ──▶ sampler ──▶ receive(completion) ──▶ environment ──▶ prompt() … ──▶ trajectory()
"""

import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.agents.chat import Chat, Piece
from earl.agents.parser import Unreadable, parse, parser, unclosed
from earl.agents.scripted.base import Agent
from earl.agents.template import Message
from earl.config import AgentConfig
from earl.envs.base import OTHER_MOVES, Info, TextEnv, checked_reset, checked_step, checked_text, checked_turns
from earl.envs.games.base import State
from earl.envs.games.env import BoardGameEnv, SharedSeat
from earl.errors import boundary
from earl.seeds import derive
from earl.trajectory import Author, Completion, Outcome, Prompt, StopReason, Task, ToolCall, Trajectory, Turn

SUMMARY_REQUEST = "Summarise what matters so far."


@dataclass(frozen=True, slots=True)
class PastTurn:
    """The message before a reply, and the reply's offsets into the episode's tokens."""

    message: Message
    start: int
    end: int
    closed: bool  # whether the reply ended with the end-of-turn token


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """Which part of an episode the model sees in its next prompt; "last_turns:2" gives (kept=2, summary=None).

    full           everything: the context grows over the turns
    last_turns:K   the last K rounds and the new observation
    board_only     only the new observation: last_turns:0
    summary:K      after every K rounds the model writes a summary, which replaces everything before it
    """

    kept: int | None  # rounds that the next prompt keeps; None: all
    summary: int | None  # rounds after which a summary is requested; None: never

    @classmethod
    def of(cls, name: str) -> "HistoryPolicy":
        """Parse a name that the recipe has validated."""
        kind, _, size = name.partition(":")
        if kind == "summary":
            return cls(None, int(size))
        return cls({"full": None, "board_only": 0}.get(kind, int(size or 0)), None)


@dataclass(slots=True)
class TokenLog:
    """An episode's tokens as given and sampled, never encoded twice: four columns of equal length that only grow."""

    tokens: list[int] = field(default_factory=list)
    authors: bytearray = field(default_factory=bytearray)  # who wrote each token, see `earl.trajectory.Author`
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))  # of the sampler; 0 where nothing was sampled
    versions: "array[int]" = field(default_factory=lambda: array("i"))  # of the sampling weights; -1 where none were

    def __len__(self) -> int:
        return len(self.tokens)

    def give(self, piece: Piece) -> None:
        """Append tokens that the policy did not write."""
        self.tokens += piece.tokens
        self.authors += piece.authors
        self.logprobs += array("f", (0.0,)) * len(piece.tokens)
        self.versions += array("i", (-1,)) * len(piece.tokens)

    def write(self, completion: Completion, authors: bytes) -> None:
        """Append tokens that the policy sampled."""
        self.tokens += completion.tokens
        self.authors += authors
        self.logprobs.extend(completion.logprobs)
        self.versions.extend(completion.versions)

    def piece(self, start: int, end: int) -> Piece:
        return Piece(tuple(self.tokens[start:end]), bytes(self.authors[start:end]))

    def columns(self) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.float32], NDArray[np.int32]]:
        """As a `Trajectory` has them: tokens, authors, log-probs and versions."""
        authors = np.frombuffer(bytes(self.authors), np.uint8)
        return np.array(self.tokens, np.int32), authors, np.array(self.logprobs), np.array(self.versions)


SUMMARY_TOKENS = 64  # of one summary, unless the recipe says otherwise
DELAY_SPREAD = 1.25
"""Standard deviation of a simulated wait's logarithm: the mean is 2.2 times the median, one in a hundred 18 times."""
LEAST_LONGEST, TOKEN_CHARACTERS = 4096, 16
"""Longest text of an environment, in characters: the larger of LEAST_LONGEST and TOKEN_CHARACTERS per token of the
context limit. A longer text cannot fit, and is refused before it is tokenised."""


class Rules(AgentConfig):
    """How the agent plays: the recipe's [agent], under the present context limit."""

    context_limit: int = 256  # tokens of the longest context, the reply included


class Episode:
    """The agent loop of one episode; needs neither torch nor the sampler. `delay_seconds` is the median of simulated
    waits. A first prompt that leaves no room for a reply is a fault, as one of the environment's reset is."""

    policy = ""
    """The policy that replies, see `earl.trajectory.Prompt`."""
    teacher: Agent | None = None
    """Labels each turn of the policy with what it would reply."""

    def __init__(
        self,
        env: TextEnv,
        chat: Chat,
        rules: Rules,
        task: Task,
        seed: int,
        session: int,
        delay_seconds: float = 0.0,
    ) -> None:
        self.env, self.chat, self.rules, self.task = env, chat, rules, task
        self.seed, self.session, self._delay_seconds = seed, session, delay_seconds
        self.token_log = TokenLog()
        self.turns: list[Turn] = []
        self.illegal = 0
        self.tools: list[ToolCall] = []
        self.labels: dict[int, Sequence[int]] = {}
        self.stop: StopReason | None = None
        self.outcome = Outcome.LOSS
        self.error: str | None = None
        self._longest = max(LEAST_LONGEST, TOKEN_CHARACTERS * rules.context_limit)
        self._max_turns, self._instructions, self.observation = rules.max_turns or 0, "", ""
        self._context_start = self._prompt_start = 0
        self._history = HistoryPolicy.of(rules.history)
        self._rounds: list[PastTurn] = []  # of the open context, as far as the history policy keeps them
        self._after_summary: Message | None = None  # what the environment said before a summary was asked for
        self.positions: list[State] = []  # of a board before each action
        self._acted: tuple[int, str, float] | None = None  # start of the reply, action, seconds: not answered yet
        self._begin()

    @property
    def summarising(self) -> bool:
        return self._after_summary is not None

    def _begin(self) -> None:
        with boundary() as fault:
            returned = self.env.reset(seed=self.task.seed, options={"opponent_seed": self.seed})
            self.observation, _ = checked_reset(returned, self._longest)
            self._max_turns = self._max_turns or checked_turns(self.env.max_turns) + self.rules.retries
            if self.rules.instructions:
                self._instructions = checked_text("instructions", self.env.instructions, self._longest)
        if fault.message:
            self.fail(fault.message)
            return
        self._task, self._message = self.observation, {"role": "user", "content": self.observation}
        self.token_log.give(self.chat.opening(self._instructions, self.observation))
        if len(self.token_log) >= self.rules.context_limit:
            self.fail(
                f"context.limit is {self.rules.context_limit} tokens, but the first prompt of "
                f"{self.task.env} alone takes {len(self.token_log)} and a reply needs room; "
                f"set context.limit to at least {len(self.token_log) + self.rules.max_turn_tokens}"
            )

    @property
    def reply_tokens(self) -> int:
        """Token limit of the reply to this prompt, if the context has room for it."""
        return self.rules.summary_tokens or SUMMARY_TOKENS if self.summarising else self.rules.max_turn_tokens

    def prompt(self) -> Prompt:
        context = self.token_log.tokens[self._context_start :] if self._context_start else self.token_log.tokens
        # Keyed by the length so far: every turn draws its own noise, whatever its context.
        seed = derive(self.seed, len(self.token_log))
        return Prompt(self.session, context, seed, min(self.reply_tokens, self._room()), policy=self.policy)

    def delay(self) -> float:
        """Seconds that the driver waits before the environment answers this prompt's completion."""
        if not self._delay_seconds:
            return 0.0
        rng = Random(derive(self.seed, "delay", len(self.token_log)))
        return self._delay_seconds * rng.lognormvariate(0.0, DELAY_SPREAD)

    def receive(self, completion: Completion) -> None:
        """Take the reply and continue to the next prompt or to the end."""
        if completion.error is not None:
            return self._end(StopReason.SAMPLER_ERROR, error=completion.error)
        start = len(self.token_log)
        if self._after_summary is not None:
            return self._take_summary(start, completion)
        if self.teacher is not None and not self._label_turn(self.teacher):
            return None
        text = self.chat.decode(tuple(completion.tokens))
        opened = self.rules.thinking and self.chat.opens_thinking
        reply = parse(text, thinking=self.rules.thinking, opened=opened)
        cut_thinking = self.rules.thinking and not completion.finished and unclosed(text, opened)
        thinking = text if cut_thinking else reply.thinking
        self.token_log.write(completion, self._policy_authors(completion.tokens, thinking))
        if not completion.finished:
            return self._cut(start)
        action, refused = "", None
        with boundary() as fault:
            try:
                action = parser(self.rules.parser).action(reply.action)
            except Unreadable as error:
                refused = str(error)
        if fault.message:
            self._turn(start, None, 0.0, 0.0)
            return self.fail(fault.message)
        if refused is not None:
            return self._refuse(start, StopReason.ILLEGAL_ACTION, refused)
        return self._act(start, action)

    def _label_turn(self, teacher: Agent) -> bool:
        """Note what the teacher would reply; False: it failed, and the episode with it."""
        rng = Random(derive(self.seed, "teacher", len(self.token_log)))
        with boundary() as fault:
            reply = self.phrased(teacher.act(self.board or self.env, rng))
            self.labels[len(self.turns)] = self.chat.written(reply)
        if fault.message:
            self.fail(fault.message)
            return False
        return True

    def phrased(self, reply: str) -> str:
        """What a scripted agent says, in the form that the parser reads."""
        return parser(self.rules.parser).phrased(reply, thinking=self.rules.thinking)

    def fail(self, fault: str) -> None:
        """End the episode by a fault of foreign code."""
        self._end(StopReason.ENV_ERROR, error=fault)

    @property
    def sessions(self) -> list[int]:
        return [self.session]

    def trajectory(self) -> Trajectory:
        """The episode's record; `stop` must be set."""
        assert self.stop is not None, "the episode has not ended"
        ended = (self.stop, self.outcome, self.illegal, self.error)
        columns, tools = self.token_log.columns(), tuple(self.tools)
        return Trajectory(self.task, self.seed, *columns, tuple(self.turns), *ended, tools, self.labels)

    def learners(self) -> "list[Episode]":
        return [self]

    @property
    def board(self) -> BoardGameEnv | None:
        """The board that it is played on, where it is one of earl's, in this process."""
        board = self.env.board if isinstance(self.env, SharedSeat) else self.env
        return board if isinstance(board, BoardGameEnv) else None

    @property
    def waiting(self) -> bool:
        """Whether the environment has not answered the last action yet, since the other seat's player is to move."""
        return self._acted is not None

    def _act(self, start: int, action: str) -> None:
        began = time.perf_counter()
        with boundary() as fault:
            rule = self.env.rule(action)
            if rule is None:
                self.positions += [self.board.state] if self.board else []
                returned: Any = self.env.step(action)
            else:
                checked_text("the rule", rule, self._longest)
        seconds = time.perf_counter() - began
        if fault.message:
            self._turn(start, action, 0.0, seconds)
            return self.fail(fault.message)
        if rule is not None:
            return self._refuse(start, StopReason.ILLEGAL_ACTION, rule)
        self._acted = start, action, seconds
        return None if returned is OTHER_MOVES else self.answer(returned)

    def answer(self, returned: Any) -> None:
        """Take what the environment's `step` returned to the last action."""
        assert self._acted is not None, "an action is answered once"
        (start, action, seconds), self._acted = self._acted, None
        with boundary() as fault:
            observation, reward, terminated, truncated, info = checked_step(returned, self._longest)
        if fault.message:
            self._turn(start, action, 0.0, seconds)
            return self.fail(fault.message)
        self._turn(start, action, reward, seconds)
        self.tools += info.get("tool_calls", ())
        if terminated:
            return self._end(StopReason.FINISHED, Outcome(info["outcome"]))
        if truncated:
            if self.env.charges_truncation:
                return self._forfeit(StopReason.TURN_LIMIT)
            return self._truncate(info, observation)
        return self._continue(info, observation, closed=True)

    def _truncate(self, info: Info, observation: str) -> None:
        """End where the environment stops an episode that could go on. From the last observation, if the context has
        room for it, a value head estimates the rest."""
        closed = self.token_log.tokens[-1] == self.chat.end
        following = self.chat.reply(info.get("role", "user"), observation, closed)
        if len(following.tokens) > self._room():
            return self._end(StopReason.TURN_LIMIT)
        self.token_log.give(following)
        return self._end(StopReason.ENV_TRUNCATED)

    def _refuse(self, start: int, reason: StopReason, rule: str) -> None:
        """Answer an invalid reply with the rule, or forfeit when no retry is left."""
        self.illegal += 1
        self._turn(start, None, 0.0, 0.0)
        if self.illegal > self.rules.retries:
            return self._forfeit(reason)
        return self._continue({"role": "user"}, rule, closed=reason is StopReason.ILLEGAL_ACTION)

    def _cut(self, start: int) -> None:
        """Handle a reply without an end: the context is full, or the turn too long."""
        if self._room() <= 0:
            self._turn(start, None, 0.0, 0.0)
            return self._forfeit(StopReason.CONTEXT_LIMIT)
        rule = f"too long: end the reply within {self.rules.max_turn_tokens} tokens"
        return self._refuse(start, StopReason.TRUNCATED_TURN, rule)

    def _continue(self, info: Info, observation: str, closed: bool) -> None:
        if sum(not turn.summary for turn in self.turns) >= self._max_turns:
            return self._forfeit(StopReason.TURN_LIMIT)
        last, role, kept = self.turns[-1], info.get("role", "user"), self._history.kept
        closed = closed and self.token_log.tokens[-1] == self.chat.end
        self._rounds.append(PastTurn(self._message, last.action_start, last.end, closed))
        self._prompt_start = len(self.token_log)
        self._message = message = {"role": role, "content": observation}
        if self._history.summary is not None and len(self._rounds) >= self._history.summary:
            self._after_summary = message
            self.token_log.give(self.chat.reply("user", SUMMARY_REQUEST, closed))
        elif (kept is None or len(self._rounds) <= kept) and not self._forgets_thought(role):
            self.token_log.give(self.chat.reply(role, observation, closed))
        else:
            self._rounds = self._rounds if kept is None else self._rounds[max(len(self._rounds) - kept, 0) :]
            # The refused reply is dropped from the context: repeat the observation that it answered.
            refused = last.action is None and not self._rounds
            self._restart({**message, "content": f"{self.observation}\n{observation}"} if refused else message)
        if last.action is not None:
            self.observation = observation
        return self._check_room()

    def _forgets_thought(self, role: str) -> bool:
        """Whether the context has a thought that the chat template leaves out of it now."""
        thought = self.token_log.authors.find(Author.THINKING, self._context_start) >= 0
        return thought and self.chat.forgets(role)

    def _restart(self, message: Message) -> None:
        """Begin a new context: the kept rounds, their replies as sampled, and the new message."""
        self._context_start = len(self.token_log)
        first, *others = [*(past.message for past in self._rounds), message]
        head = first["content"] if first["role"] == "user" else f"{self._task}\n{first['content']}"
        replies = [(self.token_log.piece(past.start, past.end), past.closed) for past in self._rounds]
        if self.rules.thinking and self.chat.forgets(message["role"]):
            messages = [{"role": "user", "content": head}, *others]
            pieces = self.chat.without_thoughts(self._instructions, messages, replies)
        else:
            pieces = [self.chat.opening(self._instructions, head)]
            for (reply, closed), one in zip(replies, others, strict=True):
                pieces += [reply, self.chat.reply(one["role"], one["content"], closed)]
        for piece in pieces:
            self._prompt_start = len(self.token_log)  # in the end, where the last piece begins
            self.token_log.give(piece)

    def _take_summary(self, start: int, completion: Completion) -> None:
        """Replace the earlier context by the summary, even if the summary was cut off."""
        self.token_log.write(completion, self._policy_authors(completion.tokens, ""))
        self._turn(start, None, 0.0, 0.0, summary=True)
        if not completion.finished and self._room() <= 0:
            return self._forfeit(StopReason.CONTEXT_LIMIT)
        assert self._after_summary is not None
        message, self._after_summary, self._rounds = self._after_summary, None, []
        summary = self.chat.decode(tuple(completion.tokens))
        self._message = {**message, "content": f"{summary}\n{message['content']}"}
        self._restart(self._message)
        return self._check_room()

    def _check_room(self) -> None:
        if self._room() <= 0:
            self._forfeit(StopReason.CONTEXT_LIMIT)

    def _room(self) -> int:
        return self.rules.context_limit - (len(self.token_log) - self._context_start)

    def _policy_authors(self, tokens: list[int], thinking: str) -> bytes:
        """THINKING up to the token that closes the thinking span, ACTION from there on."""
        if not thinking:
            return bytes([Author.ACTION]) * len(tokens)

        def closed(length: int) -> bool:
            return thinking in self.chat.decode(tuple(tokens[:length]))

        length = bisect_left(range(len(tokens)), True, key=closed)
        return bytes([Author.THINKING]) * length + bytes([Author.ACTION]) * (len(tokens) - length)

    def _turn(self, start: int, action: str | None, reward: float, seconds: float, summary: bool = False) -> None:
        places = (self._context_start, self._prompt_start, start, len(self.token_log))
        self.turns.append(Turn(*places, action, reward, seconds, summary))

    def _forfeit(self, stop: StopReason) -> None:
        """End without a result. The last turn is charged, so that being cut off never pays."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, reward=last.reward + self.rules.forfeit_reward)
        self._end(stop)

    def _end(self, stop: StopReason, outcome: Outcome = Outcome.LOSS, error: str | None = None) -> None:
        with boundary() as fault:
            self.env.close()
        if fault.message and error is None:
            error = f"close(): {fault.message}"
        self.stop, self.outcome, self.error = stop, outcome, error
