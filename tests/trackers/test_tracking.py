"""Trackers that cannot start, fail on the way, print, or would be told a step again: with a made-up tracker."""

import json
import sys
from dataclasses import replace
from types import ModuleType
from typing import ClassVar

import pytest

from earl.config import TrackConfig
from earl.errors import EarlError
from earl.observer import RecordedStep
from earl.runs.folder import create
from earl.runs.storage import OddFile
from earl.runs.store import Store
from earl.trackers import Tracking, check
from earl.trackers.tracking import PROMETHEUS, TRACKERS, without_secrets

pytestmark = pytest.mark.cold


class Fake:
    """Writes down what it is told; fails at what `fails` names."""

    where = "https://me:pass@host"
    rewinds = False
    fails = ""
    told: list[tuple[object, ...]]

    def __init__(self, run):
        self._may("start")
        self.identity = run.identity or "first"
        self.told.append(("start", run.begun, run.identity))

    def record(self, record):
        print("chatter")
        self._may("record")
        self.told.append((record.step, record.phase))

    def event(self, step, kind, message):
        self._may("event")
        self.told.append((step, kind, message))

    def close(self, state):
        self._may("close")
        self.told.append(("close", state))

    def _may(self, what):
        if what == self.fails:
            raise RuntimeError("no answer from https://me:pass@host/api")


class Run:
    """A run's folder and its trackers, started any number of times."""

    def __init__(self, folder, begun):
        self.folder, self.said, self._begun = folder, [], begun

    def tracking(self, begun=-1, **config):
        run = replace(self._begun(begun), folder=self.folder.path)
        return Tracking(TrackConfig(**{"to": ["fake"], **config}), self.folder, run, self.said.append)

    def events(self):
        with Store(self.folder.database, read_only=True) as store:
            return [(event.step, event.kind, event.message) for event in store.events()]


@pytest.fixture
def fake(monkeypatch):
    """A tracker class named "fake"."""

    class Own(Fake):
        told: ClassVar = []

    module = ModuleType("fake_tracker")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "fake_tracker", module)
    monkeypatch.setitem(TRACKERS, "fake", ("fake_tracker:Own", "json"))
    return Own


@pytest.fixture
def run(tmp_path, begun):
    return Run(create(tmp_path / "runs", "tictactoe-1"), begun)


def step(tracking, number, phase="train"):
    tracking.step(RecordedStep(number, {"reward": 0.5}, {"rollout": 1.0}, [], phase))


def test_a_whole_run(fake, run, capsys):
    with run.tracking() as tracking:
        tracking.event(0, "start", "started")
        step(tracking, 0)
        tracking.event(0, "finish", "finished")
        step(tracking, 0, "final")
    expected = [("start", -1, ""), (0, "start", "started"), (0, "train"), (0, "finish", "finished")]
    assert fake.told == [*expected, (0, "final"), ("close", "finished")]
    assert run.said == ["tracker fake: https://***@host"]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "chatter\nchatter\n")  # stdout is for results


def test_no_step_is_told_twice(fake, run):
    with run.tracking() as tracking:
        for number in range(5):
            step(tracking, number)
    fake.told.clear()
    # The checkpoint was of step 2: 3 and 4 are done again, which the tracker has already.
    with run.tracking(2) as tracking:
        tracking.event(2, "resume", "resumed")
        for number in (3, 4, 5):
            tracking.event(number, "best", "better")
            step(tracking, number)
        step(tracking, 5, "final")
    told = [("start", 2, "first"), (5, "best", "better"), (5, "train"), (5, "final"), ("close", "stopped")]
    assert fake.told == told


def test_one_that_rewinds_is_told_everything_again(fake, run):
    fake.rewinds = True
    for begun, steps in ((-1, range(5)), (2, range(3, 6))):
        with run.tracking(begun) as tracking:
            for number in steps:
                step(tracking, number)
    assert [told[0] for told in fake.told if told[-1] == "train"] == [0, 1, 2, 3, 4, 3, 4, 5]


def test_a_damaged_memory_is_no_memory(fake, run):
    for text in ("{", "[]", ""):
        (run.folder.path / "trackers.json").write_text(text)
        with run.tracking(2) as tracking:
            step(tracking, 3)
        assert json.loads((run.folder.path / "trackers.json").read_text())["fake"]["step"] == 3


