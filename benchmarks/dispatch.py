"""Transfers between hosts with shaped links, through a controller and directly; also the value of balancing rows.

every case ─▶ controller and direct transfer, alternating ─▶ compared with the minimum for the busiest link
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.benchmarks import transfers as machines
from earl.benchmarks.repeats import interval
from earl.benchmarks.transfers import (
    EVERYTHING,
    LOGPROBS,
    Timings,
    TransferCase,
    TransferTiming,
    rehearsed,
    through_ray,
    work,
)
from earl.dispatch.plan import plan, volume
from earl.dispatch.rows import Work, balance, columns, even_counts, spread, token_bytes
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.rehearsal.plan import bits_per_second, check_network

BALANCED_RANKS, BALANCED_ROWS = 32, 10_000
PLANNED_RANKS, PLANNED_ROWS = 1024, 16_384


def balanced() -> dict[str, Any]:
    """Excess work of the slowest of 32 consumers over the mean, for rows dealt by work and in equal counts."""
    lengths = np.random.default_rng(0).lognormal(7, 1, BALANCED_ROWS).astype(np.int64) + 1
    result: dict[str, Any] = {"ranks": BALANCED_RANKS, "rows": BALANCED_ROWS, "longest": int(lengths.max())}
    for name, kind in {"tokens": Work(), "compute": Work(1.0, 1 / 8192)}.items():
        work_of_rows = kind.of(lengths)
        for way, dealt in {
            "balanced": balance(work_of_rows, BALANCED_RANKS),
            "even_counts": even_counts(BALANCED_ROWS, BALANCED_RANKS),
        }.items():
            loads = np.bincount(dealt, weights=work_of_rows, minlength=BALANCED_RANKS)
            result[f"{name}_{way}_excess"] = float(loads.max() / loads.mean() - 1)
    return result


def planned() -> dict[str, Any]:
    """Seconds of planning for 1,024 ranks on 128 hosts, dp 64 × tp 8 to dp 128 × tp 4."""
    random, half = np.random.default_rng(0), PLANNED_RANKS // 2
    lengths = random.integers(100, 32_768, PLANNED_ROWS)
    source = spread(Layout(64, 8), range(half), random.integers(0, 64, PLANNED_ROWS))
    target = spread(Layout(128, 4), range(half, PLANNED_RANKS), random.integers(0, 128, PLANNED_ROWS))
    begin = time.perf_counter()
    made = plan(lengths, columns(EVERYTHING), source, target, np.arange(PLANNED_RANKS) // 8)
    seconds = time.perf_counter() - begin
    return {"ranks": PLANNED_RANKS, "rows": PLANNED_ROWS, "pieces": len(made.pieces), "seconds": seconds}


PAPER = {8192: 46, 16384: 93, 32768: 187}
"""Tokens of a context -> MiB of each worker (arXiv 2510.05943)."""
PAPER_RATE = 1e9
"""Bits per second at which these payloads are full size; at other rates they are scaled to take the same time."""
SMALL_TOKENS = (1, 64, 1024, 4096)
SMALL_REPEATS = 31
PROCESSES_OF_REPLICAS = 16
DIRECT = ("shared", "peers", "objects")
"""Direct transports; the first available one counts."""


def run(hosts: int, rate: str, ranks: int | None = None, repeats: int = 3, ray: bool = False) -> dict[str, Any]:
    """Measure all transfers. For the result see `earl bench dispatch --help`; `note`: why links could not be shaped.

    `ranks` of None: one process per host, and then several that are replicas of each other. With `ray` through Ray's
    object store, with the smallest of the paper's payloads only.
    """
    bits = bits_per_second(rate)
    rows = []
    note = _unshaped()
    shaped = rehearsed if ray else machines.shaped
    with nullcontext() if note else shaped(hosts, rate) as cluster:
        for count in (1, max(2, PROCESSES_OF_REPLICAS // hosts)) if ranks is None else (ranks,):
            places = [host for host in range(hosts) for _ in range(count)]
            cases = _cases(len(places), count, bits, repeats)
            if ray:
                cases = [case for case in cases if case.tokens == min(PAPER)]  # a controller's store holds no more
                measured = through_ray(cluster, places, cases)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    measured = machines.run(cluster, places, work, Path(folder) / "store", cases)
            rows += [
                row(case, seen, places, bits, not note)
                for case, seen in zip(cases, zip(*measured, strict=True), strict=True)
            ]
    return {"rows": rows, "balance": balanced(), "planning": planned(), **({"note": note} if note else {})}


def _unshaped() -> str:
    """Why links cannot be shaped; empty if they can."""
    try:
        check_network()
    except EarlError as error:
        return f"on loopback, where no link is shaped: {error}"
    return ""


def _cases(processes: int, ranks: int, bits: int, repeats: int) -> list[TransferCase]:
    """With one process per host the paper's payloads and small ones, else replicas."""
    if ranks > 1:
        return [_case("replicas", processes, bits, 8192, LOGPROBS, repeats, tp=ranks)]
    return [
        *(_case("paper", processes, bits, tokens, LOGPROBS, repeats) for tokens in PAPER),
        _case("paper", processes, bits, 8192, EVERYTHING, repeats),
        _case("ragged", processes, bits, 8192, LOGPROBS, repeats, ragged=True),
        *(TransferCase("small", LOGPROBS, tokens, processes, SMALL_REPEATS) for tokens in SMALL_TOKENS),
    ]


