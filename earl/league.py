"""A league: every pair of players meets from both seats, and ratings say how strong each is.

    openings ─▶ games of every pair, all side by side ─▶ points ─▶ Bradley-Terry ratings with intervals

A player is a checkpoint, which plays greedily, or a scripted opponent. Every game begins with a random opening, which
each pair plays from both seats: greedy players alone would play one game again and again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import log
from random import Random
from typing import Any

import numpy as np

from earl.agents.scripted.registry import player as scripted_player
from earl.envs.games.base import Player
from earl.envs.games.env import BoardGameEnv, SharedSeat
from earl.errors import EarlError
from earl.evaluation import WAVE
from earl.rollout.drivers import BatchSampler, Greedy, play
from earl.rollout.episode import Episode
from earl.rollout.self_play import PairedEpisodes
from earl.rollout.tasks import OTHER_SEAT, EpisodeFactory, board_game
from earl.seeds import derive
from earl.trajectory import FAULTS, FORFEITS, Task

OPENING = 2
"""Random moves at the beginning of a game, of both seats together."""
PRIOR = 5.0
"""Standard deviation of a rating, in logits, that is assumed before any game: finite where a player won them all."""
ELO = 400 / log(10)
"""Points of a rating in a logit: with 400 more a player wins 10 of 11 games."""


@dataclass(frozen=True, slots=True)
class GameResult:
    players: tuple[str, str]  # by seat
    points: float  # of the first seat: 1 for a win, 0.5 for a draw
    forfeit: bool


@dataclass(frozen=True, slots=True)
class Rating:
    name: str
    elo: float  # the mean of a league is 0
    low: float  # 95 % interval
    high: float
    games: int
    points: float


@dataclass(slots=True)
class OpeningMover:
    """Makes the opening's moves, then those of the scripted seats."""

    opening: Random
    scripted: Mapping[int, tuple[Player, Random]]  # by seat
    left: int = OPENING

    def move(self, board: BoardGameEnv) -> None:
        while self.left and (quiet := [move for move in board.legal if not _ends_game(board, move)]):
            board.move(self.opening.choice(quiet))
            self.left -= 1
        self.left = 0
        while not board.over and board.player in self.scripted:
            own, rng = self.scripted[board.player]
            board.move(board.game.actions[own.move(board.game, board.state, rng)])


def _ends_game(board: BoardGameEnv, action: str) -> bool:
    return board.game.over(board.game.play(board.state, board.game.actions.index(action)))


@dataclass(frozen=True, slots=True)
class League:
    env: str
    options: Mapping[str, Any]  # of the environment
    worlds: Mapping[str, EpisodeFactory]  # how each checkpoint plays, by its name; other players are scripted
    sampler: BatchSampler | None  # replies for the checkpoints, by the policy of a prompt

    def play(self, players: Sequence[str], openings: int, seed: int) -> list[GameResult]:
        """Every pair meets from both seats in so many openings. Raises EarlError where the environment is no board game
        of earl's, or fails."""
        pairs = [pair for a, b in combinations(players, 2) for pair in ((a, b), (b, a))]
        games = [(pair, number) for number in range(openings) for pair in pairs]
        results: list[GameResult] = []
        for start in range(0, len(games), WAVE):
            some = enumerate(games[start : start + WAVE])
            wave = [self._game(pair, number, i, seed, board_game(self.env, self.options)) for i, (pair, number) in some]
            self._play_out(wave)
            results += [_result(pair, one) for (pair, _), one in zip(games[start:], wave, strict=False)]
        return results

    def show(self, pair: tuple[str, str], seed: int, shown: Callable[[BoardGameEnv], BoardGameEnv]) -> GameResult:
        """One game without an opening, on a board that shows it."""
        game = self._game(pair, 0, 0, seed, shown(board_game(self.env, self.options)), opening=0)
        self._play_out([game])
        return _result(pair, game)

    def _play_out(self, games: Sequence[PairedEpisodes | BoardGameEnv]) -> None:
        """Play the games that wait for a checkpoint's moves to their end."""
        if waiting := [game for game in games if isinstance(game, PairedEpisodes)]:
            assert self.sampler is not None, "a checkpoint plays"
            play(waiting, Greedy(self.sampler, opponents=True))

    def _game(
        self, pair: tuple[str, str], number: int, session: int, seed: int, board: BoardGameEnv, opening: int = OPENING
    ) -> PairedEpisodes | BoardGameEnv:
        """A game that waits for its first prompt; of two scripted players the board at its end."""
        own = [derive("league", seed, *pair, number, seat) for seat in (0, 1)]
        seats = [seat for seat, name in enumerate(pair) if name not in self.worlds]
        scripted = {seat: (scripted_player(pair[seat], self.env), Random(own[seat])) for seat in seats}
        deal = derive("league", seed, "deal", number)
        hands = OpeningMover(Random(derive("league", seed, "opening", number)), scripted, opening)
        if len(scripted) < 2:
            return PairedEpisodes(board, partial(self._seat, pair, own, session), hands.move, deal)
        board.begin(deal)
        hands.move(board)
        return board

    def _seat(self, pair: tuple[str, str], seeds: Sequence[int], session: int, env: SharedSeat) -> Episode:
        name = pair[env.seat]
        world = self.worlds[name].of(self.env)
        world.take_seat(env, name)
        task = Task(self.env, seeds[0], env.seat, pair[1 - env.seat])
        episode = Episode(env, world.chat, world.rules, task, seeds[env.seat], session + OTHER_SEAT * env.seat)
        episode.policy = name
        return episode


def _result(pair: tuple[str, str], game: PairedEpisodes | BoardGameEnv) -> GameResult:
    board = game if isinstance(game, BoardGameEnv) else game.board
    if isinstance(game, PairedEpisodes):
        if game.mover.stop in FAULTS:
            raise EarlError(f"{board.game.name} fails: {game.mover.error}; check it with `earl envs check`")
        if game.mover.stop in FORFEITS:
            return GameResult(pair, float(game.mover.task.seat), True)
    winner = board.game.winner(board.state)
    return GameResult(pair, 0.5 if winner is None else 1.0 - winner, False)


def ratings(players: Sequence[str], results: Sequence[GameResult]) -> list[Rating]:
    """The strongest first: log P(i beats j) / P(j beats i) = r_i - r_j (Bradley and Terry 1952), a draw as half a win,
    at the most likely r under the prior; intervals from the Fisher information, too wide where many games are drawn."""
    at = {name: number for number, name in enumerate(players)}
    points = np.zeros((len(players), len(players)))  # [i, j]: of i against j
    for result in results:
        first, second = (at[name] for name in result.players)
        points[first, second] += result.points
        points[second, first] += 1 - result.points
    games, rated = points + points.T, np.zeros(len(players))
    for _ in range(100):
        chance = 1 / (1 + np.exp(rated[None, :] - rated[:, None]))
        weight = games * chance * (1 - chance)
        information = np.diag(weight.sum(1) + PRIOR**-2) - weight
        step = np.linalg.solve(information, (points - games * chance).sum(1) - rated / PRIOR**2)
        rated += np.clip(step, -1, 1)
    centre = np.eye(len(players)) - 1 / len(players)
    spread = 1.96 * np.sqrt(np.diag(centre @ np.linalg.inv(information) @ centre))
    rated = ELO * (rated - rated.mean())
    spread *= ELO
    found = [
        Rating(name, elo, elo - around, elo + around, int(games[at[name]].sum()), float(points[at[name]].sum()))
        for name, elo, around in zip(players, rated.tolist(), spread.tolist(), strict=True)
    ]
    return sorted(found, key=lambda one: -one.elo)
