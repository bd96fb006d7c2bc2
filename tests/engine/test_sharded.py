"""A learner over one, two and four processes: the losses of a single one, whatever the layout, and across resumes."""

import pytest

from earl.benchmarks import layouts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured():
    return layouts.run(updates=5)  # by then a learning rate a tenth off, or one weight that stays, differs by 3e-4


def test_every_layout_has_the_losses_of_one_process(measured):
    axes = ("variant", "dp", "tp", "cp", "ep", "replicas")
    differences = {tuple(row[axis] for axis in axes): row["difference"] for row in measured["losses"]}
    assert len(differences) == 58  # 4 variants x 10 layouts, up to 8 processes, and 2 mixtures x 9
    assert max(differences.values()) < 1e-5, differences


def test_a_run_goes_on_under_any_other_layout(measured):
    differences = {(row["variant"], row["from"], row["to"]): row["difference"] for row in measured["resumed"]}
    assert len(differences) == 15  # ten changes of layout and three of a mixture's, and both to one process at the end
    assert max(differences.values()) < 1e-5, differences