def _case(
    kind: str, processes: int, bits: int, tokens: int, names: tuple[str, ...], repeats: int, **others: Any
) -> TransferCase:
    """A payload of the paper, in whole rows for every consumer."""
    groups = processes // others.get("tp", 1)
    size = token_bytes(columns(names)) * tokens
    payload = PAPER[tokens] * 2**20 * bits / PAPER_RATE / others.get("tp", 1)
    return TransferCase(kind, names, tokens, max(1, round(payload / size / groups)) * groups, repeats, **others)


def row(
    case: TransferCase, measured: Sequence[Timings], places: Sequence[int], bits: int, shaped: bool
) -> dict[str, Any]:
    """The result of one transfer, from the measurements of all processes. Seconds are medians; see `earl bench
    dispatch`.

    `peers` is direct without shared memory. `crossed_bytes` include headers and answers. `copies_bytes` would leave
    hosts if every process got its own copy; `driver_bytes` are the most over the driver's link during a direct
    transfer.
    """
    made = case.plan(places)
    moved = volume(made)
    timings = {name: [own[name] for own in measured] for name in measured[0]}
    every = {name: _of(own, "ended").max(0) - _of(own, "begun").min(0) for name, own in timings.items()}
    seconds = {name: interval(own.tolist()) for name, own in every.items()}
    directly = [name for name in DIRECT if name in seconds]
    centralised, direct = seconds["controller"], seconds[directly[0]]
    driver = max(_of(timings[name], "driver_bytes").max() for name in directly)
    firsts = [places.index(host) for host in sorted(set(places))]  # all processes of a host read the same counter
    copied = made.hosts[made.pieces.origin] != made.hosts[made.pieces.destination]
    ideal = moved.bound * 8 / bits if shaped else None
    return {
        "hosts": len(set(places)),
        "rate_mbit": bits / 1e6,
        "payload_bytes": case.payload_bytes,
        "centralised_s": centralised["median"],
        "direct_s": direct["median"],
        "ideal_direct_s": ideal,
        "ratio": centralised["median"] / direct["median"],
        "kind": case.kind,
        "columns": len(case.names),
        "processes": len(places),
        "shaped": shaped,
        "over_bound": direct["median"] / ideal if ideal else None,
        "centralised": centralised,
        "direct": direct,
        "peers": seconds.get("peers"),
        "objects": seconds.get("objects"),
        "driver_bytes": None if np.isnan(driver) else int(driver),
        "planned_bytes": moved.across,
        "crossed_bytes": int(np.median(_of(timings[directly[0]], "left_bytes")[firsts].sum(0))),
        "copies_bytes": int(made.bytes[copied].sum()),
        "same": all(len({one.checksum for repeats in own.values() for one in repeats}) == 1 for own in measured),
    }


def _of(timings: Sequence[Sequence[TransferTiming]], field: str) -> NDArray[np.float64]:
    """[P, R], by process and repeat; None is NaN."""
    return np.array([[getattr(one, field) for one in repeats] for repeats in timings], np.float64)
