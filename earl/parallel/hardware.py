"""Kinds of GPUs with their published numbers, and the description of a cluster.

hardware.csv holds one row for each kind, in the board form (SXM, OAM) where there is one; a PCIe card of the same
name is slower. Memory is the total that nvidia-smi or rocm-smi lists, in logs that users published, rounded down
(40960, 81920, 81559, 143771, 183359, 46068 and 24564 MiB; 206141652992 bytes of an MI300X); CUDA offers somewhat
less (39.49 GiB of an A100-40). Arithmetic is without sparsity; that of an RTX4090 accumulates in 32 bits. The link
is what a GPU may send to all others of its host together: NVLink; of an MI300X seven links of 64 GB/s, one to each
other GPU; of an L40S and an RTX4090 PCIe 4.0 x16, a nominal 32 GB/s.

`checked` names the source for arithmetic and bandwidths. All are second hand, except AMD's documentation of ROCm; no
vendor's data sheet was read.
    ml-engineering  https://github.com/stas00/ml-engineering at 744d01e, compute/accelerator and network, README.md
    torchtitan      https://github.com/pytorch/torchtitan at b5bcd76, torchtitan/tools/utils.py
    rocm            https://github.com/ROCm/ROCm at e396b48, docs/conceptual/gpu-arch/mi300.md
"""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from earl.errors import EarlError, unknown

GIB = 1 << 30
FORM = re.compile(r"(?:([0-9]{1,5})x)?([0-9]{1,5})x([A-Za-z][\w-]*)", re.ASCII)
KIND = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)
MEASURES = ("memory_gib", "bf16_tflops", "memory_gb_per_second", "link_gb_per_second", "fewest_bits")


@dataclass(frozen=True, slots=True)
class Device:
    kind: str
    memory_bytes: int
    bf16_flops: float  # per second, dense
    memory_bandwidth: float  # bytes per second
    link_bandwidth: float  # bytes per second to the other GPUs of its host, in one direction
    fewest_bits: int = 16
    """Narrowest number that it multiplies faster than one of 16 bits; half as many bits, twice as fast."""


UNKNOWN_BYTES = 1 << 62
"""Memory of a device of which nothing is known: nothing is refused."""
HOST = Device("CPU", UNKNOWN_BYTES, 4e10, 1e10, 5e8, 32)
"""One core with its neighbours through gloo. About 2e10 operations per second in 32 bits, so 4e10 in 16. All-reduces of
8 MiB in 32 bits reached 1.2e9 bytes per second between two processes on two cores, 0.9e9 between four: half of 1e9,
as activations count two bytes. What a run measures corrects it."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The hosts and devices that a run may use. If hosts differ, the smallest memory counts."""

    where: str  # in words, such as "this machine"
    hosts: int
    cpus: int | None  # of all hosts; None: unknown
    memory_bytes: int | None  # main memory of a host; None: unknown
    gpus: int = 0  # of all hosts
    gpus_per_host: int = 0
    device: Device | None = None  # None: no GPUs, or an unlisted kind

    @property
    def each(self) -> Device:
        """The device of one process; of GPUs of an unlisted kind only the speed is assumed."""
        unlisted = replace(devices()["A100-80"], kind="unlisted", memory_bytes=UNKNOWN_BYTES)
        return self.device or (unlisted if self.gpus else HOST)

    @property
    def holds(self) -> str:
        """GPUs, or processors, in words."""
        if self.gpus:
            kind = self.device.kind if self.device else "unlisted"
            return f"{self.gpus} {kind} GPU{'s' * (self.gpus > 1)}"
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)} and no GPU" if self.cpus else "no GPU"


@cache
def devices() -> dict[str, Device]:
    text = files("earl.parallel").joinpath("hardware.csv").read_text(encoding="utf-8")
    return {row["kind"]: _device(row, "hardware.csv") for row in csv.DictReader(text.splitlines())}


