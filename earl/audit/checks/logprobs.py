"""Checks stored log-probs against the weights that sampled the tokens, which also shows whether tokens were changed.

If rollout and learner take turns, these are the weights of the previous step. In an asynchronous run each token has its
own version, and one episode may have several; the versions whose weights are stored are checked.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from earl.audit.case import Case
from earl.audit.checks.versions import shape
from earl.audit.evidence import Evidence, Sampled, TokenPosition, by_siblings, by_weights, gather
from earl.audit.findings import Fault, Finding, Said, Spoken, Unchecked
from earl.trajectory import Trajectory

MISDRAWN = 0.002
"""Share of tokens inconsistent with their draws, above which a step was sampled by unknown weights."""
Episodes = list[tuple[int, Trajectory]]


def check(case: Case) -> Iterator[Said]:
    """Compare with the stored weights; tokens without stored weights are compared between episodes."""
    shapeless = {finding.episode for finding in shape(case)}
    episodes = [(index, episode) for index, episode in _episodes(case) if index not in shapeless]
    if not any(trajectory.turns for _, trajectory in episodes):
        yield Unchecked("not one episode can be told")
        return
    sampled = gather(episodes)
    unknown = np.ones(len(sampled.places), np.bool_)
    told: set[int | None] = set()
    for version in case.run.versions(case.step):
        own = _own(case, sampled, version)
        if case.run.model(version) is not None and own.any():
            unknown &= ~own
            for finding in _by_version(case, episodes, sampled, version, told):
                told.add(finding.episode)
                yield finding
    if unknown.any():
        yield _unchecked(case, sampled, unknown)
        yield from _findings(case, sampled, by_siblings(sampled).where(unknown), "in other episodes", told)


def _own(case: Case, sampled: Sampled, version: int) -> NDArray[np.bool_]:
    """Tokens of a version according to the file; all tokens if only one version is possible."""
    alone = len(case.run.versions(case.step)) == 1
    return np.ones(len(sampled.places), np.bool_) if alone else sampled.versions == version


def _unchecked(case: Case, sampled: Sampled, unknown: NDArray[np.bool_]) -> Unchecked:
    if len(case.run.versions(case.step)) == 1:
        return Unchecked("no weights of the step before are kept; compared among the step's episodes only")
    steps = ", ".join(map(str, np.unique(sampled.versions[unknown]).tolist()))
    said = f"{int(unknown.sum())} of {len(unknown)} tokens were sampled by weights that are not kept (of step {steps})"
    return Unchecked(f"{said}; compared among the step's episodes only")


def _by_version(
    case: Case, episodes: Episodes, sampled: Sampled, version: int, told: set[int | None]
) -> Iterator[Finding]:
    evidence = _evidence(case, episodes, sampled, version, version)
    stale = list(_stale(case, episodes, sampled, evidence, version))
    yield from stale
    known = told | {finding.episode for finding in stale}
    if None not in known:
        yield from _findings(case, sampled, evidence, f"by the weights of step {version}", known)


def _evidence(case: Case, episodes: Episodes, sampled: Sampled, version: int, weights: int) -> Evidence:
    evidence = by_weights(case.run.model(weights), episodes, case.run.config.rollout.temperature)
    return evidence.where(_own(case, sampled, version))


def _episodes(case: Case) -> Episodes:
    return [(index, replace(played, logprobs=case.replays[index].stored.logprobs)) for index, played in case.sound()]


def _stale(case: Case, episodes: Episodes, sampled: Sampled, evidence: Evidence, version: int) -> Iterator[Finding]:
    """Episodes, or the whole step, that other stored weights explain; and a step that no stored weights explain."""
    strange = _off(sampled, evidence)
    asked = [(index, episode) for index, episode in episodes if index in strange]
    most = len(strange) > max(1, len(episodes) // 2)
    for other in [step for step in case.run.checkpoints if step != version] if asked else []:
        others = gather(asked)
        unexplained = _off(others, _evidence(case, asked, others, version, other))
        explained = strange - unexplained
        whose = f"log-probs are those of the weights of step {other}, not of step {version}"
        if most and len(explained) > len(strange) // 2:
            yield case.finding(Fault.STALE_WEIGHTS, f"the {whose}, in {len(explained)} of {len(episodes)} episodes")
            return
        for index in sorted(explained):
            yield case.finding(Fault.STALE_WEIGHTS, f"the {whose}", index)
        strange -= explained
    misdrawn = _misdrawn(case, sampled, evidence)[evidence.known()]
    if most and float(misdrawn.mean()) > MISDRAWN:
        said = f"{len(strange)} of {len(episodes)} episodes were not sampled by the weights of step {version}"
        yield case.finding(Fault.STALE_WEIGHTS, f"{said}, nor by others that are kept")


def _off(sampled: Sampled, evidence: Evidence) -> set[int]:
    return {sampled.places[number].episode for number in np.flatnonzero(evidence.off(sampled)).tolist()}


def _findings(
    case: Case, sampled: Sampled, evidence: Evidence, whose: str, told: set[int | None] | None = None
) -> Iterator[Finding]:
    """The first finding of each episode: a token that was not drawn, or a different log-prob."""
    off, misdrawn = evidence.off(sampled), _misdrawn(case, sampled, evidence)
    counts = Counter(sampled.places[number].episode for number in np.flatnonzero(off))
    drawn_wrong: dict[tuple[int, int], int] = {}
    for number in np.flatnonzero(misdrawn).tolist():
        drawn_wrong.setdefault(_reply(sampled.places[number]), number)
    seen = set(told or ())
    for first in np.flatnonzero(off | misdrawn).tolist():
        place = sampled.places[first]
        if place.episode not in seen:
            seen.add(place.episode)
            spoken, wrong = case.spoken(place.episode), drawn_wrong.get(_reply(place))
            if wrong is not None:
                said = _not_drawn(sampled, evidence, wrong, spoken, whose)
                yield spoken.finding(Fault.REENCODED_ACTION, said, place.turn, sampled.places[wrong].token)
            else:
                token = spoken.text([int(sampled.tokens[first])])
                said = f"the log-prob of {token} is stored as {sampled.logprobs[first]:.6g}, {whose} it is "
                said += f"{evidence.logprobs[first]:.6g}{spoken.more(counts[place.episode])}"
                yield spoken.finding(Fault.ALTERED_LOGPROB, said, place.turn, place.token)


def _not_drawn(sampled: Sampled, evidence: Evidence, number: int, spoken: Spoken, whose: str) -> str:
    token = spoken.text([int(sampled.tokens[number])])
    span = f"from {evidence.low[number]:.4f} to {evidence.high[number]:.4f}"
    draw = f"the draw {sampled.draws[number]:.4f} gives another token"
    return f"{token} is not what was sampled: {draw}, {token} stands {span} {whose}"


def _misdrawn(case: Case, sampled: Sampled, evidence: Evidence) -> NDArray[np.bool_]:
    """Tokens inconsistent with their draws. Not for vLLM, whose draws cannot be derived."""
    misdrawn = evidence.misdrawn(sampled)
    return misdrawn if case.run.config.sampler.engine != "vllm" else np.zeros_like(misdrawn)


def _reply(place: TokenPosition) -> tuple[int, int]:
    return place.episode, place.turn
