"""Kuhn poker (Kuhn 1950) and Leduc hold'em (Southey et al. 2005) as one rule table: each player has one card of a small
deck and puts in one chip; in every round of bets a player may check or bet, then fold, call or raise.

A hand's cards are dealt before its first bet: the first player's, the second player's, and in Leduc that of the table,
which both see from the second round on.
"""

from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from earl.envs.games.base import Game, Player
from earl.envs.games.env import BoardGameEnv

ACTIONS = ("fold", "check", "call", "bet", "raise")
FOLD, CHECK, CALL, BET, RAISE = range(5)
RANKS = "JQK"
MARKS = ("first", "second")
HANDS = 1 << 14
"""That are remembered."""
BETTING = (
    "The first player begins every round. As long as nothing is bet you check or bet; after a bet or a raise of the "
    "other player you fold, which loses the pot, or call, which ends the round, or raise where that is still allowed. "
    "Win as many chips as you can. You are told whether you are first or second, your card, and the moves so far. "
    "Answer with one of the words fold, check, call, bet and raise, and nothing else."
)


class Hand(NamedTuple):
    cards: tuple[int, ...]
    """Ranks of the first, the second player and the table."""
    bets: tuple[tuple[int, ...], ...] = ((),)
    """Moves by round."""

    @property
    def player(self) -> int:
        """The first player begins every round."""
        return len(self.bets[-1]) & 1


class BettingRules:
    """sizes: of a bet or raise in each round. most_bets: bets and raises of a round."""

    def __init__(self, sizes: tuple[int, ...], most_bets: int) -> None:
        self.sizes, self.most_bets = sizes, most_bets
        remembered = lru_cache(HANDS)
        self.legal, self.play, self.sees = remembered(self._legal), remembered(self._play), remembered(self._sees)

    def _legal(self, hand: Hand) -> tuple[int, ...]:
        moves = hand.bets[-1]
        if (moves and moves[-1] == FOLD) or len(hand.bets) > len(self.sizes):
            return ()
        if not moves or moves[-1] == CHECK:
            return CHECK, BET
        return (FOLD, CALL, RAISE) if sum(move >= BET for move in moves) < self.most_bets else (FOLD, CALL)

    def _play(self, hand: Hand, move: int) -> Hand:
        *before, moves = hand.bets
        bets = (*before, (*moves, move))
        ended = move == CALL or (move == CHECK and len(moves) == 1)
        return Hand(hand.cards, (*bets, ()) if ended else bets)

    def put_in(self, hand: Hand, seat: int) -> int:
        """The chips of a seat in the pot."""
        total = 1
        for size, moves in zip(self.sizes, hand.bets, strict=False):
            own, level = 0, 0
            for number, move in enumerate(moves):
                level += size * (move >= BET)
                if number & 1 == seat and move in (CALL, BET, RAISE):
                    own = level
            total += own
        return total

    def payoff(self, hand: Hand, seat: int) -> float:
        """Chips won or lost."""
        if (won_by := self.winner(hand)) is None:
            return 0.0
        lost = self.put_in(hand, 1 - won_by)
        return float(lost if won_by == seat else -lost)

    def winner(self, hand: Hand) -> int | None:
        if self.legal(hand):
            return None
        if hand.bets[-1]:  # the one to move after a fold
            return hand.player
        first, second = (_strength(hand.cards, seat) for seat in (0, 1))
        return None if first == second else int(first < second)

    def _sees(self, hand: Hand, seat: int) -> str:
        r"""Such as "first K\ntable Q\nbet call\ncheck": the own card, that of the table once it is open, the moves of
        each round; the other player's card after a showdown."""
        lines = [f"{MARKS[seat]} {RANKS[hand.cards[seat]]}"]
        if len(hand.bets) > 1:
            lines += [f"table {RANKS[card]}" for card in hand.cards[2:]]
        lines += [" ".join([ACTIONS[move] for move in moves]) for moves in hand.bets if moves]
        if len(hand.bets) > len(self.sizes):
            lines.append(f"{MARKS[1 - seat]} {RANKS[hand.cards[1 - seat]]}")
        return "\n".join(lines)


def poker(name: str, deck: tuple[int, ...], sizes: tuple[int, ...], most_bets: int, description: str) -> Game:
    rules = BettingRules(sizes, most_bets)
    dealt = [*permutations(deck, len(sizes) + 1)]
    return Game(
        name=name,
        marks=MARKS,
        actions=ACTIONS,
        instructions=f"{description} {BETTING}",
        max_plies=(most_bets + 2) * len(sizes),
        legal=rules.legal,
        play=rules.play,
        winner=rules.winner,
        solvable=True,
        positions=HANDS,
        deals=tuple((Hand(cards), dealt.count(cards) / len(dealt)) for cards in sorted({*dealt})),
        sees=rules.sees,
        payoff=rules.payoff,
        stake=1.0 + most_bets * sum(sizes),
    )


def _strength(cards: tuple[int, ...], seat: int) -> tuple[bool, int]:
    """A pair with the table's card, else the higher card."""
    return cards[seat] in cards[2:], cards[seat]


KUHN = poker(
    "kuhn",
    deck=(0, 1, 2),
    sizes=(1,),
    most_bets=1,
    description=(
        "You play Kuhn poker. The deck has three cards: K is the highest, then Q, then J. Each player puts one chip "
        "into the pot and is dealt a card that the other one does not see. There is one round of bets, with one bet of "
        "one chip. The higher card wins."
    ),
)
LEDUC = poker(
    "leduc",
    deck=(0, 0, 1, 1, 2, 2),
    sizes=(2, 4),
    most_bets=2,
    description=(
        "You play Leduc hold'em. The deck has six cards: two K, the highest, two Q and two J. Each player puts one "
        "chip into the pot and is dealt a card that the other one does not see. After a round of bets a card is laid "
        "open on the table, and a second round follows. Bets and raises are two chips in the first round and four in "
        "the second one; a round has at most a bet and a raise. Who has the same card as the table wins, else the "
        "higher card; equal cards share the pot."
    ),
)


def kuhn(seat: int = 0, opponent: Player | None = None) -> BoardGameEnv:
    return BoardGameEnv(KUHN, seat, opponent)


def leduc(seat: int = 0, opponent: Player | None = None) -> BoardGameEnv:
    return BoardGameEnv(LEDUC, seat, opponent)
