"""Checks column checksums: finds changes that no other check can detect."""

from collections.abc import Iterator

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding

FAULTS = {
    "tokens": Fault.REENCODED_ACTION,
    "authors": Fault.WRONG_AUTHOR,
    "logprobs": Fault.ALTERED_LOGPROB,
    "versions": Fault.STALE_WEIGHTS,
    "mask": Fault.WRONG_MASK,
    "advantages": Fault.WRONG_ADVANTAGE,
    "new_logprobs": Fault.ALTERED_LOGPROB,
}
"""The fault if a column was changed consistently with all other columns."""


def check_seals(case: Case) -> Iterator[Finding]:
    if case.told:
        return
    for column in case.file.changed:
        said = f"the column {column!r} is not as it was written: its checksum differs"
        yield case.finding(FAULTS.get(column, Fault.CORRUPT_FILE), said)
