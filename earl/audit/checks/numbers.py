"""Checks the step's metrics in the database against its episodes."""

import math
from collections.abc import Iterator

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding, Unchecked
from earl.rollout.metrics import episode_metrics, staleness_metrics

CLOSE = 1e-9


def check_numbers(case: Case) -> Iterator[Finding]:
    recorded = case.run.metrics.get(case.step)
    if not recorded:
        raise Unchecked("the database has no numbers of the step")
    groups = case.true_groups()
    for name, value in (episode_metrics(groups) | staleness_metrics(groups, case.step - 1)).items():
        if name in recorded and not math.isclose(recorded[name], value, rel_tol=CLOSE, abs_tol=CLOSE):
            cut = name.startswith("truncation/") or name in ("stop/context_limit", "stop/truncated_turn")
            said = f"{name} is recorded as {recorded[name]:g}, the stored episodes give {value:g}"
            yield case.finding(Fault.UNSEEN_TRUNCATION if cut else Fault.WRONG_NUMBER, said)
