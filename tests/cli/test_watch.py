"""`earl watch`: once into a pipe, and live in a terminal of its own."""

import fcntl
import os
import pty
import select
import signal
import sqlite3
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from earl.runs.folder import create
from earl.runs.store import Store

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""What a terminal is told when the view takes the screen and when it gives it back."""


@dataclass
class Terminal:
    """The user's end of a terminal in which the view runs."""

    process: subprocess.Popen[str]
    descriptor: int
    shown: str = ""

    def until(self, words: str) -> str:
        """What was shown up to these words; fails when they do not come."""
        begun, patience = len(self.shown), time.monotonic() + 60
        while words not in self.shown[begun:]:
            if time.monotonic() > patience or not self.read(1.0):
                raise AssertionError(f"{words!r} was not shown: {self.shown[begun:]!r}")
        return self.shown[begun:]

    def read(self, seconds: float) -> bool:
        """Take what has come; false when the other side has ended."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:  # Linux: the last process has closed its end
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def rest(self) -> str:
        """Everything, once the process has ended."""
        patience = time.monotonic() + 60
        while self.read(1.0):
            assert time.monotonic() < patience, "the view did not end"
        self.process.wait(60)
        return self.shown

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)


@pytest.fixture
def terminal(
    start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Terminal]]:
    """Starts a command line in a terminal of 80 x 24."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    begun: list[Terminal] = []

    def open_with(*arguments: object, **environment: str) -> Terminal:
        user, program = pty.openpty()
        fcntl.ioctl(user, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
        process = start(*arguments, stdin=program, stdout=program, stderr=program, env=env, start_new_session=True)
        os.close(program)
        begun.append(Terminal(process, user))
        return begun[-1]

    yield open_with
    for opened in begun:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.descriptor)


def test_into_a_pipe_it_prints_once(earl, trained: Path) -> None:
    said = earl("watch", "done", "--runs", trained.parent)
    assert (said.code, said.err) == (0, "")
    for words in (
        "done  tictactoe  finished; the best weights are those of step",
        "step 3/3",
        "best weights:",
        "random",
    ):
        assert words in said.out
    assert "\x1b" not in said.out
    assert earl("watch", trained, "--once").out.splitlines()[0] == said.out.splitlines()[0]


def test_json(earl, trained: Path) -> None:
    said = earl("watch", "done", "--runs", trained.parent, "--json").json
    assert (said["run"], said["state"], said["step"], said["steps"]) == ("done", "finished", 3, 3)
    assert {"reward", "entropy"} <= set(said["metrics"])
    assert said["metrics"]["context/limit"]["value"] == 120


def test_a_misspelt_name_gets_the_nearest(earl, trained: Path) -> None:
    said = earl("watch", "dome", "--runs", trained.parent)
    assert (said.code, said.out) == (2, "")
    assert "did you mean 'done'?" in said.err


def test_a_run_that_has_not_begun(earl, trained: Path, tmp_path: Path) -> None:
    create(tmp_path, "new", (trained / "config.toml").read_text())
    said = earl("watch", "new", "--runs", tmp_path)
    assert said.code == 0
    assert "not started" in said.out
    assert "nothing recorded yet" in said.out
    assert earl("watch", "new", "--runs", tmp_path, "--json").json["evaluation"] == []


def test_a_database_of_the_first_format(earl, trained: Path, tmp_path: Path) -> None:
    folder = create(tmp_path, "old", (trained / "config.toml").read_text())
    with Store(folder.database) as store:
        store.record_step(
            1,
            {"reward": 0.5, "context/window/max": 70.0, "context/window/p50": 50.0, "context/limit": 120.0},
            {"rollout": 1.0},
        )
    connection = sqlite3.connect(folder.database)
    connection.executescript(
        "DROP TABLE contexts; DROP TABLE decisions; DROP TABLE measures; PRAGMA user_version = 1; "
        "PRAGMA journal_mode = DELETE;"
    )
    connection.close()
    said = earl("watch", "old", "--runs", tmp_path)
    assert (said.code, said.err) == (0, "")
    assert "limit 120  a p50 50  d max 70" in said.out


def test_keys_pages_and_resizing(terminal: Callable[..., Terminal], trained: Path) -> None:
    view = terminal("watch", "done", "--runs", trained.parent)
    first = view.until("page 1 of 3")
    assert ENTER in first
    assert "best weights:" in first
    view.press("\t")
    assert "Tokens by author" in view.until("page 2 of 3")
    view.press(" ")
    assert "Time of a step" in view.until("page 3 of 3")
    view.resize(160, 50)
    wide = view.until("q quit")
    assert "Events" in wide
    view.press("q")
    assert LEAVE in view.rest()
    assert view.process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_terminal_back(terminal: Callable[..., Terminal], trained: Path, number: int) -> None:
    view = terminal("watch", "done", "--runs", trained.parent)
    before = termios.tcgetattr(view.descriptor)
    view.until("page 1 of 3")
    assert not termios.tcgetattr(view.descriptor)[3] & termios.ECHO
    view.process.send_signal(number)
    assert LEAVE in view.rest()
    assert "Traceback" not in view.shown
    assert view.process.returncode == 0
    assert termios.tcgetattr(view.descriptor)[3] == before[3]


def test_a_run_that_goes_on_is_followed(terminal: Callable[..., Terminal], trained: Path, tmp_path: Path) -> None:
    folder = create(tmp_path, "going", (trained / "config.toml").read_text())
    folder.lock.write_text(f"{os.getpid()}\n")
    view = terminal("watch", "going", "--runs", tmp_path, NO_COLOR="1")
    assert "starting" in view.until("page 1 of 3")
    with Store(folder.database) as store:
        store.record_step(1, {"reward": 0.25}, {"rollout": 0.5})
        view.until("reward 0.25")
        store.event(1, "forecast", "\x1b]0;owned\x07the limit comes near")
        warned = view.until("the limit comes near")
        assert "owned" not in warned
    for path in (folder.database, folder.config):
        path.unlink()
    view.until("'going' is gone")
    assert LEAVE in view.rest()
    assert view.process.returncode == 2
    assert "\x1b[3" not in view.shown.replace("\x1b[39m", "")  # NO_COLOR


def test_a_terminal_without_utf_8_sees_ascii(terminal: Callable[..., Terminal], trained: Path) -> None:
    view = terminal("watch", "done", "--runs", trained.parent, PYTHONIOENCODING="ascii")
    view.until("page 1 of 3")
    view.press("q")
    assert view.rest().isascii()
    assert view.process.returncode == 0


def test_a_dumb_terminal_gets_one_print(terminal: Callable[..., Terminal], trained: Path) -> None:
    view = terminal("watch", "done", "--runs", trained.parent, TERM="dumb")
    assert "best weights:" in view.rest()
    assert "\x1b" not in view.shown
    assert view.process.returncode == 0
