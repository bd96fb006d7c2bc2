"""Routes prompts to several samplers: an episode stays at its prefix cache, a new one goes to the least loaded."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol

from torch import Tensor

from earl.engine.sampler import Closes, InWaves, Probe, Sampler
from earl.errors import EarlError, boundary
from earl.rollout.drivers import Streams
from earl.rollout.prompt import Completion, Prompt


class Batcher:
    """A thread-safe `Sampler` that also completes single prompts; those that wait are completed as one batch. One
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
        if isinstance(self.within, Closes):
            self._thread.submit(self.within.close).result()
        self._thread.shutdown()

    def most_waves(self) -> int | None:
        return self.within.most_waves() if isinstance(self.within, InWaves) else None

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


class Replica(Sampler, Streams, Protocol):
    @property
    def version(self) -> int:
        """Of the current weights."""


class ReplicaRoutes:
    """Which replica an episode is at. Pure: it only counts the tokens that wait at each replica; a new session goes
    to the one with the fewest."""

    def __init__(self, replicas: int) -> None:
        self.waiting = [0] * replicas  # the most tokens still to be sampled at each replica
        self._at: dict[int, int] = {}
        self._sessions = [0] * replicas

    def enter(self, session: int, tokens: int) -> int:
        """The replica for a prompt that may take this many tokens."""
        if session not in self._at:
            loads = [*zip(self.waiting, self._sessions, strict=True)]
            self._at[session] = loads.index(min(loads))
            self._sessions[self._at[session]] += 1
        replica = self._at[session]
        self.waiting[replica] += tokens
        return replica

    def leave(self, replica: int, tokens: int) -> None:
        self.waiting[replica] -= tokens

    def release(self, session: int) -> int | None:
        replica = self._at.pop(session, None)
        if replica is not None:
            self._sessions[replica] -= 1
        return replica


class Router:
    """A sampler made of several. Every call raises VersionsDiffer after a load that not all replicas took."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._routes = ReplicaRoutes(len(replicas))
        self._threads = ThreadPoolExecutor(len(replicas), "earl-router")
        self._check()

    @property
    def version(self) -> int:
        return self._replicas[0].version

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order; the replicas work in parallel."""
        self._check()
        places = [self._routes.enter(prompt.session, prompt.max_tokens) for prompt in prompts]
        shares: dict[int, list[int]] = defaultdict(list)
        for number, replica in enumerate(places):
            shares[replica].append(number)

        def answered(replica: int) -> list[Completion]:
            return self._replicas[replica].generate([prompts[number] for number in shares[replica]])

        try:
            parts = dict(zip(shares, self._threads.map(answered, shares), strict=True))
        finally:
            for prompt, replica in zip(prompts, places, strict=True):
                self._routes.leave(replica, prompt.max_tokens)
        by_number = {n: c for replica in shares for n, c in zip(shares[replica], parts[replica], strict=True)}
        return [by_number[number] for number in range(len(prompts))]

    async def complete(self, prompt: Prompt) -> Completion:
        self._check()
        replica = self._routes.enter(prompt.session, prompt.max_tokens)
        try:
            return await self._replicas[replica].complete(prompt)
        finally:
            self._routes.leave(replica, prompt.max_tokens)

    def release(self, sessions: Sequence[int]) -> None:
        for session in sessions:
            replica = self._routes.release(session)
            if replica is not None:
                self._replicas[replica].release([session])

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        loads = [self._threads.submit(replica.load, weights, version, probe) for replica in self._replicas]
        faults = [fault for fault in (load.exception() for load in loads) if fault is not None]
        if faults:
            raise faults[0]
        self._check()

    def sleep(self) -> None:
        for replica in self._replicas:
            replica.sleep()

    def wake(self) -> None:
        for replica in self._replicas:
            replica.wake()

    def _check(self) -> None:
        versions = [replica.version for replica in self._replicas]
        if len(set(versions)) > 1:
            raise VersionsDiffer(
                f"samplers play the weights of versions {', '.join(map(str, versions))}; all must play the same: "
                "load the weights again"
            )
