"""Makes the sampler that a recipe asks for."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

import torch
from torch import Tensor

from earl.config import Config
from earl.engine.local import LocalSampler, SplitSampler, TpGroup
from earl.engine.model import Policy, shape_of
from earl.engine.sampler import Probe, Sampler, Truncation
from earl.engine.vllm.device import device
from earl.errors import EarlError, boundary
from earl.parallel.memory import ModelShape
from earl.rollout.drivers import PromptSampler
from earl.trajectory import Completion, Prompt


class Batcher(Sampler):
    """A thread-safe sampler that also completes single prompts; those that wait are completed as one batch. One
    thread uses the given sampler (`within`), so weights are loaded between two batches."""

    def __init__(self, sampler: Sampler) -> None:
        self.within = sampler
        self._waiting: SimpleQueue[tuple[Prompt, Future[Completion]]] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, "earl-batcher")

    async def complete(self, prompt: Prompt) -> Completion:
        reply: Future[Completion] = Future()
        self._waiting.put((prompt, reply))
        self._thread.submit(self._flush)
        return await asyncio.wrap_future(reply)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return self._thread.submit(self.within.generate, prompts).result()

    def release(self, sessions: Sequence[int]) -> None:
        self._thread.submit(self.within.release, sessions)

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights between two batches; later replies are sampled with them."""
        self._thread.submit(self.within.load, weights, version, probe).result()

    def close(self) -> None:
        self._thread.submit(self.within.close).result()
        self._thread.shutdown()

    def most_waves(self) -> int | None:
        return self.within.most_waves()

    def sleep(self) -> None:
        self._thread.submit(self.within.sleep).result()

    def wake(self) -> None:
        self._thread.submit(self.within.wake).result()

    def _flush(self) -> None:
        """Complete all waiting prompts; those already completed with an earlier batch no longer wait."""
        batch = []
        while not self._waiting.empty():
            prompt, reply = self._waiting.get()
            if reply.set_running_or_notify_cancel():
                batch.append((prompt, reply))
        if not batch:
            return
        with boundary() as fault:
            completions = self.within.generate([prompt for prompt, _ in batch])
        for number, (_, reply) in enumerate(batch):
            if fault.message:
                reply.set_exception(RuntimeError(f"the sampler failed: {fault.message}"))
            else:
                reply.set_result(completions[number])


class VersionsDiffer(EarlError):
    """Samplers that should have the same weights have different versions."""


class Replica(PromptSampler, Protocol):
    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """See `Sampler.load`."""


class Router(Sampler):
    """A sampler made of several: an episode stays where it is, a new one goes where the fewest tokens wait."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._waiting = [0] * len(replicas)  # the most tokens still to be sampled at each replica
        self._sessions = [0] * len(replicas)
        self._at: dict[int, int] = {}

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        async def together() -> list[Completion]:
            return [*await asyncio.gather(*map(self.complete, prompts))]

        with ThreadPoolExecutor(1) as thread:  # the caller's may already run an event loop
            return thread.submit(asyncio.run, together()).result()

    async def complete(self, prompt: Prompt) -> Completion:
        if prompt.session not in self._at:
            loads = [*zip(self._waiting, self._sessions, strict=True)]
            self._at[prompt.session] = loads.index(min(loads))
            self._sessions[self._at[prompt.session]] += 1
        replica = self._at[prompt.session]
        self._waiting[replica] += prompt.max_tokens
        try:
            return await self._replicas[replica].complete(prompt)
        finally:
            self._waiting[replica] -= prompt.max_tokens

    def release(self, sessions: Sequence[int]) -> None:
        for session in sessions:
            replica = self._at.pop(session, None)
            if replica is not None:
                self._sessions[replica] -= 1
                self._replicas[replica].release([session])

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        for replica in self._replicas:
            replica.load(weights, version, probe)


# `[sampler] engine = "auto"` takes the fastest engine by measurement (`earl bench sampler`, docs/benchmarks.md). On two
# CPU cores earl's own is 1.15 to 1.89 times as fast as the best other one, for 1M and 5M parameters and 1 to 128
# episodes at once. On GPUs, where earl's own does not run, it is vLLM.


def choose() -> str:
    """`local` or `vllm`, whichever is the faster one on this machine."""
    return "vllm" if torch.cuda.is_available() else "local"


def engine_of(config: Config) -> str:
    return choose() if config.sampler.engine == "auto" else config.sampler.engine


def sampler_dtype(config: Config) -> torch.dtype:
    """The dtype in which a recipe's sampler computes: the learner casts weights to it before they travel."""
    return device().dtype if engine_of(config) == "vllm" else torch.float32


def make_sampler(config: Config, policy: Policy, tp_group: TpGroup | None = None) -> Sampler:
    """A sampler with the policy's weights; without weights if the policy's model is on the meta device. It also
    completes single prompts if environments are slow or remote, or rollout overlaps with learning. tp_group: the
    processes of a split copy. Raises EarlError when [sampler] asks for an engine that is missing, or that cannot run
    here."""
    shape, room = shape_of(policy.model), config.sampler.cache_bytes
    temperature, truncation = config.rollout.temperature, Truncation.of(config.rollout)
    if engine_of(config) == "vllm":
        from earl.engine.vllm.sampler import VllmSampler

        return VllmSampler(policy, config.sampler, temperature, longest_context(config, shape), truncation)
    own = (temperature, room, truncation)
    local = SplitSampler(policy, tp_group, *own) if tp_group else LocalSampler(policy, *own)
    place = config.placement
    return Batcher(local) if config.env.delay_seconds or place.max_staleness or place.environments else local


def within(sampler: Sampler) -> Sampler:
    """The sampler that has the weights."""
    return sampler.within if isinstance(sampler, Batcher) else sampler


def processes_of(config: Config) -> int:
    """Processes of one copy of the sampler, each on a device; 1 for vLLM, which has its own worker processes. Raises
    EarlError when earl's own sampler cannot be split under this placement."""
    if engine_of(config) == "vllm":
        return 1
    check_alone(config, config.sampler.tp)
    return config.sampler.tp


def check_alone(config: Config, tp: int) -> None:
    """Raises EarlError where earl's own sampler would be split while others call it at any time."""
    place = config.placement
    for key, count in (("environments", place.environments), ("max_staleness", place.max_staleness)):
        if tp > 1 and count:
            raise EarlError(
                f"sampler.tp = {tp} and placement.{key} = {count}: earl's own sampler is split over processes where "
                "its episodes live with it and take turns with the learner; leave one of the two out, or set "
                "sampler.engine to vllm"
            )


def longest_context(config: Config, shape: ModelShape) -> int:
    context = config.context
    limit = context.limit if isinstance(context.limit, int) else context.ceiling
    return min(limit or shape.max_positions, shape.max_positions)
