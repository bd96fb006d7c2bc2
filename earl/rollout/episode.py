"""One episode, without I/O: it says which prompt it waits on, takes a completion, and goes on.

prompt() ──▶ sampler ──▶ receive(completion) ──▶ environment ──▶ prompt() … ──▶ trajectory()
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from earl.agents.chat import Chat, Piece
from earl.agents.parser import parse
from earl.envs.base import Info, TextEnv
from earl.errors import EarlError, boundary
from earl.seeds import derive
from earl.trajectory import Author, Outcome, StopReason, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an episode wants completed.

    Example:
        Prompt(session=4, tokens=[…31 ids…], seed=99, max_tokens=4)
    """

    session: int
    """Names the episode, so that a sampler can keep its KV cache between turns."""
    tokens: Sequence[int]
    """The whole context, exactly as it was given and sampled so far."""
    seed: int
    """Seeds the sampling: the same seed and context give the same tokens."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What a sampler answers. `logprobs` are those of the distribution that was sampled from."""

    tokens: list[int]
    logprobs: list[float]
    version: int
    """Weight version that sampled the tokens."""
    finished: bool
    """Whether the last token is a stop token; if not, `max_tokens` cut the reply."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How the agent plays: what the recipe's [agent] and [context] sections say."""

    history: str = "full"
    """`full`: the context grows over the turns. `board_only`: every turn starts from the last observation."""
    retries: int = 0
    """Replies that may break the rule before the episode is forfeited."""
    thinking: bool = False
    instructions: bool = False
    max_turns: int | None = None
    """Replies per episode; None takes the environment's own bound plus the retries."""
    max_turn_tokens: int = 8
    context_limit: int = 256
    """Tokens of the longest context, the reply included."""
    forfeit_reward: float = -1.0


