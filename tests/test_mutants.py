"""The sample of mutants, the order of their tests, and what is said of them."""

import json
from collections import Counter
from types import SimpleNamespace

from tests import mutants

NAMES = [
    f"earl.{module}.x_f__mutmut_{n}" for module, count in (("a", 60), ("b.c", 30), ("d", 10)) for n in range(count)
]


def test_a_sample_has_of_every_module_its_share_and_a_wider_one_holds_it() -> None:
    order = mutants.drawn(NAMES, seed=0)
    assert sorted(order) == sorted(NAMES)
    for size in (10, 50):  # a tenth, and a half, of each module
        taken = Counter(map(mutants.module_of, order[:size]))
        assert all(
            abs(taken[f"earl.{name}"] - size * share) <= 1 for name, share in (("a", 0.6), ("b.c", 0.3), ("d", 0.1))
        )


def test_a_sample_is_drawn_by_its_seed() -> None:
    assert mutants.drawn(reversed(NAMES), seed=3) == mutants.drawn(NAMES, seed=3) != mutants.drawn(NAMES, seed=4)


def test_what_was_not_killed_is_named_and_the_score_has_an_interval() -> None:
    states = {NAMES[0]: "killed", NAMES[1]: "timeout", NAMES[60]: "survived", NAMES[90]: "no tests"}
    assert mutants.report(states, of=100).splitlines() == [
        "earl.b.c.x_f__mutmut_0: survived",
        "earl.d.x_f__mutmut_0: no tests",
        "earl.a  2 of 2",
        "earl.b.c  0 of 1",
        "earl.d  0 of 1",
        # Wilson: (0.5 + 1.96^2 / 8 -+ 1.96 * sqrt(0.25 / 4 + 1.96^2 / 64)) / (1 + 1.96^2 / 4)
        "2 of 4 mutants killed: 50.0% (95 % interval of all 100: 15.0% to 85.0%); 1 by tests that did not end in time",
    ]
    assert mutants.report({NAMES[0]: "killed"}, of=1).splitlines()[-1] == "1 of 1 mutants killed: 100.0%"


def test_the_quickest_tests_run_first(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mutants.STATS.write_text(json.dumps({"duration_by_test": {"slow": 2.0, "quick": 0.1}}))
    items = [SimpleNamespace(nodeid=name) for name in ("slow", "quick", "new")]
    mutants.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["new", "quick", "slow"]
