"""Evaluation of a policy: sampled matches with intervals, or exact enumeration of the opponent's replies; what a
solver says of its moves; the proof of an enumeration, which `docs/check_proof.py` checks:

    tictactoe
    seat 1: 58 win, 2 draw, 0 loss, 0 forfeit
    5172986 win                                  the moves of both sides, and what they came to for the policy
    …
    seat 2: …
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop
from itertools import islice
from math import fsum, inf
from random import Random
from typing import Any

from earl.agents.scripted import perfect
from earl.agents.scripted.registry import ANY, is_policy
from earl.agents.scripted.registry import player as scripted_player
from earl.envs import registry
from earl.envs.games.base import Game, Player, State
from earl.errors import EarlError
from earl.matches import MOST_LOST, MatchResult
from earl.rollout.drivers import BatchSampler, play
from earl.rollout.episode import Episode
from earl.rollout.metrics import match_measures
from earl.rollout.tasks import EpisodeFactory
from earl.seeds import derive
from earl.trajectory import FAULTS, FORFEITS, Outcome, Task, Trajectory

MAX_LEAVES = 50_000
WAVE = 1024  # episodes played side by side
FINAL_GAMES = "final evaluation"
"""Seeds of the games that a result is told from. Those by which a run selects its weights come from EVALUATION: the
best of many evaluations is partly luck, which other games do not repeat."""
MAX_SOLVED = 200
"""Positions of a match that a solver is asked about: the first ones that differ."""


@dataclass(frozen=True, slots=True)
class Match:
    opponent: str
    seat: int
    exact: bool = False
    episodes: int = 400  # games, or held-out tasks; unused when exact
    env: str = ""  # one of the run's other environments; else its own
    stream: str = FINAL_GAMES  # of the seeds


def matches(
    world: EpisodeFactory, opponents: Sequence[str], exact: bool, episodes: int, stream: str = FINAL_GAMES
) -> list[Match]:
    """Every opponent from every seat; in tool tasks, the held-out tasks.
    Raises EarlError for opponents in a tool task, and for none or one that does not exist in a game."""
    if world.seats == 1:
        if any(opponents) or exact:
            raise EarlError(f"{world.env} is a task without opponents; leave out --opponent and --exact")
        return [Match("", 0, False, episodes, world.env, stream)]
    if not opponents:
        raise EarlError(f"{world.env} needs an opponent; name one with --opponent, such as random")
    if ANY in opponents and not exact:
        raise EarlError(f"opponent {ANY!r} stands for every legal reply; it needs --exact")
    for name in opponents:
        if name != ANY and not is_policy(name):
            scripted_player(name, world.env)
    if exact and getattr(registry.make(world.env, **world.options), "dealt", False):
        raise EarlError(f"{world.env} deals at random, and --exact lists replies alone; leave it out to sample games")
    return [Match(name, seat, exact, episodes, world.env, stream) for name in opponents for seat in range(world.seats)]


def evaluate(world: EpisodeFactory, sampler: BatchSampler, match: Match, seed: int = 0) -> MatchResult:
    """Play one match; episodes that end by a fault count as lost. In one of the run's other environments, the result's
    opponent begins with its name. Raises EarlError when a tree has more than MAX_LEAVES leaves."""
    return evaluated(world, sampler, match, seed, {})[0]


Tree = tuple[list[Episode], list[float]]
"""Every leaf of the tree of an opponent's replies, with its probability; or sampled games, all with the same."""
Trees = dict[tuple[str, int], Tree]
"""By environment and seat, those in which every legal reply is made: `random` and ANY have the same leaves."""


def evaluated(
    world: EpisodeFactory, sampler: BatchSampler, match: Match, seed: int, trees: Trees
) -> tuple[MatchResult, list[Episode]]:
    """As `evaluate`; also the episodes. trees: of the same policy, those that earlier matches have enumerated."""
    own = world.of(match.env)
    episodes, weights = _tree(own, sampler, match, trees) if match.exact else _sample(own, sampler, match, seed)
    if match.opponent == ANY:
        weights = [1.0] * len(episodes)
    if not episodes:
        raise EarlError(f"no game against {match.opponent!r} came to seat {match.seat + 1}; name another opponent")
    played = [episode.trajectory() for episode in episodes]
    opponent = match.opponent if own is world else f"{match.env} {match.opponent}".strip()
    measures = match_measures(played, weights) | _distinct_games(episodes, played) | _judge_moves(episodes, weights)
    return MatchResult(own.env, opponent, match.seat, match.exact, len(episodes), **measures), episodes


def strength(results: Sequence[MatchResult]) -> tuple[float, float]:
    """Key that selects the best weights: fewest losses, then most wins. Larger is better."""
    return (-sum(result.loss for result in results), sum(result.win for result in results))


def collapsed(results: Sequence[MatchResult], best: tuple[float, float], margin: float) -> bool:
    """Whether the mean fraction of lost games is more than `margin` above that of the `best` (see `strength`)."""
    return (best[0] - strength(results)[0]) / max(1, len(results)) > margin


