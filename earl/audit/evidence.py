"""The expected log-prob and draw of every sampled token of a step.

They come from the weights if these are stored. Else they come from the step's other episodes, which the same weights
sampled: after the same context a token has the same log-prob, and larger draws give larger token ids.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from earl.audit.case import Case
from earl.audit.findings import CheckOutcome, Fault, Finding, Unchecked
from earl.audit.rebuild import more
from earl.engine.sampler import NOTHING_CUT, Truncation
from earl.engine.score import review
from earl.rollout.pack import contexts, pack
from earl.seeds import derive, uniforms
from earl.trajectory import Trajectory

TOLERANCE = 1e-4
"""Allowed difference of a log-prob between the sampler, which decodes with a cache, and one pass over the episode,
relative to 1 + its size. Measured: up to 8e-6.
"""
DRAWN = 1e-4
"""Allowed distance between a draw and its token's interval."""
Floats = NDArray[np.float64]
Episodes = Sequence[tuple[int, Trajectory]]
"""Episodes with their indices in the file."""


class TokenPosition(NamedTuple):
    episode: int  # index in the file
    turn: int
    token: int  # index in the episode


@dataclass(frozen=True, slots=True)
class Sampled:
    """All sampled tokens of some episodes, [M] each."""

    places: list[TokenPosition]
    tokens: NDArray[np.int64]
    logprobs: Floats
    draws: Floats  # the uniform numbers that follow from the episodes' seeds
    contexts: list[bytes]  # digest of the context before the token, and of its version
    versions: NDArray[np.int64]  # as stored for the token


@dataclass(frozen=True, slots=True)
class Evidence:
    """Expected values of the tokens, [M] each; NaN if unknown. Draws from `low` to `high` give the token."""

    logprobs: Floats
    low: Floats
    high: Floats

    def where(self, chosen: NDArray[np.bool_]) -> "Evidence":
        return Evidence(*(np.where(chosen, values, np.nan) for values in (self.logprobs, self.low, self.high)))

    def off(self, sampled: Sampled) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            near = np.abs(sampled.logprobs - self.logprobs) <= TOLERANCE * (1 + np.abs(self.logprobs))
        wrong: NDArray[np.bool_] = ~near & ~np.isnan(self.logprobs)
        return wrong

    def misdrawn(self, sampled: Sampled) -> NDArray[np.bool_]:
        return (sampled.draws < self.low - DRAWN) | (sampled.draws > self.high + DRAWN)


def gather(episodes: Episodes, drawn: bool = True) -> Sampled:
    """The sampled tokens of episodes; without draws where these do not follow from the seeds."""
    places, tokens, logprobs, draws, seen, versions = [], [], [], [], [], []
    for index, trajectory in episodes:
        for number, turn in enumerate(trajectory.turns):
            seed = np.array([derive(trajectory.seed, turn.action_start)], np.uint64)
            prefix = blake2b(trajectory.tokens[turn.context_start : turn.action_start].tobytes(), digest_size=16)
            for place in range(turn.action_start, turn.end):
                places.append(TokenPosition(index, number, place))
                tokens.append(int(trajectory.tokens[place]))
                logprobs.append(float(trajectory.logprobs[place]))
                draws.append(float(uniforms(seed, place - turn.action_start)[0]) if drawn else np.nan)
                versions.append(int(trajectory.versions[place]))
                seen.append(prefix.digest() + b"%d" % versions[-1])
                prefix.update(trajectory.tokens[place : place + 1].tobytes())
    numbers = np.array(versions, np.int64)
    return Sampled(places, np.array(tokens, np.int64), np.array(logprobs), np.array(draws), seen, numbers)


def by_weights(model: Any, episodes: Episodes, temperature: float, truncation: Truncation = NOTHING_CUT) -> Evidence:
    """Evidence from a model about the tokens of `gather`."""
    trajectories = [trajectory for _, trajectory in episodes]
    rows = pack(trajectories)
    scored, below = review(model, rows, temperature, truncation)
    order = np.array(list(_row_places(trajectories, rows.offsets)), np.int64)
    logprobs = scored[order].astype(np.float64)
    return Evidence(logprobs, below[order], below[order] + np.exp(logprobs))


def _row_places(trajectories: Sequence[Trajectory], offsets: NDArray[np.int64]) -> Iterator[int]:
    """The index of each sampled token in the packed rows, in the order of `gather`."""
    rows = (turns for trajectory in trajectories for turns in contexts(trajectory))
    for offset, turns in zip(offsets.tolist(), rows, strict=False):
        start = turns[0][1].context_start
        for _, turn in turns:
            yield from range(offset + turn.action_start - start, offset + turn.end - start)


def by_siblings(sampled: Sampled) -> Evidence:
    """Evidence from other episodes with the same context: the median of their log-probs, and their tokens."""
    evidence = Evidence(*np.full((3, len(sampled.places)), np.nan))
    together: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, context in enumerate(sampled.contexts):
        together[context].append(number)
    for numbers in together.values():
        members = np.array(numbers)
        tokens, chances = sampled.tokens[members], dict[int, float]()
        places = {token: members[tokens == token] for token in np.unique(tokens).tolist()}
        for token, same in places.items():
            if len(same) > 2:  # with two different values it is unknown which is right
                evidence.logprobs[same] = middle = float(np.median(sampled.logprobs[same]))
                chances[token] = float(np.exp(middle))
        for token, same in places.items():
            evidence.low[same] = sum(chance for other, chance in chances.items() if other < token)
            evidence.high[same] = 1 - sum(chance for other, chance in chances.items() if other > token)
    return evidence


