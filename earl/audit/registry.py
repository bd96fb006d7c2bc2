"""The checks by name, in the order of their findings: the first are nearest to the cause."""

from collections.abc import Iterator
from dataclasses import dataclass

from earl.audit.case import Case, Check
from earl.audit.checks import advantages, learned, logprobs, mask, numbers, seals, seeds, versions
from earl.audit.findings import Fault, Said


@dataclass(frozen=True, slots=True)
class CheckEntry:
    check: Check
    question: str


def _replayed(*faults: Fault) -> Check:
    """The findings of the replay (`earl.audit.diagnosis`) that name one of these faults."""

    def check(case: Case) -> Iterator[Said]:
        for findings in case.diagnoses.values():
            yield from (finding for finding in findings if finding.fault in faults)

    return check


FILES = "files"
"""The check that files are readable, done first."""
FILES_QUESTION = "every file is whole and is what its name says"

SIGNATURES = "signatures"
"""The check of signatures, done once per run."""
SIGNATURES_QUESTION = "the run and its checkpoints are as a trusted key signed them"

CHECKS = {
    "seeds": CheckEntry(seeds.check, "every episode is one that the run's seed asks for, and stands there once"),
    "tokens": CheckEntry(
        _replayed(Fault.LEFT_TRUNCATION, Fault.WRONG_TOKEN, Fault.REENCODED_ACTION),
        "prompts grow from the start, replayed to the same tokens",
    ),
    "turns": CheckEntry(
        _replayed(Fault.MISSING_TURN, Fault.WRONG_TURN), "every reply is a turn, and no turn is missing"
    ),
    "authors": CheckEntry(_replayed(Fault.WRONG_AUTHOR), "every token names who wrote it"),
    "rewards": CheckEntry(_replayed(Fault.SWAPPED_REWARD), "the environment, replayed, gives the same rewards"),
    "endings": CheckEntry(
        _replayed(Fault.UNSEEN_TRUNCATION, Fault.WRONG_ENDING), "episodes end as stored; no reply breaks off unseen"
    ),
    "mask": CheckEntry(mask.check, "learned from is what was sampled: no template, no environment"),
    "versions": CheckEntry(
        versions.versions, "the weights of the step before sampled every token, or as old ones as may be"
    ),
    "places": CheckEntry(versions.shape, "log-probs stand at sampled tokens, at most 0"),
    "log-probs": CheckEntry(logprobs.check, "log-probs and draws are those of the stored weights"),
    "learned": CheckEntry(learned.check, "the learner's log-probs are those of the weights that it left"),
    "advantages": CheckEntry(advantages.check, "advantages follow from the rewards"),
    "numbers": CheckEntry(numbers.check, "the database counts what the episodes show"),
    "seals": CheckEntry(seals.check, "what no other check can tell is as it was written"),
}
