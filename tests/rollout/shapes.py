"""An environment that misbehaves in many ways, in every fourth of its episodes."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

HELD = []


def _raise():
    raise KeyError("no such board")


def _leave_a_daemon():
    if os.fork():
        return os.wait()
    os.setsid()
    subprocess.Popen(["sleep", "600"])
    os._exit(0)


def _fork_and_go_on():
    return os.fork()


def _leave_a_child():
    subprocess.Popen(["sleep", "600"])


def _fill_memory():
    while True:
        HELD.append(bytearray(1 << 24))


def _flood():
    for _ in range(2000):
        sys.stdout.write("x" * 1000 + "\n")
    sys.stdout.flush()


def _recurse():
    return _recurse()


RETURNS = {
    "a number": 7,
    "an observation that is bytes": (b"x", 0.0, False, False, {}),
    "a reward that is no number": ("x", float("nan"), False, False, {}),
    "a huge observation": ("x" * 10**8, 0.0, False, False, {}),
    "half a character": ("\ud800", 0.0, False, False, {}),
    "an info that is no dict": ("x", 0.0, False, False, 5),
    "what JSON cannot hold": ("x", 0.0, False, False, {"illegal": object()}),
    "an outcome that there is not": ("x", 0.0, True, False, {"outcome": "tie"}),
}
DOES = {
    "raises": _raise,
    "exits": lambda: sys.exit(3),
    "exits at once": lambda: os._exit(3),
    "aborts": os.abort,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleeps": lambda: time.sleep(600),
    "computes": lambda: sum(itertools.repeat(0)),  # holds the interpreter's lock
    "fills memory": _fill_memory,
    "recurses": _recurse,
    "closes its files": lambda: os.closerange(3, 200),
    "floods": _flood,
    "leaves a child": _leave_a_child,
    "leaves a daemon": _leave_a_daemon,
    "leaves a thread": lambda: threading.Thread(target=time.sleep, args=(600,)).start(),
    "forks": _fork_and_go_on,
}


class Shapes:
    """Say "a" three times."""

    max_turns = 3

    def __init__(self, where="step", shape="", moody=False):
        self.where, self.shape = where, shape
        self.mood = f" {os.getpid()}" if moody else ""

    def _reach(self, where):
        if where == self.where and self.guilty and self.shape in DOES:
            DOES[self.shape]()

    def reset(self, seed=0):
        self.guilty, self.turns = seed % 4 == 3, 0
        self._reach("reset")
        if self.guilty and self.where == "reset" and self.shape in RETURNS:
            returned = RETURNS[self.shape]
            return (returned[0], returned[4]) if isinstance(returned, tuple) else returned
        return f"begin {seed}{self.mood}", {}

    def step(self, action):
        self.turns += 1
        if self.turns == 2:
            self._reach("step")
            if self.guilty and self.where == "step" and self.shape in RETURNS:
                return RETURNS[self.shape]
        return f"turn {self.turns}", 0.25, self.turns == 3, False, {}

    def random_action(self, rng):
        return "a"

    def close(self):
        self._reach("close")
