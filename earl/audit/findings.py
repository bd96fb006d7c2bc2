"""The results of an audit: findings with fault, place and message, collected by check."""

from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
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
    """One fault and its place; the message says what was expected and what was found."""

    fault: Fault
    message: str
    step: int | None = None
    episode: int | None = None
    """Index in the step's file."""
    turn: int | None = None
    token: int | None = None
    """Index in the episode's tokens."""


class Unchecked(Exception):
    """Why a check, or a part of it, is left out: yielded, or raised where the check ends with it."""


CheckOutcome = Finding | Unchecked


@dataclass(slots=True)
class Verdict:
    check: str
    question: str
    files: int
    findings: list[Finding] = field(default_factory=list)
    unchecked: dict[str, int] = field(default_factory=dict)
    """Reason for an omitted check → number of files."""

    def add(self, said: CheckOutcome) -> None:
        if isinstance(said, Finding):
            self.findings.append(said)
        else:
            self.unchecked[str(said)] = self.unchecked.get(str(said), 0) + 1

    @property
    def state(self) -> str:
        """ "failed", "passed", "partly" (some parts were not checked) or "not checked"."""
        if self.findings:
            return "failed"
        left_out = sum(self.unchecked.values())
        return "passed" if not left_out else "partly" if left_out < self.files else "not checked"


@dataclass(frozen=True, slots=True)
class Audit:
    run: str
    files: int
    episodes: int
    verdicts: tuple[Verdict, ...]
    idle: tuple[str, ...] = ()
    """What the run said while it did not learn, or episodes ended by faults: sound, but worth a look."""

    @property
    def findings(self) -> list[Finding]:
        """The findings of all checks; those nearest to the cause come first."""
        return [finding for verdict in self.verdicts for finding in verdict.findings]
