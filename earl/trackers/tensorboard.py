"""TensorBoard: event files in RUN/tensorboard, shown by `tensorboard --logdir runs`."""

import time

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from earl.observer import RecordedStep
from earl.trackers.base import TrackedRun, flat_numbers


class TensorBoard:
    identity = ""
    rewinds = True

    def __init__(self, run: TrackedRun) -> None:
        folder = run.folder / "tensorboard"
        self.where = f"tensorboard --logdir {folder}"
        self._writer = EventFileWriter(str(folder))
        # Readers drop records of this step and later ones from older files.
        self._add(run.begun + 1, session_log=SessionLog(status=SessionLog.START))
        recipe = "\n".join(f"    {name} = {value}" for name, value in run.settings())
        self._text(run.begun + 1, "recipe", recipe)

    def record(self, record: RecordedStep) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in flat_numbers(record).items()]
        self._add(record.step, summary=Summary(value=values))

    def event(self, step: int, kind: str, message: str) -> None:
        self._text(step, f"event/{kind}", message)

    def close(self, state: str) -> None:
        self._writer.close()

    def _text(self, step: int, tag: str, text: str) -> None:
        about = create_summary_metadata(display_name="", description="")
        value = Summary.Value(tag=tag, metadata=about, tensor=make_tensor_proto(text))
        self._add(step, summary=Summary(value=[value]))

    def _add(self, step: int, **content: Summary | SessionLog) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, **content))
        self._writer.flush()
