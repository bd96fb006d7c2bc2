"""A wish to stop: raised by Ctrl-C or SIGTERM, honoured at the end of a step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from earl.observer import Observer


@dataclass(slots=True)
class StopRequest:
    """Set by Ctrl-C; honoured at the end of a step."""

    raised: bool = field(default=False)


@contextmanager
def stopping_on_signals(observer: Observer | None) -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM asks for a stop after the step; a second one interrupts at once."""
    request = StopRequest()

    def ask(number: int, _: object) -> None:
        request.raised = True
        signal.signal(number, signal.default_int_handler)
        if observer:
            observer.stopping()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
