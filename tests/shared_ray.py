"""One Ray cluster for all tests of a process that may share one: to start and end one takes as long as a short run.

Modules ask for it by `pytestmark = pytest.mark.usefixtures("shared_ray")`. What `earl train` starts itself, on loopback
and for the run alone, is watched by `placement/test_connection.py`, `placement/test_place.py` and `cli/`.
"""

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest

CPUS = 8
"""More than any run of these tests asks for."""
open_cluster = ExitStack()


@cache
def own():
    """earl's `connect_ray`, asked for before it is replaced."""
    from earl.placement.ray.coordinator import connect_ray

    return connect_ray


@contextmanager
def borrowed(address: str | None, cpus: int) -> Iterator[None]:
    """In place of earl's `connect_ray`: the shared cluster, started if it is not there, and left alone at the end."""
    import ray

    if address is not None:
        with own()(address, cpus):
            yield
        return
    assert cpus <= CPUS
    if not ray.is_initialized():
        open_cluster.enter_context(own()(None, CPUS))
    yield


@pytest.fixture(scope="session")
def ray_cluster():
    """Ends the shared cluster with the session, or before another one is started in this process."""
    ray = pytest.importorskip("ray")
    own()
    start = ray.init

    def alone(*arguments, **settings):
        open_cluster.close()
        return start(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", alone)
        atexit.register(open_cluster.close)
        yield ray
        open_cluster.close()


@pytest.fixture(scope="module")
def shared_ray(ray_cluster):
    """Runs of this module in this process use the shared cluster, which is there as soon as one of them has asked."""
    from earl.placement.ray import coordinator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "connect_ray", borrowed)
        yield


@pytest.fixture(scope="module")
def ray(ray_cluster):
    """Ray, connected to the shared cluster."""
    with borrowed(None, CPUS):
        yield ray_cluster
