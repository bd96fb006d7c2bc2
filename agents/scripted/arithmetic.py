"""Scripted agents for the arithmetic task."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from earl.envs.base import TextEnv
from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.errors import EarlError

Policy = Callable[[ArithmeticEnv, Random], str]

GIVES_UP = 0.25
"""The thinker's chance to answer with what it has, before each step of the chain."""


def solver(env: ArithmeticEnv, rng: Random) -> str:
    """Call the calculator once for each step of the chain, then answer."""
    del rng
    return str(env.answer) if env.next_call is None else f"<tool_call>{env.next_call}</tool_call>"


def thinker(env: ArithmeticEnv, rng: Random) -> str:
    """Write down result after result without the calculator, and give up at any time.

    The answer is the last result written: right at the end of the chain, a guess before it. So the format is taught,
    and a wide spread of lengths of which the longest earns most.

    Example:
        chain "4+3-2+1" -> "<think>;7;5;6</think>6", or "<think>;7;5</think>5", or "<think></think>4"
    """
    results = [*(operation.replace("-", "+").partition("+")[0] for operation in env.operations), str(env.answer)]
    done = 0
    while done < len(env.operations) and rng.random() >= GIVES_UP:
        done += 1
    return f"<think>{''.join(f';{result}' for result in results[1 : done + 1])}</think>{results[done]}"


def anything(env: ArithmeticEnv, rng: Random) -> str:
    """A well-formed tool call or answer that means nothing."""
    return env.random_action(rng)


POLICIES: dict[str, Policy] = {"random": anything, "solver": solver, "thinker": thinker}


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
