"""The audit of a run: replays its stored episodes and checks everything stored about them.

files ─▶ episodes replayed and diagnosed (case) ─▶ checks by name (checks) ─▶ findings with place and cause
"""

from collections.abc import Callable

from earl.audit.case import Audit, Case, Fault, Finding, Unchecked, Verdict
from earl.audit.checks import CHECKS, FILES, FILES_QUESTION, SIGNATURES, SIGNATURES_QUESTION
from earl.audit.run import AuditedRun, read
from earl.errors import EarlError
from earl.runs.folder import RunFolder
from earl.runs.storage import step_of
from earl.runs.trajectories import files

__all__ = ["Audit", "Fault", "Finding", "audit"]


def audit(folder: RunFolder, step: int | None = None, watch: Callable[[str], object] = str) -> Audit:
    """Check a run's stored episodes, all of them or those of one step. Reads only.

    `watch` gets the name of each file before it is read. Raises EarlError if recipe or episodes cannot be read.
    """
    run = AuditedRun(folder)
    paths = [path for path in files(folder.trajectories) if step is None or step_of(path) == step]
    if not paths:
        raise _nothing(folder, step)
    verdicts = {FILES: Verdict(FILES, FILES_QUESTION)}
    verdicts |= {name: Verdict(name, entry.question) for name, entry in CHECKS.items()}
    verdicts[SIGNATURES] = Verdict(SIGNATURES, SIGNATURES_QUESTION)
    episodes = 0
    for path in paths:
        watch(path.name)
        stored = read(path)
        verdicts[FILES].files += 1
        if stored.problem:
            verdicts[FILES].findings.append(Finding(Fault.CORRUPT_FILE, stored.problem, stored.step))
        if stored.groups:
            episodes += len(stored.trajectories)
            _check(Case(run, stored), verdicts)
    _beside(run, verdicts[FILES])
    _signatures(run, verdicts[SIGNATURES])
    return Audit(folder.path.resolve().name, len(paths), episodes, tuple(verdicts.values()))


def _beside(run: AuditedRun, verdict: Verdict) -> None:
    """Problems in checkpoints and database, which the checks have read by now."""
    _ = run.checkpoints, run.metrics  # finds their problems, where no check has needed them
    verdict.findings += [Finding(Fault.CORRUPT_FILE, problem) for problem in run.problems]


def _signatures(run: AuditedRun, verdict: Verdict) -> None:
    """Signatures of the run and its checkpoints, after these have been read."""
    verdict.files = len(run.signers) + len(run.forged)
    verdict.findings += [Finding(Fault.BAD_SIGNATURE, fault) for fault in run.forged]
    for who in run.signers:
        if not who.trusted:
            verdict.unchecked[who.said] = verdict.unchecked.get(who.said, 0) + 1


def _check(case: Case, verdicts: dict[str, Verdict]) -> None:
    for name, entry in CHECKS.items():
        verdict = verdicts[name]
        verdict.files += 1
        for said in entry.check(case):
            if isinstance(said, Unchecked):
                verdict.unchecked[said.reason] = verdict.unchecked.get(said.reason, 0) + 1
            else:
                verdict.findings.append(said)
                case.findings.append(said)


def _nothing(folder: RunFolder, step: int | None) -> EarlError:
    kept = [str(step_of(path)) for path in files(folder.trajectories)]
    if step is None or not kept:
        return EarlError(
            f"run {folder.name!r} has no stored episodes yet; they are kept every run.keep_trajectories_every steps"
        )
    return EarlError(f"run {folder.name!r} keeps no episodes of step {step}; kept are the steps {', '.join(kept)}")