class Episode:
    """The agent loop of one episode. It knows neither torch nor the sampler.

    Raises:
        EarlError: when already the first prompt leaves no room for a reply within the context limit.
    """

    def __init__(self, env: TextEnv, chat: Chat, rules: Rules, task: Task, seed: int, session: int) -> None:
        self.env, self.chat, self.rules, self.task = env, chat, rules, task
        self.seed, self.session = seed, session
        self.tokens: list[int] = []
        self.authors = bytearray()
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.turns: list[Turn] = []
        self.illegal = 0
        self.stop: StopReason | None = None
        self.outcome = Outcome.LOSS
        self.error: str | None = None
        self._max_turns = rules.max_turns or env.max_turns + rules.retries
        self._context_start = self._prompt_start = 0
        self._begin()

    def _begin(self) -> None:
        with boundary() as fault:
            self._observation, _ = self.env.reset(seed=self.task.seed, options={"opponent_seed": self.seed})
        if fault.message:
            return self._end(StopReason.ENV_ERROR, error=fault.message)
        self._give(self._opening(self._observation))
        if len(self.tokens) >= self.rules.context_limit:
            raise EarlError(
                f"context.limit is {self.rules.context_limit} tokens, but the first prompt of "
                f"{self.task.env} alone takes {len(self.tokens)} and a reply needs room; "
                f"set context.limit to at least {len(self.tokens) + self.rules.max_turn_tokens}"
            )
        return None

    def prompt(self) -> Prompt:
        """The prompt that the episode waits on."""
        context = self.tokens[self._context_start :] if self._context_start else self.tokens
        room = self.rules.context_limit - len(context)
        # Keyed by the length so far: every turn draws its own noise, whatever its context looks like.
        seed = derive(self.seed, len(self.tokens))
        return Prompt(self.session, context, seed, min(self.rules.max_turn_tokens, room))

    def receive(self, completion: Completion) -> None:
        """Take the reply and go on to the next prompt or to the end."""
        start = len(self.tokens)
        reply = parse(self.chat.decode(tuple(completion.tokens)), thinking=self.rules.thinking)
        self.tokens += completion.tokens
        self.authors += self._policy_authors(completion.tokens, reply.thinking)
        self.logprobs += completion.logprobs
        self.versions += [completion.version] * len(completion.tokens)
        if completion.finished:
            self._act(start, reply.action)
        else:
            self._cut(start)

    def trajectory(self) -> Trajectory:
        """What the episode leaves behind, once `stop` is set."""
        assert self.stop is not None, "the episode has not ended"
        return Trajectory(
            task=self.task,
            seed=self.seed,
            tokens=np.array(self.tokens, dtype=np.int32),
            authors=np.frombuffer(bytes(self.authors), dtype=np.uint8),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            turns=tuple(self.turns),
            stop=self.stop,
            outcome=self.outcome,
            illegal=self.illegal,
            error=self.error,
        )

    def _act(self, start: int, action: str) -> None:
        began = time.perf_counter()
        with boundary() as fault:
            rule = self.env.rule(action)
            if rule is None:
                observation, reward, terminated, truncated, info = self.env.step(action)
                outcome = Outcome(info["outcome"]) if terminated else Outcome.LOSS
        seconds = time.perf_counter() - began
        if fault.message:
            self._turn(start, action, 0.0, seconds)
            return self._end(StopReason.ENV_ERROR, error=fault.message)
        if rule is not None:
            return self._refuse(start, StopReason.ILLEGAL_ACTION, rule)
        self._turn(start, action, reward, seconds)
        if terminated:
            return self._end(StopReason.FINISHED, outcome)
        if truncated:
            return self._forfeit(StopReason.TURN_LIMIT)
        return self._continue(info, observation, closed=True)

    def _refuse(self, start: int, reason: StopReason, rule: str) -> None:
        """Answer a reply that broke the rule with the rule, or forfeit when no retry is left."""
        self.illegal += 1
        self._turn(start, None, 0.0, 0.0)
        if self.illegal > self.rules.retries:
            return self._forfeit(reason)
        return self._continue({"role": "user"}, rule, closed=reason is StopReason.ILLEGAL_ACTION)

    def _cut(self, start: int) -> None:
        """A reply without an end: the context is full, or the turn was longer than allowed."""
        if len(self.tokens) - self._context_start >= self.rules.context_limit:
            self._turn(start, None, 0.0, 0.0)
            return self._forfeit(StopReason.CONTEXT_LIMIT)
        rule = f"too long: end the reply within {self.rules.max_turn_tokens} tokens"
        return self._refuse(start, StopReason.TRUNCATED_TURN, rule)

    def _continue(self, info: Info, observation: str, closed: bool) -> None:
        if len(self.turns) >= self._max_turns:
            return self._forfeit(StopReason.TURN_LIMIT)
        self._prompt_start = len(self.tokens)
        if self.rules.history == "full":
            self._give(self.chat.reply(info.get("role", "user"), observation, closed))
        else:
            self._context_start = len(self.tokens)
            told = f"{self._observation}\n{observation}" if self.turns[-1].action is None else observation
            self._give(self._opening(told))
        if self.turns[-1].action is not None:
            self._observation = observation
        if len(self.tokens) - self._context_start >= self.rules.context_limit:
            self._forfeit(StopReason.CONTEXT_LIMIT)
        return None

    def _opening(self, observation: str) -> Piece:
        return self.chat.opening(self.env.instructions if self.rules.instructions else "", observation)

    def _give(self, piece: Piece) -> None:
        self.tokens += piece.tokens
        self.authors += piece.authors
        self.logprobs += [0.0] * len(piece.tokens)
        self.versions += [-1] * len(piece.tokens)

    def _policy_authors(self, tokens: list[int], thinking: str) -> bytes:
        """THINKING up to the token that closes the thinking span, ACTION from there on."""
        if not thinking:
            return bytes([Author.ACTION]) * len(tokens)

        def closed(length: int) -> bool:
            return thinking in self.chat.decode(tuple(tokens[:length]))

        length = bisect_left(range(len(tokens)), True, key=closed)
        return bytes([Author.THINKING]) * length + bytes([Author.ACTION]) * (len(tokens) - length)

    def _turn(self, start: int, action: str | None, reward: float, seconds: float) -> None:
        self.turns.append(
            Turn(self._context_start, self._prompt_start, start, len(self.tokens), action, reward, seconds)
        )

    def _forfeit(self, stop: StopReason) -> None:
        """End without a result: the last turn is charged, so that being cut off never pays."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, reward=last.reward + self.rules.forfeit_reward)
        self._end(stop)

    def _end(self, stop: StopReason, outcome: Outcome = Outcome.LOSS, error: str | None = None) -> None:
        self.stop, self.outcome, self.error = stop, outcome, error
