"""The contract of every environment, checked: the same rules for those of earl and for those of its users.

`check(name)` plays a registered environment at random and says rule by rule what it found.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from earl.envs import registry
from earl.envs.contract import RULES, Options
from earl.envs.random_play import play
from earl.errors import boundary

EPISODES = 200
"""Random episodes that the success rate is counted over, for each seat."""
RANDOM_AGENT = f"a random agent plays {EPISODES} episodes"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule of the contract came to."""

    rule: str
    passed: bool
    detail: str
    """What broke the rule, or what was seen."""


def check(name: str) -> list[Finding]:
    """Play a registered environment and judge it by every rule.

    Raises:
        EarlError: no environment has this name.
    """
    seats: list[Options] = [{"seat": 0}, {"seat": 1}] if registry.seats(name) == 2 else [{}]
    findings = [_judge(rule, name, seats) for rule in RULES]
    with boundary() as fault:
        findings.append(_success(name, seats))
    if fault.message is not None:
        findings.append(Finding(RANDOM_AGENT, False, fault.message))
    return findings


def _judge(rule: Callable[[str, Options], Iterator[str]], name: str, seats: list[Options]) -> Finding:
    broken: list[str] = []
    with boundary() as fault:
        for options in seats:
            where = f"seat {options['seat']}: " if options else ""
            broken += [where + text for text in rule(name, options)]
    if fault.message is not None:
        broken.append(fault.message)
    return Finding(str(rule.__doc__), not broken, broken[0] if broken else "")


def _success(name: str, seats: list[Options]) -> Finding:
    """What a random agent comes to: a reward that chance earns is no sign of learning."""
    parts = []
    for options in seats:
        env = registry.make(name, **options)
        ends = [list(play(env, seed))[-1].info.get("outcome", "unfinished") for seed in range(EPISODES)]
        shares = ", ".join(f"{outcome} {n / EPISODES:.1%}" for outcome, n in sorted(Counter(ends).items()))
        parts.append(f"seat {options['seat']}: {shares}" if options else shares)
    return Finding(RANDOM_AGENT, True, "; ".join(parts))
