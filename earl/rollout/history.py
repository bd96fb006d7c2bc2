"""History policies: which part of an episode the model sees in its next prompt.

full           everything: the context grows over the turns
last_turns:K   the last K rounds and the new observation
board_only     only the new observation: last_turns:0
summary:K      after every K rounds the model writes a summary, which replaces everything before it
"""

from dataclasses import dataclass

SUMMARY_REQUEST = "Summarise what matters so far."


@dataclass(frozen=True, slots=True)
class Told:
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class PastTurn:
    """The message before a reply, and the reply's offsets into the episode's tokens."""

    told: Told
    start: int
    end: int
    closed: bool  # whether the reply ended with the end-of-turn token


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """A parsed history policy; "last_turns:2" gives HistoryPolicy(kept=2, summary=None)."""

    kept: int | None  # rounds that the next prompt keeps; None: all
    summary: int | None  # rounds after which a summary is requested; None: never

    @classmethod
    def of(cls, name: str) -> "HistoryPolicy":
        """Parse a name that the recipe has validated."""
        kind, _, size = name.partition(":")
        if kind == "summary":
            return cls(None, int(size))
        return cls({"full": None, "board_only": 0}.get(kind, int(size or 0)), None)

    def wants_summary(self, rounds: int) -> bool:
        return self.summary is not None and rounds >= self.summary

    def goes_on(self, rounds: int) -> bool:
        """Whether the context continues unchanged after so many rounds."""
        return self.kept is None or rounds <= self.kept

    def kept_of(self, rounds: list[PastTurn]) -> list[PastTurn]:
        return rounds if self.kept is None else rounds[max(len(rounds) - self.kept, 0) :]
