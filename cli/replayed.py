"""`earl plan --replay RUN`: makes a run's layout decisions again from their recorded inputs."""

from collections import Counter
from pathlib import Path
from typing import Any

import click

from earl.cli.options import print_json
from earl.cli.text import one_line


def replayed_run(root: Path, name: str, margin: float | None) -> dict[str, Any]:
    """Compare new decisions with recorded ones. Raises EarlError if there is no such run, or it has no decisions."""
    from earl.cli.players import need_run
    from earl.errors import EarlError
    from earl.parallel.selector.selector import expected_seconds, replayed
    from earl.runs.store import Store

    with Store(need_run(root, name).database, read_only=True) as store:
        recorded = [(one.choice, one.inputs) for one in store.decisions()]
    if not recorded:
        raise EarlError(f"run {name!r} has no decisions to replay; it ran with selector.kind = 'off'")
    kept = [one.again for one in replayed(recorded)]
    again = replayed(recorded) if margin is None else replayed(recorded, margin=margin)
    other = [one.again for one in again]
    return {
        "run": name,
        "margin": other[0].inputs.settings.margin,
        "decisions": len(again),
        "same": sum(one.same for one in again),
        "switches": sum(one.switched for one in kept),
        "switches_again": sum(one.switched for one in other),
        "reasons_again": dict(Counter(one.reason for one in other)),
        "expected_seconds": expected_seconds(kept),
        "expected_seconds_again": expected_seconds(other),
        "differ": [_difference(one) for one in again if not one.same],
    }


def _difference(one: Any) -> dict[str, Any]:
    return {
        "step": one.step,
        "stage": one.stage,
        "recorded": one.recorded,
        "again": str(one.again.choice),
        "reason": one.again.reason,
        "why": one.again.why,
    }


def show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return print_json(result)
    click.echo(
        f"{one_line(result['run'])}: {result['same']} of {result['decisions']} decisions are the same "
        f"with a margin of {result['margin']:g}"
    )
    click.echo(f"switches          {result['switches']} recorded, {result['switches_again']} again")
    click.echo(
        f"expected seconds  {result['expected_seconds']:.4g} recorded, {result['expected_seconds_again']:.4g} again"
    )
    for one in result["differ"][:20]:
        click.echo(
            one_line(f"step {one['step']}, {one['stage']}: {one['recorded']} then, {one['again']} now: {one['why']}")
        )
    if len(result["differ"]) > 20:
        click.echo(f"and {len(result['differ']) - 20} more; --json lists them all")
    return None
