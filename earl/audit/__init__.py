"""The audit of a run: replays its stored episodes and checks everything stored about them.

files ─▶ episodes replayed and diagnosed (case) ─▶ checks by name ─▶ findings with place and cause
"""

from collections.abc import Callable, Iterator

from earl.agents.scripted.registry import is_policy, is_self
from earl.audit.case import Case, Check
from earl.audit.checks import check_advantages, check_mask, check_numbers, check_seals, check_seeds
from earl.audit.evidence import after_update, check_logprobs, shape, versions
from earl.audit.findings import Audit, Fault, Finding, Unchecked, Verdict
from earl.audit.run import AuditedRun, read
from earl.envs.registry import check_options
from earl.errors import EarlError
from earl.runs.folder import RunFolder
from earl.runs.trajectories import kept_files

__all__ = ["Audit", "Fault", "Finding", "audit"]


def _replayed(*faults: Fault) -> Check:
    """The findings of the replay (`earl.audit.case`) that name one of these faults."""

    def check(case: Case) -> Iterator[Finding]:
        for findings in case.diagnoses:
            yield from (finding for finding in findings if finding.fault in faults)

    return check


CHECKS: dict[str, tuple[Check, str]] = {
    "seeds": (check_seeds, "every episode is one that the run's seed asks for, and stands there once"),
    "tokens": (
        _replayed(Fault.LEFT_TRUNCATION, Fault.WRONG_TOKEN, Fault.REENCODED_ACTION),
        "prompts grow from the start, replayed to the same tokens",
    ),
    "turns": (_replayed(Fault.MISSING_TURN, Fault.WRONG_TURN), "every reply is a turn, and no turn is missing"),
    "authors": (_replayed(Fault.WRONG_AUTHOR), "every token names who wrote it"),
    "rewards": (_replayed(Fault.SWAPPED_REWARD), "the environment, replayed, gives the same rewards"),
    "endings": (
        _replayed(Fault.UNSEEN_TRUNCATION, Fault.WRONG_ENDING),
        "episodes end as stored; no reply breaks off unseen",
    ),
    "mask": (check_mask, "learned from is what was sampled: no template, no environment"),
    "versions": (versions, "the weights of the step before sampled every token, or as old ones as may be"),
    "places": (shape, "log-probs stand at sampled tokens, at most 0"),
    "log-probs": (check_logprobs, "log-probs and draws are those of the stored weights"),
    "learned": (after_update, "the learner's log-probs are those of the weights that it left"),
    "advantages": (check_advantages, "advantages follow from the rewards"),
    "numbers": (check_numbers, "the database counts what the episodes show"),
    "seals": (check_seals, "what no other check can tell is as it was written"),
}
"""The checks of a step's episodes and what each asks, in the order of their findings: nearest to the cause first."""


def audit(folder: RunFolder, step: int | None = None, watch: Callable[[str], object] = str) -> Audit:
    """Check a run's stored episodes, all of them or those of one step. Reads only.

    `watch` gets the name of each file before it is read. Raises EarlError if recipe or episodes cannot be read, and
    for an option of an environment that is no more.
    """
    run = AuditedRun(folder)
    for one in run.config.each_env():
        check_options(one.env.name, one.env.options)
    paths = kept_files(folder, step)
    named = [name for one in run.config.each_env() for name in one.env.opponents]
    if policies := [name for name in named if is_policy(name) and not is_self(name)]:
        raise EarlError(
            f"run {folder.name!r} has games against {policies[0]!r}, whose moves are not stored: it cannot be audited"
        )
    if run.config.rollout.resample or any(env.prefer != "none" for env in run.config.env.each.values()):
        raise EarlError(
            f"run {folder.name!r} drew tasks by what others had taught (rollout.resample, env.prefer), and an audit "
            "draws them from its seed alone: it cannot be audited"
        )
    whole = Verdict("files", "every file is whole and is what its name says", len(paths))
    checked = {name: Verdict(name, question, 0) for name, (_, question) in CHECKS.items()}
    episodes = 0
    for path in paths:
        watch(path.name)
        stored = read(path)
        if stored.problem:
            whole.add(Finding(Fault.CORRUPT_FILE, stored.problem, stored.step))
        if stored.groups:
            episodes += len(stored.trajectories)
            _check(Case(run, stored), checked)
    _ = run.checkpoints, run.numbers  # finds their problems and signers, where no check has needed them
    for problem in run.problems:
        whole.add(Finding(Fault.CORRUPT_FILE, problem))
    signed = Verdict(
        "signatures", "the run and its checkpoints are as a trusted key signed them", len(run.signers) + len(run.forged)
    )
    for fault in run.forged:
        signed.add(Finding(Fault.BAD_SIGNATURE, fault))
    for signer in run.signers:
        if not signer.trusted:
            signed.add(Unchecked(signer.said))
    verdicts = (whole, *checked.values(), signed)
    return Audit(folder.path.resolve().name, len(paths), episodes, verdicts, run.idle)


def _check(case: Case, verdicts: dict[str, Verdict]) -> None:
    for name, (check, _) in CHECKS.items():
        verdicts[name].files += 1
        try:
            for said in check(case):
                verdicts[name].add(said)
                if isinstance(said, Finding):
                    case.findings.append(said)
        except Unchecked as reason:
            verdicts[name].add(reason)
