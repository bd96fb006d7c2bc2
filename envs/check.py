"""Checks the contract of every environment, built in or the user's own.

`check(name)` plays a registered environment at random and reports the result of each rule. The docstring of a rule
function is the rule as `earl envs check` prints it; each rule yields its violations.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import numpy as np

from earl.envs import registry
from earl.envs.base import OUTCOMES, ForeignEnv, Info, TextEnv, checked_reset, checked_step, checked_turns
from earl.errors import EarlError, boundary

# Random legal play. Environments without `info["legal_actions"]` offer `random_action(rng) -> str` instead.

LONGEST = 1_000_000
"""Bound on the characters of an observation, since no context limit is known here."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action and its result; the first step of an episode is the reset, with an empty action."""

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info

    @property
    def last(self) -> bool:
        return self.terminated or self.truncated


def random_action(env: TextEnv, info: Info, rng: Random) -> str:
    """Draw a listed legal action, else call the environment's `random_action`. Raises EarlError if it has neither."""
    if info.get("legal_actions"):
        return rng.choice(info["legal_actions"])
    draw = getattr(env, "random_action", None)
    if draw is None:
        raise EarlError(f"{type(env).__name__}: neither info['legal_actions'] nor random_action(rng) is there")
    return str(draw(rng))


def playable(env: TextEnv) -> bool:
    """Whether random legal actions are known."""
    _, info = checked_reset(env.reset(seed=0), LONGEST)
    return bool(info.get("legal_actions")) or hasattr(env, "random_action")


def play(env: TextEnv, seed: int, opponent_seed: int | None = None) -> Iterator[Step]:
    """Play one episode of random legal actions, drawn from `seed`; give up after twice `max_turns`."""
    rng = Random(f"agent {seed}")  # a stream that no environment with the same seed shares
    options = None if opponent_seed is None else {"opponent_seed": opponent_seed}
    observation, info = checked_reset(env.reset(seed=seed, options=options), LONGEST)
    step = Step("", observation, 0.0, False, False, info)
    yield step
    for _ in range(2 * checked_turns(env.max_turns)):
        if step.last:
            return
        action = random_action(env, step.info, rng)
        step = Step(action, *checked_step(env.step(action), LONGEST))
        yield step


Options = dict[str, object]
"""Keyword arguments of `make`: the seat of a game; empty for a task."""

SEEDS = range(20)


def _reproducible(name: str, options: Options) -> Iterator[str]:
    """the same seeds give the same episode, in another object and between other episodes"""
    other = registry.make(name, **options)
    for seed in SEEDS:
        alone = list(play(registry.make(name, **options), seed, opponent_seed=seed + 1))
        again = play(registry.make(name, **options), seed, opponent_seed=seed + 1)
        beside = play(other, seed + 1)
        for number, step in enumerate(alone):
            next(beside, None)
            if next(again, None) != step:
                yield f"seed {seed} differs at step {number}"
                break


def _seeds_matter(name: str, options: Options) -> Iterator[str]:
    """other seeds give other episodes"""
    env = registry.make(name, **options)
    problems = [[step.observation for step in play(env, seed)] for seed in SEEDS]
    if options and all(_alike(env, seed) for seed in SEEDS):  # one deal may end before the opponent's first reply
        yield "options['opponent_seed'] changes nothing"
    if all(episode == problems[0] for episode in problems):
        yield "reset(seed=…) changes nothing"


def _alike(env: TextEnv, seed: int) -> bool:
    """Whether the opponent's seed changes nothing."""
    first, *others = ([step.observation for step in play(env, seed, opponent_seed=own)] for own in SEEDS)
    return all(episode == first for episode in others)


def _no_global_randomness(name: str, options: Options) -> Iterator[str]:
    """chance comes from the seed alone, not from the process"""
    before = random.getstate(), repr(np.random.get_state())
    for seed in SEEDS:
        list(play(registry.make(name, **options), seed))
    if (random.getstate(), repr(np.random.get_state())) != before:
        yield "the global generator of random or numpy was used"


def _illegal_changes_nothing(name: str, options: Options) -> Iterator[str]:
    """an illegal action changes nothing and is answered with the rule"""
    if isinstance(registry.make(name, **options), ForeignEnv):
        return  # its every reply is an action, or it answers as it likes
    for seed in SEEDS:
        env = registry.make(name, **options)
        expected = list(play(registry.make(name, **options), seed))
        observation, info = env.reset(seed=seed)
        if Step("", observation, 0.0, False, False, info) != expected[0]:
            yield f"seed {seed}: another reset gave another episode"
        for step in expected[1:]:
            yield from _tamper(env, step.action)
            if Step(step.action, *env.step(step.action)) != step:
                yield f"seed {seed}: an illegal action changed what {step.action!r} led to"


