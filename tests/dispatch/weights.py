"""Random ways of weights between layouts, and a transfer between threads."""

from threading import Thread

import numpy as np
import torch
from hypothesis import strategies as st

from earl.dispatch.weight_transfer import carry
from earl.dispatch.weights import Copies, Weight, plan_weights
from earl.parallel.layout import Layout
from tests.dispatch.simulated import Board

KINDS = (torch.float32, torch.bfloat16, torch.int8)


@st.composite
def copies(draw, processes: int):
    """Some copies of a model on different processes."""
    sizes = st.sampled_from([1, 2, 3])
    layout = draw(st.builds(Layout, sizes, sizes, sizes).filter(lambda layout: layout.size <= processes))
    order = draw(st.permutations(range(processes)))
    count = draw(st.integers(1, processes // layout.size))
    return Copies(layout, tuple(tuple(order[i * layout.size : (i + 1) * layout.size]) for i in range(count)))


@st.composite
def weight(draw, number: int):
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    axes = st.none() | st.integers(0, len(shape) - 1) if shape else st.none()
    size = draw(st.sampled_from(KINDS)).itemsize
    return Weight(f"tensor {number}", shape, size, draw(axes), draw(axes))


@st.composite
def transfers(draw):
    """A plan: tensors of any shape, both sides on any processes, these on any hosts, buckets of a few numbers."""
    processes = draw(st.integers(1, 12))
    weights = [draw(weight(number)) for number in range(draw(st.integers(0, 5)))]
    hosts = draw(st.lists(st.integers(0, 3), min_size=processes, max_size=processes))
    source, target = draw(copies(processes)), draw(copies(processes))
    return plan_weights(weights, source, target, hosts, draw(st.integers(32, 300)))


def kind(weight: Weight) -> torch.dtype:
    return {kind.itemsize: kind for kind in KINDS}[weight.number_bytes]


def whole(weight: Weight) -> torch.Tensor:
    """A tensor in which all numbers differ from their neighbours."""
    count = int(np.prod(weight.shape))
    return (torch.arange(count) % 127 + len(weight.name)).reshape(weight.shape).to(kind(weight))


def held(transfer, process: int) -> dict[str, torch.Tensor]:
    """What a process has before, as views of whole tensors, so that most do not lie together."""
    boxes = [transfer.source.box(weight.shape, weight.given, process) for weight in transfer.weights]
    pairs = zip(transfer.weights, boxes, strict=True)
    return {weight.name: whole(weight)[box.slices] for weight, box in pairs if box is not None}


def carried_out(transfer):
    """What every process ends with: its tensors; and all messages."""
    board = Board(len(transfer.hosts))
    results = {}

    def run(process: int) -> None:
        boxes = {w: transfer.target.box(w.shape, w.wanted, process) for w in transfer.weights}
        room = {weight.name: torch.empty(box.shape, dtype=kind(weight)) for weight, box in boxes.items() if box}
        carry(transfer, process, held(transfer, process), room, board.transport(process))
        results[process] = room

    threads = [Thread(target=run, args=(process,)) for process in range(board.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, board.log
