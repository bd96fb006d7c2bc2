"""Bargaining by alternating offers over coins that lose value with each round (Ståhl 1972, Rubinstein 1982).

Its subgame-perfect split is known: who makes the last offer gets all, and before it each offer is just as good for the
other player as what the next round would bring.
"""

from functools import cache
from typing import NamedTuple

from earl.envs.games.base import Game, Player
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError

MOST_COINS, MOST_ROUNDS = 100, 20


class Offer(NamedTuple):
    """How many offers were made, how many coins the last one gives to the other player, and what came of it."""

    round: int = 0
    coins: int = 0
    over: bool = False
    accepted: bool = False

    @property
    def player(self) -> int:
        return self.round & 1


class OfferRules:
    def __init__(self, coins: int, rounds: int, discount: float) -> None:
        self.coins, self.rounds, self.discount = coins, rounds, discount
        self.accept, self.reject = coins + 1, coins + 2

    def legal(self, state: Offer) -> tuple[int, ...]:
        if state.over:
            return ()
        if state.round == self.rounds:
            return self.accept, self.reject
        return tuple(range(self.accept + (state.round > 0)))

    def play(self, state: Offer, move: int) -> Offer:
        if move <= self.coins:
            return Offer(state.round + 1, move)
        return Offer(state.round, state.coins, True, move == self.accept)

    def payoff(self, state: Offer, seat: int) -> float:
        """The part of all coins at their first value."""
        if not state.accepted:
            return 0.0
        part = state.coins if seat == state.player else self.coins - state.coins
        return part / self.coins * self.discount ** (state.round - 1)

    def winner(self, state: Offer) -> int | None:
        first, second = self.payoff(state, 0), self.payoff(state, 1)
        return None if first == second else int(first < second)

    def render(self, state: Offer) -> str:
        if state.over:
            return (
                f"{'accepted' if state.accepted else 'rejected'} {state.coins} in round {state.round} of {self.rounds}"
            )
        if state.round == 0:
            return f"round 1 of {self.rounds}"
        answer = "last round" if state.round == self.rounds else f"then round {state.round + 1} of {self.rounds}"
        return f"offered {state.coins}, {answer}"


@cache
def bargain_game(coins: int, rounds: int, discount: float) -> Game:
    rules = OfferRules(coins, rounds, discount)
    return Game(
        name="bargain",
        marks=("first", "second"),
        actions=(*map(str, range(coins + 1)), "accept", "reject"),
        instructions=(
            f"You bargain over {coins} coins. The first player offers some of them to the other one, who accepts and "
            "gets them, while the rest goes to who made the offer; or answers with an offer of its own, and a new "
            f"round begins. There are {rounds} rounds: the last offer can only be accepted or rejected, and after a "
            f"rejection nobody gets anything. With each new round a coin keeps {discount:g} of its value. Your reward "
            "is the value of what you get; whoever gets more wins. You are told whether you are first or second, the "
            "number of coins offered to you, and the round. Answer with the number of coins that you offer to the "
            "other player, or with accept, or in the end with reject, and nothing else."
        ),
        max_plies=rounds + 1,
        legal=rules.legal,
        play=rules.play,
        winner=rules.winner,
        render=rules.render,
        solvable=True,
        deals=((Offer(), 1.0),),
        payoff=rules.payoff,
    )


def bargain(
    seat: int = 0,
    opponent: Player | None = None,
    coins: int = 10,
    rounds: int = 4,
    discount: float = 0.9,
) -> BoardGameEnv:
    if not (1 <= coins <= MOST_COINS and 1 <= rounds <= MOST_ROUNDS and 0 < discount <= 1):
        raise EarlError(
            f"bargain with {coins} coins, {rounds} rounds and discount {discount} is no game; use 1 … {MOST_COINS} "
            f"coins, 1 … {MOST_ROUNDS} rounds and a discount above 0, at most 1"
        )
    return BoardGameEnv(bargain_game(coins, rounds, discount), seat, opponent)
