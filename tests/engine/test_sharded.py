"""A learner over one, two and four processes: the losses of a single one, whatever the layout, and across resumes."""

import pytest

from earl.benchmarks import layouts
from earl.parallel.layout import Layout

pytestmark = pytest.mark.slow


SOME = {
    "LAYOUTS": [Layout(2, 2), Layout(2, 1, 2), Layout(1, 2, 2), Layout(2, 2, replicas=2)],
    "SPREAD": [Layout(2, ep=2), Layout(1, 2, 2, ep=2), Layout(4, ep=2, replicas=2)],
    "HANDED": [Layout(4), Layout(1, 2, 2), Layout(2, 1, 2), Layout(4, replicas=2)],
    "SPREAD_HANDED": [Layout(2, ep=2), Layout(1, 2, ep=2)],
}
"""Every axis beside another one, on four processes at most."""


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.exhaustive)])
def measured(request):
    with pytest.MonkeyPatch.context() as patch:
        for name, some in SOME.items() if request.param == "some" else ():
            assert {*some} <= {*getattr(layouts, name)}
            patch.setattr(layouts, name, some)
        # By 5 updates a learning rate a tenth off, or one weight that stays, differs by 3e-4.
        yield layouts.run(updates=5), {name: len(getattr(layouts, name)) for name in SOME}


def test_every_layout_has_the_losses_of_one_process(measured):
    measured, tried = measured
    axes = ("variant", "dp", "tp", "cp", "ep", "replicas")
    differences = {tuple(row[axis] for axis in axes): row["difference"] for row in measured["losses"]}
    assert len(differences) == 5 * tried["LAYOUTS"] + 2 * tried["SPREAD"]  # 5 variants, and 2 of a mixture
    assert max(differences.values()) < 1e-5, differences


def test_a_run_goes_on_under_any_other_layout(measured):
    measured, tried = measured
    differences = {(row["variant"], row["from"], row["to"]): row["difference"] for row in measured["resumed"]}
    assert len(differences) == tried["HANDED"] + tried["SPREAD_HANDED"]  # changes, and both to one process at the end
    assert max(differences.values()) < 1e-5, differences
