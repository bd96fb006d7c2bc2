"""What was played ahead, as it lies in a checkpoint: the groups that wait to be learned from, and what was in play.

    checkpoints/step-000010/ahead/  ahead.json   step-000011.parquet   step-000012.parquet

Groups that were in play are not kept: their seeds give them again.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from earl.group import Group
from earl.placement.ahead import Ticket
from earl.runs import trajectories

AHEAD = "ahead"


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
    started = [{"step": step, "limit": limits[step], "ended": kept} for step, kept in numbers.items()]
    (own / "ahead.json").write_text(json.dumps(started), encoding="utf-8")


def load(folder: Path) -> tuple[dict[int, int], dict[Ticket, Group]]:
    """The limits and the groups that `save` was given; nothing of a checkpoint without them.

    Raises:
        EarlError: when a file is damaged.
    """
    own = folder / AHEAD
    if not own.exists():
        return {}, {}
    started = json.loads((own / "ahead.json").read_bytes())
    ended: dict[Ticket, Group] = {}
    for entry in started:
        if entry["ended"]:
            _, groups = trajectories.read(trajectories.path_of(own, entry["step"]))
            tickets = [Ticket(entry["step"], number) for number in entry["ended"]]
            ended |= dict(zip(tickets, groups, strict=True))
    return {entry["step"]: entry["limit"] for entry in started}, ended
