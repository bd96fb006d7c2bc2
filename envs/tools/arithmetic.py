"""Multi-step arithmetic, one operation of the calculator after the other."""

from random import Random

from earl.envs.tools.base import ToolEnv
from earl.envs.tools.kit import calculator
from earl.errors import EarlError

MAX_VALUE = 999
"""Bound on intermediate results, so that they stay short; an option can lower it."""
MAX_OPERATIONS = 4096


class ArithmeticEnv(ToolEnv):
    """A chain such as "37+48-19", worked out from left to right: calc("37+48"), calc("85-19"), 66."""

    instructions = (
        "Work out a chain of additions and subtractions from left to right. A calculator helps: write "
        'calc("2+3") and nothing else, once for each step. When you know the final result, answer with its digits and '
        "nothing else."
    )
    answer_form = "([0-9]+)"
    hint = 'illegal: write calc("2+3"), or digits'

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
        self.num_operations, self.min_operations = num_operations, min_operations
        self.max_operand, self.max_value = max_operand, max_value
        self.max_turns = num_operations + 2
        self._width = 0 if min_operations is None else len(str(max_operand)) * (num_operations + 1) + num_operations
        self.results, self.terms = [0], [0]
        """Of "37+48-19": [37, 85, 66] and [48, -19]."""
        self.solved = 0
        """The number of leading terms that the calculator has been given, in order."""

    def calc(self, expression: str) -> int:
        """Work out one operation of whole numbers, such as 2+3."""
        if sum(sign in "+-*" for sign in expression[1:]) > 1:
            raise ValueError("one operation per call")
        value = calculator(expression)
        self.solved += expression == self.next_operation
        return value

    tools = (calc,)

    @property
    def next_operation(self) -> str | None:
        """The next one for the calculator; None once the answer is known."""
        return f"{self.results[self.solved]}{self.terms[self.solved]:+}" if self.solved < len(self.terms) else None

    def task(self, rng: Random) -> str:
        self.results, self.terms, self.solved = [rng.randint(1, self.max_operand)], [], 0
        shortest, longest = self.min_operations, self.num_operations
        for _ in range(longest if shortest is None else rng.randint(shortest, longest)):
            term = rng.randint(1, self.max_operand) * rng.choice((1, -1))
            if not 0 <= self.results[-1] + term <= self.max_value:
                term = -term
            self.terms.append(term)
            self.results.append(self.results[-1] + term)
        return "".join([str(self.results[0]), *(f"{term:+}" for term in self.terms)]).ljust(self._width)

    def score(self, answer: str) -> float:
        # Compared as text: an answer of thousands of digits is wrong, not a reason to convert it.
        return float((answer.lstrip("0") or "0") == str(self.results[-1]))

    def solve(self, rng: Random) -> str:
        operation = self.next_operation
        return str(self.results[-1]) if operation is None else f'calc("{operation}")'

    def random_action(self, rng: Random) -> str:
        first, second = rng.randint(0, MAX_VALUE), rng.randint(1, self.max_operand)
        return str(first) if rng.random() < 0.5 else f'calc("{first}{rng.choice("+-")}{second}")'
