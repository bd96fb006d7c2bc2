"""Evaluation of a policy: sampled matches with intervals, or exact enumeration of the opponent's replies."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from earl.agents.scripted.registry import player as scripted_player
from earl.envs import registry
from earl.envs.games.base import Game, Player, State
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.rollout.drivers import Completes, play
from earl.rollout.metrics import match_results
from earl.rollout.tasks import EVALUATION, EpisodeFactory
from earl.seeds import derive
from earl.trajectory import Task, Trajectory

ANY = "any"
"""Opponent of exact evaluation that may play every legal move; its fractions are of leaves."""
MAX_LEAVES = 50_000
WAVE = 1024  # episodes played side by side


@dataclass(frozen=True, slots=True)
class Match:
    opponent: str
    seat: int
    exact: bool = False
    episodes: int = 400  # games, or held-out tasks; not read when exact
    env: str = ""  # one of the run's other environments; else its own


def matches(world: EpisodeFactory, opponents: Sequence[str], exact: bool, episodes: int) -> list[Match]:
    """Every opponent from every seat; in tool tasks, the held-out tasks.
    Raises EarlError for opponents in a tool task, and for none in a game."""
    if world.seats == 1:
        if any(opponents) or exact:
            raise EarlError(f"{world.env} is a task without opponents; leave out --opponent and --exact")
        return [Match("", 0, False, episodes, world.env)]
    if not opponents:
        raise EarlError(f"{world.env} needs an opponent; name one with --opponent, such as random")
    if ANY in opponents and not exact:
        raise EarlError(f"opponent {ANY!r} stands for every legal reply; it needs --exact")
    if exact and getattr(registry.make(world.env, **world.options), "dealt", False):
        raise EarlError(f"{world.env} deals at random, and --exact lists replies alone; leave it out to sample games")
    return [Match(name, seat, exact, episodes, world.env) for name in opponents for seat in range(world.seats)]


def evaluate(world: EpisodeFactory, sampler: Completes, match: Match, seed: int = 0) -> MatchResult:
    """Play one match; episodes that end by a fault count as lost. In one of the run's other environments, the result's
    opponent begins with its name. Raises EarlError when a tree has more than MAX_LEAVES leaves."""
    own, weights = world.of(match.env), None
    if match.exact:
        played, weights = _enumerate(own, sampler, match)
    else:
        played = _sample(own, sampler, match, seed)
    result = match_results(played, weights, match.exact)[0]
    return result if own is world else replace(result, opponent=f"{match.env} {match.opponent}".strip())


def strength(results: Sequence[MatchResult]) -> tuple[float, float]:
    """Key that selects the best weights: fewest losses, then most wins. Larger is better."""
    return (-sum(result.loss for result in results), sum(result.win for result in results))


def collapsed(results: Sequence[MatchResult], best: tuple[float, float], margin: float) -> bool:
    """Whether the mean fraction of lost games is more than `margin` above that of the `best` (see `strength`)."""
    return (best[0] - strength(results)[0]) / max(1, len(results)) > margin


def _sample(world: EpisodeFactory, sampler: Completes, match: Match, seed: int) -> list[Trajectory]:
    played: list[Trajectory] = []
    for start in range(0, match.episodes, WAVE):
        episodes = []
        for number in range(start, min(start + WAVE, match.episodes)):
            own = derive(EVALUATION, seed, match.opponent, match.seat, number)
            task = Task(world.env, own, match.seat, match.opponent)
            episodes.append(world.game(task, own, number - start))
        played += play(episodes, sampler)
    return played


@dataclass(slots=True)
class Script:
    """Opponent that follows a script of choices, then takes the first choice and records the alternatives. Playing all
    recorded scripts visits every leaf of the tree of the opponent's replies exactly once."""

    player: Player
    script: tuple[int, ...]
    path: list[int] = field(default_factory=list)
    weight: float = 1.0  # probability of the path, by the player's distribution
    others: list[tuple[int, ...]] = field(default_factory=list)

    def move(self, game: Game, state: State, rng: Random) -> int:
        del rng
        choices = self.player.distribution(game, state)
        place = len(self.path)
        choice = self.script[place] if place < len(self.script) else 0
        if place >= len(self.script):
            self.others += [(*self.path, other) for other in range(1, len(choices))]
        self.path.append(choice)
        self.weight *= choices[choice][1]
        return choices[choice][0]


def _enumerate(world: EpisodeFactory, sampler: Completes, match: Match) -> tuple[list[Trajectory], list[float]]:
    """Every leaf of the tree of the opponent's replies, with its probability; for ANY, all leaves weigh the same."""
    player = scripted_player("random" if match.opponent == ANY else match.opponent, world.env)
    if not isinstance(player, Player):
        raise EarlError(f"the replies of an opponent in {world.env} cannot be listed; leave out --exact to sample")
    task = Task(world.env, 0, match.seat, match.opponent)
    played: list[Trajectory] = []
    weights: list[float] = []
    pending: list[tuple[int, ...]] = [()]
    while pending:
        wave, pending = pending[:WAVE], pending[WAVE:]
        scripts = [Script(player, script) for script in wave]
        episodes = [world.episode(task, 0, i, opponent) for i, opponent in enumerate(scripts)]
        played += play(episodes, sampler)
        weights += [1.0 if match.opponent == ANY else script.weight for script in scripts]
        pending += [other for script in scripts for other in script.others]
        if len(played) + len(pending) > MAX_LEAVES:
            raise EarlError(
                f"{world.env} against {match.opponent} has more than {MAX_LEAVES} leaves; leave out --exact to sample"
            )
    return played, weights
