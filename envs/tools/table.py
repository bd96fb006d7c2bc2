"""A question on a CSV file, which Python in a sandbox answers."""

from collections.abc import Mapping
from random import Random
from typing import Any

from earl.envs.tools.base import ToolEnv
from earl.envs.tools.kit import Workspace

KINDS = ("red", "blue", "green")


class TableEnv(Workspace, ToolEnv):
    """Sum a column of `data.csv` over the rows of a kind; there are too many `rows` to read."""

    instructions = (
        "The file data.csv has the columns kind and units. Answer the question with Python, which prints what you want "
        "to know; then answer with the number and nothing else."
    )
    tools = (Workspace.python, Workspace.read_file)
    answer_form = "(-?[0-9]+)"
    hint = 'illegal: write python("print(1)") with your program, or the answer in digits'
    max_turns = 4

    def __init__(self, rows: int = 200, sandbox: Mapping[str, Any] | None = None) -> None:
        super().__init__(sandbox)
        self.rows, self.kind, self.answer = rows, "", 0
        self._content = b""

    def task(self, rng: Random) -> str:
        table = [(rng.choice(KINDS), rng.randint(1, 99)) for _ in range(self.rows)]
        self.kind = rng.choice(KINDS)
        self.answer = sum(units for kind, units in table if kind == self.kind)
        self._content = "".join(["kind,units\n", *(f"{kind},{units}\n" for kind, units in table)]).encode()
        return f"What is the sum of units of kind {self.kind}?"

    def prepare(self) -> None:
        self.sandbox.write_file("data.csv", self._content)

    def score(self, answer: str) -> float:
        return float(answer == str(self.answer))

    def solve(self, rng: Random) -> str:
        del rng
        program = f"print(sum(int(x[{len(self.kind) + 1}:]) for x in open('data.csv') if x[0] == '{self.kind[0]}'))"
        return str(self.answer) if self.turns else f'python("{program}")'

    def random_action(self, rng: Random) -> str:
        return f'python("print({rng.randint(0, 99)})")' if rng.random() < 0.2 else str(rng.randint(0, 9999))
