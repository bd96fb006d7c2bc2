"""What runs inside Ray's processes. Constructors do nothing, so that heartbeats are answered while models load."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from earl.algorithms.base import Algorithm
from earl.batch import Batch, Rows
from earl.config import Config
from earl.engine.learner import Learner, Update
from earl.engine.model import Policy, load, make
from earl.engine.probe import Probe, probe_rows, probe_tokens
from earl.engine.rank import join, sharded_learner
from earl.engine.samplers import make_sampler
from earl.evaluate import Match
from earl.parallel.layout import Layout
from earl.placement.ahead import Ticket
from earl.placement.cluster.network import free_port, interface_of
from earl.placement.continuous import ContinuousFragment
from earl.placement.exchange import rows_to_bytes
from earl.placement.fragment import RolloutFragment
from earl.recipe import build
from earl.runs.records import matches_to_bytes
from earl.runs.trajectories import to_bytes
from earl.trajectory import Task

Method = TypeVar("Method", bound=Callable[..., Any])
BROKEN = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Timed out waiting")
"""What a collective says when another process is gone; torch has no class of errors for it."""


def _losing_others(method: Method) -> Method:
    """Say in one line that it was another process that failed."""

    @wraps(method)
    def called(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except RuntimeError as error:
            if any(word in str(error) for word in BROKEN):
                raise ConnectionError("another rank is gone") from None
            raise

    return cast(Method, called)


class Alive:
    """What every actor answers."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def ping(self) -> None:
        """A sign of life, given beside whatever the actor computes."""

    @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
    def whereabouts(self) -> tuple[int, str]:
        """Process id and node id."""
        return os.getpid(), ray.get_runtime_context().get_node_id()


class Plays(Alive):
    """An actor that holds a rollout fragment."""

    _fragment: RolloutFragment

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come."""
        self._fragment.limit(tokens)

    def play(self, tasks: Mapping[int, Task], seed: int) -> bytes:
        """Play groups; see `earl.runs.trajectories.to_bytes`."""
        return to_bytes(self._fragment.play(tasks, seed), 0)

    def demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> bytes:
        """The teacher's rows; see `rows_to_bytes`."""
        return rows_to_bytes(*self._fragment.demonstrate(tasks, seed, limit))

    def evaluate(self, matches: Sequence[Match]) -> bytes:
        """Measure matches."""
        return matches_to_bytes(self._fragment.evaluate(matches))


class WorkerActor(Plays):
    """A rollout fragment with its sampler, in a process of its own."""

    _kind: type[RolloutFragment] = RolloutFragment

    def setup(self, recipe: Mapping[str, Any], source: str | None, devices: Sequence[str]) -> None:
        """Make the fragment.

        Args:
            devices: the GPUs that it takes turns on with learner ranks; none: those that Ray gave it.
        """
        show(devices)
        config = build(recipe)
        policy = policy_of(config, source)
        self._fragment = self._kind(config, policy.tokenizer, make_sampler(config, policy))

    def load(self, weights: Mapping[str, NDArray[Any]], probe: Probe, version: int) -> None:
        """Play with these weights from now on. Raises StaleWeights when the sampler does not compute with them."""
        self._fragment.load(tensors_of(weights), version, probe)

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

    def ended(self, step: int, seconds: float) -> dict[Ticket, bytes]:
        """The groups that have ended; see `ContinuousFragment.ended`."""
        return {ticket: to_bytes([group], ticket.step) for ticket, group in self._fragment.ended(step, seconds).items()}

    def abandon(self) -> None:
        """Forget all groups."""
        self._fragment.abandon()


class RankActor(Alive):
    """One rank of the learner."""

    def address(self) -> tuple[str, int]:
        """Where the ranks meet: this node's address and a free port."""
        host = ray.util.get_node_ip_address()
        return host, free_port(host)

    def devices(self) -> list[str]:
        """The GPUs that Ray gave this rank, as CUDA names them."""
        return [str(number) for number in ray.get_gpu_ids()]

    @_losing_others
    def setup(self, recipe: Mapping[str, Any], source: str | None, rank: int, meeting: tuple[str, int]) -> None:
        """Join the other ranks and make the learner."""
        config = build(recipe)
        self._coarse = config.learner.dtype == "bfloat16"
        self._learner = joined(config, source, rank, meeting)

    @_losing_others
    def update(self, batch: Batch, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from a batch."""
        return self._learner.update(batch, algorithm, update)

    @_losing_others
    def logprobs(self, rows: Rows, reference: bool) -> NDArray[np.float32]:
        """Log-probs [T]."""
        return self._learner.logprobs(rows, reference)

    @_losing_others
    def values(self, rows: Rows) -> NDArray[np.float32]:
        """Values [T]."""
        return self._learner.values(rows)

    @_losing_others
    def weights(self) -> list[Any]:
        """A reference to the model's weights, whole, and a probe of them; from the first rank, but gathered by all."""
        weights = self._learner.weights()
        tokens = probe_tokens(self._learner.vocab)
        logprobs = self._learner.logprobs(probe_rows(tokens), temperature=1.0)
        probe = Probe(tokens, logprobs[1:].tolist(), self._coarse)
        return [ray.put(arrays_of(weights)), probe] if weights else []

    @_losing_others
    def snapshot(self) -> None:
        """Copy this rank's part of a checkpoint, to be saved."""
        self._write: Callable[[Path], None] | None = self._learner.snapshot()

    @ray.method(concurrency_group="saving")  # type: ignore[untyped-decorator]
    def save(self, folder: str) -> None:
        """Write the snapshot, beside whatever the actor computes."""
        assert self._write is not None, "a snapshot is written once"
        self._write(Path(folder))
        self._write = None

    @_losing_others
    def restore(self, folder: str) -> None:
        """Continue from a checkpoint."""
        self._learner.restore(Path(folder))

    def rest(self) -> None:
        """Leave the device to others."""
        self._learner.offload()

    def wake(self) -> None:
        """Take the device again."""
        self._learner.reload()


def show(devices: Sequence[str]) -> None:
    """Let this process compute on these GPUs; none: on those that Ray gave it."""
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)


def policy_of(config: Config, source: str | None) -> Policy:
    """The policy of a checkpoint, or the one that the recipe starts from."""
    return load(source) if source else make(config.model, config.run.seed)


def arrays_of(weights: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Tensors as arrays of their bytes' own kind, which Ray moves without copies."""
    return {name: tensor.cpu().numpy() for name, tensor in weights.items()}


def tensors_of(weights: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """What `arrays_of` was given."""
    return {name: torch.from_numpy(array) for name, array in weights.items()}


def joined(config: Config, source: str | None, rank: int, meeting: tuple[str, int]) -> Learner:
    """Meet the other ranks and make this one's part of the learner; they stay joined until the process ends."""
    host, port = meeting
    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(ray.util.get_node_ip_address()) or "lo"
    placement = config.placement
    device = "cuda:0" if torch.cuda.is_available() else "cpu"  # Ray shows a rank its own device alone
    mesh = join(rank, Layout(placement.dp, placement.tp), host, port, device, placement.stage_seconds)
    return sharded_learner(config, mesh, Path(source) if source else None)