@dataclass(frozen=True, slots=True)
class Line:
    """A line of play: the moves of both sides from the beginning, and what it came to for the policy."""

    game: Game
    moves: tuple[int, ...]
    result: str  # an Outcome, or FORFEIT

    @property
    def text(self) -> str:
        return "".join(self.game.actions[move] for move in self.moves)


FORFEIT = "forfeit"


def line_of(episode: Episode) -> Line | None:
    """The line of play of an ended episode; None where it had no board, or moves that cannot be told from it."""
    if episode.board is None or episode.board.dealt:
        return None
    game, moves = episode.board.game, list[int]()
    state = game.deals[0][0]
    actions = [turn.action for turn in episode.turns if turn.action is not None]
    for before, action in [*zip(episode.positions, actions, strict=False), (episode.board.state, None)]:
        if state != before:
            moves += (reply := [move for move in game.legal(state) if game.play(state, move) == before][:1])
            state = before if reply else state
        if state != before:
            return None
        if action is not None:
            moves.append(game.shown(state)[1].index(action))
            state = game.play(state, moves[-1])
    return Line(game, tuple(moves), FORFEIT if episode.stop in FORFEITS else episode.outcome.value)


def proof(by_seat: Sequence[Sequence[Episode]]) -> str:
    """The text of a proof: every line of play of both seats, each game as moves in the order in which they were made.
    Raises EarlError where an episode has no line of play that a plain board could replay."""
    parts = []
    for seat, episodes in enumerate(by_seat, 1):
        lines = [line for line in map(line_of, episodes) if line is not None]
        if len(lines) < len(episodes):
            raise EarlError(f"{episodes[0].task.env} has no board whose moves could be written down; leave out --proof")
        counts = ", ".join(f"{sum(line.result == name for line in lines)} {name}" for name in (*Outcome, FORFEIT))
        parts += [f"seat {seat}: {counts}", *sorted(f"{line.text or '-'} {line.result}" for line in lines)]
    return "\n".join([by_seat[0][0].task.env, *parts, ""])


def _distinct_games(episodes: Sequence[Episode], played: Sequence[Trajectory]) -> dict[str, Any]:
    """The number of episodes that differ, their results, and the games that were lost."""
    once: dict[object, Outcome] = {}
    lost: dict[str, None] = {}
    for episode, trajectory in zip(episodes, played, strict=True):
        line, actions = line_of(episode), tuple(turn.action for turn in trajectory.turns)
        once.setdefault(line or (trajectory.states, actions, trajectory.outcome), trajectory.outcome)
        if line and line.result in (Outcome.LOSS, FORFEIT):
            lost[" ".join(line.game.actions[move] for move in line.moves)] = None
    shares = {f"distinct_{own}": [*once.values()].count(own) / len(once) for own in Outcome}
    return {"distinct_games": len(once), **shares, "lost": (*islice(lost, MOST_LOST),)}


def _judge_moves(episodes: Sequence[Episode], weights: Sequence[float]) -> dict[str, Any]:
    """What a solver says of the moves, each as often as it was made; of the first MAX_SOLVED that differ."""
    if not episodes or episodes[0].board is None:
        return {}
    game = episodes[0].board.game
    made: Counter[tuple[State, str]] = Counter()
    for episode, weight in zip(episodes, weights, strict=True):
        actions = [turn.action for turn in episode.turns if turn.action is not None]
        for key in zip(episode.positions, actions, strict=False):
            made[key] += weight  # type: ignore[assignment]
    judged = [(key, times) for key, times in made.items() if perfect.solved_soon(game, key[0])][:MAX_SOLVED]
    losses = [(_value_lost(game, *key), times) for key, times in judged]
    total = fsum(times for _, times in losses)
    optimal, lost = fsum(times for loss, times in losses if not loss), fsum(loss * times for loss, times in losses)
    return {"optimal": optimal / total, "value_lost": lost / total} if total else {}


def _value_lost(game: Game, state: State, action: str) -> int:
    values = {move: end.value for move, end in perfect.solved(game, state).items()}
    return max(values.values()) - values[game.shown(state)[1].index(action)]


def _sample(world: EpisodeFactory, sampler: BatchSampler, match: Match, seed: int) -> Tree:
    played: list[Episode] = []
    for start in range(0, match.episodes, WAVE):
        episodes = []
        for number in range(start, min(start + WAVE, match.episodes)):
            own = derive(match.stream, seed, match.opponent, match.seat, number)
            task = Task(world.env, own, match.seat, match.opponent)
            episodes.append(world.game(task, own, number - start))
        play(episodes, sampler)
        played += [own for episode in episodes for own in episode.learners() if own.task.seat == match.seat]
    return played, [1.0] * len(played)


