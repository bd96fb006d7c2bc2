"""An environment from tools, tasks and a verifier; `envs/tools/lookup.py` is a whole one."""

import re
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any, ClassVar

from earl.actions.pool import pool
from earl.envs.base import Info, TextEnv
from earl.envs.tools.tool import Call, CallError, Tool, format_result, read_calls, run_calls, tool_of
from earl.errors import EarlError
from earl.trajectory import ToolCall

WIN = 0.5
"""The score above which an episode is won."""


class ToolEnv(TextEnv):
    """An action is calls of tools (see `earl.envs.tools.tool`), answered by their results (role "tool"), or an answer,
    which ends the episode with its score: a win above one half.

    A reply that is neither is illegal, and is told what is wrong. A tool that fails, or takes too long, says so in its
    result. A subclass has `instructions`, `tools`, `task`, `score` and, for `earl envs check`, `random_action`.
    """

    tools: ClassVar[tuple[Callable[..., Any], ...]] = ()
    """Functions, or methods of the class, which know the episode."""
    answer_form: ClassVar[str] = "<answer>([^<>\n]+)</answer>"
    """A pattern: what the agent may answer, in its first group."""
    hint: ClassVar[str] = "illegal: write a call, or <answer>your answer</answer>"
    max_turns = 8

    turns = 0
    result: float | None = None
    """What ends the episode with this score: `score` of an answer, or a tool that sets it."""
    last_results = ""
    """What the tools of the last calls returned, as the agent read it."""
    since = 0.0
    """When the episode began, by the monotonic clock: calls of earlier ones go first."""
    _over = _unprepared = True
    _parsed_action: tuple[str, list[Call]] = "", []
    """The last action that was read, and its calls."""

    @abstractmethod
    def task(self, rng: Random) -> str:
        """Draw a task, and return the question."""

    @abstractmethod
    def score(self, answer: str) -> float:
        """How good an answer is, within 0 … 1."""

    def prepare(self) -> None:
        """Called before the first call of an episode, such as to write files that a task has."""

    @classmethod
    @cache
    def known(cls) -> dict[str, Tool]:
        """The tools by name."""
        return {tool.name: tool for tool in map(tool_of, cls.tools)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        del options  # there is no opponent
        self.keep_seed(seed)
        self.close()
        self.turns, self.result, self.last_results, self._over, self._unprepared = 0, None, "", False, True
        self.since = time.monotonic()
        # Not the plain seed: an agent that draws from Random(seed) would know the task.
        seed = int(self.np_random.integers(1 << 31)) if seed is None else seed
        question = self.task(Random(f"{type(self).__name__} {seed}"))
        return question, {"role": "user"}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """Call tools or answer; truncated after `max_turns` legal actions. Raises EarlError outside an episode."""
        if self._over:
            raise EarlError("step() outside an episode; call reset() to begin one")
        if (broken := self.rule(action)) is not None:
            return broken, 0.0, False, False, {"role": "user", "illegal": broken}
        self.turns += 1
        records: list[ToolCall] = []
        (_, calls), self._parsed_action = self._parsed_action, ("", [])  # a tool may change what it was given
        if calls:
            if self._unprepared:
                self._unprepared = False
                with pool().action("prepare", (1,) if self.external else (), self.since) as admitted:
                    self.prepare()
                records += [admitted.record()] if self.external else []
            self.last_results = observation = run_calls(calls, self, records)
        else:
            match = re.fullmatch(self.answer_form, action)
            assert match is not None, "rule() has checked it"
            self.result = self.score(match[1])
            observation = "correct" if self.result > WIN else "wrong"
        self._over = self.result is not None or self.turns >= self.max_turns
        info: Info = {"role": "tool", "tool_calls": tuple(records)} if calls else {"role": "user"}
        if self.result is None:
            return observation, 0.0, False, self._over, info
        outcome = "win" if self.result > WIN else "loss"
        return observation, self.result, True, False, {**info, "outcome": outcome}

    def rule(self, action: str) -> str | None:
        try:
            if action != self._parsed_action[0]:
                self._parsed_action = action, read_calls(action, self.known())
        except CallError as error:
            return format_result(str(error))
        if action != action.strip():
            return "illegal: white space around a reply"
        return None if self._parsed_action[1] or re.fullmatch(self.answer_form, action) else self.hint
