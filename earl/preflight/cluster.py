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
    place = config.placement
    with setting("placement.gpus"):
        asked = of_gpus(place.gpus) if place.gpus else None
    kind = _kind(config)
    on_paper = dry and (asked is not None or place.address is not None)
    engine = config.sampler.engine
    if not on_paper:
        _need("ray", kind != "embedded", f"placement.kind = {kind!r}")
        _need("vllm", engine == "vllm", "sampler.engine = 'vllm'")
        _need("peft", config.learner.lora_rank > 0, f"learner.lora_rank = {config.learner.lora_rank}")
    if on_paper:
        cluster = _described(asked, place.address)
    elif kind == "embedded":
        cluster = here(memory_bytes())
    else:
        cluster = _allowed(inventory(place.address) if place.address else here(memory_bytes()), asked)
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


def _described(asked: ClusterSpec | None, address: str | None) -> ClusterSpec:
    """The cluster that --gpus names, or one that a dry run does not contact."""
    where = f"the Ray cluster at {address}, which was not asked what it has"
    if asked is None:
        return ClusterSpec(where, 1, None, None)
    return replace(asked, where=where) if address else asked


def _kind(config: Config) -> str:
    place = config.placement
    if place.kind != "auto":
        return place.kind
    named = place.address is not None or place.gpus is not None
    return "colocated" if named or (here(0).gpus and installed("ray")) else "embedded"


def _need(library: str, needed: bool, what: str) -> None:
    if needed and not installed(library):
        raise EarlError(f"{what} needs {library}, which is not installed; {CURES[library]}")


def _allowed(found: ClusterSpec, asked: ClusterSpec | None) -> ClusterSpec:
    """The part of a cluster that `--gpus` allows. Raises EarlError when there is less, or another kind."""
    if asked is None:
        return found
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
