"""Weight sync between layouts, and to samplers: real processes, with bytes and memory compared with the bounds.

every process: its boxes of a random model ─▶ the plan, several times ─▶ its boxes of the target, compared
"""

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from earl.benchmarks.hosts import Seat
from earl.benchmarks.hosts import run as on_processes
from earl.dispatch.rows import Numbers
from earl.dispatch.transports.base import Bytes, Transport
from earl.dispatch.weight_transfer import carry
from earl.dispatch.weights import Copies, Weight, WeightPlan, extra_bytes, plan_weights
from earl.parallel.layout import Layout
from earl.seeds import derive

MIB = 1 << 20
LEARNER = ((0, 1, 2, 3),)
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 1 << 16
"""For glibc: larger buffers are returned when freed, so that they are not counted twice."""


@dataclass(frozen=True, slots=True)
class ReshardCase:
    name: str
    source: Copies
    target: Copies
    hosts: tuple[int, ...]
    """[P], as the plan sees them; here all share one machine."""


CASES = (
    ReshardCase("dp 4 to dp 2, tp 2", Copies(Layout(4), LEARNER), Copies(Layout(2, 2), LEARNER), (0, 1, 2, 3)),
    ReshardCase("dp 4 to a sampler, tp 1", Copies(Layout(4), LEARNER), Copies(Layout(), ((4,),)), (0, 1, 2, 3, 4)),
    ReshardCase(
        "dp 4 to a sampler, tp 2", Copies(Layout(4), LEARNER), Copies(Layout(tp=2), ((4, 5),)), (0, 1, 2, 3, 4, 4)
    ),
    ReshardCase(
        "dp 2, tp 2 to two samplers of a host, tp 2",
        Copies(Layout(2, 2), LEARNER),
        Copies(Layout(tp=2), ((4, 5), (6, 7))),
        (0, 0, 1, 1, 2, 2, 2, 2),
    ),
    ReshardCase(
        "dp 4 to two samplers on its own devices, tp 2",
        Copies(Layout(4), LEARNER),
        Copies(Layout(tp=2), ((0, 1), (2, 3))),
        (0, 0, 0, 0),
    ),
)


def run(hidden: int = 512, layers: int = 8, bucket_mib: int = 8, repeats: int = 3) -> dict[str, Any]:
    """Carry a bf16 model of Qwen3's kind from layout to layout. For the result see `earl bench weights --help`."""
    weights = weights_of(hidden, layers)
    plans = [plan_weights(weights, case.source, case.target, case.hosts, bucket_mib * MIB) for case in CASES]
    rows = [_row(case, plan, repeats) for case, plan in zip(CASES, plans, strict=True)]
    return {"model_bytes": plans[0].volume().total, "bucket_bytes": bucket_mib * MIB, "rows": rows}


def weights_of(hidden: int, layers: int, vocab: int = 16_384) -> list[Weight]:
    """The tensors of a small model, and their axes when split in two as `transformers` plans it."""
    from transformers import AutoModelForCausalLM, Qwen3Config  # not in the processes that only carry weights

    from earl.engine.model import tensors_once
    from earl.engine.sharding.tensor_parallel import split

    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model, cut = (AutoModelForCausalLM.from_config(config) for _ in range(2))
    nobody: Any = None  # nothing is computed with it
    axes = split(cut, 2, 0, nobody).axes
    return [
        Weight(name, tuple(tensor.shape), torch.bfloat16.itemsize, axes.get(name), axes.get(name))
        for name, tensor in tensors_once(model).items()
    ]


def _row(case: ReshardCase, plan: WeightPlan, repeats: int) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        told = on_processes(None, case.hosts, measure, plan, repeats, Path(folder) / "store")
    moved = plan.volume()
    across = sum(own["across"] for own in told)
    return {
        "case": case.name,
        "buckets": plan.num_buckets,
        "across_bytes": across,
        "bound_bytes": int(moved.least.sum()),
        "ratio": across / int(moved.least.sum()) if moved.least.any() else 1.0,
        "inside_bytes": sum(own["inside"] for own in told),
        "seconds": median(max(own["seconds"][turn] for own in told) for turn in range(repeats)),
        "extra_bytes": max(own["extra"] for own in told),
        "stated_bytes": int(extra_bytes(plan).max()),
        "peak_bytes": max(own["boxes"] + int(extra) for own, extra in zip(told, extra_bytes(plan), strict=True)),
    }


def measure(seat: Seat, plan: WeightPlan, repeats: int, store: Path) -> dict[str, Any]:
    """One process: carry out the plan repeatedly, and check the result."""
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import join

    peers = join(FileStore(str(store), len(seat.hosts)), seat.process, np.array(seat.hosts), seat.address)
    transport = Counted(peers, seat)
    seconds, extra = [], []
    for _ in range(repeats + 1):  # the first repeat warms up
        held = boxes(plan, seat.process, True)
        expected = boxes(plan, seat.process, False)
        # Ones, since pages of zeros are allocated only when written.
        room = {name: torch.ones_like(tensor) for name, tensor in expected.items()}
        transport.most(0)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        begin = time.perf_counter()
        carry(plan, seat.process, held, room, transport)
        seconds.append(time.perf_counter() - begin)
        extra.append(resident("VmHWM") - before)
        for name, tensor in expected.items():
            if not torch.equal(room[name].view(torch.int16), tensor.view(torch.int16)):
                raise ValueError(f"process {seat.process} has other numbers of {name} than it should")
    return {
        "across": transport.across // (repeats + 1),
        "inside": transport.inside // (repeats + 1),
        "seconds": seconds[1:],
        "extra": max(extra[1:]),
        "boxes": sum(tensor.nbytes for tensor in (*held.values(), *room.values())),
    }


class Counted:
    def __init__(self, transport: Transport, seat: Seat) -> None:
        self._transport, self._seat = transport, seat
        self.across = self.inside = 0

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        for other, message in outgoing.items():
            if self._seat.hosts[other] == self._seat.hosts[self._seat.process]:
                self.inside += len(message)
            else:
                self.across += len(message)
        return self._transport.exchange(outgoing, sizes)

    def most(self, number: int) -> int:
        return self._transport.most(number)


def boxes(plan: WeightPlan, process: int, given: bool) -> dict[str, Tensor]:
    """A process's boxes of a side: slices of random bits that are the same on every process."""
    found = {}
    for weight in plan.weights:
        side, axis = (plan.source, weight.given) if given else (plan.target, weight.wanted)
        if (box := side.box(weight.shape, axis, process)) is not None:
            drawn = torch.Generator().manual_seed(derive(0, weight.name) % (1 << 63))
            bits = torch.empty(weight.shape, dtype=torch.int16).random_(-(1 << 15), (1 << 15) - 1, generator=drawn)
            found[weight.name] = bits[box.slices].clone().view(torch.bfloat16)
    return found


def resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))
