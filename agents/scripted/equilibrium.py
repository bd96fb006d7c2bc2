"""Games in which players do not see the same: exact best response, exploitability, and an equilibrium.

A policy is told what a seat is told, never the state, so that it cannot know more: `Game.seen` and the legal actions
give the probability of each action.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

from earl.agents.scripted.base import ScriptedPlayer
from earl.agents.scripted.perfect import anything
from earl.envs.games.base import Game

Policy = Callable[[str, tuple[str, ...]], Sequence[float]]
"""What is seen, and the legal actions → the probability of each."""


def uniform(_seen: str, legal: tuple[str, ...]) -> Sequence[float]:
    return [1 / len(legal)] * len(legal)


def value(game: Game, first: Policy, second: Policy, seat: int = 0) -> float:
    """What a seat gains on average, in the game's own units, when these play."""
    policies = (first, second)

    def of(state: Any) -> float:
        legal = game.legal(state)
        if not legal:
            return game.gain(state, seat)
        chances = policies[state.player](game.seen(state, state.player), game.shown_actions(state))
        return sum(chance * of(game.play(state, move)) for move, chance in zip(legal, chances, strict=True) if chance)

    return sum(chance * of(state) for state, chance in game.deals)


def best_response(game: Game, policy: Policy, seat: int) -> float:
    """The most that a seat can gain on average against a policy, in the game's own units; exact."""
    reached: dict[str, list[tuple[Any, float]]] = defaultdict(list)  # information set → states, and how likely

    def walk(state: Any, likely: float) -> None:
        """Likely: by the deal and by the policy's moves."""
        if state.player == seat and game.legal(state):
            reached[game.seen(state, seat)].append((state, likely))
        for move, chance in chances(state):
            walk(game.play(state, move), likely * chance)

    def chances(state: Any) -> list[tuple[int, float]]:
        legal = game.legal(state)
        if not legal or state.player == seat:
            return [(move, 1.0) for move in legal]
        return [*zip(legal, policy(game.seen(state, state.player), game.shown_actions(state)), strict=True)]

    @cache
    def best_move(seen: str) -> int:
        states = reached[seen]
        moves = game.legal(states[0][0])
        return max(moves, key=lambda move: sum(likely * gain(game.play(state, move)) for state, likely in states))

    @cache
    def gain(state: Any) -> float:
        if not game.legal(state):
            return game.gain(state, seat)
        if state.player == seat:
            return gain(game.play(state, best_move(game.seen(state, seat))))
        return sum(chance * gain(game.play(state, move)) for move, chance in chances(state))

    for state, chance in game.deals:
        walk(state, chance)
    return sum(chance * gain(state) for state, chance in game.deals)


def exploitability(game: Game, policy: Policy) -> float:
    """What a best response gains over the policy itself, averaged over both seats (half of what is called NashConv), in
    the game's own units. 0 in an equilibrium. The policy is asked once for each information set."""
    policy = cache(policy)
    over = [best_response(game, policy, seat) - value(game, policy, policy, seat) for seat in (0, 1)]
    return sum(over) / 2


# An equilibrium of a zero-sum game by predictive CFR+ (Farina, Kroer and Sandholm 2021), its two players in turns.


@dataclass(slots=True)
class InformationSet:
    """What regret matching knows of one, with a number for each legal action."""

    player: int
    regrets: list[float]
    strategy: list[float]
    total: list[float]
    """The sum of the strategies, later ones with more weight: their mean converges."""
    regret: list[float]
    """Of this iteration; also the prediction of the next one's."""

    def update(self) -> None:
        self.regrets = [max(0.0, old + new) for old, new in zip(self.regrets, self.regret, strict=True)]
        hoped = [max(0.0, old + new) for old, new in zip(self.regrets, self.regret, strict=True)]
        if whole := sum(hoped):
            self.strategy = [part / whole for part in hoped]
        self.regret = [0.0] * len(hoped)


Node = float | tuple[InformationSet, tuple["Node", ...]]
"""What the first player gains; else who moves, and what follows each move."""


def _tree(game: Game, state: Any, known: dict[str, InformationSet]) -> Node:
    if not (legal := game.legal(state)):
        return game.gain(state, 0)
    seen, count = game.seen(state, state.player), len(legal)
    if seen not in known:
        known[seen] = InformationSet(state.player, [0.0] * count, [1 / count] * count, [0.0] * count, [0.0] * count)
    return known[seen], tuple(_tree(game, game.play(state, move), known) for move in legal)


def _walk(node: Node, player: int, own: float, others: float, weight: float) -> float:
    """The value for `player`, whose regrets are summed. own, others: how likely the node is by the player's moves, and
    by all else."""
    if isinstance(node, float):
        return -node if player else node
    where, children = node
    moves = [*zip(where.strategy, children, strict=True)]
    if where.player != player:
        # A move of chance 0 is followed as well: the own strategy after it counts towards its mean.
        return sum([chance * _walk(child, player, own, others * chance, weight) for chance, child in moves])
    values = [_walk(child, player, own * chance, others, weight) for chance, child in moves]
    mean = sum([chance * value for chance, value in zip(where.strategy, values, strict=True)])
    for number, (chance, value) in enumerate(zip(where.strategy, values, strict=True)):
        where.regret[number] += others * (value - mean)
        where.total[number] += weight * own * chance
    return mean


ITERATIONS = 300


@cache
def equilibrium(game: Game, iterations: int = ITERATIONS) -> dict[str, tuple[float, ...]]:
    """Information set → the probability of each legal action."""
    known: dict[str, InformationSet] = {}
    trees = [(_tree(game, state, known), chance) for state, chance in game.deals]
    for iteration in range(1, iterations + 1):
        for player in (0, 1):
            for tree, chance in trees:
                _walk(tree, player, 1.0, chance, float(iteration**2))
            for where in known.values():
                if where.player == player:
                    where.update()
    return {seen: _mean(where) for seen, where in known.items()}


def _mean(where: InformationSet) -> tuple[float, ...]:
    whole = sum(where.total)
    return tuple(part / whole if whole else 1 / len(where.total) for part in where.total)


@dataclass(frozen=True, slots=True)
class EquilibriumPlayer(ScriptedPlayer):
    """Draws from the game's equilibrium, with probability `epsilon` from all legal moves."""

    def distribution(self, game: Game, state: Any) -> tuple[tuple[int, float], ...]:
        legal = game.legal(state)
        even = self.epsilon / len(legal)
        chances = equilibrium(game)[game.seen(state, state.player)]
        mixed = [(move, even + (1 - self.epsilon) * chance) for move, chance in zip(legal, chances, strict=True)]
        return tuple((move, chance) for move, chance in mixed if chance > 0)

    def move(self, game: Game, state: Any, rng: Random) -> int:
        moves, chances = zip(*self.distribution(game, state), strict=True)
        return int(rng.choices(moves, cum_weights=[*accumulate(chances)])[0])


def player(epsilon: float) -> EquilibriumPlayer:
    return EquilibriumPlayer(anything, epsilon)
