"""Carries out `earl profile` and prints measured next to predicted times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from earl import preflight
from earl.cli.options import print_json
from earl.cli.recipes import names_address, resolve
from earl.cli.text import clean, console, one_line, table
from earl.config import Config, PlacementConfig
from earl.engine.model import shape
from earl.errors import EarlError
from earl.parallel.profile import Point, Skipped, Timing
from earl.profiling.campaign import CampaignResult, campaign
from earl.profiling.kept import key_of, path_of, read
from earl.profiling.points import grid_of
from earl.stopping import stopping_on_signals

STOPPED = 130
STAGES = {"rollout": "rollout", "update": "experience, update"}
"""Experience and update are measured together, since the learner's ranks run both."""

COLUMNS = ("stage", "layout", "context", "episodes", "measured", "times", "expected before, or why it was not tried")


@dataclass(frozen=True, slots=True)
class Asked:
    contexts: Sequence[int]
    loads: Sequence[int]
    seconds: float
    again: bool


def numbers(option: str, text: str | None) -> list[int]:
    """Parse integers separated by commas; none if the option is absent. Raises EarlError for anything else."""
    if text is None:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise EarlError(f"{option} {text!r} are not whole numbers; write them with commas, such as 128,256") from error


def carry_out(
    env: str,
    file: Path | None,
    flags: Mapping[str, object],
    assignments: Sequence[str],
    asked: Asked,
    as_json: bool,
) -> int:
    config = resolve(env, file, flags, assignments)
    preflight.check_address(config, names_address(flags, assignments))
    config = _checked(config)
    key = key_of(config, shape(config.model))
    profile, grid = read(key), grid_of(config, asked.contexts, asked.loads, asked.seconds, asked.again)
    with stopping_on_signals(None) as stop:
        outcome = campaign(config, grid, profile, stop, lambda one: click.echo(one_line(line(one)), err=True))
    if as_json:
        print_json(_object(outcome))
    else:
        console().print(table(COLUMNS, in_rows(outcome), right=COLUMNS[2:6]))
        click.echo(clean(path_of(key)))
    return STOPPED if outcome.stopped else 0


def _checked(config: Config) -> Config:
    """The recipe as a run would use it. Raises EarlError if its layout cannot change."""
    _check_layouts(config.placement)
    config = preflight.preflight(config, Path()).config
    _check_layouts(config.placement)  # again, since automatic values are decided now
    return config


def _check_layouts(place: PlacementConfig) -> None:
    if place.kind == "embedded":
        raise EarlError(
            "placement.kind = 'embedded' has one layout: every process has all of the model, and nothing is to be "
            "chosen; set --placement to colocated or disaggregated"
        )
    for name in ("environments", "max_staleness"):
        if value := getattr(place, name):
            raise EarlError(
                f"placement.{name} = {value} has one layout: there is no time between steps to change it; set it to 0"
            )


def line(one: Timing | Skipped) -> str:
    """One line of progress, such as "rollout 2 x tp1, 8 episodes of 120 tokens: measured 0.31 s, 4 times"."""
    point = one.point
    where = f"{STAGES[point.choice.stage]} {point.choice}, {point.sequences} episodes of {point.tokens} tokens"
    if isinstance(one, Skipped):
        return f"{where}: not tried, {one.why}"
    times = "once" if one.count == 1 else f"{one.count} times"
    return f"{where}: measured {one.seconds:.3g} s, {times}"


def in_rows(outcome: CampaignResult) -> list[tuple[str, ...]]:
    rows = []
    for one in sorted(outcome.profile.timings.values(), key=_place):
        spread = f" ± {one.spread:.2g}" if one.count > 1 else ""
        before = f"{one.expected.seconds:.3g} s ({one.expected.origin})" if one.expected else "nothing known"
        rows.append((*_cells(one.point), f"{one.seconds:.3g} s{spread}", str(one.count), before))
    skipped = sorted(outcome.skipped, key=_place)
    return rows + [(*_cells(left.point), "not tried", "", one_line(left.why)) for left in skipped]


def _cells(point: Point) -> tuple[str, str, str, str]:
    return STAGES[point.choice.stage], str(point.choice), str(point.tokens), str(point.sequences)


def _place(one: Timing | Skipped) -> tuple[str, int, int]:
    return one.point.choice.stage, one.point.sequences, one.point.tokens


def _object(outcome: CampaignResult) -> dict[str, object]:
    return {
        "path": str(path_of(outcome.profile.key)),
        **outcome.profile.as_object(),
        "skipped": [one.as_object() for one in outcome.skipped],
        "measured_now": outcome.measured,
        "stopped": outcome.stopped,
    }
