"""The single-turn tasks of verifiers, such as `verifiers:my_tasks`: a prompt, one reply, and the taskset's own rewards.

A taskset is a package that is imported by its name, so that its name is trusted as an import string is.
"""

import asyncio
from collections.abc import Coroutine
from itertools import islice
from random import Random
from typing import Any

import verifiers.v1 as vf

from earl.envs.adapters.base import factory
from earl.envs.base import ForeignEnv, Info, awaited
from earl.errors import EarlError

MOST_TASKS = 10_000
"""Of a taskset: the first ones."""


class Verifiers(ForeignEnv):
    """The reward is the sum of the weighted rewards, a win is 1 or more. `options` are settings of the taskset."""

    max_turns = 1

    def __init__(self, name: str, **options: Any) -> None:
        config = vf.taskset_config_type(name).model_validate({"id": name, **options})
        self._tasks = list(islice(vf.load_taskset(config), MOST_TASKS))
        if not self._tasks:
            raise EarlError(f"the taskset {name!r} has no tasks; mend its load() or its settings")
        if type(self._tasks[0]).NEEDS_CONTAINER or type(self._tasks[0]).toolsets(self._tasks[0].config):
            raise EarlError(f"the tasks of {name!r} need a container or tools; choose tasks of one reply")
        self._agent = vf.AgentInfo(config=vf.AgentConfig())
        self.instructions = self._tasks[0].data.system_prompt or ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        del options  # there is no opponent
        self._task = Random(seed).choice(self._tasks)
        return self._task.data.prompt_text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        trace: Any = vf.Trace(
            task=vf.TraceTask(type=type(self._task).__name__, data=self._task.data),
            agent=self._agent,
            nodes=[
                vf.MessageNode(message=vf.UserMessage(content=self._task.data.prompt_text)),
                vf.MessageNode(parent=0, message=vf.AssistantMessage(content=action), sampled=True),
            ],
        )
        _run(self._task.score(trace))
        reward = float(trace.reward)
        return f"score {reward:g}", reward, True, False, {"outcome": "win" if reward >= 1 else "loss"}

    def random_action(self, rng: Random) -> str:
        return str(rng.randint(-99, 99))


_idle: list[asyncio.AbstractEventLoop] = []


def _run(scoring: Coroutine[Any, Any, None]) -> None:
    """Await it in this thread, which costs a fifth of what another one does, on a loop that no other thread runs."""
    if asyncio._get_running_loop() is not None:  # such as a notebook's
        awaited(scoring)
        return
    try:
        loop = _idle.pop()
    except IndexError:
        loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(scoring)
    finally:
        _idle.append(loop)


def names() -> list[str]:
    """None: tasksets are packages of their own."""
    return []


def load(name: str) -> Any:
    return factory(Verifiers, name, 1)
