"""Errors that users can fix, and `boundary`, which turns faults of foreign code into records."""

import difflib
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class EarlError(ValueError):
    """An error that the user can fix. The message names the value, the rule and the cure; exit code 2."""


class Interrupted(KeyboardInterrupt):
    """The user's request to stop at once. A KeyboardInterrupt raised by other code is a fault of that code."""


class OutOfMemory(EarlError):
    def __init__(self, stage: str, who: str, said: str, stuck: bool = False) -> None:
        super().__init__(stage, who, said, stuck)
        self.stage = stage
        self.who = who  # such as "learner rank 1"
        self.said = said  # the allocation that failed
        self.stuck = stuck  # whether other processes still wait for this one, without end

    def __str__(self) -> str:
        return f"{self.who} ran out of memory during {self.stage}: {self.said}"


SHOWN = 20
"""Names that an error lists."""


def unknown(kind: str, name: str, known: Iterable[str]) -> EarlError:
    """The error for a name that is not in a registry, with the nearest known name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return EarlError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names[:SHOWN])}{more}")


@dataclass(slots=True)
class CaughtFault:
    """What `boundary` caught: None, or one line that names the fault."""

    message: str | None = None


LONGEST_MESSAGE = 500


@contextmanager
def boundary() -> Iterator[CaughtFault]:
    """Turn a fault in foreign code (an environment, a tool) into a record.

    A failed rollout is data: the caller ends that one episode with `fault.message`. SystemExit is a fault too; only the
    user's own interrupt passes. Other broad `except`s only translate and raise again.
    """
    fault = CaughtFault()
    try:
        yield fault
    except BaseException as error:
        if _from_user(error):
            raise
        fault.message = _one_line(error)


@contextmanager
def setting(key: str) -> Iterator[None]:
    """Prefix errors with the setting's name."""
    try:
        yield
    except EarlError as error:
        raise EarlError(f"{key}: {error}") from error


@contextmanager
def translated(describe: Callable[[str], str]) -> Iterator[None]:
    """Turn a fault in foreign code into an EarlError, whose message `describe` makes of the fault's."""
    with boundary() as fault:
        yield
    if fault.message is not None:
        raise EarlError(describe(fault.message))


@contextmanager
def outside(what: str, cure: str) -> Iterator[None]:
    """Turn a fault in foreign code into an EarlError that begins with `what`; errors that already are one pass."""
    refused: EarlError | None = None
    with translated(lambda fault: f"{what}: {fault}; {cure}"):
        try:
            yield
        except EarlError as error:
            refused = error
    if refused:
        raise refused


def _from_user(error: BaseException) -> bool:
    """Whether Ctrl-C raised it. Python's default handler raises in the main thread only."""
    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, Interrupted) or (isinstance(error, KeyboardInterrupt) and plain and in_main)


def _one_line(error: BaseException) -> str:
    """One printable line of bounded length, even if the error's own `__str__` fails."""
    kind, *_, (frame, line) = type(error).__name__, *traceback.walk_tb(error.__traceback__)
    try:
        said = str.__getitem__(str(error), slice(LONGEST_MESSAGE + 1))
    except BaseException as another:
        said = f"(its message cannot be had: {type(another).__name__})"
    shown = " ".join("".join(c if c.isprintable() else " " for c in said[:LONGEST_MESSAGE]).split())
    cut = " …" if len(said) > LONGEST_MESSAGE else ""
    if isinstance(error, EarlError):  # its message is complete
        return shown + cut
    return f"{kind}: {shown}{cut} (line {line} of {frame.f_code.co_name})"
