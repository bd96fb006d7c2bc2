"""Findings in words: tokens as text, and the place in the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from earl.agents.chat import Chat
from earl.audit.findings import Fault, Finding
from earl.errors import boundary

LONGEST = 60
"""Characters of a text that are quoted."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """Who speaks of one episode."""

    chat: Chat
    step: int
    episode: int

    def finding(self, fault: Fault, message: str, turn: int | None = None, token: int | None = None) -> Finding:
        """A finding in this episode."""
        return Finding(fault, message, self.step, self.episode, turn, token)

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as quoted text; by their numbers where they are none."""
        if not tokens:
            return "nothing"
        with boundary() as fault:  # a damaged file may hold numbers that are no tokens
            text = repr(str(self.chat.tokenizer.decode(list(tokens), skip_special_tokens=False)))
        if fault.message:
            text = f"tokens {', '.join(map(str, tokens))}"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"

    def more(self, count: int) -> str:
        """How many other places are alike."""
        return f" (and {count - 1} more tokens)" if count > 1 else ""
