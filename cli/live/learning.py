"""The panels about learning: strength by opponent, and training metrics."""

from earl.cli.live.canvas import Curve, plot, sparkline
from earl.cli.live.now import RunNow, evaluation, score_curves
from earl.cli.live.spans import BAD, DIM, PALETTE, Line, column, fit, percent, safe, short, whole_percent
from earl.cli.match_tables import by_opponent
from earl.matches import MatchResult, mean_over_seats
from earl.runs.summary import FINAL

LEAST_PLOT = 6
BESIDE = 38
"""Columns of a table of results beside its plot."""
SIGNALS = {
    "illegal_replies": ("illegal replies", percent),
    "zero_variance_groups": ("groups all alike", percent),
    "turns": ("turns", short),
    "entropy": ("entropy", short),
    "loss": ("loss", short),
    "grad_norm": ("gradient norm", short),
    "learning_rate": ("learning rate", short),
    "kl_to_sampler": ("KL to sampler", short),
}
WARM_SIGNALS = {
    "warm_start/entropy": ("entropy", short),
    "warm_start/grad_norm": ("gradient norm", short),
    "warm_start/learning_rate": ("learning rate", short),
}


def strength_title(run: RunNow) -> str:
    tasks = any(not match.result.opponent for match in run.numbers.matches[:1])
    return "Strength: share of tasks solved" if tasks else "Strength: wins + half the draws, by opponent"


def strength(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    step, phase, results = evaluation(run)
    if not results:
        return [[("not evaluated yet", DIM)]]
    groups = by_opponent(results)
    curves = {
        opponent: Curve(chr(ord("a") + number % 26), "", points, PALETTE[number % len(PALETTE)])
        for number, (opponent, points) in enumerate(score_curves(run.numbers.matches).items())
    }
    when = "best weights:" if phase == FINAL else f"at step {step}:"
    low = height - len(groups) - 1 < LEAST_PLOT  # then the table goes beside the plot
    across = BESIDE if low else width
    table = [_result_head(when, groups[0][0], across, low)]
    table += [_result(mean_over_seats(seats), curves.get(seats[0].opponent), across, low) for seats in groups]
    drawn = plot(
        [*curves.values()],
        width - BESIDE - 2 if low else width,
        height if low else height - len(table),
        ascii_only=ascii_only,
        bounds=(0.0, 1.0),
        until=run.step,
        shown=whole_percent,
        legend=False,
    )
    if not low or not drawn:
        return [*drawn, *table]
    right = [*table, *[[]] * len(drawn)]
    return [[*fit(line, width - BESIDE), *right[number]] for number, line in enumerate(drawn)]


def _shares(mean: MatchResult, low: bool) -> dict[str, float]:
    shares = {"win": mean.win, "draw": mean.draw, "loss": mean.loss} if mean.opponent else {"solved": mean.win}
    return shares if low and mean.opponent else {**shares, "illegal": mean.illegal}


def _result_head(when: str, first: MatchResult, width: int, low: bool) -> Line:
    names = _shares(first, low)
    return [(column(when, width - 8 * len(names)), DIM), *((f"{name:>8}", DIM) for name in names)]


def _result(mean: MatchResult, curve: Curve | None, width: int, low: bool) -> Line:
    shares = _shares(mean, low)
    mark, color = (curve.mark, curve.color) if curve else (" ", "")
    name = column(f"{mark} {safe(mean.opponent) or 'held-out tasks'}", width - 8 * len(shares))
    cells = [(f"{percent(share):>8}", BAD if key == "illegal" and share else "") for key, share in shares.items()]
    return [(name, color), *cells]


def signals(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    """A plot of the reward (of the imitation loss in the warm start), and sparklines of the other metrics."""
    warm = not run.series("reward")
    name, label = ("warm_start/loss", "loss of imitation") if warm else ("reward", "reward")
    rows = [
        (title, shown(run.last(metric)), [value for _, value in run.series(metric)])
        for metric, (title, shown) in (WARM_SIGNALS if warm else SIGNALS).items()
        if run.series(metric)
    ]
    rows = rows[: max(2, height - LEAST_PLOT - 4)]
    curve = Curve("a", f"{label} {short(run.last(name))}", run.series(name), PALETTE[0])
    drawn = plot([curve], width, height - len(rows), ascii_only=ascii_only, until=run.step)
    small: list[Line] = [
        [(column(title, 17), ""), (f"{number:>8}  ", ""), (sparkline(values, width - 27, ascii_only), PALETTE[0])]
        for title, number, values in rows
    ]
    return [*drawn, *small] if height - len(rows) >= LEAST_PLOT else small
