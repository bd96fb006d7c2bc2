"""Several samplers as one: an episode stays where its prefix cache is, a new one goes where least is waiting."""

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

# A sampler that completes batches, behind `complete`: prompts come one by one, and those that wait go together.
#
# complete ─▶ waiting ─▶ [ all that wait ─▶ generate ]   one thread: weights are loaded between two batches


class Batcher:
    """A `Sampler` whose methods may be called from any thread, and that completes single prompts too.

    Args:
        sampler: is used by one thread alone from now on.

    Attributes:
        within: that sampler.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.within = sampler
        self._waiting: SimpleQueue[tuple[Prompt, Future[Completion]]] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, "earl-batcher")

    async def complete(self, prompt: Prompt) -> Completion:
        """One completion, while others are on their way."""
        reply: Future[Completion] = Future()
        self._waiting.put((prompt, reply))
        self._thread.submit(self._flush)
        return await asyncio.wrap_future(reply)

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order, in a batch of their own."""
        return self._thread.submit(self.within.generate, prompts).result()

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes, soon."""
        self._thread.submit(self.within.release, sessions)

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Take new weights between two batches; replies to come are sampled with these."""
        self._thread.submit(self.within.load, weights, version, probe).result()

    def close(self) -> None:
        """End; nothing is asked any more."""
        if isinstance(self.within, Closes):
            self._thread.submit(self.within.close).result()
        self._thread.shutdown()

    def most_waves(self) -> int | None:
        """See `InWaves`."""
        return self.within.most_waves() if isinstance(self.within, InWaves) else None

    def sleep(self) -> None:
        """Free the device's memory between two batches."""
        self._thread.submit(self.within.sleep).result()

    def wake(self) -> None:
        """Take it back."""
        self._thread.submit(self.within.wake).result()

    def _flush(self) -> None:
        """Complete all prompts that wait; those that came with an earlier batch do not any more."""
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
    """Samplers that should play the same weights do not."""


class Replica(Sampler, Streams, Protocol):
    """One of several samplers."""

    @property
    def version(self) -> int:
        """Of the weights that sample now."""


class ReplicaRoutes:
    """Which replica an episode is at. Pure: tokens that wait are told to it, and nothing is sampled.

    Example:
        routes = Routes(2)
        routes.enter(session=7, tokens=100)   # 0
        routes.enter(session=8, tokens=10)    # 1
        routes.enter(session=9, tokens=10)    # 1: 10 tokens wait there, 100 at the other
    """

    def __init__(self, replicas: int) -> None:
        self.waiting = [0] * replicas
        """Tokens still to be sampled at each replica, at most."""
        self._at: dict[int, int] = {}
        self._sessions = [0] * replicas

    def enter(self, session: int, tokens: int) -> int:
        """The replica for a prompt of a session that may take so many tokens."""
        if session not in self._at:
            loads = [*zip(self.waiting, self._sessions, strict=True)]
            self._at[session] = loads.index(min(loads))
            self._sessions[self._at[session]] += 1
        replica = self._at[session]
        self.waiting[replica] += tokens
        return replica

    def leave(self, replica: int, tokens: int) -> None:
        """A prompt has been answered."""
        self.waiting[replica] -= tokens

    def release(self, session: int) -> int | None:
        """The replica that an ended episode was at, if it was at any."""
        replica = self._at.pop(session, None)
        if replica is not None:
            self._sessions[replica] -= 1
        return replica


class Router:
    """A sampler made of several.

    Raises:
        VersionsDiffer: on every call after a load that not all replicas took.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._routes = ReplicaRoutes(len(replicas))
        self._threads = ThreadPoolExecutor(len(replicas), "earl-router")
        self._check()

    @property
    def version(self) -> int:
        """Of the weights that sample now, with all replicas."""
        return self._replicas[0].version

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion per prompt, in order; the replicas work side by side."""
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
        """One completion, while others are on their way."""
        self._check()
        replica = self._routes.enter(prompt.session, prompt.max_tokens)
        try:
            return await self._replicas[replica].complete(prompt)
        finally:
            self._routes.leave(replica, prompt.max_tokens)

    def release(self, sessions: Sequence[int]) -> None:
        """Forget what was kept for these episodes."""
        for session in sessions:
            replica = self._routes.release(session)
            if replica is not None:
                self._replicas[replica].release([session])

    def load(self, weights: Mapping[str, Tensor], version: int, probe: Probe | None = None) -> None:
        """Give new weights to all replicas, side by side."""
        loads = [self._threads.submit(replica.load, weights, version, probe) for replica in self._replicas]
        faults = [fault for fault in (load.exception() for load in loads) if fault is not None]
        if faults:
            raise faults[0]
        self._check()

    def sleep(self) -> None:
        """Free the devices' memory."""
        for replica in self._replicas:
            replica.sleep()

    def wake(self) -> None:
        """Take it back."""
        for replica in self._replicas:
            replica.wake()

    def _check(self) -> None:
        versions = [replica.version for replica in self._replicas]
        if len(set(versions)) > 1:
            raise VersionsDiffer(
                f"samplers play the weights of versions {', '.join(map(str, versions))}; all must play the same: "
                "load the weights again"
            )
