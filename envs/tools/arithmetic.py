"""Multi-step arithmetic with a calculator tool that takes one operation per call."""

import operator
import re
from random import Random
from typing import Any

import gymnasium

from earl.envs.base import Info, TextEnv
from earl.errors import EarlError

# Grammar of the calculator:
#
# sum     := product (("+" | "-") product)*
# product := factor ("*" factor)*
# factor  := "-" factor | NUMBER | "(" sum ")"

MAX_LENGTH = 64
"""Bound on the characters of an expression, and so on the nesting of parentheses."""
MAX_MAGNITUDE = 10**12
"""Bound on the magnitude of every number: operands, intermediate results and the value."""

TOKEN = re.compile(r"[0-9]+|[^ ]")
OPERATIONS = {"+": (1, operator.add), "-": (1, operator.sub), "*": (2, operator.mul)}
"""How tightly each binds, and what it does."""


class Refusal(ValueError):
    """An error answer of the calculator; the message is shown to the agent."""


def calculate(expression: str, max_operations: int | None = None) -> int:
    """Evaluate an expression of integers, + - * and parentheses. Blanks between tokens are allowed. Raises Refusal.

    `max_operations` limits the +, - and * between operands; a sign does not count.
    """
    if len(expression) > MAX_LENGTH:
        raise Refusal(f"more than {MAX_LENGTH} characters")
    parser = _Parser(_tokens(expression))
    value = parser.sum()
    parser.end()
    if max_operations is not None and parser.operations > max_operations:
        raise Refusal("one operation per call" if max_operations == 1 else f"over {max_operations} operations")
    return value


def _tokens(expression: str) -> list[str]:
    tokens: list[str] = TOKEN.findall(expression)
    for token in tokens:
        if not (token in "+-*()" or (token.isascii() and token.isdigit())):
            raise Refusal(f"cannot read {token!a}")
    return tokens


