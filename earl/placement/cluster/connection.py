"""Being the driver of a Ray cluster, whoever's it is."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import worker as ray_worker

PROMPT = {"free_objects_batch_size": 1}
"""Ray deletes what nobody refers to at once, instead of once a second: weights pass through its store (stock.py)."""


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Be a driver of the Ray cluster at `address`, or of one of this process alone that ends with it."""
    # Ray prints what befalls its processes on standard output, which is for results; the crew says it in one line.
    ray_worker.print_to_stdstream = lambda *_, **__: None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address is None:
        # As many slots as are asked for: on one machine its owner says how many processes share the cores.
        ray.init(num_cpus=max(cpus, os.cpu_count() or 1), include_dashboard=False, _system_config=PROMPT, **quiet)
    else:
        ray.init(address=address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()
