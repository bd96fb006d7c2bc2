"""Monte Carlo tree search with random playouts (UCT: Kocsis and Szepesvári 2006) for any board game."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

from earl.agents.scripted.base import ScriptedPlayer
from earl.envs.games.base import Game, State

EXPLORATION = math.sqrt(2)
SEARCHES = 8
"""A player draws one of so many searches for its move, so that its distribution can be computed."""


@dataclass(slots=True)
class TreeNode:
    """A position, with what playouts through it won for the player who moved there."""

    state: State
    untried: list[int]
    visits: int = 0
    wins: float = 0.0
    """A draw is half a win."""
    children: dict[int, "TreeNode"] = field(default_factory=dict)

    def most_urgent(self) -> "TreeNode":
        scale = EXPLORATION * math.sqrt(math.log(self.visits))
        return max(self.children.values(), key=lambda one: one.wins / one.visits + scale / math.sqrt(one.visits))


@lru_cache(maxsize=1 << 16)
def best_move(game: Game, state: State, simulations: int, number: int) -> int:
    """The most visited move of the search of that number: the same whenever it is asked for."""
    rng = Random(f"mcts {game.name} {state.first} {state.second} {simulations} {number}")
    root = _node(game, state, rng)
    for _ in range(simulations):
        _simulate(game, root, rng)
    return max(root.children, key=lambda move: root.children[move].visits)


def _node(game: Game, state: State, rng: Random) -> TreeNode:
    moves = list(game.legal(state))
    rng.shuffle(moves)
    return TreeNode(state, moves)


def _simulate(game: Game, root: TreeNode, rng: Random) -> None:
    path = [root]
    while not path[-1].untried and path[-1].children:
        path.append(path[-1].most_urgent())
    if path[-1].untried:
        move = path[-1].untried.pop()
        child = _node(game, game.play(path[-1].state, move), rng)
        path[-1].children[move] = child
        path.append(child)
    winner = _playout(game, path[-1].state, rng)
    for node in path:
        node.visits += 1
        node.wins += 0.5 if winner is None else float(winner != node.state.player)


def _playout(game: Game, state: State, rng: Random) -> int | None:
    while moves := game.legal(state):
        state = game.play(state, rng.choice(moves))
    return game.winner(state)


@dataclass(frozen=True, slots=True)
class SearchingPlayer(ScriptedPlayer):
    """Draws one of `SEARCHES` searches; `strategy` lists the moves that these come to."""

    simulations: int = 0

    def move(self, game: Game, state: State, rng: Random) -> int:
        if self.epsilon and rng.random() < self.epsilon:
            return rng.choice(game.legal(state))
        return best_move(game, state, self.simulations, rng.randrange(SEARCHES))


def player(simulations: int, epsilon: float) -> SearchingPlayer:
    def moves(game: Game, state: State) -> tuple[int, ...]:
        return tuple(best_move(game, state, simulations, number) for number in range(SEARCHES))

    return SearchingPlayer(moves, epsilon, simulations=simulations)
