from typing import Any

from earl.matches import BOTH_SEATS, MatchResult
from earl.reports.data import ReportedRun
from earl.reports.results import cell, opponent_name, pairings, phases, result_at, seats_of


def match(win: float = 0.5, loss: float = 0.0, exact: bool = False, episodes: int = 100) -> MatchResult:
    return MatchResult("tictactoe", "random", 0, exact, episodes, win, 1 - win - loss, loss, 0.0, 0.0)


def test_phases_of_a_finished_run(runs: Any) -> None:
    data = ReportedRun(runs.run())
    listed = phases(data)
    assert [phase.title for phase in listed] == ["At the start", "After warm start", "Final"]
    assert [phase.when for phase in listed] == ["before training", "step 10", "weights of step 60"]
    assert pairings(data) == [("random", False), ("perfect", False)], "in the order of the recipe"
    assert seats_of(listed, ("random", False)) == [0, 1, BOTH_SEATS]
    both = result_at(listed[-1], ("random", False), BOTH_SEATS)
    # seats win 0.9 and 0.81
    assert both and abs(both.win - 0.855) < 1e-12 and both.episodes == 800


def test_phases_of_a_run_in_progress(runs: Any) -> None:
    warm, later = (ReportedRun(runs.run(until=until, final=False, name=f"r{until}")) for until in (6, 45))
    assert [(phase.title, phase.when) for phase in phases(warm)] == [
        ("At the start", "before training"),
        ("After warm start", "not recorded yet"),
        ("Final", "not recorded yet"),
    ]
    assert [(phase.title, phase.when) for phase in phases(later)][-1] == ("Latest, not final", "step 40")


def test_only_samples_have_intervals() -> None:
    # 95 of 100 by Wilson: 88.8 to 97.8
    assert cell(match(0.95), "win").interval == "88.8 to 97.8"
    assert cell(match(0.95, exact=True), "win").interval == ""
    assert cell(match(loss=0.01), "loss").alarming
    assert not cell(match(), "loss").alarming and not cell(match(), "win").alarming


def test_names() -> None:
    assert opponent_name("any", exact=True) == "any (every reply)"
    assert opponent_name("") == "held-out tasks"
    assert opponent_name("a\u202eb") == "a⟨U+202E⟩b"
