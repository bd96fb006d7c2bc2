"""The limit follows growth, warns of it, and is the same after a checkpoint."""

import json
from dataclasses import asdict
from math import inf

import pytest
from pydantic import TypeAdapter

from earl.context.forecast import Forecast, expected
from earl.context.limit import KEPT_STEPS, ContextWatch, Growth, _warning, growth_of


def grown(step, p99, longest=None, cut=0.0):
    return Growth(step, (p99 * 0.5, p99 * 0.9, p99), longest or p99, cut)


def fed(watch, lengths):
    """The watch after a step for each length, and all events."""
    events = [event for step, p99 in enumerate(lengths) for event in watch.observe(grown(step, p99)).events]
    return watch, events


def test_a_cut_raises_an_automatic_limit_by_half():
    watch = ContextWatch(limit=72, ceiling=1024)
    seen = watch.observe(Growth(1, (40, 70, 72), 72, cut=0.02))
    assert watch.limit == 112  # 72 x 1.5 = 108, rounded up to a multiple of 8
    assert seen.metrics["context/limit"] == 72  # of the step that was played
    ((kind, message),) = seen.events
    assert kind == "limit"
    assert "from 72 to 112 tokens: 2.0% of the episodes were cut off" in message


def test_a_limit_is_not_raised_again_for_episodes_that_began_under_the_one_before():
    watch = ContextWatch(limit=72, ceiling=1024, ahead=2)
    for step in (1, 2, 3):  # those of the steps 2 and 3 had begun when the limit was raised after step 1
        watch.observe(Growth(step, (40, 70, 72), 72, cut=0.02))
        assert watch.limit == 112
    watch.observe(Growth(4, (40, 70, 112), 112, cut=0.02))
    assert watch.limit == 168  # 112 x 1.5


def test_an_automatic_limit_is_raised_before_it_is_met():
    watch, events = fed(ContextWatch(limit=100, ceiling=1024), [40 + 2 * step for step in range(60)])
    assert watch.limit > 40 + 2 * 59  # the longest so far
    assert len(events) >= 1
    assert all("expected soon" in message for _, message in events)


def test_steep_growth_does_not_carry_it_far_beyond_the_longest():
    lengths = [20 * 1.4**step for step in range(8)]
    watch, _ = fed(ContextWatch(limit=60, ceiling=100_000), lengths)
    assert watch.limit <= lengths[-1] * 1.5 * 1.1 + 8  # a leap ahead of the longest, some room, rounded up


def test_an_automatic_limit_stays_where_nothing_grows():
    watch, events = fed(ContextWatch(limit=100, ceiling=1024), [50, 52, 49, 51] * 10)
    assert (watch.limit, events) == (100, [])


def test_an_automatic_limit_never_passes_its_ceiling_and_says_so():
    watch = ContextWatch(limit=100, ceiling=120)
    ((_, message),) = watch.observe(Growth(1, (90, 100, 100), 100, cut=0.5)).events
    assert watch.limit == 120
    assert message.endswith("this is the highest that is allowed")
    assert watch.observe(Growth(2, (90, 120, 120), 120, cut=0.5)).events == ()


def test_one_step_at_most_doubles_it():
    watch = ContextWatch(limit=100, ceiling=10_000)
    watch.observe(Growth(1, (5000, 5000, 5000), 5000, cut=0.0))
    assert watch.limit == 200


def test_a_teachers_contexts_find_room_under_an_automatic_limit_alone():
    watch = ContextWatch(limit=72, ceiling=1024)
    ((kind, message),) = watch.make_room(90)
    assert (kind, watch.limit) == ("limit", 104)  # 90 x 1.1 = 99, rounded up
    assert "from 72 to 104 tokens: the teacher's contexts take up to 90" in message
    assert watch.make_room(80) == ()
    fixed = ContextWatch(limit=72)
    assert (fixed.make_room(90), fixed.limit) == ((), 72)


def test_a_fixed_limit_is_warned_of_once_and_kept():
    watch, events = fed(ContextWatch(limit=150), [40 + 2 * step for step in range(54)])
    assert watch.limit == 150
    assert [kind for kind, _ in events] == ["forecast"]
    assert "limit of 150 tokens" in events[0][1]


def test_that_a_fixed_limit_was_met_is_said_once_too():
    watch, events = ContextWatch(limit=72), []
    for step in range(20):
        events += watch.observe(Growth(step, (40, 70, 72), 72, cut=0.02 * (step % 2))).events
    messages = [message for _, message in events]
    assert len(messages) == 2  # one of each kind
    assert any(
        message.startswith("2.0% of the episodes were cut off at the limit of 72 tokens") for message in messages
    )


def test_the_warning_of_linear_growth_comes_in_time():
    watch = ContextWatch(limit=150)
    # 40 + 2 x 55 = 150: the limit is met at step 55.
    warned = next(step for step in range(56) if watch.observe(grown(step, 40 + 2 * step)).events)
    assert warned <= 50


def test_forecasts_are_metrics_of_every_quantile():
    watch, _ = fed(ContextWatch(limit=150), [40 + 2 * step for step in range(40)])
    metrics = watch.observe(grown(40, 120)).metrics
    early, median, late = (metrics[f"forecast/p99/{edge}"] for edge in ("early", "median", "late"))
    assert early <= median <= late
    assert early <= 55 <= late
    assert metrics["forecast/p50/median"] > median
    assert ContextWatch(limit=150).observe(grown(0, 10)).metrics["forecast/p50/late"] == inf


