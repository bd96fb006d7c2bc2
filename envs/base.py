"""The interface of an environment: a gymnasium environment with text observations and text actions.

Also checks what an environment returns, since it may be the user's own code.
"""

import asyncio
import inspect
import reprlib
import threading
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from types import CoroutineType
from typing import Any, TypedDict, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from earl.errors import EarlError
from earl.trajectory import ToolCall

CHARACTERS = "".join(chr(code) for code in range(32, 127)) + "\n"

LARGEST_REWARD = 1e9
"""Bound on |reward|: next to larger rewards, ordinary ones are lost to rounding, and squares overflow."""
MOST_TURNS = 10_000
ROLES = ("user", "tool")
SPEAKERS = (*ROLES, "system")
RESET = ("observation", "info")
STEP = ("observation", "reward", "terminated", "truncated", "info")
OUTCOMES = ("win", "draw", "loss")
OTHER_MOVES = object()
"""What `step` answers in a game whose other seat is played elsewhere: the answer follows after the other's move."""
_NUMBERS, _OTHER_NUMBERS, _FLAGS = (float, int), (Real, np.bool_), (bool, np.bool_)  # abstract ones are slow


class Info(TypedDict, total=False):
    """The dict that `reset` and `step` return beside the observation."""

    role: str
    """Author of the observation in the chat: "user" or "tool"."""
    legal_actions: tuple[str, ...]
    """Every legal action, if they can be listed."""
    illegal: str
    """The rule that the last action broke; absent when the action was legal."""
    outcome: str
    """"win", "draw" or "loss"; present when `terminated` is true."""
    tool_calls: tuple[ToolCall, ...]
    """The calls of tools of this step."""


@dataclass(frozen=True, slots=True)
class Board:
    """A grid of cells that can be drawn. The first cell is at the top left."""

    cells: tuple[tuple[str, ...], ...]
    marked: tuple[int, int] | None = None
    """Row and column that the action changed; None when no action is shown."""


class TextEnv(gymnasium.Env[str, str]):
    """A text environment. One object plays one episode at a time; its only randomness comes from its seed.

    An action that breaks the rule leaves the state unchanged and has no reward. `step` answers it with the rule, in the
    observation and in `info["illegal"]`. The agent side counts retries.
    """

    instructions: str
    """The rules in plain words, for models that have not been trained on this environment."""
    max_turns: int
    """Upper bound on the turns of an episode in which every action is legal."""
    charges_truncation: bool = True
    """Whether an episode that the environment truncates is charged as a forfeit."""
    external: bool = False
    """Whether a step mostly runs outside of this process: steps of many episodes then run at once, in threads, and each
    call of a tool waits for a core."""

    observation_space = spaces.Text(max_length=4096, min_length=0, charset=CHARACTERS)
    action_space = spaces.Text(max_length=4096, min_length=0, charset=CHARACTERS)

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        """Start the episode. `options["opponent_seed"]` seeds the opponent separately from the problem."""

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """Apply an action; return observation, reward, terminated, truncated, info."""

    _unseeded: int | None = None
    _generator: np.random.Generator | None = None

    def keep_seed(self, seed: int | None) -> None:
        """What `gymnasium.Env.reset` does with a seed, but that its generator, which takes longer to make than all else
        in `reset`, is made when it is first read."""
        if seed is not None:
            self._unseeded = self._np_random_seed = seed

    @property
    def _np_random(self) -> np.random.Generator | None:
        if self._unseeded is not None:
            self._generator, self._unseeded = seeding.np_random(self._unseeded)[0], None
        return self._generator

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self._generator, self._unseeded = generator, None

    @abstractmethod
    def rule(self, action: str) -> str | None:
        """Return the rule that `action` breaks, as a hint to the agent; None if the action is legal."""

    def draw(self, observation: str, action: str | None = None) -> Board | None:
        """The board that an observation shows, after `action` if given. None for other texts and illegal actions."""
        return None


class ForeignEnv(TextEnv):
    """An environment of other people: it answers as it likes, and an episode that it truncates ends there, and is not
    charged; a value head estimates what would have followed."""

    charges_truncation = False

    def rule(self, action: str) -> str | None:
        return None


class Plain(ForeignEnv):
    """Any object with `reset` and `step`, which may be `async def`, as a TextEnv. An observation is a text, a message
    such as {"role": "tool", "content": "42"}, or a list of the new ones. What it leaves out has these consequences:

    instructions    the docstring of its class
    max_turns       an episode ends by the environment, by agent.max_turns or by the context limit
    rule            every reply is an action; none is refused, and none is a forfeit
    info["outcome"] a win, a draw or a loss by the sign of the sum of its rewards
    draw            no board is shown
    random_action, info["legal_actions"]  `earl envs check` cannot play it, and a reply's length is not checked ahead
    """

    def __init__(self, env: Any) -> None:
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise EarlError(f"{type(env).__name__} has no method {name}(); an environment needs reset and step")
        self._env, self._total = env, 0.0
        takes = inspect.signature(env.reset).parameters
        some = all(one.kind is not one.VAR_KEYWORD for one in takes.values())
        self._wanted = [name for name in ("seed", "options") if name in takes or not some]
        self.instructions = getattr(env, "instructions", None) or inspect.cleandoc(type(env).__doc__ or "")
        self.max_turns = getattr(env, "max_turns", None) or MOST_TURNS
        for name in ("rule", "draw", "random_action"):
            if callable(own := getattr(env, name, None)):
                setattr(self, name, own)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        """The first observation; of `seed` and `options` it is given what it takes, and its info may be missing."""
        told, self._total = {"seed": seed, "options": options}, 0.0
        returned = awaited(self._env.reset(**{name: told[name] for name in self._wanted}))
        return _as_text(*_parts(returned if isinstance(returned, tuple) else (returned, {}), "reset()", RESET))

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        observation, reward, terminated, truncated, info = _parts(awaited(self._env.step(action)), "step()", STEP)
        if _is_reward(reward):
            self._total += float(reward)
        if terminated and isinstance(info, dict) and "outcome" not in info:
            info = {**info, "outcome": outcome_of(self._total)}
        if not isinstance(observation, str):
            observation, info = _as_text(observation, info)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        awaited(self._env.close() if hasattr(self._env, "close") else None)