def _tamper(env: TextEnv, legal: str) -> Iterator[str]:
    for text in ("", " ", "?", "é", f" {legal}", f"{legal} ", f"{legal}\n", f"{legal}{legal} {legal}"):
        rule = env.rule(text)
        if rule is None:
            yield f"{text!r} passes for a legal action"
            continue
        observation, reward, terminated, truncated, info = env.step(text)
        if (observation, info.get("illegal")) != (rule, rule):
            yield f"{text!r} is not answered with the rule in the observation and in info['illegal']"
        if reward or terminated or truncated:
            yield f"{text!r} is rewarded or ends the episode"
    if env.rule(legal) is not None:
        yield f"the legal action {legal!r} breaks the rule {env.rule(legal)!r}"


def _ends(name: str, options: Options) -> Iterator[str]:
    """legal play ends within max_turns, with an outcome exactly when the episode ends by itself"""
    for seed in SEEDS:
        env = registry.make(name, **options)
        steps = list(play(env, seed))
        if not steps[-1].last or len(steps) - 1 > env.max_turns:
            yield f"seed {seed}: no end after {env.max_turns} turns"
        for step in steps:
            outcome = step.info.get("outcome")
            if (outcome in OUTCOMES) != step.terminated:
                yield f"seed {seed}: terminated is {step.terminated}, the outcome {outcome!r}"


def _alphabet(name: str, options: Options) -> Iterator[str]:
    """observations and actions lie in their spaces, and every step names its role"""
    if isinstance(registry.make(name, **options), ForeignEnv):
        return  # any text is in its space, and a user speaks unless it says otherwise
    for seed in SEEDS:
        env = registry.make(name, **options)
        for step in play(env, seed):
            if step.observation not in env.observation_space:
                yield f"observation {step.observation!r} is not in observation_space"
            if step.action not in env.action_space:
                yield f"action {step.action!r} is not in action_space"
            if step.info.get("role") not in ("user", "tool"):
                yield f"info['role'] is {step.info.get('role')!r}, neither 'user' nor 'tool'"


def _single_use(name: str, options: Options) -> Iterator[str]:
    """a step before the reset or after the end is refused with EarlError"""
    env = registry.make(name, **options)
    if isinstance(env, ForeignEnv):
        return  # only ever reset before the first step, and after the last
    with suppress(EarlError):
        env.step("1")
        yield "a step before reset() is taken"
    *_, last = play(env, seed=0)
    with suppress(EarlError):
        env.step(last.action)
        yield "a step after the end is taken"


EPISODES = 200


def _random_agent(name: str, options: Options) -> Iterator[str]:
    """a random agent plays 200 episodes"""
    env = registry.make(name, **options)
    ends = [list(play(env, seed))[-1].info.get("outcome", "unfinished") for seed in range(EPISODES)]
    yield ", ".join(f"{outcome} {n / EPISODES:.1%}" for outcome, n in sorted(Counter(ends).items()))


RULES = (
    _reproducible,
    _seeds_matter,
    _no_global_randomness,
    _illegal_changes_nothing,
    _ends,
    _alphabet,
    _single_use,
    _random_agent,
)
"""The last one yields no violations but the outcome rates of a random agent, the baseline that learning has to beat."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    rule: str
    passed: bool
    detail: str


def check(name: str) -> list[RuleResult]:
    """Check a registered environment against every rule. Raises EarlError if the name is unknown."""
    seats: list[Options] = [{"seat": 0}, {"seat": 1}] if registry.seats(name) == 2 else [{}]
    with boundary():  # the rules report a fault
        if not playable(registry.make(name, **seats[0])):
            note = "not played: it gives neither info['legal_actions'] nor random_action(rng)"
            return [RuleResult("it can be reset; the other rules are checked by playing at random", True, note)]
    return [_judge(rule, name, seats) for rule in RULES]


def _judge(rule: Callable[[str, Options], Iterator[str]], name: str, seats: list[Options]) -> RuleResult:
    told: list[str] = []
    with boundary() as fault:
        for options in seats:
            where = f"seat {options['seat']}: " if options else ""
            told += [where + text for text in rule(name, options)]
    if rule is _random_agent:
        return RuleResult(str(rule.__doc__), fault.message is None, fault.message or "; ".join(told))
    broken = [*told, *filter(None, [fault.message])]
    return RuleResult(str(rule.__doc__), not broken, broken[0] if broken else "")
