"""Takes any reply twice, and misbehaves against the opponent `random`, in a way that its option names."""

import itertools
import os
import re
import sys
import threading
import time
from pathlib import Path
from random import Random

from earl.agents.scripted.registry import player
from earl.envs.base import TextEnv


def hang_in_python():
    while True:
        time.sleep(0.1)


def hang_in_regex():
    re.match("(a*)*b", "a" * 60)


def hang_with_the_interpreter_held():
    sum(itertools.repeat(0))  # neither gives way to other threads nor looks for signals


HANGS = {"python": hang_in_python, "regex": hang_in_regex, "held": hang_with_the_interpreter_held}
"""They hang while the file exists that the variable HOSTILE names; one that ends in .hung says that they do."""
REWARDS = {"nan": float("nan"), "inf": float("inf"), "huge": 1e30, "complex": 1j}
MIXED = [*REWARDS, "exit", "keyboard", "large", "none"]


class Hostile(TextEnv):
    instructions, max_turns = "Reply.", 2

    def __init__(self, seat=0, opponent=None, mode="none", peers=False):
        self.mode = mode if opponent is player("random", "hostile") else "none"
        self.here = not peers or sys.argv[0].endswith("earl/trainer.py")

    def reset(self, *, seed=None, options=None):
        self.turns, self.rng = 0, Random(options["opponent_seed"] if options else seed)
        if self.mode == "mixed":
            self.mode = self.rng.choice(MIXED)
        return "1", {"role": "user"}

    def rule(self, action):
        return None

    def random_action(self, rng):
        return rng.choice("123456789")

    def step(self, action):
        mode = self.mode
        if mode in HANGS and self.here and Path(os.environ["HOSTILE"]).exists():
            Path(f"{os.environ['HOSTILE']}.hung").touch()
            HANGS[mode]()
        if mode == "exit":
            sys.exit(7)
        if mode == "keyboard":
            raise KeyboardInterrupt
        if mode == "thread":
            threading.Thread(target=hang_in_python, name="left behind").start()
        self.turns += 1
        over = self.turns == 2
        info = {"outcome": self.rng.choice(["win", "loss"])} if over else {"role": "user"}
        reward = REWARDS.get(mode, self.rng.random())
        return "2" * (30_000_000 if mode == "large" else 1), reward, over, False, info
