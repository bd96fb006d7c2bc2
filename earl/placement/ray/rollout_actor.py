"""Rollout workers as Ray actors. Constructors do nothing, so that heartbeats are answered while models load."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from torch import Tensor

from earl.actions.pool import open_pool, own_cores, part_of
from earl.agents.parser import parser
from earl.config import Config
from earl.dispatch.rows import Numbers
from earl.dispatch.transports.rendezvous import Rendezvous
from earl.dispatch.weights import SentWeights
from earl.engine.local import Meeting, SplitSampler
from earl.engine.model import Policy, meta_policy, tokenizer_of
from earl.engine.sampler import Probe
from earl.engine.samplers import Router, VersionsDiffer, make_sampler, within
from earl.envs import registry
from earl.errors import EarlError
from earl.evaluation import Match
from earl.matches import MatchResult
from earl.placement.async_rollout import ContinuousFragment, Ticket
from earl.placement.episode_store import EpisodeStore, RowTable
from earl.placement.fragment import RolloutFragment
from earl.placement.ray.actor_setup import Actor, Connections, join_tp_group, lost_peers, model_of, new_budget, stage
from earl.placement.ray.memory_budget import Budget
from earl.placement.ray.row_exchange import CallResult, ExchangeMember, Manifest, call_result
from earl.placement.ray.weight_sync import LoadedWeights, WeightSource
from earl.recipe import build
from earl.rollout.drivers import PromptSampler
from earl.rollout.pack import learnable
from earl.rollout.synthetic import SyntheticEpisodes, rows_of, sample
from earl.trajectory import Completion, Group, GroupOf, Prompt, Task, TrajectorySummary


def _checked_recipe(recipe: Mapping[str, Any]) -> Config:
    """The recipe of the run's driver, whose code may be imported. Raises EarlError when this node cannot."""
    config = build(recipe)
    registry.allow(*config.code)
    try:
        parser(config.agent.parser)
        for env in config.env.each:
            registry.seats(env)
    except EarlError as error:
        place = ray.util.get_node_ip_address()
        raise EarlError(f"the node {place} lacks what others have: {error}; install it there as here") from None
    return config


Neighbours = tuple[int, int]
"""An actor's number among those that play on its host, and how many these are: they share its cores."""


class EpisodePlayer(ExchangeMember, Actor):
    """An actor with a rollout fragment, and the episode store of its groups until they are learned from."""

    _fragment: RolloutFragment
    _episodes: EpisodeStore

    def _open_pool(self, config: Config, neighbours: Neighbours) -> None:
        """Have a part of this host's cores, and of the limits of tools."""
        open_pool(part_of(own_cores(), *neighbours), config.tools, config.players)

    def limit(self, tokens: int) -> None:
        self._fragment.limit(tokens)

    @stage("rollout")
    def play(
        self, slots: Mapping[int, Sequence[Task]], step: int, seed: int, labelled: bool
    ) -> tuple[dict[Ticket, GroupOf[TrajectorySummary]], Mapping[str, float]]:
        """Play groups of a step and keep them in place of earlier ones; also returns `RolloutFragment.costs`."""
        self._episodes.clear()
        played = self._fragment.play(step, slots, seed, labelled)
        kept = self._episodes.keep({Ticket(step, number): group for number, group in played.items()})
        return kept, self._fragment.costs

    @stage("demonstrations")
    def demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> RowTable:
        return self._episodes.pack(*self._fragment.demonstrate(tasks, seed, limit))

    @stage("rollout")
    def sample(self, numbers: Mapping[int, int], shape: SyntheticEpisodes, seed: int) -> None:
        sample(shape, self._fragment.sampler, [*numbers], self._fragment.config.rollout.group_size, seed)

    @stage("rows")
    def invent(self, numbers: Mapping[int, int], shape: SyntheticEpisodes, seed: int) -> RowTable:
        return self._episodes.pack(rows_of(shape, [*numbers], seed), [*numbers])

    @stage("rows")
    def table(self, step: int) -> RowTable:
        return self._episodes.table(step)

    @stage("dispatch", alone=True)
    def exchange(self, manifest: Manifest, process: int, checksums: bool) -> CallResult:
        """Send the rows of the last table to the ranks that need them."""
        numbers = manifest.numbers(process - manifest.layout.size)
        shard = self._episodes.shard(numbers, manifest.table.columns)
        return CallResult(self.exchanged(manifest.plan(), process, shard, checksums).fault)

    @stage("recording")
    def whole(self, tickets: Sequence[Ticket]) -> dict[Ticket, Group]:
        """The groups of these tickets that this actor holds."""
        return self._episodes.whole(tickets)

    @stage("evaluation")
    def evaluate(self, matches: Mapping[int, Match]) -> list[MatchResult]:
        return self._fragment.evaluate([*matches.values()])


