"""A dock with room for (max_staleness + 1) steps starts groups exactly when rollout ahead of the learner may."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.ledger import Consumer, Ledger
from earl.dispatch.rows import columns

STEPS = 6
TOKENS = columns(["tokens"])


@given(st.integers(1, 3), st.integers(0, 3), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_room_is_the_bound_of_staleness(prompts, max_staleness, size, random):
    learner = Consumer("learner", TOKENS, np.zeros((1, 1, 1), np.int64), in_order=True)
    dock = Ledger(TOKENS, [learner], (max_staleness + 1) * prompts * size)
    opened: list[int] = []  # all groups so far
    playing: list[int] = []
    for step in range(1, STEPS + 1):
        # The weights of version step - 1 are there, and with them may start what is learned by step + max_staleness.
        before = len(opened)
        while len(opened) < STEPS * prompts and (rows := dock.open(size)) is not None:
            opened.append(int(rows[0]))
        assert len(opened) == min(STEPS, step + max_staleness) * prompts
        playing += opened[before:]
        handout = None
        while (handout := dock.take("learner", prompts)) is None:
            ended = playing.pop(random.randrange(len(playing)))  # in whatever order they come to an end
            dock.ready(np.arange(ended, ended + size), np.ones(size, np.int64), 0, ["tokens"])
        assert handout.groups.tolist() == opened[(step - 1) * prompts : step * prompts]
        dock.done(handout)  # version `step` is with the samplers
