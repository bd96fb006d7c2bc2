"""A profile is kept for one key, and comes back for that alone."""

import json

import pytest

from earl.engine.model import shape
from earl.errors import EarlError
from earl.parallel.layout import Choice, Layout
from earl.parallel.profile import Point, Timing
from earl.profiling.campaign import grid_of
from earl.profiling.kept import Profile, key_of, path_of, read, write
from earl.recipe import build

POINT = Point(Choice("update", Layout(2, 1), 2048), 120, 8)
BASE = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0}},
    "placement": {"kind": "colocated", "dp": 2, "samplers": 2},
    "context": {"limit": 120},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def profile(key):
    timing = Timing(POINT, 0.5, 0.01, 3, "2026-11-21T03:00:00+00:00")
    return Profile(key, {POINT: timing}, {POINT.choice: 1.5})


def key(**sections):
    config = build(BASE | sections)
    return key_of(config, shape(config.model))


def test_what_is_written_is_read(cache):
    file = write(profile(key()))
    assert file.parent == cache / "earl" / "profiles"
    known = read(key())
    assert (known.timings, known.switches) == (profile(None).timings, profile(None).switches)
    assert known.measured_at == "2026-11-21T03:00:00+00:00"
    assert [cell["origin"] for cell in json.loads(file.read_text())["cells"]] == ["measured"]


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"hidden": 128}},
        {"placement": {"kind": "disaggregated", "dp": 2, "samplers": 2}},
        {"placement": {"kind": "colocated", "dp": 4, "samplers": 2}},
        {"learner": {"minibatches": 2}},
        {"algorithm": {"name": "ppo"}},
        {"algorithm": {"kl": 0.1}},
    ],
)
def test_another_recipe_does_not_read_it(sections):
    write(profile(key()))
    assert read(key(**sections)).timings == {}


@pytest.mark.parametrize(("section", "name"), [("versions", "torch"), ("hardware", "cores"), ("model", "layers")])
def test_another_machine_or_version_does_not_read_it(section, name):
    own = key()
    write(profile(own))
    assert read(own | {section: own[section] | {name: "another"}}).timings == {}


def test_the_same_devices_in_another_layout_read_it():
    write(profile(key()))
    other = {"kind": "colocated", "dp": 1, "tp": 2, "samplers": 1}
    assert read(key(placement=other, sampler={"tp": 2})).timings
    assert read(key(run={"steps": 7})).timings


def test_a_file_that_earl_did_not_write_is_named():
    file = path_of(key())
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(EarlError, match=r"is not what earl wrote .*; remove it, then measure again"):
        read(key())


def test_what_no_episode_can_be_is_refused():
    config = build(BASE)
    assert grid_of(config, [], [], 1.0).contexts == [30, 60, 120]  # 15 is below 16
    with pytest.raises(EarlError, match=r"a context of 121 tokens cannot come .* 2 to 120 tokens; .*context\.limit"):
        grid_of(config, [60, 121], [], 1.0)
    with pytest.raises(EarlError, match="a load of 0 episodes"):
        grid_of(config, [], [0], 1.0)
