"""Which layout each stage ran in, on the page."""

from typing import Any

from earl import reports
from earl.reports.data import ReportedRun
from earl.reports.page import changes
from earl.runs.store import RecordedDecision, Store


def decided(folder: Any) -> Any:
    """dp4 tp1 until step 20, which ran out of memory and was done again in dp2 tp2."""
    with Store(folder.database) as store:
        before = None
        for step in range(1, 41):
            choice = "dp4 tp1" if step <= 20 else "dp2 tp2"
            reason = "stays" if choice == before else "first"
            store.decision(RecordedDecision(step, "update", choice, before, reason, "", "{}"))
            before = choice
            if step == 20:
                why = "dp4 tp1 does not fit <b>contexts</b> of 130 tokens: it ran out of memory at step 20"
                store.decision(RecordedDecision(20, "update", "dp2 tp2", before, "forced", why, "{}"))
                before = "dp2 tp2"
    return folder


def test_only_changes_are_told_with_why(runs: Any) -> None:
    data = ReportedRun(decided(runs.run()))
    assert [(one.step, one.reason) for one in changes(data)] == [(1, "first"), (20, "forced")]


def test_the_page_has_the_section_where_something_was_decided(runs: Any) -> None:
    page = reports.write(decided(runs.run())).read_text()
    assert 'id="layouts"' in page and 'href="#layouts"' in page
    assert "does not fit &lt;b&gt;contexts&lt;/b&gt; of 130 tokens" in page
    plain = reports.write(runs.run(name="plain")).read_text()
    assert 'id="layouts"' not in plain
