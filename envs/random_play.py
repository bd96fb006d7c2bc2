"""Random legal play in any environment, step by step: what the contract suite looks at.

Environments that do not list their legal actions in `info["legal_actions"]` offer
`random_action(rng) -> str` to be played at random.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from earl.envs.base import Info, TextEnv, checked_reset, checked_step, checked_turns
from earl.errors import EarlError

LONGEST = 1_000_000
"""Characters of an observation: no context limit is known here."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one action was answered with; the first step of an episode is the reset, its action empty."""

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info

    @property
    def last(self) -> bool:
        """Whether the episode ended here."""
        return self.terminated or self.truncated


def random_action(env: TextEnv, info: Info, rng: Random) -> str:
    """A random legal action: one of those listed, else what the environment offers.

    Raises:
        EarlError: the environment does neither.
    """
    if info.get("legal_actions"):
        return rng.choice(info["legal_actions"])
    draw = getattr(env, "random_action", None)
    if draw is None:
        raise EarlError(f"{type(env).__name__}: neither info['legal_actions'] nor random_action(rng) is there")
    return str(draw(rng))


def play(env: TextEnv, seed: int, opponent_seed: int | None = None) -> Iterator[Step]:
    """One episode of random legal actions, drawn from `seed`; gives up at twice `max_turns`."""
    rng = Random(f"agent {seed}")  # no stream that an environment seeded alike could share
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