def outcome_of(rewards: float) -> str:
    """A win, a draw or a loss by the sign of an episode's rewards."""
    return OUTCOMES[1 - (rewards > 0) + (rewards < 0)]


def _as_text(observation: Any, info: Any) -> tuple[Any, Any]:
    """Chat messages as one text, which the author of the last one says; anything else as it is."""
    if isinstance(observation, str):
        return observation, info
    messages = observation if isinstance(observation, list) else [observation]
    said = [str(one["content"]) for one in messages if _is_message(one)]
    if not messages or len(said) < len(messages) or not isinstance(info, dict):
        return observation, info
    author = messages[-1]["role"]
    return "\n\n".join(said), {"role": author if author in ROLES else "user", **info}


def _is_message(told: object) -> bool:
    return isinstance(told, dict) and told.get("role") in SPEAKERS and isinstance(told.get("content"), str)


def awaited(returned: Any) -> Any:
    """What a method returned, or an `async def` comes to, on an event loop that environments of this process share."""
    if not isinstance(returned, CoroutineType):
        return returned
    return asyncio.run_coroutine_threadsafe(returned, _event_loop()).result()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="earl-async-environments", daemon=True).start()
    return loop


def _parts(returned: Any, what: str, names: tuple[str, ...]) -> Any:
    """What a method returned, if it is a tuple of that length. Raises EarlError otherwise."""
    if not isinstance(returned, tuple) or len(returned) != len(names):
        raise EarlError(f"{what} returned {reprlib.repr(returned)}; return the tuple ({', '.join(names)})")
    return returned


def checked_text(what: str, text: object, longest: int) -> str:
    """Return `text`. Raises EarlError unless it is a str of at most `longest` characters that UTF-8 can encode."""
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
    """Return `turns` as an int. Raises EarlError unless it is a whole number within 1 … MOST_TURNS."""
    if not isinstance(turns, Integral) or not 1 <= int(turns) <= MOST_TURNS:
        raise EarlError(
            f"max_turns is {reprlib.repr(turns)}, not a whole number within 1 … {MOST_TURNS}; set agent.max_turns"
        )
    return int(turns)


def checked_reset(returned: Any, longest: int) -> tuple[str, Info]:
    observation, info = _parts(returned, "reset()", RESET)
    return checked_text("the observation", observation, longest), _checked_info(info)


def checked_step(returned: Any, longest: int) -> tuple[str, float, bool, bool, Info]:
    """Check what `step` returned and convert its numbers to plain ones. Raises EarlError that names the violation."""
    observation, reward, terminated, truncated, info = _parts(returned, "step()", STEP)
    checked_text("the observation", observation, longest)
    if not _is_reward(reward):
        raise EarlError(
            f"the reward is {reprlib.repr(reward)}, not a finite number within ±{LARGEST_REWARD:g}; "
            "return a float, scaled where it is larger"
        )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, _FLAGS):
            raise EarlError(f"{name} is {reprlib.repr(flag)}; return True or False")
    told = _checked_info(info)
    if terminated and told.get("outcome") not in OUTCOMES:
        outcome = reprlib.repr(told.get("outcome"))
        raise EarlError(f"info['outcome'] is {outcome} at the end; return one of {', '.join(OUTCOMES)}")
    return observation, float(reward), bool(terminated), bool(truncated), told


def _is_reward(value: object) -> bool:
    if isinstance(value, _NUMBERS):  # compared as they are: a very long int cannot become a float
        return -LARGEST_REWARD <= value <= LARGEST_REWARD
    return isinstance(value, _OTHER_NUMBERS) and abs(float(value)) <= LARGEST_REWARD


def _checked_info(info: object) -> Info:
    if not isinstance(info, dict):
        raise EarlError(f"info is {reprlib.repr(info)}; return a dict")
    if info.get("role", "user") not in ROLES:
        raise EarlError(f"info['role'] is {reprlib.repr(info['role'])}; return one of {', '.join(ROLES)}")
    calls = info.get("tool_calls", ())
    if not isinstance(calls, tuple) or not all(isinstance(one, ToolCall) for one in calls):
        raise EarlError(f"info['tool_calls'] is {reprlib.repr(calls)}; return a tuple of ToolCall")
    return cast(Info, info)
