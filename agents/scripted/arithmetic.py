"""Scripted agents for tasks of one seat."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from earl.envs.base import TextEnv
from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.errors import EarlError

Policy = Callable[[Any, Random], str]
"""The action of an environment's present state; `anything` suits every environment with a `random_action`."""

GIVES_UP = 0.25
"""The thinker's probability of answering early, before each step of the chain."""


def solver(env: ArithmeticEnv, rng: Random) -> str:
    del rng
    return str(env.answer) if env.next_call is None else f"<tool_call>{env.next_call}</tool_call>"


def thinker(env: ArithmeticEnv, rng: Random) -> str:
    """Write down results without the calculator, and stop early at random: "<think>;7;5</think>5" for "4+3-2+1".

    The answer is the last result written, a guess before the end of the chain. This teaches the format, and a wide
    spread of lengths, of which the longest has the highest reward.
    """
    results = [*(operation.replace("-", "+").partition("+")[0] for operation in env.operations), str(env.answer)]
    done = 0
    while done < len(env.operations) and rng.random() >= GIVES_UP:
        done += 1
    return f"<think>{''.join(f';{result}' for result in results[1 : done + 1])}</think>{results[done]}"


def own(env: Any, rng: Random) -> str:
    """What the environment itself says would be right."""
    if not hasattr(env, "solve"):
        raise EarlError(f"it has no solve, so `solver` cannot act in {type(env).__name__}")
    return str(env.solve(rng))


def anything(env: Any, rng: Random) -> str:
    if not hasattr(env, "random_action"):
        raise EarlError(f"it has no random_action, so `random` cannot act in {type(env).__name__}")
    return str(env.random_action(rng))


POLICIES: dict[str, Policy] = {"random": anything, "solver": solver, "thinker": thinker}


@dataclass(frozen=True, slots=True)
class ScriptedAgent:
    """An `Agent` that follows a policy, and with probability `epsilon` takes a random well-formed action instead."""

    policy: Policy
    epsilon: float = 0.0

    def act(self, env: TextEnv, rng: Random) -> str:
        if not isinstance(env, ArithmeticEnv) and self.policy not in (anything, own):
            raise EarlError(f"a solver of arithmetic cannot act in {type(env).__name__}")
        if self.epsilon and rng.random() < self.epsilon:
            return anything(env, rng)
        return self.policy(env, rng)
