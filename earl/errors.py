"""The errors of the house: what a user can mend, and the one place where outside faults become records."""

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class EarlError(ValueError):
    """Something the user can mend. The message names the value, the rule and the cure; exit code 2."""


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
class Fault:
    """What `boundary` caught: None while all is well, else one line that names the fault."""

    message: str | None = None


@contextmanager
def boundary() -> Iterator[Fault]:
    """Turn a fault in code that is not ours (an environment, a tool) into a record.

    A bad rollout is data: the caller reads `fault.message` and ends that one episode with it.
    This is the only broad `except` in earl.
    """
    fault = Fault()
    try:
        yield fault
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        fault.message = f"{type(error).__name__}: {error} (line {where.lineno} of {where.name})"
