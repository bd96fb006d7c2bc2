"""A learner over one, two and four processes: the losses of a single one, whatever the layout, and across resumes."""

import pytest

from earl.benchmarks import layouts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured():
    return layouts.run(updates=5)  # by then a learning rate a tenth off, or one weight that stays, differs by 3e-4


def test_every_layout_has_the_losses_of_one_process(measured):
    differences = {(row["variant"], row["dp"], row["tp"], row["cp"]): row["difference"] for row in measured["losses"]}
    assert len(differences) == 28  # 4 variants x dp/tp/cp = 1/1/1, 2/1/1, 1/2/1, 2/2/1, 1/1/2, 2/1/2, 1/2/2
    assert max(differences.values()) < 1e-4, differences


def test_a_run_goes_on_under_any_other_layout(measured):
    differences = {(row["from"], row["to"]): row["difference"] for row in measured["resumed"]}
    assert len(differences) == 10  # nine changes of layout, and to one process at the end
    assert max(differences.values()) < 1e-5, differences
