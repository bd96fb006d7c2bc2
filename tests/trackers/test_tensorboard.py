"""What is written is read back with TensorBoard's own reader."""

import math
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from earl.trackers.tensorboard import TensorBoard


def read(folder: Path) -> EventAccumulator:
    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return reader


def series(reader: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def texts(reader: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(event.step, make_ndarray(event.tensor_proto).item().decode()) for event in reader.Tensors(tag)]


def test_numbers_events_and_recipe(begun, record, tmp_path: Path) -> None:
    tracker = TensorBoard(begun())
    for step in (0, 1, 2):
        tracker.record(record(step))
    tracker.event(1, "limit", "raised to 120")
    tracker.record(record(2, "final"))
    tracker.close("finished")
    reader = read(tmp_path)
    assert series(reader, "reward") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert series(reader, "match/perfect@0.25/seat_1/win") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert series(reader, "final/perfect@0.25/seat_1/draw") == [(2, 0.25)]
    assert series(reader, "seconds/rollout")[0] == (0, 1.5)
    assert all(math.isnan(value) for _, value in series(reader, "loss"))
    assert series(reader, "forecast/p95/median")[2] == (2, math.inf)
    assert texts(reader, "event/limit") == [(1, "raised to 120")]
    assert "run.seed = 7" in texts(reader, "recipe")[0][1]


def test_steps_after_the_checkpoint_are_not_there_twice(begun, record, tmp_path: Path) -> None:
    killed = TensorBoard(begun())
    for step in range(5):
        killed.record(record(step))
    # Killed: never closed. The checkpoint is of step 2, so 3 and 4 come again.
    again = TensorBoard(begun(2))
    for step in (3, 4, 5):
        again.record(record(step))
    again.close("finished")
    assert series(read(tmp_path), "reward") == [(step, 0.25 * step) for step in range(6)]
