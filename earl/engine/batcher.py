"""A sampler that completes batches, behind `complete`: prompts come one by one, and those that wait go together.

complete ─▶ waiting ─▶ [ all that wait ─▶ generate ]   one thread: weights are loaded between two batches
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from torch import Tensor

from earl.engine.probe import Probe
from earl.engine.sampler import Closes, InWaves, Sampler
from earl.errors import boundary
from earl.rollout.prompt import Completion, Prompt


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