class RolloutActor(EpisodePlayer):
    """A rollout fragment with its sampler, in its own process."""

    _kind: type[RolloutFragment] = RolloutFragment
    _policy: Policy | None = None  # without weights; the learner sends them

    @lost_peers
    def setup(
        self,
        recipe: Mapping[str, Any],
        source: str | None,
        devices: Sequence[str],
        meeting: Meeting | None,
        neighbours: Neighbours = (0, 1),
    ) -> None:
        """Make the fragment, or replace its sampler; the old one is freed first. devices: the GPUs that it shares with
        learner ranks; empty: those that Ray assigned. meeting: of the actors of its sampler copy; None: not split."""
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        config = _checked_recipe(recipe)
        self._open_pool(config, neighbours)
        policy = self._policy = self._policy or meta_policy(model_of(config, source))
        self._split = None
        if hasattr(self, "_fragment"):  # free the sampler, before memory for another one is needed
            self._fragment.sampler.close()
            del self._fragment
        self._budget = self._budget or new_budget(config)
        with Connections() as self._connections:
            tp_group = join_tp_group(config, meeting, self._meets) if meeting else None
        sampler = make_sampler(config, policy, tp_group)
        self._split = own if isinstance(own := within(sampler), SplitSampler) else None
        self._fragment = self._kind(config, policy.tokenizer, sampler)
        self._episodes = EpisodeStore(learnable(config))

    @stage("weights", alone=True)
    def load(self, weights: WeightSource, probe: Probe, version: int) -> LoadedWeights:
        """Load weights. Raises StaleWeights when the sampler does not compute with them, Corrupted when messages
        arrive damaged repeatedly."""
        reader, sampler = weights.reader(), self._fragment.sampler
        sampler.load(reader, version, probe)
        self._episodes.drop(version)
        own = within(sampler)
        return LoadedWeights(max(reader.received_bytes, own.received_bytes), own.needed_bytes, tuple(reader.damaged))

    def join_weights(self, where: Rendezvous, process: int, hosts: Numbers, seconds: float) -> CallResult:
        """Let the engine's workers join the learner's ranks; see `WeightSender`."""
        address = ray.util.get_node_ip_address()
        return call_result(lambda: self._engine.join_weights(where, process, hosts, address, seconds))

    @stage("weights")
    def load_sent(self, sent: SentWeights, probe: Probe, version: int) -> CallResult:
        """Load what the ranks send to the engine's workers."""

        def load() -> LoadedWeights:
            self._engine.load(sent, version, probe)
            self._episodes.drop(version)
            return LoadedWeights(self._engine.received_bytes, self._engine.needed_bytes, ())

        return call_result(load)

    @property
    def _engine(self) -> Any:
        return within(self._fragment.sampler)

    def rest(self) -> None:
        self._fragment.sampler.sleep()

    def wake(self) -> None:
        self._fragment.sampler.wake()


