"""Placements as data, after the fragmented dataflow graphs of MSRL (arXiv 2210.00882): which fragment of a step runs
where, in how many copies, and how its actors are connected."""

from dataclasses import dataclass
from typing import Literal

from earl.config import Config


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of the step and its copies."""

    name: Literal["learner", "rollout", "sampler", "environments"]
    actors: int
    devices: int  # per actor: GPUs, or CPU cores where there are none
    pool: str  # fragments with the same pool share its devices and take turns
    join: Literal["collectives", "objects"]
    """How its actors exchange data: tensors by collectives, or results by Ray objects."""
    processors: bool = False
    """Whether it computes on CPU cores even where there are GPUs."""


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    learner: Fragment
    rollout: Fragment
    """Samplers and their episodes; only samplers if environments are separate."""
    environments: Fragment | None = None
    """Episodes on exclusive CPU cores, on any node, separate from their samplers."""

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        return (self.learner, self.rollout, *([self.environments] if self.environments else []))

    @property
    def processors(self) -> int:
        return self.environments.actors if self.environments else 0

    @property
    def turns(self) -> bool:
        """Whether the fragments take turns on the devices, the idle one offloaded."""
        return self.learner.pool == self.rollout.pool


@dataclass(frozen=True, slots=True)
class Slots:
    """The devices that a placement asks for.

    Example:
        4 ranks and 2 samplers of 2 devices, colocated -> bundles (2, 2), ranks (0, 0, 1, 1), workers (0, 1)
        the same, disaggregated -> bundles (1, 1, 1, 1, 2, 2), ranks (0, 1, 2, 3), workers (4, 5)
    """

    bundles: tuple[int, ...]  # devices of each bundle; a bundle lies on one host
    ranks: tuple[int, ...]  # the bundle of each learner rank
    workers: tuple[int, ...]  # the bundle of each rollout worker


def spec_of(config: Config) -> PlacementSpec:
    placement = config.placement
    colocated = placement.kind == "colocated"
    ranks, apart = placement.ranks, placement.environments
    pool = "shared" if colocated else "rollout"
    return PlacementSpec(
        Fragment("learner", ranks, 1, "shared" if colocated else "learner", "collectives"),
        Fragment("sampler" if apart else "rollout", placement.samplers, config.sampler.tp, pool, "objects"),
        Fragment("environments", apart, 1, "environments", "objects", processors=True) if apart else None,
    )


def slots_of(spec: PlacementSpec) -> Slots:
    ranks, workers, width = spec.learner.actors, spec.rollout.actors, spec.rollout.devices
    if spec.turns:
        bundles = max(-(-ranks // width), workers)
        return Slots((width,) * bundles, tuple(rank // width for rank in range(ranks)), tuple(range(workers)))
    return Slots((1,) * ranks + (width,) * workers, tuple(range(ranks)), tuple(range(ranks, ranks + workers)))
