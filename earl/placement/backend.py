"""Backends: where a run's stages run, in this process and its peers or on a cluster; handling of lost processes."""

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from earl.config import Config
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.rehearsal.plan import attach

if TYPE_CHECKING:
    from earl.placement.ray.actor_group import Asked


class Backend(Protocol):
    """Runs the stages of a step, and replaces processes that are lost."""

    def open(self, saved: Path | None) -> StepPipeline:
        """The stages; the model is that of the checkpoint `saved`, if given."""

    def mend(self, lost: WorkerLost) -> None:
        """Replace lost processes, so that the run can continue from its last checkpoint, or re-raise."""

    def notes(self) -> Iterable[tuple[str, str]]:
        """Events since this was last asked: kinds and messages."""


@contextmanager
def on_cluster(config: Config, asked: "Asked | None" = None) -> Iterator[Backend]:
    """The Ray cluster that a recipe's placement asks for; whatever is started there ends with the context. asked:
    called after every call to actors. Raises EarlError when the cluster is missing or has too few devices."""
    with _in_environment(_ray_environment(config.placement.address)):
        from earl.placement.ray.coordinator import cluster  # Ray reads the environment when it is imported

        with cluster(config, asked) as place:
            yield place


def _ray_environment(address: str | None) -> Mapping[str, str]:
    """Environment variables for Ray: those of a rehearsed cluster, or a token that only this user has for a new one."""
    if address:
        return attach(address)
    return {} if "RAY_AUTH_MODE" in os.environ else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}


TOKEN = secrets.token_hex(32)
"""One for all clusters that this process opens in turn: Ray reads it once."""


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for this process and its new children, until the context ends."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)
