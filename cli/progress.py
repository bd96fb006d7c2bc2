"""How a run is shown while it goes on: a bar in a terminal, a line per evaluation elsewhere; both in log.txt too."""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from earl.cli.tables import in_short
from earl.cli.text import console, one_line
from earl.matches import MatchResult
from earl.runs.folder import RunFolder
from earl.runs.storage import open_below, storage
from earl.runs.summary import FINAL

SHOWN = {"reward": "reward {:.2f}", "illegal_replies": "illegal {:.1%}", "warm_start/loss": "imitation loss {:.2f}"}
"""The metrics in the bar and how they read."""
SAID = ("limit", "forecast", "profile", "skipped")
"""The kinds of events that are told as they happen; the others are told elsewhere or can wait for the report."""


class Watch:
    """The observer of a training; a context manager, so that the terminal is given back whatever happens."""

    def __init__(self, folder: RunFolder, total_steps: int, begun: int = 0) -> None:
        self._folder, self._total, self._begun = folder, total_steps, begun
        self._console = console(stderr=True)
        self._bar = _bar(self._console) if self._console.is_terminal else None
        self._task: TaskID | None = None
        self._numbers = ""

    def say(self, text: str) -> None:
        """A line for the user, kept in the run's log.txt."""
        line = one_line(text)
        self._console.print(line, soft_wrap=True)
        path, flags = self._folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with storage(path), os.fdopen(open_below(self._folder.path, path, flags), "a", encoding="utf-8") as log:
            log.write(f"{datetime.now().isoformat(timespec='seconds')}  {line}\n")

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        matches: Sequence[MatchResult],
        phase: str,
    ) -> None:
        """A step is done: move the bar, tell an evaluation."""
        del timings
        numbers = [form.format(metrics[name]) for name, form in SHOWN.items() if name in metrics]
        self._numbers = ", ".join(numbers) or self._numbers
        if matches:
            when = "at the end, the best weights" if phase == FINAL else f"step {step}/{self._total}"
            self.say(f"{when}: {'; '.join([*([self._numbers] if numbers else []), in_short(matches)])}")
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step, numbers=self._numbers)

    def event(self, step: int, kind: str, message: str) -> None:
        """Something happened: say what the user should know at once."""
        if kind in SAID:
            self.say(f"step {step}: {message}")

    def stopping(self) -> None:
        """Ctrl-C was heard."""
        self.say("stopping after this step; Ctrl-C again stops at once")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("training", total=self._total, completed=self._begun, numbers="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


def _bar(on: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, left:", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=on,
        transient=True,
    )
