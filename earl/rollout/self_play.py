"""Games in which policies have both seats: the policy that learns on both, or an earlier checkpoint on one.

PairedEpisodes ─▶ the prompt of the seat to move ─▶ its reply ─▶ the board ─▶ what the other seat sees ─▶ its prompt …

Each seat is an `Episode` of its own, with its own context, over one board. To a driver both are one episode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from earl.envs.games.env import BoardGameEnv, SharedSeat
from earl.rollout.episode import Episode
from earl.trajectory import Completion, Prompt, StopReason


@dataclass(slots=True)
class LateSeat:
    """The seat whose first `left` moves are random. Its episode begins after them, and so holds the policy's own moves
    alone. opening: moves of both seats before that."""

    seat: int
    left: int
    rng: Random
    opening: str = ""

    def move(self, board: BoardGameEnv) -> None:
        """Make the opening, then its moves while it is to move, as far as they are random."""
        for action in self.opening.split():
            board.move(action)
        self.opening = ""
        while board.player == self.seat and self.left and not board.over:
            board.move(self.rng.choice(board.legal))
            self.left -= 1


class PairedEpisodes:
    """Both seats of one game. make: the episode of a seat, called at its first turn; late: makes moves that are no
    episode's, before each turn; seed: of the deal.

    A seat that forfeits ends the game; the other one is not charged then, and not rewarded.
    """

    def __init__(
        self,
        board: BoardGameEnv,
        make: Callable[[SharedSeat], Episode],
        late: Callable[[BoardGameEnv], None],
        seed: int,
    ) -> None:
        self.board, self._make, self._late = board, make, late
        self._seats: dict[int, Episode] = {}
        self.board.begin(seed)
        self._next_turn()

    @property
    def stop(self) -> StopReason | None:
        return self.mover.stop

    @property
    def sessions(self) -> list[int]:
        return [episode.session for episode in self._seats.values()]

    def prompt(self) -> Prompt:
        return self.mover.prompt()

    def delay(self) -> float:
        return self.mover.delay()

    def receive(self, completion: Completion) -> None:
        """Take the reply of the seat to move."""
        self.mover.receive(completion)
        if self.mover.stop is not None:
            self._cut_off()
        elif self.mover.waiting:
            self._next_turn()

    def learners(self) -> list[Episode]:
        """By seat; none of an opponent, nor of a seat that never had a turn."""
        return [self._seats[seat] for seat in sorted(self._seats) if not self._seats[seat].policy]

    def _next_turn(self) -> None:
        """Answer the seat that is to move now, or at the end of the game both seats."""
        self._late(self.board)
        seat = self.board.player
        if self.board.over:
            for own, episode in self._seats.items():
                episode.answer(self.board.seen_by(own))
            return
        if seat in self._seats:
            self._seats[seat].answer(self.board.seen_by(seat))
        else:
            self._seats[seat] = self._make(SharedSeat(self.board, seat))
        self.mover = self._seats[seat]
        if self.mover.stop is not None:
            self._cut_off()

    def _cut_off(self) -> None:
        """End the game for the seat that waits for the other one's move, which will not come."""
        for seat, episode in self._seats.items():
            if episode.waiting:
                observation, *_, info = self.board.seen_by(seat)
                episode.answer((observation, 0.0, False, True, info))
