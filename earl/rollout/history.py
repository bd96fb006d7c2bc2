"""History policies: what of an episode the model still sees in its next prompt.

full           everything: the context grows over the turns
last_turns:K   the last K rounds and the new observation
board_only     the new observation alone: last_turns:0
summary:K      after every K rounds the model writes a summary, which then stands for all that was before
"""

from dataclasses import dataclass

SUMMARY_REQUEST = "Summarise what matters so far."


@dataclass(frozen=True, slots=True)
class Told:
    """What the model was told before a reply."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class PastTurn:
    """What the model was told, and where its reply stands among the episode's tokens."""

    told: Told
    start: int
    end: int
    closed: bool
    """Whether the reply ended with the end-of-turn token."""


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """A history policy, read from its name in the recipe.

    Example:
        >>> History.of("last_turns:2")
        History(kept=2, summary=None)
    """

    kept: int | None
    """Rounds that the next prompt still holds; None: all."""
    summary: int | None
    """Rounds after which a summary is asked for; None: never."""

    @classmethod
    def of(cls, name: str) -> "HistoryPolicy":
        """The policy of that name; the recipe has checked it."""
        kind, _, size = name.partition(":")
        if kind == "summary":
            return cls(None, int(size))
        return cls({"full": None, "board_only": 0}.get(kind, int(size or 0)), None)

    def wants_summary(self, rounds: int) -> bool:
        """Whether a context of so many rounds is to be summed up now."""
        return self.summary is not None and rounds >= self.summary

    def goes_on(self, rounds: int) -> bool:
        """Whether the context of so many rounds is continued as it is."""
        return self.kept is None or rounds <= self.kept
