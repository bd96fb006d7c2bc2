"""Checks the learner's log-probs after the update against the weights that the step saved."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from earl.audit.case import Case
from earl.audit.evidence import by_weights, gather
from earl.audit.findings import Fault, Said, Unchecked


def check(case: Case) -> Iterator[Said]:
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
