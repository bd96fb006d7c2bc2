"""Code against hidden tests: write a function, which runs on inputs that are never shown."""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from earl.envs.tools.base import ToolEnv
from earl.envs.tools.kit import Workspace
from earl.errors import EarlError

Step = tuple[str, Callable[[Any], Any], str]
"""What a step of a function does in words, the step itself, and its Python, with `x` for what it is given."""


def _numbers(rng: Random) -> list[Step]:
    n = rng.randint(2, 9)
    return [
        (f"add {n}", lambda x: x + n, f"x + {n}"),
        (f"multiply by {n}", lambda x: x * n, f"x * {n}"),
        (f"take the remainder by {n + 10}", lambda x: x % (n + 10), f"x % {n + 10}"),
        ("square it", lambda x: x * x, "x * x"),
        ("negate it", lambda x: -x, "-x"),
        ("add up the digits, without the sign", lambda x: sum(map(int, str(abs(x)))), "sum(map(int, str(abs(x))))"),
    ]


def _lists(rng: Random) -> list[Step]:
    n = rng.randint(2, 4)
    return [
        ("sort it", sorted, "sorted(x)"),
        ("reverse it", lambda x: x[::-1], "x[::-1]"),
        (f"add {n} to each", lambda x: [y + n for y in x], f"[y + {n} for y in x]"),
        ("keep the even numbers", lambda x: [y for y in x if y % 2 == 0], "[y for y in x if y % 2 == 0]"),
        (f"drop the first {n}", lambda x: x[n:], f"x[{n}:]"),
        ("keep the first of equal ones", lambda x: list(dict.fromkeys(x)), "list(dict.fromkeys(x))"),
        ("take the running sums", lambda x: [sum(x[: i + 1]) for i in range(len(x))],
         "[sum(x[:i + 1]) for i in range(len(x))]"),
    ]  # fmt: skip


def _texts(rng: Random) -> list[Step]:
    n, letter = rng.randint(2, 4), rng.choice("abc")
    return [
        ("reverse it", lambda x: x[::-1], "x[::-1]"),
        ("make it upper case", str.upper, "x.upper()"),
        (f"rotate it to the left by {n}", lambda x: x[n:] + x[:n], f"x[{n}:] + x[:{n}]"),
        (f"drop every {letter!r}", lambda x: x.replace(letter, ""), f"x.replace({letter!r}, '')"),
        ("write it twice", lambda x: x + x, "x + x"),
        (f"keep every character at a multiple of {n}, from 0", lambda x: x[::n], f"x[::{n}]"),
    ]


KINDS: dict[str, tuple[Callable[[Random], Any], Callable[[Random], list[Step]]]] = {
    "a whole number": (lambda rng: rng.randint(-99, 99), _numbers),
    "a list of whole numbers": (lambda rng: [rng.randint(-9, 9) for _ in range(rng.randint(0, 9))], _lists),
    "a text": (lambda rng: "".join(rng.choices("abcde", k=rng.randint(0, 9))), _texts),
}
RUNNER = """
import json, os, sys
inputs, results = json.load(sys.stdin), os.dup(1)
os.dup2(2, 1)  # of what the program prints nothing is taken for a result
scope = {"__name__": "solution"}
exec(compile(open("solution.py").read(), "solution", "exec"), scope)
os.write(results, json.dumps([json.dumps(scope["f"](x)) for x in inputs]).encode())
"""


class CodeEnv(Workspace, ToolEnv):
    """A function of `steps` steps is described; `submit` runs it on hidden inputs. The expected values never leave this
    process: the sandbox is given an input, and what it returns is compared here."""

    instructions = (
        "Write a Python function f(x) as described. You may try it with python, which prints what you want to know. "
        "Then submit the program, which has f; hidden tests say whether it is right, once."
    )
    answer_form = "(give up)"
    hint = 'illegal: write submit("def f(x): return x") with your program'
    max_turns = 4

    def __init__(self, steps: int = 2, tests: int = 20, sandbox: Mapping[str, Any] | None = None) -> None:
        super().__init__(sandbox)
        for name, value, most in (("steps", steps, 6), ("tests", tests, 99)):  # results are to be within output_kb
            if not 1 <= value <= most:
                raise EarlError(f"{name} {value!r} is not within 1 … {most}")
        self.steps, self.tests = steps, tests
        self._hidden: list[tuple[Any, Any]] = []
        self._solution = ""

    def submit(self, code: str) -> str:
        """Submit a program that has the function f(x)."""
        self.sandbox.terminate()  # nothing that was left there sees the tests
        self.sandbox.write_file("solution.py", code.encode("utf-8", "replace"))
        ended = self.sandbox.exec(["python", "-c", RUNNER], json.dumps([given for given, _ in self._hidden]).encode())
        expected = json.dumps([json.dumps(value) for _, value in self._hidden]).encode()
        self.result = float(ended.ok and ended.stdout == expected)
        return "right" if self.result else "wrong"

    tools = (Workspace.python, submit)

    def task(self, rng: Random) -> str:
        kind = rng.choice(list(KINDS))
        draw, choices = KINDS[kind]
        steps = [rng.choice(choices(rng)) for _ in range(self.steps)]
        self._hidden = []
        for _ in range(self.tests):
            given = value = draw(rng)
            for _, step, _ in steps:
                value = step(value)
            self._hidden.append((given, value))
        self._solution = "\n    ".join(["def f(x):", *(f"x = {python}" for _, _, python in steps), "return x"])
        return f"f takes {kind}: {', then '.join(words for words, _, _ in steps)}."

    def score(self, answer: str) -> float:
        return 0.0

    def solve(self, rng: Random) -> str:
        return f"submit({self._solution!r})"

    def random_action(self, rng: Random) -> str:
        return f'submit("def f(x): return {rng.choice(("x", "0", "[]"))}")'
