"""Demonstrations: episodes played by a scripted teacher, with clean labels under noisy execution."""

from collections.abc import Mapping, Sequence
from random import Random

from earl.agents.scripted.base import Agent
from earl.errors import EarlError, boundary
from earl.rollout.episode import Episode
from earl.rollout.prompt import Completion
from earl.trajectory import Trajectory


def demonstrate(
    episodes: Sequence[Episode], agents: Mapping[str, tuple[Agent, Agent]], noise: float
) -> tuple[list[Trajectory], list[dict[int, list[int]]]]:
    """Play all episodes by script. Returns the trajectories, and for each the tokens of the teacher's reply by turn.

    `agents`: environment → teacher, and who disturbs it. Each turn's label is the teacher's action. With probability
    `noise` the other's is played instead, so that the student also sees, correctly labelled, the positions after
    mistakes. Raises EarlError when the teacher's reply is longer than the student's may be.
    """
    labels: list[dict[int, list[int]]] = []
    for episode in episodes:
        rng, own = Random(episode.seed), {}
        teacher, noisy = agents[episode.task.env]
        while episode.stop is None:
            with boundary() as fault:
                clean, played = _actions(episode, teacher, noisy, noise, rng)
            if fault.message:
                episode.fail(fault.message)
                break
            own[len(episode.turns)] = _label(episode, clean)
            written = episode.chat.written(played)
            tokens = written[: episode.prompt().max_tokens]  # cut as a sampler would
            episode.receive(Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), len(tokens) == len(written)))
        labels.append(own)
    return [episode.trajectory() for episode in episodes], labels


def _actions(episode: Episode, teacher: Agent, noisy: Agent, noise: float, rng: Random) -> tuple[str, str]:
    """The teacher's action and the played action. For a summary, both repeat the observation."""
    if episode.summarising:
        return episode.observation, episode.observation
    clean = episode.phrased(teacher.act(episode.env, rng))
    return clean, episode.phrased(noisy.act(episode.env, rng)) if rng.random() < noise else clean


def _label(episode: Episode, action: str) -> list[int]:
    tokens, limit = episode.chat.written(action), episode.reply_tokens
    if episode.summarising:
        return tokens[:limit]
    if len(tokens) > limit:
        raise EarlError(
            f"agent.max_turn_tokens is {limit}, but the teacher's reply {action!r} takes {len(tokens)} with "
            f"its end: the student could never finish it; set agent.max_turn_tokens to at least {len(tokens)}"
        )
    return tokens