class ContinuousActor(RolloutActor):
    """A rollout fragment that plays on between calls, in its own process."""

    _kind = ContinuousFragment
    _fragment: ContinuousFragment

    def start(self, orders: Sequence[tuple[int, Mapping[int, Task], int, int]]) -> None:
        """Start groups: step, tasks by number, seed and context limit of each order."""
        for order in orders:
            self._fragment.start(*order)

    def ended(self, step: int, seconds: float) -> dict[Ticket, GroupOf[TrajectorySummary]]:
        """Summaries of the groups that have ended, which are kept; see `ContinuousFragment.ended`."""
        return self._episodes.keep(self._fragment.ended(step, seconds))

    def hold(self, groups: Mapping[Ticket, Group]) -> dict[Ticket, GroupOf[TrajectorySummary]]:
        """Keep groups that were played before."""
        return self._episodes.keep(groups)

    def abandon(self) -> None:
        self._fragment.abandon()
        self._episodes.clear()


# Separate environments: an EnvironmentActor's Router calls all SamplerActors through RemoteSamplers, by Ray. Token ids
# are sent, token ids and log-probs come back.

AGAIN_SECONDS = 0.2
"""Interval of retries when a sampler is lost, until it is replaced."""
SESSIONS = 1 << 32
"""More than the episodes that one process plays between two loads of weights."""


class SamplerActor(RolloutActor):
    """A sampler in its own process, for all environments; it plays nothing itself."""

    async def complete(self, prompt: Prompt) -> Completion:
        sampler = self._fragment.sampler
        assert isinstance(sampler, PromptSampler), "environments ask at any time"
        return await sampler.complete(prompt)

    def release(self, sessions: Sequence[int]) -> None:
        self._fragment.sampler.release(sessions)


class RemoteSampler:
    """A sampler as an environment sees it: prompts that a lost one did not answer go to its replacement in `actors`.
    first_session: unique offset of this process's sessions. Raises VersionsDiffer when replies come from weights of
    another version than `version`."""

    def __init__(self, actors: Sequence[Any], number: int, first_session: int) -> None:
        self._actors, self._number, self._first_session = actors, number, first_session
        self.version = 0

    def release(self, sessions: Sequence[int]) -> None:
        self._actors[self._number].release.remote([self._first_session + session for session in sessions])

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Set the expected version; the sampler's own process has loaded and checked the weights."""
        self.version = version

    async def complete(self, prompt: Prompt) -> Completion:
        while True:
            asked = replace(prompt, session=self._first_session + prompt.session)
            try:
                completion: Completion = await self._actors[self._number].complete.remote(asked)
            except RayActorError:
                self._first_session += SESSIONS  # the lost one may still be at work: never reuse a session
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            except RayTaskError as error:
                raise error.cause from None
            if others := {*completion.versions} - {self.version}:
                raise VersionsDiffer(
                    f"sampler {self._number} answers with weights of version {min(others)} where all have to play "
                    f"version {self.version}: load the weights again"
                )
            return completion


class EnvironmentActor(EpisodePlayer):
    """A rollout fragment whose samplers are elsewhere; it needs no device."""

    def __init__(self) -> None:
        self._actors: list[Any] = []

    def setup(
        self,
        recipe: Mapping[str, Any],
        source: str | None,
        actors: Sequence[Any],
        number: int,
        life: int,
        neighbours: Neighbours = (0, 1),
    ) -> None:
        """Make the fragment. number: each environment prefers another sampler; life: environments set up before."""
        config = _checked_recipe(recipe)
        self._open_pool(config, neighbours)
        self._budget = Budget(None)
        self._actors[:] = self._actors or actors  # replacements are known already
        places = [(number + place) % len(actors) for place in range(len(actors))]
        first_session = life * SESSIONS * SESSIONS
        router = Router([RemoteSampler(self._actors, place, first_session) for place in places])
        self._fragment = RolloutFragment(config, tokenizer_of(model_of(config, source)), router)
        self._episodes = EpisodeStore(learnable(config))

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def meet(self, actors: Sequence[Any]) -> None:
        """Use these samplers from now on, also for unanswered prompts."""
        self._actors[:] = actors

    def load(self, version: int) -> None:
        self._fragment.sampler.load({}, version)
        self._episodes.drop(version)
