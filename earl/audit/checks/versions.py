"""Checks log-probs and versions by token: only at sampled tokens, and from recent enough weights."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding
from earl.audit.rebuild import more


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