class _Parser:
    """Recursive descent over tokens, by how tightly operations bind."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]  # "" marks the end
        self.position = 0
        self.operations = 0

    def sum(self, tightness: int = 1) -> int:
        """A value and the operations after it, from left to right, that bind at least so tightly."""
        value = self._factor()
        while (sign := self.tokens[self.position]) in OPERATIONS and OPERATIONS[sign][0] >= tightness:
            own, apply = OPERATIONS[sign]
            self.position += 1
            self.operations += 1
            value = _bounded(apply(value, self.sum(own + 1)))
        return value

    def end(self) -> None:
        if self.tokens[self.position]:
            raise Refusal(f"unexpected {self.tokens[self.position]}")

    def _factor(self) -> int:
        token = self.tokens[self.position]
        self.position += 1
        if token == "-":
            return -self._factor()
        if token == "(":
            value = self.sum()
            if self.tokens[self.position] != ")":
                raise Refusal("a parenthesis is not closed")
            self.position += 1
            return value
        if not token.isdigit():
            raise Refusal(f"unexpected {token}" if token else "a number is missing at the end")
        return _bounded(int(token))


def _bounded(value: int) -> int:
    if abs(value) > MAX_MAGNITUDE:
        raise Refusal("a number is too large")
    return value


MAX_VALUE = 999
"""Bound on intermediate results, so that they stay short; an option can lower it."""
MAX_OPERATIONS = 4096

TOOL_CALL = re.compile(r"<tool_call>([^<>]*)</tool_call>")
ANSWER = re.compile(r"[0-9]+")
RULE = "illegal: write <tool_call>2+3</tool_call> with your operation, or the answer in digits"

INSTRUCTIONS = (
    "Work out a chain of additions and subtractions from left to right. A calculator helps: "
    "write <tool_call>2+3</tool_call> and nothing else, and it answers with the result. It takes one "
    "operation per call, so call it once for each step. When you know the final result, answer with its "
    "digits and nothing else."
)


class ArithmeticEnv(TextEnv):
    """A chain such as "37+48-19", and a calculator that works out one step at a time.

    An action is a tool call such as "<tool_call>37+48</tool_call>", answered by the calculator (role "tool"), or the
    final answer in digits, which ends the episode: reward 1 when right, else 0. The chain depends on the seed of
    `reset` alone.
    """

    instructions = INSTRUCTIONS

    def __init__(
        self,
        num_operations: int = 2,
        max_operand: int = 99,
        min_operations: int | None = None,
        max_value: int = MAX_VALUE,
    ) -> None:
        """`num_operations` is the number of + and -, or the largest number if `min_operations` is given.

        Then lengths are uniform, and blanks pad all chains to one length. Operands are within 1 … `max_operand`, and
        intermediate results within 0 … `max_value`.
        """
        if not 1 <= num_operations <= MAX_OPERATIONS:
            raise EarlError(f"num_operations {num_operations!r} is not within 1 … {MAX_OPERATIONS}")
        if min_operations is not None and not 1 <= min_operations <= num_operations:
            raise EarlError(f"min_operations {min_operations!r} is not within 1 … {num_operations}, the num_operations")
        if not 2 <= max_value <= MAX_VALUE:
            raise EarlError(f"max_value {max_value!r} is not within 2 … {MAX_VALUE}")
        if not 1 <= max_operand <= max_value // 2:
            # Otherwise both signs could leave 0 … max_value.
            raise EarlError(f"max_operand {max_operand!r} is not within 1 … {max_value // 2}, half of max_value")
        self.num_operations = num_operations
        self.min_operations = min_operations
        self.max_operand = max_operand
        self.max_value = max_value
        self.max_turns = num_operations + 2
        self._width = 0 if min_operations is None else len(str(max_operand)) * (num_operations + 1) + num_operations
        self.operations: tuple[str, ...] = ()
        """The calls that solve the chain in order, such as ("37+48", "85-19")."""
        self.answer = 0
        self.solved = 0
        """The number of leading `operations` that the calculator has been given, in order."""
        self.turns = 0
        self._over = True

    @property
    def next_call(self) -> str | None:
        """The next operation for the calculator; None once `answer` is known."""
        return self.operations[self.solved] if self.solved < len(self.operations) else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        del options  # there is no opponent
        gymnasium.Env.reset(self, seed=seed)
        # Not the plain seed: an agent that draws from Random(seed) would know the operands.
        rng = Random(f"arithmetic {self.np_random.integers(1 << 31) if seed is None else seed}")
        self.answer = rng.randint(1, self.max_operand)
        chain, operations = str(self.answer), []
        shortest, longest = self.min_operations, self.num_operations
        for _ in range(longest if shortest is None else rng.randint(shortest, longest)):
            operation, self.answer = self._draw(rng, self.answer)
            operations.append(operation)
            chain += operation.lstrip("0123456789")
        self.operations = tuple(operations)
        self.solved = self.turns = 0
        self._over = False
        return chain.ljust(self._width), {"role": "user"}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """Call the calculator or answer; truncated after `max_turns` legal actions. Raises EarlError outside an
        episode.
        """
        if self._over:
            raise EarlError("step() outside an episode; call reset() to begin one")
        broken = self.rule(action)
        if broken is not None:
            return broken, 0.0, False, False, {"role": "user", "illegal": broken}
        self.turns += 1
        call = TOOL_CALL.fullmatch(action)
        if call is None:
            return self._finish(action)
        self._over = self.turns >= self.max_turns
        return self.calculator(call[1]), 0.0, False, self._over, {"role": "tool"}

    def rule(self, action: str) -> str | None:
        return None if TOOL_CALL.fullmatch(action) or ANSWER.fullmatch(action) else RULE

    def random_action(self, rng: Random) -> str:
        first, second = rng.randint(0, MAX_VALUE), rng.randint(1, self.max_operand)
        if rng.random() < 0.5:
            return str(first)
        return f"<tool_call>{first}{rng.choice('+-')}{second}</tool_call>"

    def _draw(self, rng: Random, value: int) -> tuple[str, int]:
        """Append an operation to a value: its text and its result, which stays within 0 … `max_value`."""
        operand, sign = rng.randint(1, self.max_operand), rng.choice((1, -1))
        if not 0 <= value + sign * operand <= self.max_value:
            sign = -sign
        return f"{value}{'+' if sign > 0 else '-'}{operand}", value + sign * operand

    def calculator(self, operation: str) -> str:
        try:
            result = calculate(operation, max_operations=1)
        except Refusal as refusal:
            return f"error: {refusal}"
        if operation == self.next_call:
            self.solved += 1
        return str(result)

    def _finish(self, answer: str) -> tuple[str, float, bool, bool, Info]:
        self._over = True
        # Compared as text: an answer of thousands of digits is wrong, not a reason to convert it.
        if (answer.lstrip("0") or "0") == str(self.answer):
            return "correct", 1.0, True, False, {"role": "user", "outcome": "win"}
        return "wrong", 0.0, True, False, {"role": "user", "outcome": "loss"}