def own_devices(text: str, where: str) -> dict[str, Device]:
    """The listed kinds, extended by a user's table in the form of hardware.csv; other columns are ignored.
    `where` names the table in errors. Raises EarlError for missing columns or an invalid row."""
    table = csv.DictReader(text.splitlines())
    missing = [name for name in ("kind", *MEASURES) if name not in (table.fieldnames or ())]
    if missing:
        raise EarlError(
            f"{where} has no column {missing[0]!r}; its first line has to be kind,{','.join(MEASURES)} and each later "
            "line a kind of GPU, such as GB200,186,2500,8000,900,4"
        )
    own = [_device(row, f"{where}, line {number}") for number, row in enumerate(table, 2)]
    return devices() | {device.kind: device for device in own}


def of_gpus(text: str, kinds: Mapping[str, Device] | None = None) -> ClusterSpec:
    """The cluster that `--gpus` describes: HOSTSxGPUSxKIND, or GPUSxKIND for one host. `kinds` defaults to the listed.
    Raises EarlError for another form, no hosts or no GPUs, or an unknown kind."""
    listed = devices() if kinds is None else kinds
    match = FORM.fullmatch(text)
    if match is None:
        raise EarlError(
            f"{text!r} is not of the form HOSTSxGPUSxKIND or GPUSxKIND; give one such as 16x8xH100 or 8xH100"
        )
    hosts, each = 1 if match[1] is None else int(match[1]), int(match[2])
    if not hosts or not each:
        nearest = f"{max(1, hosts)}x{max(1, each)}x{match[3]}"
        raise EarlError(f"{text!r} has no {'GPUs' if hosts else 'hosts'}; name one at least, such as {nearest}")
    return ClusterSpec(f"--gpus {text}", hosts, None, None, hosts * each, each, _of_kind(match[3].upper(), listed))


def _of_kind(name: str, listed: Mapping[str, Device]) -> Device:
    """The named kind, optionally with its memory: H100-80GB is H100. Without a size the largest is meant: A100 is
    A100-80."""
    bare, _, size = name.removesuffix("GB").partition("-")
    sizes = [device for kind, device in listed.items() if kind.upper().partition("-")[0] == bare]
    for kind, device in listed.items():
        if kind.upper() in (name, name.removesuffix("GB")):
            return device
    if sizes and not size:
        return max(sizes, key=lambda device: device.memory_bytes)
    if size.isdecimal():
        for device in sizes:
            if math.isclose(device.memory_bytes / GIB, int(size), rel_tol=0.1):
                return device
    raise unknown("kind of GPU", name, listed)


def device_of(name: str, memory_bytes: int | None = None) -> Device | None:
    """The kind of a driver's or Ray's name, such as "NVIDIA A100-SXM4-40GB"; if several sizes match, the one nearest to
    the memory."""
    said = re.sub(r"[^A-Z0-9]", "", name.upper())
    fitting = [device for device in devices().values() if device.kind.split("-")[0] in said]
    sized = [device for device in fitting if device.kind.replace("-", "") in said.replace("SXM4", "")] or fitting
    near = memory_bytes or max((device.memory_bytes for device in sized), default=0)
    return min(sized, key=lambda device: abs(device.memory_bytes - near), default=None)


def _device(row: Mapping[str, str | None], where: str) -> Device:
    kind = row["kind"] or ""
    if not KIND.fullmatch(kind):
        raise EarlError(f"{where}: {row['kind']!r} is no name for a kind of GPU; begin with a letter, such as GB200")
    memory, flops, bandwidth, link, bits = (_measure(row, name, where) for name in MEASURES)
    return Device(kind, int(memory * GIB), flops * 1e12, bandwidth * 1e9, link * 1e9, int(bits))


def _measure(row: Mapping[str, str | None], name: str, where: str) -> float:
    try:
        value = float(row[name] or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise EarlError(f"{where}: {name} = {row[name]!r} is not a number above 0; give one, such as 80")
    return value
