"""What was played ahead, as it lies in a checkpoint: the groups that wait to be learned from, and what was in play.

    checkpoints/step-000010/ahead/  ahead.json   step-000011.parquet   step-000012.parquet

Groups that were in play are not kept: their seeds give them again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from earl.documents import parse_json
from earl.errors import EarlError
from earl.group import Group
from earl.placement.ahead import Ticket
from earl.runs import trajectories
from earl.runs.storage import read_below

AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class _Started:
    """A step that has started: its context limit in tokens, and the numbers of its groups that wait."""

    step: int
    limit: int
    ended: list[int]


_STARTED = TypeAdapter(list[_Started])


def save(folder: Path, limits: Mapping[int, int], ended: Mapping[Ticket, Group]) -> None:
    """Write into a checkpoint's folder.

    Args:
        limits: the context limit of every step that has started, in tokens.
        ended: the groups that wait.
    """
    numbers: dict[int, list[int]] = {step: [] for step in sorted(limits)}
    for ticket in sorted(ended):
        numbers[ticket.step].append(ticket.number)
    own = folder / AHEAD
    own.mkdir()
    for step, kept in numbers.items():
        if kept:
            table = trajectories.to_table([ended[Ticket(step, number)] for number in kept], step)
            trajectories.write(trajectories.path_of(own, step), table)
    started = [asdict(_Started(step, limits[step], kept)) for step, kept in numbers.items()]
    (own / "ahead.json").write_text(json.dumps(started), encoding="utf-8")


def load(folder: Path) -> tuple[dict[int, int], dict[Ticket, Group]]:
    """The limits and the groups that `save` was given; nothing of a checkpoint without them.

    Raises:
        EarlError: when a file is damaged.
    """
    own = folder / AHEAD
    if not own.exists():
        return {}, {}
    ended: dict[Ticket, Group] = {}
    try:
        started = _STARTED.validate_python(parse_json(read_below(folder, own / "ahead.json")))
        for one in started:
            if one.ended:
                _, groups = trajectories.read(trajectories.path_of(own, one.step))
                ended |= dict(zip((Ticket(one.step, number) for number in one.ended), groups, strict=True))
    except EarlError:
        raise
    except ValueError as error:
        raise EarlError(f"{own} is not what earl wrote ({error}); go on from another checkpoint") from error
    return {one.step: one.limit for one in started}, ended
