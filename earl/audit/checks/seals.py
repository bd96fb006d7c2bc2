"""Columns that were changed after they were written, where no other check could tell what was changed."""

from collections.abc import Iterator

from earl.audit.case import Case
from earl.audit.findings import Fault, Said

FAULTS = {
    "tokens": Fault.REENCODED_ACTION,
    "authors": Fault.WRONG_AUTHOR,
    "logprobs": Fault.ALTERED_LOGPROB,
    "versions": Fault.STALE_WEIGHTS,
    "mask": Fault.WRONG_MASK,
    "advantages": Fault.WRONG_ADVANTAGE,
    "new_logprobs": Fault.ALTERED_LOGPROB,
}
"""What a change of a column amounts to when all that follows from the other columns still holds."""


def check(case: Case) -> Iterator[Said]:
    """The last resort: with the weights gone nothing else says that a log-prob, or a token, is another."""
    if case.told:
        return
    for column in case.file.changed:
        said = f"the column {column!r} is not as it was written: its checksum differs"
        yield case.finding(FAULTS.get(column, Fault.CORRUPT_FILE), said)
