"""Distribution policies as data: which fragment of a step runs where, how often, and what joins its copies.

After the fragmented dataflow graphs of MSRL (arXiv 2210.00882): the algorithm is written once, a policy places it.
"""

from dataclasses import dataclass
from typing import Literal

from earl.config import Config

Join = Literal["collectives", "objects"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of the step and its copies.

    Example:
        Fragment("learner", actors=4, devices=1, pool="shared", join="collectives")   # dp x tp = 4
    """

    name: Literal["learner", "rollout", "sampler", "environments"]
    actors: int
    devices: int
    """That one actor computes on: GPUs, or CPU cores where there are none."""
    pool: str
    """Fragments that name the same pool share its devices and take turns on them."""
    join: Join
    """What passes between its actors: tensors by collectives, or finished work by Ray objects."""
    processors: bool = False
    """Whether it computes on CPU cores also where there are GPUs."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A placement."""

    kind: str
    learner: Fragment
    rollout: Fragment
    """Samplers and the episodes that are played with them; the samplers alone where environments are apart."""
    environments: Fragment | None = None
    """Episodes, away from their samplers. Its processors are nobody else's, on whatever node."""

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """All of them."""
        return (self.learner, self.rollout, *([self.environments] if self.environments else []))

    @property
    def processors(self) -> int:
        """CPU cores that are asked for besides the devices."""
        return self.environments.actors if self.environments else 0

    @property
    def turns(self) -> bool:
        """Whether the fragments take turns, the idle one offloaded."""
        return self.learner.pool == self.rollout.pool


@dataclass(frozen=True, slots=True)
class Slots:
    """The devices that a policy asks for.

    Example:
        4 ranks and 2 samplers of 2 devices, colocated -> bundles (2, 2), ranks (0, 0, 1, 1), workers (0, 1)
        the same, disaggregated -> bundles (1, 1, 1, 1, 2, 2), ranks (0, 1, 2, 3), workers (4, 5)
    """

    bundles: tuple[int, ...]
    """Devices of each bundle; a bundle lies on one host."""
    ranks: tuple[int, ...]
    """The bundle of each learner rank."""
    workers: tuple[int, ...]
    """The bundle of each rollout worker."""


def policy_of(config: Config) -> Policy:
    """The policy that a recipe's [placement] names."""
    placement = config.placement
    colocated = placement.kind == "colocated"
    ranks, apart = placement.dp * placement.tp * placement.cp, placement.environments
    pool = "shared" if colocated else "rollout"
    return Policy(
        placement.kind,
        Fragment("learner", ranks, 1, "shared" if colocated else "learner", "collectives"),
        Fragment("sampler" if apart else "rollout", placement.samplers, config.sampler.tp, pool, "objects"),
        Fragment("environments", apart, 1, "environments", "objects", processors=True) if apart else None,
    )


def slots_of(policy: Policy) -> Slots:
    """Lay the fragments of a policy out over bundles of devices."""
    ranks, workers, width = policy.learner.actors, policy.rollout.actors, policy.rollout.devices
    if policy.turns:
        bundles = max(-(-ranks // width), workers)
        return Slots((width,) * bundles, tuple(rank // width for rank in range(ranks)), tuple(range(workers)))
    return Slots((1,) * ranks + (width,) * workers, tuple(range(ranks)), tuple(range(ranks, ranks + workers)))
