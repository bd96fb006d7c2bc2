"""Stopping a run: requested by Ctrl-C or SIGTERM, done at the end of a step, enforced if the step does not end.

signal ─▶ Python handler: the first signal requests, the second interrupts; neither runs while C code is busy
       └▶ wakeup pipe ─▶ guard process: after the grace period it signals again, then kills
"""

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the guard runs this file alone
    from earl.observer import Observer

GRACE_SECONDS = 30.0
"""From SIGTERM to the second signal, which the guard sends; a third of it from there to SIGKILL."""
GRACE = "EARL_GRACE_SECONDS"
"""Environment variable that replaces it."""
POLL_SECONDS = 5.0
FORCED = (
    "error: process {process} did not stop within {grace:g} s and is ended by force; "
    "what was done since the last checkpoint is lost; continue with --resume"
)


@dataclass(slots=True)
class StopRequest:
    raised: bool = False


@contextmanager
def stopping_on_signals(observer: "Observer | None") -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM requests a stop after the step; the second interrupts at once.
    Raises EarlError when EARL_GRACE_SECONDS is not a number above 0."""
    request = StopRequest()

    def ask(number: int, _: object) -> None:
        request.raised = True
        signal.signal(number, interrupt)
        if observer:  # not here: what this handler interrupted may hold the lock of the stream that is written to
            Thread(target=observer.stopping).start()

    with _guarded(_grace()):
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield request
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def interrupt(*_: object) -> None:
    """Signal handler that stops at once by raising Interrupted."""
    from earl.errors import Interrupted

    raise Interrupted


def _grace() -> float:
    from earl.errors import EarlError

    text = os.environ.get(GRACE, str(GRACE_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise EarlError(f"{GRACE} is {text!r}, not a number of seconds above 0; unset it or set it to one")
    return seconds


@contextmanager
def _guarded(grace: float) -> Iterator[None]:
    """Run a guard process that Python's C code notifies of every signal, even while Python code is blocked."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(grace)]
    guard = subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL, process_group=0)
    os.close(reading)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        guard.kill()
        guard.wait()
        os.close(writing)


def _guard(process: int, grace: float) -> None:
    """Guard process: reads its parent's signal numbers from standard input; ends the parent after the grace period."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # schedulers signal every process
        signal.signal(number, signal.SIG_IGN)
    signals, ends, last = Counter[int](), math.inf, False
    while os.getppid() == process:  # a fork of the parent may keep the pipe open
        if select.select([0], [], [], min(POLL_SECONDS, max(0.0, ends - time.monotonic())))[0]:
            numbers = os.read(0, 64)
            if not numbers:
                return
            signals.update(numbers)
        elif time.monotonic() >= ends:
            if last:
                print(FORCED.format(process=process, grace=grace), file=sys.stderr)
                os.kill(process, signal.SIGKILL)
                return
            os.kill(process, signal.SIGTERM)
            signals[signal.SIGTERM] += 1
        if not last and max(signals[signal.SIGTERM], signals[signal.SIGINT]) > 1:
            ends, last = time.monotonic() + grace / 3, True
        elif not last and signals[signal.SIGTERM]:
            ends = min(ends, time.monotonic() + grace)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), float(sys.argv[2]))
