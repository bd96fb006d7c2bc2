"""Stored log-probs are those of the weights of the step before: not of older ones, not altered, of the same tokens."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from earl.audit.case import Case
from earl.audit.checks.versions import shape
from earl.audit.evidence import Evidence, Place, Sampled, by_siblings, by_weights, gather
from earl.audit.findings import Fault, Finding, Said, Unchecked
from earl.audit.spoken import Spoken
from earl.trajectory import Trajectory

MISDRAWN = 0.002
"""Share of draws that fit no token, above which a step was sampled by unknown weights."""
Episodes = list[tuple[int, Trajectory]]


def check(case: Case) -> Iterator[Said]:
    """Compare with the stored weights; where there are none, the episodes with each other."""
    shapeless = {finding.episode for finding in shape(case)}
    episodes = [(index, episode) for index, episode in _episodes(case) if index not in shapeless]
    if not any(trajectory.turns for _, trajectory in episodes):
        yield Unchecked("not one episode can be told")
        return
    sampled, version = gather(episodes), case.step - 1
    model = case.run.model(version)
    if model is None:
        evidence = by_siblings(sampled)
        yield Unchecked("no weights of the step before are kept; compared among the step's episodes only")
        yield from _findings(case, sampled, evidence, "in other episodes")
        return
    evidence = by_weights(model, episodes, case.run.config.rollout.temperature)
    stale = list(_stale(case, episodes, sampled, evidence))
    yield from stale
    told = {finding.episode for finding in stale}
    if None not in told:
        yield from _findings(case, sampled, evidence, f"by the weights of step {version}", told)


def _episodes(case: Case) -> Episodes:
    """The episodes that can be told, with their log-probs as stored."""
    return [(index, replace(played, logprobs=case.replays[index].stored.logprobs)) for index, played in case.sound()]


def _stale(case: Case, episodes: Episodes, sampled: Sampled, evidence: Evidence) -> Iterator[Finding]:
    """Episodes, or all of the step, that other weights explain; and a step that no stored weights explain."""
    version, strange = case.step - 1, _off(sampled, evidence)
    asked = [(index, episode) for index, episode in episodes if index in strange]
    most = len(strange) > max(1, len(episodes) // 2)
    for other in [step for step in case.run.checkpoints if step != version] if asked else []:
        others = gather(asked)
        unexplained = _off(others, by_weights(case.run.model(other), asked, case.run.config.rollout.temperature))
        explained = strange - unexplained
        whose = f"log-probs are those of the weights of step {other}, not of step {version}"
        if most and len(explained) > len(strange) // 2:
            yield case.finding(Fault.STALE_WEIGHTS, f"the {whose}, in {len(explained)} of {len(episodes)} episodes")
            return
        for index in sorted(explained):
            yield case.finding(Fault.STALE_WEIGHTS, f"the {whose}", index)
        strange -= explained
    if most and float(evidence.misdrawn(sampled).mean()) > MISDRAWN:
        said = f"{len(strange)} of {len(episodes)} episodes were not sampled by the weights of step {version}"
        yield case.finding(Fault.STALE_WEIGHTS, f"{said}, nor by others that are kept")


def _off(sampled: Sampled, evidence: Evidence) -> set[int]:
    """Episodes in which a log-prob is another."""
    return {sampled.places[number].episode for number in np.flatnonzero(evidence.off(sampled)).tolist()}


def _findings(
    case: Case, sampled: Sampled, evidence: Evidence, whose: str, told: set[int | None] | None = None
) -> Iterator[Finding]:
    """The first reply of each episode with a token that was not drawn, or with another log-prob."""
    off, misdrawn = evidence.off(sampled), evidence.misdrawn(sampled)
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


def _reply(place: Place) -> tuple[int, int]:
    return place.episode, place.turn