def test_under_an_automatic_limit_the_ceiling_is_forecast_too():
    watch, _ = fed(ContextWatch(limit=150, ceiling=160), [40 + 2 * step for step in range(40)])
    metrics = watch.observe(grown(40, 120)).metrics
    # 40 + 2 x 60 = 160: what memory allows is met at step 60.
    assert metrics["forecast/ceiling/early"] <= 60 <= metrics["forecast/ceiling/late"]
    assert "forecast/ceiling/early" not in ContextWatch(limit=150).observe(grown(0, 10)).metrics


def test_history_is_bounded():
    watch, _ = fed(ContextWatch(limit=1000), [50] * (KEPT_STEPS + 20))
    assert len(watch.history) == KEPT_STEPS
    assert watch.history[-1][0] == KEPT_STEPS + 19


@pytest.mark.parametrize("ceiling", [None, 512])
def test_a_checkpoint_keeps_all_of_it(ceiling):
    lengths = [40 + 2 * step for step in range(30)]
    watch, _ = fed(ContextWatch(limit=100, ceiling=ceiling), lengths)
    again = TypeAdapter(ContextWatch).validate_python(json.loads(json.dumps(asdict(watch))))
    assert again == watch
    assert again.observe(grown(30, 103)) == watch.observe(grown(30, 103))


def test_growth_is_read_from_metrics():
    names = {"p50": 10.0, "p95": 20.0, "p99": 30.0, "max": 40.0}
    metrics = {f"context/window/{name}": value for name, value in names.items()}
    metrics |= {"truncation/prompt": 0.25, "truncation/reply": 0.5, "truncation/turn": 0.125}
    assert growth_of(7, metrics) == Growth(7, (10.0, 20.0, 30.0), 40.0, cut=0.75)


def test_words_of_a_warning():
    near = Forecast(150.0, 40.4, 44.2, 50.0, reached=False)
    told = "the longest contexts will reach the limit of 150 tokens at about step 44 (80 % interval: 40 to 50)"
    assert _warning(150, near) == told
    open_end = Forecast(150.0, 40.4, inf, inf, reached=False)
    told = "the longest contexts will reach the limit of 150 tokens soon (80 % interval: step 40 or later)"
    assert _warning(150, open_end) == told


def test_words_of_a_fixed_limit():
    watch = ContextWatch(limit=150, history=[(step, (20.0, 30.0, 40.0 + 2 * step)) for step in range(50)])
    ((kind, message),) = watch.observe(grown(50, 140)).events
    assert kind == "forecast"
    assert message.startswith("the longest contexts will reach the limit of 150 tokens at about step 5")
    assert message.endswith("): raise context.limit, or set it to 'auto'")
    assert watch.said == ["near"]
    assert watch.observe(grown(51, 142)).events == ()  # no forecast is due
    cut = "50.0% of the episodes were cut off at the limit of 150 tokens: raise context.limit, or set it to 'auto'"
    assert watch.observe(grown(52, 150, cut=0.5)).events == (("forecast", cut),)
    assert watch.said == ["near", "met"]
    met = ContextWatch(limit=150, history=watch.history[:50], said=["met"])
    assert met.observe(grown(50, 140)).events == ()  # that it is met says more than that it is near


def test_forecasts_are_made_at_every_fifth_step():
    watch = ContextWatch(limit=150, ceiling=300)
    names = [
        f"forecast/{name}/{edge}" for name in ("p50", "p95", "p99", "ceiling") for edge in ("early", "median", "late")
    ]
    for step in range(11):
        metrics = watch.observe(grown(step, 50)).metrics
        assert sorted(metrics) == sorted(["context/limit", *(names if step % 5 == 0 else [])])


def test_an_automatic_limit_has_room_for_what_is_expected():
    history = [(step, (20.0, 30.0, 100.0 + step)) for step in range(50)]
    watch = ContextWatch(limit=100, ceiling=1000, history=[*history])
    ((_, message),) = watch.observe(Growth(50, (20, 30, 150), 150, cut=0)).events
    upper = expected([(step, values[2]) for step, values in watch.history], 10)[1]
    assert 160 < upper < 175  # 10 steps on, and what is not known
    assert watch.limit == -(-1.1 * upper // 8) * 8
    assert (
        message == f"context limit raised from 100 to {watch.limit} tokens: up to {upper:.0f} tokens are expected soon"
    )
    assert (watch.raised, watch.ceiling) == (50, 1000)
    between = ContextWatch(limit=100, ceiling=1000, history=[*history])
    between.observe(Growth(51, (20, 30, 150), 150, cut=0))  # no forecast is due: 1.1 x 150 = 165
    assert between.limit == 168
    steep = ContextWatch(limit=100, ceiling=1000, history=[*history])
    steep.observe(Growth(50, (20, 30, 150), 80, cut=0))  # at most 1.5 times the longest: 1.1 x 1.5 x 80 = 132
    assert steep.limit == 136
    cut = ContextWatch(limit=100, ceiling=1000, history=[*history], raised=49)
    cut.observe(Growth(51, (20, 30, 50), 50, cut=0.1))  # 1.5 x 100, as the step before last raised it
    assert cut.limit == 152


def test_the_history_of_a_run_is_500_steps():
    watch = ContextWatch(limit=1000, history=[(step, (1.0, 1.0, 1.0)) for step in range(600)])
    watch.observe(Growth(601, (2, 2, 2), 2, cut=0))
    assert (len(watch.history), watch.history[0][0], watch.history[-1]) == (500, 101, (601, (2, 2, 2)))