@pytest.mark.parametrize("what", ["record", "event"])
def test_one_that_fails_is_off_which_is_said_and_noted(fake, run, what):
    with run.tracking() as tracking:
        step(tracking, 0)
        fake.fails = what
        tracking.event(1, "best", "better")
        step(tracking, 1)
        fake.fails = ""
        step(tracking, 2)
    line = "tracker fake is off, the training goes on: RuntimeError: no answer from https://***@host/api"
    assert run.said[1].startswith(line)
    assert run.events() == [(1, "tracker", run.said[1])]
    assert fake.told[-1] == ("close", "failed")
    assert (2, "train") not in fake.told


def test_one_that_fails_leaves_the_others_alone(fake, run, monkeypatch):
    class Good(Fake):
        told: ClassVar = []

    sys.modules["fake_tracker"].Good = Good
    monkeypatch.setitem(TRACKERS, "good", ("fake_tracker:Good", "json"))
    fake.fails = "record"
    with run.tracking(to=["fake", "good"]) as tracking:
        step(tracking, 0)
        step(tracking, 1)
    assert Good.told == [("start", -1, ""), (0, "train"), (1, "train"), ("close", "stopped")]


def test_one_that_fails_at_the_end(fake, run):
    with run.tracking():
        fake.fails = "close"
    assert "tracker fake is off" in run.said[1]


@pytest.mark.parametrize(("error", "state"), [(KeyboardInterrupt, "stopped"), (EarlError, "failed")])
def test_a_run_that_breaks_off_is_closed(fake, run, error, state):
    with pytest.raises(error), run.tracking():
        raise error("broken off")
    assert fake.told[-1] == ("close", state)


def test_a_new_run_is_refused_and_a_resumed_one_goes_on(fake, run):
    fake.fails = "start"
    with pytest.raises(EarlError, match=r"tracker 'fake' cannot start: .*\*\*\*@host.*; mend that, or change track.to"):
        run.tracking().__enter__()
    with run.tracking(3) as tracking:
        step(tracking, 4)
    assert "tracker fake is off" in run.said[0]
    assert run.events()[0][:2] == (3, "tracker")


def test_a_port_that_is_taken(fake, run):
    with run.tracking(to=[], prometheus_port=0):
        port = int(run.said[0].split(":")[-1].split("/")[0])
        with pytest.raises(EarlError, match=r"Address already in use.*change track.prometheus_port"):
            run.tracking(to=["fake"], prometheus_port=port).__enter__()
    assert fake.told[-1] == ("close", "failed")  # nothing stays open


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["wandbb"], "unknown tracker 'wandbb'; did you mean 'wandb'? Known: mlflow, tensorboard, trackio, wandb"),
        (["wandb", "wandb"], "'wandb' is named twice; name each tracker once"),
        (
            ["gone"],
            "tracker 'gone' is not installed (no module 'not_there'); "
            "install it with: pip install 'earl[gone]', or leave 'gone' out of track.to",
        ),
    ],
)
def test_what_is_refused_before_work_starts(monkeypatch, names, message):
    monkeypatch.setitem(TRACKERS, "gone", ("nowhere:Gone", "json", "not_there"))
    if names != ["gone"]:
        monkeypatch.delitem(TRACKERS, "gone")
    with pytest.raises(EarlError) as refused:
        check(names, None)
    assert str(refused.value) == message


def test_every_tracker_that_is_named_is_installed_here():
    check([name for name in TRACKERS if name != PROMETHEUS], 0)


def test_secrets_are_blotted_out(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "open sesame")
    monkeypatch.setenv("A_TOKEN", "x")  # too short to be one
    text = "mysql://root:toor@db/x: 'open sesame' is wrong, next"
    assert without_secrets(text) == "mysql://***@db/x: '***' is wrong, next"


@pytest.mark.parametrize("name", ["fake", "trackers.json", ".trackers.json.tmp"])
def test_no_tracker_writes_through_a_link_in_a_foreign_run(fake, run, tmp_path, name):
    victim = tmp_path / "victim"
    if name == "fake":  # the folder that a tracker of this name writes
        victim.mkdir()
    else:
        victim.write_text("{}")
    (run.folder.path / name).symlink_to(victim)
    if name.startswith("."):  # a name under which the memory was once written
        with run.tracking() as tracking:
            step(tracking, 0)
        assert json.loads((run.folder.path / "trackers.json").read_text())["fake"]["step"] == 0
    else:
        with pytest.raises(OddFile, match=name), run.tracking():
            pass
        assert fake.told == []
    assert victim.is_dir() or victim.read_text() == "{}"
