"""The expected log-prob and draw of every sampled token of a step.

They come from the weights if these are stored. Else they come from the step's other episodes, which the same weights
sampled: after the same context a token has the same log-prob, and larger draws give larger token ids.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.audit.case import Case, Fault, Finding, Said, Spoken, Unchecked
from earl.engine.rescore import review
from earl.rollout.pack import contexts, pack
from earl.seeds import derive, uniforms
from earl.trajectory import Trajectory

TOLERANCE = 1e-4
"""Allowed difference of a log-prob between the sampler, which decodes with a cache, and one pass over the episode,
relative to 1 + its size. Measured: up to 8e-6.
"""
DRAWN = 1e-4
"""Allowed distance between a draw and its token's interval."""


@dataclass(frozen=True, slots=True)
class TokenPosition:
    episode: int
    """Index in the file."""
    turn: int
    token: int
    """Index in the episode."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """All sampled tokens of some episodes, [M] each."""

    places: list[TokenPosition]
    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    draws: NDArray[np.float64]
    """The uniform numbers that follow from the episodes' seeds."""
    contexts: list[bytes]
    """Digest of the context before the token, and of its version."""
    versions: NDArray[np.int64]
    """The version that is stored for the token."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Expected values of the tokens, [M] each; NaN if unknown."""

    logprobs: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    """Draws from `low` to `high` give the token."""

    def known(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.logprobs)

    def where(self, chosen: NDArray[np.bool_]) -> "Evidence":
        return Evidence(*(np.where(chosen, values, np.nan) for values in (self.logprobs, self.low, self.high)))

    def off(self, sampled: Sampled) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            near = np.abs(sampled.logprobs - self.logprobs) <= TOLERANCE * (1 + np.abs(self.logprobs))
        wrong: NDArray[np.bool_] = ~near & ~np.isnan(self.logprobs)
        return wrong

    def misdrawn(self, sampled: Sampled) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore"):
            return (sampled.draws < self.low - DRAWN) | (sampled.draws > self.high + DRAWN)


def gather(episodes: Sequence[tuple[int, Trajectory]]) -> Sampled:
    """The sampled tokens of episodes, which are given with their indices in the file."""
    places, tokens, logprobs, draws, seen, versions = [], [], [], [], [], []
    for index, trajectory in episodes:
        for number, turn in enumerate(trajectory.turns):
            seed = np.array([derive(trajectory.seed, turn.action_start)], np.uint64)
            prefix = blake2b(trajectory.tokens[turn.context_start : turn.action_start].tobytes(), digest_size=16)
            for place in range(turn.action_start, turn.end):
                places.append(TokenPosition(index, number, place))
                tokens.append(int(trajectory.tokens[place]))
                logprobs.append(float(trajectory.logprobs[place]))
                draws.append(float(uniforms(seed, place - turn.action_start)[0]))
                versions.append(int(trajectory.versions[place]))
                seen.append(prefix.digest() + b"%d" % versions[-1])
                prefix.update(trajectory.tokens[place : place + 1].tobytes())
    numbers = np.array(versions, np.int64)
    return Sampled(places, np.array(tokens, np.int64), np.array(logprobs), np.array(draws), seen, numbers)


def by_weights(model: Any, episodes: Sequence[tuple[int, Trajectory]], temperature: float) -> Evidence:
    """Evidence from a model about the tokens of `gather`."""
    trajectories = [trajectory for _, trajectory in episodes]
    rows = pack(trajectories)
    scored = review(model, rows, temperature)
    order = np.array(list(_row_places(trajectories, rows.offsets)), np.int64)
    logprobs = scored.logprobs[order].astype(np.float64)
    return Evidence(logprobs, scored.below[order], scored.below[order] + np.exp(logprobs))


def _row_places(trajectories: Sequence[Trajectory], offsets: NDArray[np.int64]) -> Iterator[int]:
    """The index of each sampled token in the packed rows, in the order of `gather`."""
    row = 0
    for trajectory in trajectories:
        for turns in contexts(trajectory):
            start = turns[0][1].context_start
            for _, turn in turns:
                yield from (int(offsets[row]) + place - start for place in range(turn.action_start, turn.end))
            row += 1


