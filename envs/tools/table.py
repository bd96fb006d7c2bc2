"""A question on a CSV file, which Python in a sandbox answers."""

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from earl.envs.tools.base import ToolEnv
from earl.envs.tools.kit import Workspace
from earl.errors import EarlError

KINDS = ("red", "blue", "green")
MOST_ROWS = 100_000
FUNCTIONS = ("sum", "max", "min")
PROGRAM = "print({}(int(x.split(',')[1]) for x in open('data.csv') if '{}' in x))"


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
        if not 1 <= rows <= MOST_ROWS:
            raise EarlError(f"rows {rows!r} is not within 1 … {MOST_ROWS}")
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
        return str(self.answer) if self.turns else f'python("{PROGRAM.format("sum", self.kind)}")'

    def random_action(self, rng: Random) -> str:
        """Any number of any kind by a program, and what it printed as the answer, or rarely any number at once. The
        question is not read."""
        if not self.last_results and rng.random() < 0.9:
            return f'python("{PROGRAM.format(rng.choice(FUNCTIONS), rng.choice(KINDS))}")'
        return self.last_results if re.fullmatch(self.answer_form, self.last_results) else str(rng.randint(0, 9999))
