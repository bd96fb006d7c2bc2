"""What a teacher says of the states that the policy comes to, from the episode to the rows that are learned."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from earl.agents.scripted.registry import agent
from earl.placement.embedded import groups_from_bytes, groups_to_bytes
from earl.rollout.pack import pack
from earl.rollout.tasks import draw
from earl.seeds import derive
from earl.trajectory import Completion


@pytest.fixture(scope="module")
def labelled(tiny, legal):
    """A fragment, and the groups of a step that it played beside the teacher `perfect`."""
    config = tiny(warm_start={"teacher": "perfect", "distill": 1.0}, agent={"retries": 3})
    fragment, drawn = legal(config), draw(config, 4)
    return fragment, fragment.play(4, dict(enumerate(drawn.slots)), drawn.seed, labelled=True)


def test_each_turn_is_labelled_with_the_teachers_move_in_its_state(labelled):
    fragment, groups = labelled
    seen = 0
    for trajectory in (one for group in groups.values() for one in group.trajectories):
        episode = fragment.world.episode(trajectory.task, trajectory.seed, 0)
        assert [*trajectory.labels] == [*range(len(trajectory.turns))]
        for number, turn in enumerate(trajectory.turns):
            rng = Random(derive(trajectory.seed, "teacher", len(episode.token_log)))
            action = agent("perfect", "tictactoe").act(episode.env, rng)
            assert trajectory.labels[number] == episode.chat.written(action)
            span = slice(turn.action_start, turn.end)
            tokens, versions = trajectory.tokens[span].tolist(), trajectory.versions[span].tolist()
            finished = tokens[-1] in episode.chat.stop
            episode.receive(Completion(tokens, trajectory.logprobs[span].tolist(), versions, finished))
            seen += turn.action is not None
    assert seen > 20


def test_what_is_played_does_not_depend_on_the_teacher(labelled):
    fragment, groups = labelled
    drawn = draw(fragment.config, 4)
    alone = fragment.play(4, dict(enumerate(drawn.slots)), drawn.seed)
    for number, group in groups.items():
        for one, other in zip(group.trajectories, alone[number].trajectories, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert not other.labels


def test_labels_reach_other_processes_and_the_rows(labelled):
    _, groups = labelled
    there = groups_from_bytes(groups_to_bytes(groups))
    played = [one for group in there.values() for one in group.trajectories]
    rows = pack(played)
    plain = pack([replace(one, labels={}) for one in played])
    assert (plain.targets == plain.tokens).all()
    taught = rows.targets < 0
    assert (rows.mask[taught]).all() and (rows.targets[~taught] == rows.tokens[~taught]).all()
    assert rows.mask.tolist() == plain.mask.tolist()
    # A turn is labelled up to the first token that departs: by turn, all labels but the last are what was played.
    labels = np.where(taught, -1 - rows.targets, -1)
    numbered = [number for one in played for number in one.labels.values()]
    for turn, label in enumerate(numbered):
        places = np.flatnonzero((rows.turns == turn) & taught)
        assert labels[places].tolist() == [*label][: len(places)]
        assert (labels[places[:-1]] == rows.tokens[places[:-1]]).all()
        assert len(places) == len(label) or labels[places[-1]] != rows.tokens[places[-1]]