def by_siblings(sampled: Sampled) -> Evidence:
    """Evidence from other episodes with the same context: the median of their log-probs, and their tokens."""
    count = len(sampled.places)
    evidence = Evidence(*(np.full(count, np.nan) for _ in range(3)))
    together: dict[bytes, list[int]] = {}
    for number, context in enumerate(sampled.contexts):
        together.setdefault(context, []).append(number)
    for members in together.values():
        if len(members) > 1:
            _compare(sampled, np.array(members), evidence)
    return evidence


def _compare(sampled: Sampled, members: NDArray[np.int64], evidence: Evidence) -> None:
    tokens, logprobs = sampled.tokens[members], sampled.logprobs[members]
    chances: dict[int, float] = {}
    for token in np.unique(tokens).tolist():
        same = members[tokens == token]
        if len(same) > 2:  # with two different values it is unknown which is right
            middle = float(np.median(logprobs[tokens == token]))
            evidence.logprobs[same], chances[token] = middle, float(np.exp(middle))
    for token in np.unique(tokens).tolist():
        same = members[tokens == token]
        evidence.low[same] = sum(chance for other, chance in chances.items() if other < token)
        evidence.high[same] = 1 - sum(chance for other, chance in chances.items() if other > token)


MISDRAWN = 0.002
"""Share of tokens inconsistent with their draws, above which a step was sampled by unknown weights."""
Episodes = list[tuple[int, Trajectory]]


def shape(case: Case) -> Iterator[Finding]:
    """Log-probs must be at most 0 at sampled tokens and 0 elsewhere."""
    for replay in case.replays:
        played, stored = replay.played, replay.stored
        if played is None or not case.whole(replay):
            continue
        spoken, values = case.spoken(replay.index), stored.logprobs
        wrong = np.flatnonzero(~np.isfinite(values) | (values > 0) | (~played.sampled & (values != 0)))
        if len(wrong):
            first = int(wrong[0])
            rule = "only one of at most 0 is possible" if played.sampled[first] else "nothing was sampled there"
            said = f"the log-prob is {values[first]:g}, but {rule}{spoken.more(len(wrong))}"
            yield spoken.finding(Fault.ALTERED_LOGPROB, said, token=first)


def versions(case: Case) -> Iterator[Said]:
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
            yield case.finding(Fault.STALE_WEIGHTS, said, replay.index)
    if len(found) > max(1, len(case.replays) // 2):
        version, count = Counter(found.values()).most_common(1)[0]
        said = f"{count} episodes were sampled by the weights of step {version}, not by {those}"
        yield case.finding(Fault.STALE_WEIGHTS, said)
        return
    for index, version in found.items():
        said = f"tokens were sampled by the weights of step {version}, not by {those}"
        yield case.finding(Fault.STALE_WEIGHTS, said, index)


def check_logprobs(case: Case) -> Iterator[Said]:
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


def check_learned(case: Case) -> Iterator[Said]:
    if not case.file.experiences:
        yield Unchecked("the file does not say what was learned from")
        return
    model = case.run.model(case.step)
    if model is None:
        yield Unchecked("no weights of the step are kept")
        return
    stored = [(r, e) for r, e in case.experiences() if len(e.logprobs) == len(r.stored.tokens)]
    episodes = [(r.index, replace(r.played, logprobs=e.logprobs)) for r, e in stored if r.played and e.mask.any()]
    if not episodes:
        yield Unchecked("not one episode can be told")
        return
    sampled = gather(episodes)
    off = by_weights(model, episodes, case.run.config.rollout.temperature)
    seen = set(case.told)  # their tokens are wrong, and so are the log-probs
    for number in np.flatnonzero(off.off(sampled)).tolist():
        place = sampled.places[number]
        if place.episode not in seen:
            seen.add(place.episode)
            said = (
                f"the learner's log-prob is stored as {sampled.logprobs[number]:.6g}, "
                f"the weights of step {case.step} give {off.logprobs[number]:.6g}"
            )
            spoken = case.spoken(place.episode)
            yield spoken.finding(Fault.ALTERED_LOGPROB, said, place.turn, place.token)
