"""What a rank does so that samplers get the learner's weights."""

from typing import Any

import ray

from earl.engine.learner import Learner
from earl.engine.probe import Probe, probe_rows, probe_tokens
from earl.placement.cluster.described import Described, described
from earl.placement.cluster.guarded import Alive, bounded, losing_others
from earl.placement.cluster.lockstep import Lockstep
from earl.placement.cluster.offer import offer
from earl.placement.cluster.stock import Stock


class Gives(Alive):
    """An actor that has a part of the learner's weights."""

    _learner: Learner
    _rank: int
    _coarse: bool
    """Whether it computes in bfloat16."""
    _drawn: bool
    """Whether samplers draw what they load, while the learner waits."""

    @losing_others
    @bounded("weights")
    def weights(self, readers: int, checksums: bool) -> tuple[list[Any] | None, Described, Probe]:
        """References to what this rank gives of the model's weights, by bucket; what they are, and a probe of them.

        No references: they are drawn from it, bucket by bucket, while it waits.

        Args:
            readers: how many processes will load them.
            checksums: whether these check what they load.
        """
        held = self._learner.held()
        tokens = probe_tokens(self._learner.vocab)
        logprobs = self._learner.logprobs(probe_rows(tokens), temperature=1.0)
        probe, known = Probe(tokens, logprobs[1:].tolist(), self._coarse), described(held)
        if self._drawn:
            self._stock = Stock(self._learner.held, self._rank, known, readers, checksums)
            self._lockstep = Lockstep(readers)
            return None, known, probe
        return offer(held, self._rank, checksums=checksums), known, probe

    def come(self, reader: str, bucket: int) -> bool:
        """Whether a reader may have a bucket now; asked of the first rank."""
        return self._lockstep.come(reader, bucket)

    @bounded("weights")
    def bucket(self, number: int, again: bool = False) -> list[Any]:
        """A reference to a bucket of the weights as they are now, packed anew or not; None where it gives nothing."""
        return [self._stock.bucket(number, again)]

    def leave_stock(self, reader: str) -> None:
        """A reader has all weights."""
        self._lockstep.leave(reader)
        self._stock.leave()

    @ray.method(concurrency_group="saving")  # type: ignore[untyped-decorator]
    def again(self, references: list[Any]) -> list[Any]:
        """A second object with what lies in this rank's store, beside whatever the actor computes."""
        return [ray.put(ray.get(reference).copy()) for reference in references]
