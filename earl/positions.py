"""What a solver says of a policy's moves at positions that are the same for every policy. In games of its own a weak
policy is lost early, where every move keeps the value: the share of optimal moves there flatters it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from earl.agents.scripted import perfect
from earl.agents.scripted.registry import player as scripted_player
from earl.envs.base import Info
from earl.envs.games.base import Game
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError
from earl.rollout.drivers import BatchSampler, play
from earl.rollout.episode import Episode
from earl.rollout.tasks import EpisodeFactory, board_game
from earl.trajectory import FAULTS, Task

PLAYERS = ("random", "alphabeta:4@0.3")
"""Either may have a seat of the games that positions are drawn from."""
SIDE_BY_SIDE = 1024


class OnePosition(BoardGameEnv):
    """A game that begins at a position and ends with the next move."""

    def __init__(self, game: Game, position: Any) -> None:
        super().__init__(game, position.player)
        self.max_turns, self._position = 1, position

    def reset(self, **unused: Any) -> tuple[str, Info]:  # type: ignore[override]
        self.moves, self.state = [], self._position
        observation, *_, info = self.seen_by(self.seat)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        self.move(self.plain_action(action))
        return "", 0.0, True, False, {"role": "user", "legal_actions": (), "outcome": "draw"}


@dataclass(frozen=True, slots=True)
class PositionResult:
    seat: int  # to move
    positions: int
    optimal: int  # where the first reply keeps the value of the position
    illegal: int  # where it is no legal move


def judged(world: EpisodeFactory, sampler: BatchSampler, games: int, seed: int = 0) -> list[PositionResult]:
    """The first replies of a policy at `drawn_positions`, by seat. Raises EarlError for a game without a solver, and
    where a reply fails."""
    if world.env not in perfect.SOLVERS:
        raise EarlError(f"{world.env} has no solver to judge moves; --positions is of {' and '.join(perfect.SOLVERS)}")
    game, episodes = board_game(world.env, world.options).game, []
    kept = drawn_positions(game, games, seed)
    for number, position in enumerate(kept):
        env, task = OnePosition(game, position), Task(world.env, number, position.player, "")
        episodes.append(Episode(env, world.chat, world.rules, task, number, number))
    for start in range(0, len(episodes), SIDE_BY_SIDE):
        ended = play(episodes[start : start + SIDE_BY_SIDE], sampler)
        if faults := [one.error for one in ended if one.stop in FAULTS]:
            raise EarlError(f"no reply at a position: {faults[0]}")
    moves = {position: _first_move(game, episode) for position, episode in zip(kept, episodes, strict=True)}
    return [_counted(seat, [(moves[one], kept[one]) for one in kept if one.player == seat]) for seat in (0, 1)]


def _first_move(game: Game, episode: Episode) -> int | None:
    action = episode.turns[0].action
    return None if action is None else game.shown(episode.positions[0])[1].index(action)


def _counted(seat: int, replies: Sequence[tuple[int | None, set[int]]]) -> PositionResult:
    optimal = sum(move in kept for move, kept in replies)
    return PositionResult(seat, len(replies), optimal, sum(move is None for move, _ in replies))


def value_keeping(game: Game, position: Any) -> set[int]:
    """The legal moves that keep the value of a position: win, draw or loss."""
    values = {move: end.value for move, end in perfect.solved(game, position).items()}
    most = max(values.values())
    return {move for move, value in values.items() if value == most}


def drawn_positions(game: Game, games: int, seed: int) -> dict[Any, set[int]]:
    """From each game of PLAYERS one position that is solved soon and where a legal move loses value, with the moves
    that keep it; those that are alike once."""
    found = dict[Any, set[int]]()
    for number in range(games):
        rng = Random(f"position {seed} {number}")
        passed = _passed(game, rng)
        rng.shuffle(passed)
        judged_moves = ((one, value_keeping(game, one)) for one in passed)
        telling = ((one, kept) for one, kept in judged_moves if len(kept) < len(game.legal(one)))
        found |= dict(islice(telling, 1))
    return found


def _passed(game: Game, rng: Random) -> list[Any]:
    """The positions of a game that are solved soon."""
    players = [scripted_player(rng.choice(PLAYERS), game.name) for _ in range(2)]
    position, passed = game.deals[0][0], []
    while game.legal(position):
        passed += [position] * perfect.solved_soon(game, position)
        position = game.play(position, players[position.player].move(game, position, rng))
    return passed