@dataclass(slots=True)
class Explorer:
    """Opponent that makes the moves of a script, then the first of its options, and records the others. Playing all
    recorded scripts visits every leaf of the tree of its options exactly once."""

    options: "Callable[[Game, State, Explorer], Sequence[tuple[Any, int]]]"
    """Moves, each with a key, such as the probability of the path with it."""
    key: Any  # of the path
    script: tuple[int, ...]
    path: list[int] = field(default_factory=list)
    others: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)

    def move(self, game: Game, state: State, rng: Random) -> int:
        if len(self.path) < len(self.script):
            move = self.script[len(self.path)]
        else:
            (self.key, move), *others = self.options(game, state, self)
            self.others += [(key, (*self.path, other)) for key, other in others]
        self.path.append(move)
        return move


def _tree(world: EpisodeFactory, sampler: BatchSampler, match: Match, trees: Trees) -> Tree:
    if match.opponent not in (ANY, "random"):
        return _enumerate(world, sampler, match)
    if (key := (world.env, match.seat)) not in trees:
        trees[key] = _enumerate(world, sampler, replace(match, opponent="random"))
    return trees[key]


def _enumerate(world: EpisodeFactory, sampler: BatchSampler, match: Match) -> Tree:
    player = scripted_player(match.opponent, world.env)
    if not isinstance(player, Player):
        raise EarlError(f"the replies of an opponent in {world.env} cannot be listed; leave out --exact to sample")
    task = Task(world.env, 0, match.seat, match.opponent)

    def options(game: Game, state: State, explorer: Explorer) -> Sequence[tuple[float, int]]:
        return [(explorer.key * chance, move) for move, chance in player.distribution(game, state)]

    played: list[Episode] = []
    weights: list[float] = []
    pending: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    while pending:
        wave, pending = pending[:WAVE], pending[WAVE:]
        rivals = [Explorer(options, *path) for path in wave]
        episodes = [world.episode(task, 0, i, rival) for i, rival in enumerate(rivals)]
        play(episodes, sampler)
        played += episodes
        weights += [rival.key for rival in rivals]
        pending += [other for rival in rivals for other in rival.others]
        if len(played) + len(pending) > MAX_LEAVES:
            extent = f"{world.env} against {match.opponent} has more than {MAX_LEAVES} leaves"
            raise EarlError(f"{extent}; leave out --exact to sample")
    return played, weights


# The exploiter: the shortest line of play that a policy loses.

LOOK_AHEAD = 4
"""Plies that an exploiter looks ahead in a game that is not solved."""
SIDE_BY_SIDE = 64
Promise = tuple[float, int]
"""How promising a move is for the exploiter, the least first: by what it comes to, then by the length of the game."""


def _promising(game: Game, state: State, explorer: Explorer) -> Sequence[tuple[Promise, int]]:
    """The exploiter's moves, the most promising first."""
    plies = 2 * len(explorer.path) + state.player + 1  # moves of both sides, this one included
    return sorted((_promise(game, state, move, plies), move) for move in game.legal(state))


def _promise(game: Game, state: State, move: int, plies: int) -> Promise:
    if perfect.solved_soon(game, state):
        end = perfect.solved(game, state)[move]
        return -end.value, plies + (end.plies - 1) * (end.value > 0)
    after = game.play(state, move)
    theirs = perfect.search(game, after, LOOK_AHEAD - 1, -2 * perfect.WIN, 2 * perfect.WIN, {})
    return max(-1.0, min(1.0, theirs / perfect.WIN)), plies


@dataclass(frozen=True, slots=True)
class Exploit:
    line: Line | None  # the shortest one found that the policy loses
    games: int  # that were played against it
    complete: bool  # no shorter line exists; without a line, none at all


def exploit(world: EpisodeFactory, sampler: BatchSampler, seat: int, games: int) -> Exploit:
    """Search the replies to a policy at a seat, those first that promise to beat it, until nothing shorter is left or
    so many games were played. Raises EarlError where the game has no board of earl's, or an environment fails."""
    if world.seats == 1:
        raise EarlError(f"{world.env} is a task without opponents; name a run of a game")
    pending: list[tuple[Promise, tuple[int, ...]]] = [((0.0, 0), ())]
    best, played = None, 0
    while pending and played < games:
        size = min(SIDE_BY_SIDE, games - played, len(pending))
        rivals = [Explorer(_promising, *heappop(pending)) for _ in range(size)]
        episodes = [world.episode(Task(world.env, 0, seat, ANY), 0, i, rival) for i, rival in enumerate(rivals)]
        if faults := [trajectory.error for trajectory in play(episodes, sampler) if trajectory.stop in FAULTS]:
            raise EarlError(f"{world.env} fails: {faults[0]}; check it with `earl envs check`")
        played += size
        for line in map(line_of, episodes):
            if line is None:
                raise EarlError(f"{world.env} has no board whose moves could be searched; name another environment")
            if line.result in (Outcome.LOSS, FORFEIT) and (best is None or len(line.moves) < len(best.moves)):
                best = line
        found = [other for rival in rivals for other in rival.others]
        longest = len(best.moves) if best else inf
        pending = [other for other in [*pending, *found] if 2 * len(other[1]) - seat < longest]
        heapify(pending)
    return Exploit(best, played, not pending)
