"""Rollout workers in Ray's processes. Constructors do nothing, so that heartbeats are answered while models load."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from earl.dispatch.transports.rendezvous import Rendezvous, Sealed, fresh, opened
from earl.engine.model import Policy
from earl.engine.probe import Probe
from earl.engine.sampler import Closes
from earl.engine.samplers import make_sampler, split_of
from earl.engine.sharding.band import Meeting
from earl.group import GroupOf
from earl.outline import Outline
from earl.placement.ahead import Ticket
from earl.placement.cluster.begin import begun, joined_band, outline_of, show
from earl.placement.cluster.guarded import Lines, bounded, losing_others
from earl.placement.cluster.offer import Offered
from earl.placement.cluster.plays import Plays
from earl.placement.cluster.stock import Drawn
from earl.placement.continuous import ContinuousFragment
from earl.placement.fragment import RolloutFragment
from earl.placement.holdings import Holdings
from earl.recipe import build
from earl.runs.trajectories import from_bytes
from earl.trajectory import Task


class WorkerActor(Plays):
    """A rollout fragment with its sampler, in a process of its own."""

    _kind: type[RolloutFragment] = RolloutFragment
    _policy: Policy | None = None
    """Without weights: they come from the learner."""
    _meets: Sealed | None = None
    """Where the processes of its copy meet, on the first one."""

    def address(self) -> Rendezvous:
        """Where the processes of a copy meet whose first one this is; it listens from now on."""
        self._meets = opened(fresh(ray.util.get_node_ip_address()))
        return self._meets.place

    @losing_others
    def setup(
        self, recipe: Mapping[str, Any], source: str | None, devices: Sequence[str], meeting: Meeting | None
    ) -> None:
        """Make the fragment, or give it another sampler: what there was of one is let go of first.

        Args:
            devices: the GPUs that it takes turns on with learner ranks; none: those that Ray gave it.
            meeting: where the actors of its copy meet; None: it has a whole copy.
        """
        show(devices)
        config = build(recipe)
        policy = self._policy = self._policy or outline_of(config, source)
        self._leave()
        self._budget = self._budget or begun(config)
        with Lines() as self._lines:
            band = joined_band(config, meeting, self._meets)
        sampler = make_sampler(config, policy, band)
        self._split = split_of(sampler)
        self._fragment = self._kind(config, policy.tokenizer, sampler)
        self._holdings = Holdings(config.context.learn_truncated)

    def _leave(self) -> None:
        """Let go of a sampler, before there is memory for another one."""
        self._split = None
        if hasattr(self, "_fragment"):
            if isinstance(self._fragment.sampler, Closes):
                self._fragment.sampler.close()
            del self._fragment

    @losing_others
    @bounded("weights")
    def load(self, weights: Offered | Drawn, probe: Probe, version: int) -> list[str]:
        """Play with these weights from now on; what of them arrived damaged, and was sent again.

        Raises:
            StaleWeights: when the sampler does not compute with them.
            Corrupted: when some of them arrived damaged again and again.
        """
        taken = weights.taken()
        self._fragment.load(taken, version, probe)
        self._holdings.drop(version)
        return taken.damaged

    def rest(self) -> None:
        """Leave the device to others."""
        self._fragment.sampler.sleep()

    def wake(self) -> None:
        """Take the device again."""
        self._fragment.sampler.wake()


class ContinuousActor(WorkerActor):
    """A rollout fragment that plays on between calls, in a process of its own."""

    _kind = ContinuousFragment
    _fragment: ContinuousFragment

    def start(self, orders: Sequence[tuple[int, Mapping[int, Task], int, int]]) -> None:
        """Let groups begin: step, tasks by number, seed and context limit of each order."""
        for order in orders:
            self._fragment.start(*order)

    def ended(self, step: int, seconds: float) -> dict[Ticket, GroupOf[Outline]]:
        """The groups that have ended, which are kept; see `ContinuousFragment.ended`."""
        return self._holdings.keep(self._fragment.ended(step, seconds))

    def hold(self, tickets: Sequence[Ticket], groups: bytes) -> dict[Ticket, GroupOf[Outline]]:
        """Keep groups that were played before; see `whole`."""
        return self._holdings.keep(dict(zip(tickets, from_bytes(groups)[1], strict=True)))

    def abandon(self) -> None:
        """Forget all groups."""
        self._fragment.abandon()
        self._holdings.clear()
