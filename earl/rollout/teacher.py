"""Episodes played by a scripted teacher: clean labels on games with noisy execution."""

from collections.abc import Sequence
from random import Random

from earl.agents.scripted.base import Agent
from earl.rollout.episode import Completion, Episode
from earl.trajectory import Trajectory


def demonstrate(
    episodes: Sequence[Episode], teacher: Agent, noisy: Agent, noise: float
) -> tuple[list[Trajectory], list[dict[int, list[int]]]]:
    """Play all episodes by script.

    Every turn the teacher names its action, which becomes the label. With probability `noise` the action of
    `noisy` is played in its place, so that the student also sees, rightly labelled, where mistakes lead.

    Returns:
        the trajectories, and for each the tokens of the teacher's reply by turn.
    """
    labels: list[dict[int, list[int]]] = []
    for episode in episodes:
        rng, own = Random(episode.seed), {}
        while episode.stop is None:
            clean = teacher.act(episode.env, rng)
            played = noisy.act(episode.env, rng) if rng.random() < noise else clean
            own[len(episode.turns)] = episode.chat.written(clean)
            tokens = episode.chat.written(played)
            episode.receive(Completion(tokens, [0.0] * len(tokens), 0, finished=True))
        labels.append(own)
    return [episode.trajectory() for episode in episodes], labels
