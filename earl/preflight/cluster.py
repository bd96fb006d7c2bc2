"""The site of a run: kind of placement, processors and GPUs, and the sampler's engine.

Settings that a recipe leaves open are decided here once and written into it.
"""

import shlex
from dataclasses import dataclass, replace

from earl.config import Config
from earl.errors import EarlError
from earl.parallel.hardware import ClusterSpec, of_gpus
from earl.placement.ray.inventory import here, installed, inventory, on_this_machine
from earl.preflight.environment import setting
from earl.preflight.hardware import memory_bytes

CURES = {
    "ray": "pip install 'earl[ray]', or leave the run embedded",
    "vllm": "pip install 'earl[vllm]' on a machine with GPUs, or set sampler.engine to local",
    "peft": "pip install 'earl[lora]', or set learner.lora_rank to 0",
}
"""Cure by library, when a setting needs one that is not installed."""


@dataclass(frozen=True, slots=True)
class Site:
    kind: str  # embedded, colocated or disaggregated
    engine: str  # local or vllm
    cluster: ClusterSpec
    on_paper: bool  # whether the cluster is only described, to plan a run elsewhere

    @property
    def gpus(self) -> bool:
        return self.kind != "embedded" and self.cluster.gpus > 0


def survey(config: Config, dry: bool) -> Site:
    """Determine the site of a recipe. Raises EarlError when something that it needs is missing or does not answer.
    In a `dry` run, GPUs that --gpus names need not exist, and no cluster is contacted."""
    place, engine = config.placement, config.sampler.engine
    with setting("placement.gpus"):
        asked = of_gpus(place.gpus) if place.gpus else None
    kind: str = place.kind
    if kind == "auto":
        named = place.address is not None or asked is not None
        kind = "colocated" if named or (here(0).gpus and installed("ray")) else "embedded"
    on_paper = dry and (asked is not None or place.address is not None)
    needs = {
        "ray": (kind != "embedded", f"placement.kind = {kind!r}"),
        "vllm": (engine == "vllm", "sampler.engine = 'vllm'"),
        "peft": (config.learner.lora_rank > 0, f"learner.lora_rank = {config.learner.lora_rank}"),
    }
    for library, (needed, what) in needs.items():
        if needed and not on_paper and not installed(library):
            raise EarlError(f"{what} needs {library}, which is not installed; {CURES[library]}")
    if on_paper:
        cluster = asked or ClusterSpec("", 1, None, None)
        if place.address:
            cluster = replace(cluster, where=f"the Ray cluster at {place.address}, which was not asked what it has")
    elif kind == "embedded" or not place.address:
        cluster = here(memory_bytes())
    else:
        cluster = inventory(place.address)
    if asked and kind != "embedded" and not on_paper:
        cluster = _allowed(cluster, asked)
    if engine == "auto":
        engine = "vllm" if kind != "embedded" and cluster.gpus and (on_paper or installed("vllm")) else "local"
    return Site(kind, engine, cluster, on_paper)


def check_address(config: Config, given: bool) -> None:
    """Raises EarlError for a remote address that was not `given` on this command line.
    So a recipe from someone else, or a run's own, cannot make earl contact a host."""
    address = config.placement.address
    if address is not None and not given and not on_this_machine(address):
        raise EarlError(
            f"placement.address = {address!r} is in the recipe alone: earl would contact that host; "
            f"permit that with --address {shlex.quote(address)}, or name another"
        )


def _allowed(found: ClusterSpec, asked: ClusterSpec) -> ClusterSpec:
    """The part of a cluster that `--gpus` allows. Raises EarlError when there is less, or another kind."""
    if asked.gpus > found.gpus or asked.gpus_per_host > found.gpus_per_host:
        raise EarlError(
            f"placement.gpus asks for {asked.hosts} x {asked.gpus_per_host} = {asked.gpus} GPUs, {found.where} has "
            f"{found.holds}; name what there is, or another cluster with --address; --dry-run alone plans for GPUs "
            "that are elsewhere"
        )
    if found.device and asked.device and found.device != asked.device:
        raise EarlError(
            f"placement.gpus asks for {asked.device.kind}, the GPUs of {found.where} are {found.device.kind}; "
            f"set it to {asked.hosts}x{asked.gpus_per_host}x{found.device.kind}"
        )
    return replace(found, hosts=asked.hosts, gpus=asked.gpus, gpus_per_host=asked.gpus_per_host, device=asked.device)
