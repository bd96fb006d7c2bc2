"""What an audit says: findings with a name, a place and a sentence, gathered check by check."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from earl.agents.chat import Chat
from earl.errors import boundary


class Fault(StrEnum):
    """What can be wrong with a stored episode or with the file that it lies in."""

    CORRUPT_FILE = "corrupt file"
    WRONG_SEED = "wrong seed"
    WRONG_GROUP = "wrong group"
    DUPLICATED_EPISODE = "duplicated episode"
    MISSING_EPISODE = "missing episode"
    LEFT_TRUNCATION = "left truncation"
    MISSING_TURN = "missing turn"
    REENCODED_ACTION = "re-encoded action"
    WRONG_TOKEN = "wrong token"
    WRONG_TURN = "wrong turn"
    WRONG_AUTHOR = "wrong author"
    SWAPPED_REWARD = "swapped reward"
    WRONG_ENDING = "wrong ending"
    UNSEEN_TRUNCATION = "unseen truncation"
    SHIFTED_MASK = "shifted mask"
    TEMPLATE_LOSS = "loss on a template token"
    ENVIRONMENT_LOSS = "loss on an environment token"
    WRONG_MASK = "wrong mask"
    ALTERED_LOGPROB = "altered log-prob"
    STALE_WEIGHTS = "stale weights"
    WRONG_ADVANTAGE = "wrong advantage"
    WRONG_NUMBER = "wrong number"
    BAD_SIGNATURE = "bad signature"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, where it is, and what was expected and found, in a sentence.

    Example:
        Finding(Fault.WRONG_AUTHOR, "token 4 is the template's but is stored as …", step=60, episode=3, token=4)
    """

    fault: Fault
    message: str
    step: int | None = None
    episode: int | None = None
    """Place in the step's file, from 0."""
    turn: int | None = None
    """From 0."""
    token: int | None = None
    """Place in the episode's tokens, from 0."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Why something could not be checked."""

    reason: str


Said = Finding | Unchecked
"""What a check yields."""


@dataclass(slots=True)
class Verdict:
    """What one check said of a run."""

    check: str
    question: str
    """What is checked, in words."""
    files: int = 0
    """Files that it looked at."""
    findings: list[Finding] = field(default_factory=list)
    unchecked: dict[str, int] = field(default_factory=dict)
    """Why something was not checked → in how many files."""

    @property
    def state(self) -> str:
        """ "failed", "passed", "partly" (some of it was not checked) or "not checked"."""
        if self.findings:
            return "failed"
        left_out = sum(self.unchecked.values())
        return "passed" if not left_out else "partly" if left_out < self.files else "not checked"


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit of a run found."""

    run: str
    files: int
    episodes: int
    verdicts: tuple[Verdict, ...]

    @property
    def findings(self) -> list[Finding]:
        """Those of all checks: what lies nearest to the cause comes first."""
        return [finding for verdict in self.verdicts for finding in verdict.findings]


# Findings in words: tokens as text, and the place in the run.

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
