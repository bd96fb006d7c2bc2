"""Groups the findings of the replay (made in `earl.audit.diagnosis`) into checks."""

from collections.abc import Iterator

from earl.audit.case import Case, Check
from earl.audit.findings import Fault, Said

TOKENS = (Fault.LEFT_TRUNCATION, Fault.WRONG_TOKEN, Fault.REENCODED_ACTION)
TURNS = (Fault.MISSING_TURN, Fault.WRONG_TURN)
AUTHORS = (Fault.WRONG_AUTHOR,)
REWARDS = (Fault.SWAPPED_REWARD,)
ENDINGS = (Fault.UNSEEN_TRUNCATION, Fault.WRONG_ENDING)


def about(*faults: Fault) -> Check:
    def check(case: Case) -> Iterator[Said]:
        for findings in case.diagnoses.values():
            yield from (finding for finding in findings if finding.fault in faults)

    return check
