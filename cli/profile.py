"""`earl profile`: measures the layouts of a recipe on these machines, stores and prints the results."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from earl.cli.main import INTERRUPTED
from earl.cli.options import declared, print_json, settings
from earl.cli.text import clean, one_line, print_table
from earl.errors import EarlError
from earl.planner.question import numbers

if TYPE_CHECKING:
    from earl.config import Config
    from earl.parallel.profile import Skipped, Timing
    from earl.profiling.campaign import CampaignResult

STAGES = {"rollout": "rollout", "update": "experience, update"}
"""Experience and update are measured together, since the learner's ranks run both."""
COLUMNS = ("stage", "layout", "context", "episodes", "measured", "times", "why it was not tried")


@declared("profile")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    env: str,
    config: Path | None,
    assignments: tuple[str, ...],
    contexts: str | None,
    loads: str | None,
    seconds: float,
    again: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    from earl.cli.recipes import names_address, resolve

    paths = settings(flags)
    tokens = numbers("--contexts", contexts) if contexts is not None else ()
    episodes = numbers("--loads", loads) if loads is not None else ()
    recipe = resolve(env, config, paths, assignments)

    from earl import preflight  # imports torch, which --help and errors in a recipe do not need
    from earl.engine.model import shape
    from earl.profiling.campaign import campaign, grid_of
    from earl.profiling.kept import key_of, path_of, read
    from earl.stopping import stopping_on_signals

    preflight.check_address(recipe, names_address(paths, assignments))
    _check_layouts(recipe)
    recipe = preflight.preflight(recipe, Path()).config
    _check_layouts(recipe)  # again, since automatic values are decided now
    profile = read(key_of(recipe, shape(recipe.model)))
    grid = grid_of(recipe, tokens, episodes, seconds, again)
    with stopping_on_signals(None) as stop:
        outcome = campaign(recipe, grid, profile, stop, lambda one: click.echo(one_line(line(one)), err=True))
    path = str(path_of(profile.key))
    if as_json:
        skipped = [one.as_object() for one in outcome.skipped]
        ended = {"skipped": skipped, "measured_now": outcome.measured, "stopped": outcome.stopped}
        print_json({"path": path, **profile.as_object(), **ended})
    else:
        print_table(COLUMNS, _rows(outcome), right=COLUMNS[2:6])
        click.echo(clean(path))
    ctx.exit(INTERRUPTED if outcome.stopped else 0)


def _check_layouts(config: "Config") -> None:
    """Raises EarlError if the layout of a recipe cannot change."""
    place = config.placement
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


def line(one: "Timing | Skipped") -> str:
    """One line of progress, such as "rollout 2 x tp1, 8 episodes of 120 tokens: measured 0.31 s, 4 times"."""
    from earl.parallel.profile import Timing

    stage, layout, tokens, sequences = _cells(one)
    where = f"{stage} {layout}, {sequences} episodes of {tokens} tokens"
    if isinstance(one, Timing):
        return f"{where}: measured {one.seconds:.3g} s, {'once' if one.count == 1 else f'{one.count} times'}"
    return f"{where}: not tried, {one.why}"


def _rows(outcome: "CampaignResult") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in sorted(outcome.profile.timings.values(), key=_place):
        spread = f" ± {one.spread:.2g}" if one.count > 1 else ""
        rows.append((*_cells(one), f"{one.seconds:.3g} s{spread}", str(one.count), ""))
    rows += [(*_cells(left), "not tried", "", one_line(left.why)) for left in sorted(outcome.skipped, key=_place)]
    return rows


def _cells(one: "Timing | Skipped") -> tuple[str, str, str, str]:
    point = one.point
    return STAGES[point.choice.stage], str(point.choice), str(point.tokens), str(point.sequences)


def _place(one: "Timing | Skipped") -> tuple[str, int, int]:
    return one.point.choice.stage, one.point.sequences, one.point.tokens
