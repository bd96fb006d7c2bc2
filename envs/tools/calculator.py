"""A calculator for integer expressions, read by a parser of its own.

sum     := product (("+" | "-") product)*
product := factor ("*" factor)*
factor  := "-" factor | NUMBER | "(" sum ")"
"""

import re

MAX_LENGTH = 64
"""Characters of an expression; it also bounds how deep parentheses nest."""
MAX_MAGNITUDE = 10**12
"""No number in an expression, no result on the way and no final one may be larger, with either sign."""

TOKEN = re.compile(r"[0-9]+|[-+*()]")


class Refusal(ValueError):
    """The calculator's answer to what it does not calculate; the message is for the caller of the tool."""


def calculate(expression: str, max_operations: int | None = None) -> int:
    """The value of an expression of integers, + - * and parentheses. Blanks between its parts are allowed.

    Args:
        expression: At most 64 characters.
        max_operations: The most +, - and * between two operands; None for any number. A sign is none.

    Raises:
        Refusal: The text is no such expression, or is too long, too large or has too many operations.
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
    tokens, position = [], 0
    while position < len(expression):
        if expression[position] == " ":
            position += 1
            continue
        match = TOKEN.match(expression, position)
        if match is None:
            raise Refusal(f"cannot read {expression[position]!a}")
        tokens.append(match.group())
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent over tokens; each method reads one rule of the grammar and returns its value."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]  # "" stands for the end
        self.position = 0
        self.operations = 0

    def sum(self) -> int:
        value = self._product()
        while (sign := self.tokens[self.position]) in ("+", "-"):
            self._operator()
            term = self._product()
            value = _bounded(value + term if sign == "+" else value - term)
        return value

    def end(self) -> None:
        if self.tokens[self.position]:
            raise Refusal(f"unexpected {self.tokens[self.position]}")

    def _product(self) -> int:
        value = self._factor()
        while self.tokens[self.position] == "*":
            self._operator()
            value = _bounded(value * self._factor())
        return value

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

    def _operator(self) -> None:
        self.position += 1
        self.operations += 1


def _bounded(value: int) -> int:
    if abs(value) > MAX_MAGNITUDE:
        raise Refusal("a number is too large")
    return value
