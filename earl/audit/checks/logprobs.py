"""Checks stored log-probs against the weights that sampled the tokens, which also shows whether tokens were changed,
and the learner's log-probs after the update against the weights that the step saved.

If rollout and learner take turns, the tokens were sampled by the weights of the previous step. In an asynchronous run
each token has its own version, and one episode may have several; the versions whose weights are stored are checked.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from earl.audit.case import Case
from earl.audit.checks.versions import shape
from earl.audit.evidence import Episodes, Evidence, Sampled, by_siblings, by_weights, gather
from earl.audit.findings import Fault, Finding, Said, Unchecked
from earl.audit.rebuild import more

MISDRAWN = 0.002
"""Share of tokens inconsistent with their draws, above which a step was sampled by unknown weights."""
Told = set[int | None]


def check_logprobs(case: Case) -> Iterator[Said]:
    """Compare with the stored weights; tokens without stored weights are compared between episodes."""
    shapeless = {finding.episode for finding in shape(case)}
    episodes = [(replay.index, replay.played) for replay in case.sound if replay.index not in shapeless]
    if not any(trajectory.turns for _, trajectory in episodes):
        raise Unchecked("not one episode can be told")
    sampled = gather(episodes, drawn=case.run.config.sampler.engine != "vllm")  # whose draws cannot be derived
    allowed, told = case.run.versions(case.step), Told()
    unknown = np.ones(len(sampled.places), np.bool_)
    for version in allowed:
        own = unknown if len(allowed) == 1 else sampled.versions == version
        if case.run.policy(version) is None or not own.any():
            continue
        unknown = unknown & ~own
        evidence = _by_weights(case, episodes, version).where(own)
        for finding in _stale(case, episodes, sampled, evidence, version):
            told.add(finding.episode)
            yield finding
        if None not in told:
            yield from _findings(case, sampled, evidence, f"by the weights of step {version}", told)
    if unknown.any():
        yield _unchecked(sampled, unknown, len(allowed) == 1)
        yield from _findings(case, sampled, by_siblings(sampled).where(unknown), "in other episodes", told)


def after_update(case: Case) -> Iterator[Finding]:
    """Compare the learner's log-probs with the weights of the step."""
    told = [(r, e) for r, e in case.sound_experiences() if len(e.logprobs) == len(r.stored.tokens) and e.mask.any()]
    if case.run.policy(case.step) is None:
        raise Unchecked("no weights of the step are kept")
    if not told:
        raise Unchecked("not one episode can be told")
    episodes = [(replay.index, replace(replay.played, logprobs=e.logprobs)) for replay, e in told]
    evidence, whose = _by_weights(case, episodes, case.step), f"by the weights of step {case.step}"
    # In episodes with findings the tokens are wrong, and so are the log-probs.
    yield from _findings(case, gather(episodes, drawn=False), evidence, whose, case.told, "learner's log-prob")


def _by_weights(case: Case, episodes: Episodes, step: int) -> Evidence:
    policy = case.run.policy(step)
    assert policy is not None
    return by_weights(policy.model, episodes, case.run.config.rollout.temperature)


def _unchecked(sampled: Sampled, unknown: NDArray[np.bool_], alone: bool) -> Unchecked:
    steps = ", ".join(map(str, np.unique(sampled.versions[unknown]).tolist()))
    said = f"{int(unknown.sum())} of {len(unknown)} tokens were sampled by weights that are not kept (of step {steps})"
    said = "no weights of the step before are kept" if alone else said
    return Unchecked(f"{said}; compared among the step's episodes only")


def _stale(case: Case, episodes: Episodes, sampled: Sampled, evidence: Evidence, version: int) -> Iterator[Finding]:
    """Episodes, or the whole step, that other stored weights explain; and a step that no stored weights explain."""
    strange, known = _off(sampled, evidence), ~np.isnan(evidence.logprobs)
    most = len(strange) > max(1, len(episodes) // 2)
    for other in case.run.checkpoints:
        if other == version or not strange:
            continue
        explained = strange - _off(sampled, _by_weights(case, episodes, other).where(known))
        whose = f"log-probs are those of the weights of step {other}, not of step {version}"
        if most and len(explained) > len(strange) // 2:
            yield case.finding(Fault.STALE_WEIGHTS, f"the {whose}, in {len(explained)} of {len(episodes)} episodes")
            return
        for index in sorted(explained):
            yield case.finding(Fault.STALE_WEIGHTS, f"the {whose}", index)
        strange -= explained
    if most and float(evidence.misdrawn(sampled)[known].mean()) > MISDRAWN:
        said = f"{len(strange)} of {len(episodes)} episodes were not sampled by the weights of step {version}"
        yield case.finding(Fault.STALE_WEIGHTS, f"{said}, nor by others that are kept")


def _off(sampled: Sampled, evidence: Evidence) -> set[int]:
    return {sampled.places[number].episode for number in np.flatnonzero(evidence.off(sampled)).tolist()}


def _findings(
    case: Case, sampled: Sampled, evidence: Evidence, whose: str, told: Told, what: str = "log-prob"
) -> Iterator[Finding]:
    """The first finding of each episode: a token that was not drawn, or a different log-prob. Adds it to `told`."""
    off, misdrawn = evidence.off(sampled), evidence.misdrawn(sampled)
    counts = Counter(sampled.places[number].episode for number in np.flatnonzero(off))
    drawn_wrong: dict[tuple[int, int], int] = {}  # by episode and turn
    for number in np.flatnonzero(misdrawn).tolist():
        drawn_wrong.setdefault(sampled.places[number][:2], number)
    for first in np.flatnonzero(off | misdrawn).tolist():
        index, turn, _ = sampled.places[first]
        if index in told:
            continue
        told.add(index)
        number = drawn_wrong.get((index, turn), first)
        replay, token = case.replays[index], case.replays[index].quote([int(sampled.tokens[number])])
        if misdrawn[number]:
            fault, draw = Fault.REENCODED_ACTION, f"the draw {sampled.draws[number]:.4f} gives another token"
            span = f"from {evidence.low[number]:.4f} to {evidence.high[number]:.4f}"
            said = f"{token} is not what was sampled: {draw}, {token} stands {span} {whose}"
        else:
            fault, said = Fault.ALTERED_LOGPROB, f"the {what} of {token} is stored as {sampled.logprobs[number]:.6g}"
            said += f", {whose} it is {evidence.logprobs[number]:.6g}{more(counts[index])}"
        yield replay.finding(fault, said, turn, sampled.places[number].token)