def shape(case: Case) -> Iterator[Finding]:
    """Log-probs must be at most 0 at sampled tokens and 0 elsewhere."""
    for replay in case.sound:
        values, sampled = replay.stored.logprobs, replay.played.sampled
        wrong = np.flatnonzero(~np.isfinite(values) | (values > 0) | (~sampled & (values != 0)))
        if len(wrong):
            first = int(wrong[0])
            rule = "only one of at most 0 is possible" if sampled[first] else "nothing was sampled there"
            said = f"the log-prob is {values[first]:g}, but {rule}{more(len(wrong))}"
            yield replay.finding(Fault.ALTERED_LOGPROB, said, token=first)


def versions(case: Case) -> Iterator[Finding]:
    """Weights must be of the last step; in asynchronous runs up to `max_staleness` older. They never get older."""
    allowed, found = case.run.versions(case.step), {}
    those = f"those of step {allowed[-1]}" if len(allowed) == 1 else f"those of the steps {allowed[0]} to {allowed[-1]}"
    for replay in case.replays:
        own = replay.stored.versions[replay.stored.sampled]
        wrong = own[(own < allowed[0]) | (own > allowed[-1])]
        if len(wrong):
            found[replay.index] = int(wrong[0])
        elif (np.diff(own) < 0).any():
            said = "tokens were sampled by older weights than tokens before them in the episode"
            yield replay.finding(Fault.STALE_WEIGHTS, said)
    if len(found) > max(1, len(case.replays) // 2):
        version, count = Counter(found.values()).most_common(1)[0]
        said = f"{count} episodes were sampled by the weights of step {version}, not by {those}"
        yield case.finding(Fault.STALE_WEIGHTS, said)
        return
    for index, version in found.items():
        said = f"tokens were sampled by the weights of step {version}, not by {those}"
        yield case.finding(Fault.STALE_WEIGHTS, said, index)


MISDRAWN = 0.002
"""Share of tokens inconsistent with their draws, above which a step was sampled by unknown weights."""
Reported = set[int | None]


def check_logprobs(case: Case) -> Iterator[CheckOutcome]:
    """Compare with the stored weights; tokens without stored weights are compared between episodes."""
    shapeless = {finding.episode for finding in shape(case)}
    episodes = [(replay.index, replay.played) for replay in case.sound if replay.index not in shapeless]
    if not any(trajectory.turns for _, trajectory in episodes):
        raise Unchecked("not one episode can be told")
    sampled = gather(episodes, drawn=case.run.config.sampler.engine != "vllm")  # whose draws cannot be derived
    allowed, reported = case.run.versions(case.step), Reported()
    unknown = np.ones(len(sampled.places), np.bool_)
    for version in allowed:
        own = unknown if len(allowed) == 1 else sampled.versions == version
        if case.run.policy(version) is None or not own.any():
            continue
        unknown = unknown & ~own
        evidence = _by_weights(case, episodes, version).where(own)
        for finding in _stale(case, episodes, sampled, evidence, version):
            reported.add(finding.episode)
            yield finding
        if None not in reported:
            yield from _findings(case, sampled, evidence, f"by the weights of step {version}", reported)
    if unknown.any():
        yield _unchecked(sampled, unknown, len(allowed) == 1)
        yield from _findings(case, sampled, by_siblings(sampled).where(unknown), "in other episodes", reported)


def after_update(case: Case) -> Iterator[Finding]:
    """Compare the learner's log-probs with the weights of the step."""
    known = [(r, e) for r, e in case.sound_experiences() if len(e.logprobs) == len(r.stored.tokens) and e.mask.any()]
    if case.run.policy(case.step) is None:
        raise Unchecked("no weights of the step are kept")
    if not known:
        raise Unchecked("not one episode can be told")
    episodes = [(replay.index, replace(replay.played, logprobs=e.logprobs)) for replay, e in known]
    evidence, whose = _by_weights(case, episodes, case.step), f"by the weights of step {case.step}"
    # In episodes with findings the tokens are wrong, and so are the log-probs.
    yield from _findings(case, gather(episodes, drawn=False), evidence, whose, case.reported, "learner's log-prob")


def _by_weights(case: Case, episodes: Episodes, step: int) -> Evidence:
    policy = case.run.policy(step)
    assert policy is not None
    rollout = case.run.config.rollout
    return by_weights(policy.model, episodes, rollout.temperature, Truncation.of(rollout))


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
    case: Case, sampled: Sampled, evidence: Evidence, whose: str, reported: Reported, what: str = "log-prob"
) -> Iterator[Finding]:
    """The first finding of each episode: a token that was not drawn, or a different log-prob. Adds it to `reported`."""
    off, misdrawn = evidence.off(sampled), evidence.misdrawn(sampled)
    counts = Counter(sampled.places[number].episode for number in np.flatnonzero(off))
    drawn_wrong: dict[tuple[int, int], int] = {}  # by episode and turn
    for number in np.flatnonzero(misdrawn).tolist():
        drawn_wrong.setdefault(sampled.places[number][:2], number)
    for first in np.flatnonzero(off | misdrawn).tolist():
        index, turn, _ = sampled.places[first]
        if index in reported:
            continue
        reported.add(index)
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
