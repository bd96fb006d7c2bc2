"""A step's numbers, of the shape that training writes, and the results of its matches."""

from earl.matches import MatchResult
from earl.runs.store import Store
from earl.trajectory import Author, ContextTokens
from tests.report.played import OPPONENTS

WARM = 10
STEPS = 60
FORECASTS = [f"forecast/{quantile}/{end}" for quantile in ("p50", "p95", "p99") for end in ("early", "median", "late")]


def record(store: Store, step: int, exact: bool) -> None:
    """One step's numbers, of the shape that training writes."""
    done = min(1.0, step / STEPS)
    timings = {"rollout": 0.3, "update": 0.5, "weights": 0.001, "record": 0.01}
    numbers: dict[str, float] = {}
    if 0 < step <= WARM:
        numbers = {"warm_start/loss": 2.0 - done, "warm_start/entropy": 1.0, "warm_start/grad_norm": 0.5}
    elif step:
        numbers = {"reward": done, "illegal_replies": 0.1 * (1 - done), "entropy": 0.5, "loss": 0.01, "grad_norm": 0.2}
        numbers |= {f"context/turn/{name}": 18.0 for name in ("p50", "p95", "p99", "max")}
        for level in ("episode", "window"):
            quantiles = {"p50": 60.0, "p95": 80.0 + step / 3, "p99": 100.0, "max": 110.0}
            numbers |= {f"context/{level}/{name}": value for name, value in quantiles.items()}
        numbers |= {"context/limit": 120.0 if step < 30 else 150.0}
        numbers |= {f"tokens/{author.name.lower()}": 384.0 * 10 * author for author in Author}
        numbers |= {"truncation/prompt": 0.005, "truncation/reply": 0.003, "truncation/turn": 0.002}
        numbers |= {"memory/kv_bytes": 3e6 + 1e4 * step, "memory/activation_bytes": 9e6}
        numbers |= dict(
            zip(FORECASTS, (150.0, 170.0, float("inf"), 80.0, 90.0, 110.0, *[float("inf")] * 3), strict=True)
        )
        numbers |= {"stop/finished": 0.99, "stop/context_limit": 0.01, "episodes": 384.0, "tokens": 26000.0}
        numbers |= {"learning_rate": 1e-3, "kl_to_sampler": float("nan")}
    evaluated = step in (0, WARM) or step % 20 == 0
    phase = "start" if step == 0 else "warm_start" if step <= WARM else "train"
    played = matches(0.9 * done, exact) if evaluated else ()
    store.record_step(step, numbers, timings, played, phase, contexts(step) if step > WARM else ())


def contexts(step: int) -> list[ContextTokens]:
    """384 episodes with a first turn, half of them with a second; the model's action grows by one token a step."""
    return [
        ContextTokens(step, turn, author, episodes * tokens, episodes)
        for turn, episodes in ((0, 384), (1, 192))
        for author, tokens in ((Author.ENVIRONMENT, 12), (Author.ACTION, step))
    ]


def matches(win: float, exact: bool) -> list[MatchResult]:
    """Results against every opponent from both seats: the second seat draws more; 0.3 % are lost at least."""
    loss = max(0.003, 0.8 - win)
    return [
        MatchResult(
            "tictactoe",
            opponent,
            seat,
            exact,
            400,
            win - 0.1 * seat * win,
            1 - loss - win + 0.1 * seat * win,
            loss,
            0.0,
            0.0,
        )
        for opponent in OPPONENTS
        for seat in (0, 1)
    ]
