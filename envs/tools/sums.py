"""The arithmetic task by native calls of a calculator, in the format of any model family."""

from random import Random

from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.envs.tools.base import ToolEnv


class SumsEnv(ToolEnv):
    """A chain such as "37+48-19", worked out from left to right."""

    instructions = (
        "Work out a chain of additions and subtractions from left to right. The calculator takes one operation per "
        'call, such as "2+3". When you know the final result, answer with its digits and nothing else.'
    )
    answer_form = "([0-9]+)"
    hint = 'illegal: write calculator("2+3") with your operation, or the answer in digits'

    def __init__(self, num_operations: int = 2, max_operand: int = 99) -> None:
        self.chain = ArithmeticEnv(num_operations, max_operand)
        self.max_turns = self.chain.max_turns

    def calculator(self, expression: str) -> str:
        """Work out one operation of whole numbers: +, - or *."""
        return self.chain.calculator(expression)

    tools = (calculator,)

    def task(self, rng: Random) -> str:
        return self.chain.reset(seed=rng.getrandbits(31))[0]

    def score(self, answer: str) -> float:
        return float((answer.lstrip("0") or "0") == str(self.chain.answer))

    def solve(self, rng: Random) -> str:
        del rng
        call = self.chain.next_call
        return str(self.chain.answer) if call is None else f'calculator("{call}")'

    def random_action(self, rng: Random) -> str:
        call = self.chain.random_action(rng)
        return call.replace("<tool_call>", 'calculator("').replace("</tool_call>", '")')
