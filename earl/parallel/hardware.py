"""What machines are made of: kinds of GPUs with their published numbers, and what a cluster has of them.

hardware.csv holds one row for each kind, in the form that sits on a board with its like (SXM, OAM) where there is one;
a PCIe card of the same name is slower. Memory is the whole that nvidia-smi or rocm-smi lists, in logs that users
published, rounded down (40960, 81920, 81559, 143771, 183359, 46068 and 24564 MiB; 206141652992 bytes of an MI300X);
CUDA offers somewhat less (39.49 GiB of an A100-40). Arithmetic is without sparsity; that of an RTX4090 adds up in 32
bits. The link is what a GPU may send to all others of its host together: NVLink; of an MI300X seven links of 64 GB/s,
one to each of the others; of an L40S and an RTX4090 PCIe 4.0 x16, a nominal 32 GB/s.

`checked` names what the arithmetic and the bandwidths were compared with. All of it is second hand, except AMD's
documentation of ROCm: no vendor's data sheet was opened.

    ml-engineering  https://github.com/stas00/ml-engineering at 744d01e, compute/accelerator and network, README.md
    torchtitan      https://github.com/pytorch/torchtitan at b5bcd76, torchtitan/tools/utils.py
    rocm            https://github.com/ROCm/ROCm at e396b48, docs/conceptual/gpu-arch/mi300.md
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from earl.errors import EarlError, unknown

GIB = 1 << 30
FORM = re.compile(r"(?:([1-9][0-9]{0,4})x)?([1-9][0-9]{0,4})x([A-Za-z][\w-]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of GPU."""

    kind: str
    memory_bytes: int
    bf16_flops: float
    """Per second, dense."""
    memory_bandwidth: float
    """Bytes per second."""
    link_bandwidth: float
    """Bytes per second to the other GPUs of its host, in one direction."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a run may use. Of unlike hosts the smallest one's memory counts.

    Example:
        of_gpus("16x8xH100")   # hosts=16, gpus=128, gpus_per_host=8, device.kind="H100"
    """

    where: str
    """In words, such as "this machine"."""
    hosts: int
    cpus: int | None
    """Of all hosts; None: not known."""
    memory_bytes: int | None
    """Main memory of a host; None: not known."""
    gpus: int = 0
    """Of all hosts."""
    gpus_per_host: int = 0
    device: Device | None = None
    """None: there are no GPUs, or they are of a kind that is not listed."""

    @property
    def holds(self) -> str:
        """GPUs, or processors, in words."""
        if self.gpus:
            kind = self.device.kind if self.device else "unlisted"
            return f"{self.gpus} {kind} GPU{'s' * (self.gpus > 1)}"
        return f"{self.cpus} CPU{'s' * (self.cpus != 1)} and no GPU" if self.cpus else "no GPU"


@cache
def devices() -> dict[str, Device]:
    """Every listed kind by its name."""
    text = files("earl.parallel").joinpath("hardware.csv").read_text(encoding="utf-8")
    return {row["kind"]: _device(row) for row in csv.DictReader(text.splitlines())}


def of_gpus(text: str) -> Cluster:
    """The cluster that `--gpus` describes: HOSTSxGPUSxKIND, or GPUSxKIND for one host.

    Raises:
        EarlError: for another form, or a kind that is not listed.
    """
    match = FORM.fullmatch(text)
    if match is None:
        raise EarlError(
            f"{text!r} is not of the form HOSTSxGPUSxKIND or GPUSxKIND; give one such as 16x8xH100 or 8xH100"
        )
    hosts, each = int(match[1] or 1), int(match[2])
    kinds = {name.upper(): name for name in devices()}
    kind = kinds.get(match[3].upper())
    if kind is None:
        raise unknown("kind of GPU", match[3].upper(), devices())
    return Cluster(f"--gpus {text}", hosts, None, None, hosts * each, each, devices()[kind])


def device_of(name: str, memory_bytes: int | None = None) -> Device | None:
    """The kind that a driver or Ray calls `name`; of those with a size in their name, the one nearest to the memory.

    Example:
        >>> device_of("NVIDIA A100-SXM4-40GB").kind, device_of("NVIDIA GeForce RTX 4090").kind
        ('A100-40', 'RTX4090')
    """
    said = re.sub(r"[^A-Z0-9]", "", name.upper())
    fitting = [device for device in devices().values() if device.kind.split("-")[0] in said]
    sized = [device for device in fitting if device.kind.replace("-", "") in said.replace("SXM4", "")] or fitting
    near = memory_bytes or max((device.memory_bytes for device in sized), default=0)
    return min(sized, key=lambda device: abs(device.memory_bytes - near), default=None)


def _device(row: dict[str, str]) -> Device:
    return Device(
        row["kind"],
        int(float(row["memory_gib"]) * GIB),
        float(row["bf16_tflops"]) * 1e12,
        float(row["memory_gb_per_second"]) * 1e9,
        float(row["link_gb_per_second"]) * 1e9,
    )
