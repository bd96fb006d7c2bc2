"""Which of the stored episodes are shown: as varied as they come."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from earl.trajectory import Experience, Trajectory


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """A trajectory and where it is stored."""

    step: int
    number: int
    """Its place in the step's file, from 0."""
    trajectory: Trajectory
    experience: Experience | None = None
    """What training made of it; None when that was not stored."""


Feature = tuple[str, object]


def choose(episodes: Sequence[StoredEpisode], limit: int) -> list[StoredEpisode]:
    """Up to `limit` different episodes that vary in step, opponent, seat, outcome and stop reason.

    Each next one is the first whose features have been chosen least so far. What is the same token by token
    in the same step is taken once.
    """
    buckets: defaultdict[tuple[Feature, ...], deque[StoredEpisode]] = defaultdict(deque)
    known: set[tuple[int, bytes]] = set()
    for episode in episodes:
        key = episode.step, episode.trajectory.tokens.tobytes()
        if key not in known:
            known.add(key)
            buckets[_features(episode)].append(episode)
    seen: Counter[Feature] = Counter()
    chosen: list[StoredEpisode] = []
    while buckets and len(chosen) < limit:
        features = min(buckets, key=lambda bucket: sum(seen[feature] for feature in bucket))
        seen.update(features)
        chosen.append(buckets[features].popleft())
        if not buckets[features]:
            del buckets[features]
    return sorted(chosen, key=lambda episode: (-episode.step, episode.number))


def _features(episode: StoredEpisode) -> tuple[Feature, ...]:
    played, task = episode.trajectory, episode.trajectory.task
    return (
        ("step", episode.step),
        ("opponent", task.opponent),
        ("seat", task.seat),
        ("outcome", played.outcome),
        ("stop", played.stop),
        ("illegal", played.illegal > 0),
        ("pair", (task.opponent, task.seat, played.outcome)),
    )
