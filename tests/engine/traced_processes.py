"""A trace against processes that really compute: live tensors and exchanged bytes, counted alike.

The processes of a case are joined by gloo and hold real tensors; the trace of a rank has neither. Each case
(traced_processes.toml) is eight processes.
"""

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from earl.benchmarks.layouts import free_port, model_config
from earl.benchmarks.processes import Seat, run
from earl.config import Config
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.trace import record_step, trace_step
from earl.parallel.layout import Layout
from earl.parallel.traced import StageTrace, Trace, TraceJob
from earl.recipe import build, load_toml

CASES = load_toml(Path(__file__).with_suffix(".toml"))


def rows_of(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each stage: peak and exchanged bytes of the rank that was the fullest, beside its trace."""
    model, layout = {**CASES["model"], **case.get("model", {})}, Layout(*case["layout"])
    config = build({"env": {"name": "any"}, **{key: case.get(key, {}) for key in ("learner", "algorithm")}})
    job = TraceJob(layout, case["row_tokens"], config.learner.micro_batch_tokens)
    measured = run(None, (0,) * layout.size, _rank, model, config, job, free_port())
    trace_of = lru_cache(lambda rank: trace_step(model_config(model), config, replace(job, rank=rank)))
    fullest = [max(stages, key=lambda own: own[1].peak_bytes) for stages in zip(*map(_numbered, measured), strict=True)]
    return [_row(case["name"], stage, trace_of(rank).stage(stage.stage)) for rank, stage in fullest]


def _numbered(trace: Trace) -> list[tuple[int, StageTrace]]:
    return [(trace.job.rank, stage) for stage in trace.stages]


def _row(name: str, measured: StageTrace, predicted: StageTrace) -> dict[str, Any]:
    sent, expected = measured.exchanged(), predicted.exchanged()
    return {
        "name": name,
        "stage": measured.stage,
        "measured_bytes": measured.peak_bytes,
        "traced_bytes": predicted.peak_bytes,
        "peak_error": predicted.peak_bytes / measured.peak_bytes - 1,
        "exchanged_bytes": sent,
        "traced_exchanged_bytes": expected,
        "exchange_error": expected / sent - 1 if sent else float(expected > 0),
    }


def _rank(seat: Seat, model: dict[str, Any], config: Config, job: TraceJob, port: int) -> Trace:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    with joined_mesh(seat.process, job.layout, seat.address, port) as mesh:
        takes = [record_step(mesh, model_config(model), config, replace(job, rank=seat.process)) for _ in range(TAKES)]
    return replace(takes[0], stages=tuple(map(_lowest, zip(*(take.stages for take in takes), strict=True))))


TAKES = 2
"""Gloo's threads let go of what they exchanged a moment after it has arrived: late, on a busy machine, and seldom."""


def _lowest(stages: tuple[StageTrace, ...]) -> StageTrace:
    return min(stages, key=lambda stage: stage.peak_bytes)
