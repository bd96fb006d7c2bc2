"""Episodes that nobody plays have the length that is asked for, and the turns and shares of those that were played."""

import numpy as np

from earl.batch import distinct
from earl.rollout.synthetic import SyntheticEpisodes, rows_of, sample
from earl.trajectory import Completion

TWO = SyntheticEpisodes(tokens=20, turns=2, sampled=0.3, vocab=50)


class Brief:
    """Samples at most two tokens at a time."""

    def __init__(self):
        self.prompts, self.released = [], []

    def generate(self, prompts):
        self.prompts.append(prompts)
        counts = [min(2, prompt.max_tokens) for prompt in prompts]
        return [Completion([49] * count, [0.0] * count, [0] * count, False) for count in counts]

    def release(self, sessions):
        self.released += sessions


def test_turns_share_the_tokens():
    assert TWO.ends() == [(7, 10), (17, 20)]  # 10 tokens each, 0.3 of them sampled
    assert SyntheticEpisodes(5, 9, 0.9, 50).ends() == [(1, 2), (3, 5)]  # 2 turns: one token of each is read


def test_rows_learn_their_replies():
    rows = rows_of(TWO, [3, 5], seed=1)
    assert rows.lengths.tolist() == [20, 20]
    assert np.flatnonzero(rows.mask).tolist() == [7, 8, 9, 17, 18, 19, 27, 28, 29, 37, 38, 39]
    assert np.flatnonzero(rows.value_mask).tolist() == [6, 16, 26, 36]
    assert rows.turns[rows.value_mask].tolist() == [0, 1, 2, 3]
    assert (rows.turns >= 0).sum() == 16  # 4 turns of 3 tokens and the place of their value
    assert rows.tokens.max() < 50
    assert len(distinct(rows)[0]) == 2
    assert rows_of(TWO, [5], seed=1).tokens.tolist() == rows.tokens[20:].tolist()  # whoever makes it
    assert rows_of(TWO, [], seed=1).num_rows == 0


def test_replies_go_on_until_they_are_as_long_as_is_asked_for():
    brief = Brief()
    sample(TWO, brief, [0, 1, 2], group_size=2, seed=1)
    lengths = [[(len(prompt.tokens), prompt.max_tokens) for prompt in call] for call in brief.prompts]
    assert lengths == [[(7, 3)] * 3, [(9, 1)] * 3, [(17, 3)] * 3, [(19, 1)] * 3]
    first = [prompt.tokens for prompt in brief.prompts[0]]
    assert first[0] == first[1] != first[2]  # a group reads the same
    assert brief.prompts[2][0].tokens[7:10] == (49, 49, 49)  # what was sampled is read on
    assert brief.released == [0, 1, 2]
