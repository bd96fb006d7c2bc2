"""Scripted agents for the arithmetic task."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from earl.envs.base import TextEnv
from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.errors import EarlError

Policy = Callable[[ArithmeticEnv, Random], str]


def solver(env: ArithmeticEnv, rng: Random) -> str:
    """Call the calculator once for each step of the chain, then answer."""
    del rng
    return str(env.answer) if env.next_call is None else f"<tool_call>{env.next_call}</tool_call>"


def anything(env: ArithmeticEnv, rng: Random) -> str:
    """A well-formed tool call or answer that means nothing."""
    return env.random_action(rng)


POLICIES: dict[str, Policy] = {"random": anything, "solver": solver}


@dataclass(frozen=True, slots=True)
class ArithmeticAgent:
    """An `Agent`: follows a policy, and with probability `epsilon` does anything well-formed instead."""

    policy: Policy
    epsilon: float = 0.0

    def act(self, env: TextEnv, rng: Random) -> str:
        """The action for the state that an arithmetic environment is in."""
        if not isinstance(env, ArithmeticEnv):
            raise EarlError(f"a solver of arithmetic cannot act in {type(env).__name__}")
        if self.epsilon and rng.random() < self.epsilon:
            return anything(env, rng)
        return self.policy(env, rng)
