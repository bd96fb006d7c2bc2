"""Environments in processes of their own, without devices, and samplers that only decode: both ends of their line.

    EnvironmentActor: episodes ─▶ Router ─▶ RemoteSampler 0 … m ═ Ray ═▶ SamplerActor 0 … m ◀─ weights

Every environment asks every sampler. Token ids go out, token ids and log-probs come back.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from torch import Tensor

from earl.engine.model import tokenizer_of
from earl.engine.probe import Probe
from earl.engine.router import Router, VersionsDiffer
from earl.engine.samplers import make_sampler
from earl.engine.sharding.band import Meeting
from earl.placement.cluster.begin import outline_of, show
from earl.placement.cluster.budget import Budget
from earl.placement.cluster.guarded import Alive
from earl.placement.cluster.offer import Offered
from earl.placement.cluster.plays import Plays
from earl.placement.cluster.stock import Drawn
from earl.placement.fragment import RolloutFragment
from earl.placement.holdings import Holdings
from earl.recipe import build
from earl.rollout.concurrent import Streams
from earl.rollout.prompt import Completion, Prompt

AGAIN_SECONDS = 0.2
"""Between two questions to a sampler that is lost, until another is in its place."""
SESSIONS = 1 << 32
"""More than the episodes that one process plays between two loads of weights."""


class SamplerActor(Alive):
    """A sampler in a process of its own, for all environments."""

    def setup(
        self, recipe: Mapping[str, Any], source: str | None, devices: Sequence[str], meeting: Meeting | None
    ) -> None:
        """Make the sampler; see `WorkerActor.setup`."""
        assert meeting is None, "a sampler that environments ask at any time is whole"
        show(devices)
        config = build(recipe)
        self._budget = Budget(None)
        self._sampler = make_sampler(config, outline_of(config, source))
        assert isinstance(self._sampler, Streams), "environments ask at any time"
        self._streams: Streams = self._sampler

    def load(self, weights: Offered | Drawn, probe: Probe, version: int) -> list[str]:
        """Sample with these weights from now on; see `WorkerActor.load`."""
        taken = weights.taken()
        self._sampler.load(taken, version, probe)
        return taken.damaged

    async def decode(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order, while others are on their way."""
        return [*await asyncio.gather(*(self._streams.complete(prompt) for prompt in prompts))]

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes."""
        self._sampler.release(sessions)

    def rest(self) -> None:
        """Leave the device to others."""
        self._sampler.sleep()

    def wake(self) -> None:
        """Take the device again."""
        self._sampler.wake()


class RemoteSampler:
    """A sampler as an environment sees it: what it was asked when it was lost, the one in its place is asked again.

    Args:
        actors: of all samplers, as they are now.
        number: which of them it is.
        first_session: where this process begins to count its episodes; no other has the same.

    Attributes:
        version: of the weights that it has to answer with.

    Raises:
        VersionsDiffer: when it answers with others.
    """

    def __init__(self, actors: Sequence[Any], number: int, first_session: int) -> None:
        self._actors, self._number, self._first_session = actors, number, first_session
        self.version = 0

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order."""
        return asyncio.run(self._decode(prompts))

    async def complete(self, prompt: Prompt) -> Completion:
        """One completion, while others are on their way."""
        [completion] = await self._decode([prompt])
        return completion

    def release(self, sessions: Sequence[int]) -> None:
        """Let it forget what was kept for these episodes."""
        self._actors[self._number].release.remote([self._first_session + session for session in sessions])

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Its process was given the weights and has checked them; they count from now on."""
        del weights, probe
        self.version = version

    def sleep(self) -> None:
        """Its device is none of an environment's business."""

    def wake(self) -> None:
        """Its device is none of an environment's business."""

    async def _decode(self, prompts: Sequence[Prompt]) -> list[Completion]:
        while True:
            asked = [replace(prompt, session=self._first_session + prompt.session) for prompt in prompts]
            try:
                completions: list[Completion] = await self._actors[self._number].decode.remote(asked)
            except RayActorError:
                self._first_session += SESSIONS  # it may be at work still: no session is asked for twice
                await asyncio.sleep(AGAIN_SECONDS)
            except RayTaskError as error:
                raise error.cause from None
            else:
                self._check(completions)
                return completions

    def _check(self, completions: Sequence[Completion]) -> None:
        others = {version for completion in completions for version in completion.versions} - {self.version}
        if others:
            raise VersionsDiffer(
                f"sampler {self._number} answers with weights of version {min(others)} where all have to play "
                f"version {self.version}: load the weights again"
            )


class EnvironmentActor(Plays):
    """A rollout fragment whose samplers are elsewhere; it needs no device."""

    def __init__(self) -> None:
        self._actors: list[Any] = []

    def setup(
        self, recipe: Mapping[str, Any], source: str | None, actors: Sequence[Any], number: int, life: int
    ) -> None:
        """Make the fragment.

        Args:
            actors: of the samplers.
            number: of this environment; each begins with another sampler.
            life: how many environments were set up before.
        """
        config = build(recipe)
        self._budget = Budget(None)
        model = config.model.model_copy(update={"path": source}) if source else config.model
        self._actors[:] = self._actors or actors  # who was replaced meanwhile is known already
        places = [(number + place) % len(actors) for place in range(len(actors))]
        first_session = life * SESSIONS * SESSIONS
        router = Router([RemoteSampler(self._actors, place, first_session) for place in places])
        self._fragment = RolloutFragment(config, tokenizer_of(model), router)
        self._holdings = Holdings(config.context.learn_truncated)

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def meet(self, actors: Sequence[Any]) -> None:
        """Ask these samplers from now on, also what the ones before were asked and did not answer."""
        self._actors[:] = actors

    def load(self, version: int) -> None:
        """The samplers have the weights of this version from now on."""
        self._fragment.load({}, version)
        self._holdings.drop(version)
