"""The errors of the house: what a user can mend, and the one place where outside faults become records."""

import difflib
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class EarlError(ValueError):
    """Something the user can mend. The message names the value, the rule and the cure; exit code 2."""


class Interrupted(KeyboardInterrupt):
    """The user's wish to stop at once. A KeyboardInterrupt that other code raises is a fault of that code."""


class OutOfMemory(EarlError):
    """A process had no memory left for what it was to do."""

    def __init__(self, stage: str, who: str, said: str, stuck: bool = False) -> None:
        super().__init__(stage, who, said, stuck)
        self.stage = stage
        """During which it happened."""
        self.who = who
        """Such as "learner rank 1"."""
        self.said = said
        """What could not be had."""
        self.stuck = stuck
        """Whether others still wait for it, without end."""

    def __str__(self) -> str:
        return f"{self.who} ran out of memory during {self.stage}: {self.said}"


def unknown(kind: str, name: str, known: Iterable[str]) -> EarlError:
    """The error for a name that is not in a registry, with the nearest known name.

    Example:
        >>> str(unknown("opponent", "heuristics", ["heuristic", "random"]))
        "unknown opponent 'heuristics'; did you mean 'heuristic'? Known: heuristic, random"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return EarlError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


@dataclass(slots=True)
class CaughtFault:
    """What `boundary` caught: None while all is well, else one line that names the fault."""

    message: str | None = None


LONGEST_MESSAGE = 500
"""Characters that are kept of what a fault says."""


@contextmanager
def boundary() -> Iterator[CaughtFault]:
    """Turn a fault in code that is not ours (an environment, a tool) into a record.

    A bad rollout is data: the caller reads `fault.message` and ends that one episode with it. SystemExit and its like
    are faults too; only the user's own interrupt passes. Other broad `except`s only translate and raise again.
    """
    fault = CaughtFault()
    try:
        yield fault
    except BaseException as error:
        if _from_user(error):
            raise
        fault.message = _described(error)


def _from_user(error: BaseException) -> bool:
    """Whether Ctrl-C raised it. Python's own handler, where no other is installed, raises in the main thread alone."""
    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, Interrupted) or (isinstance(error, KeyboardInterrupt) and plain and in_main)


def _described(error: BaseException) -> str:
    """One clean line of bounded length, whatever the error says of itself."""
    kind, *_, (frame, line) = type(error).__name__, *traceback.walk_tb(error.__traceback__)
    try:
        said = str.__getitem__(str(error), slice(LONGEST_MESSAGE + 1))
    except BaseException as another:
        said = f"(its message cannot be had: {type(another).__name__})"
    shown = " ".join("".join(c if c.isprintable() else " " for c in said[:LONGEST_MESSAGE]).split())
    cut = " …" if len(said) > LONGEST_MESSAGE else ""
    if isinstance(error, EarlError):  # it says all that there is to say
        return shown + cut
    return f"{kind}: {shown}{cut} (line {line} of {frame.f_code.co_name})"
