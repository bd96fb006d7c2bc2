"""One seat of a game as a text environment; a scripted or random player has the other seat."""

from functools import cache, lru_cache
from random import Random
from typing import Any

import numpy as np

from earl.envs.base import OTHER_MOVES, Board, Info, TextEnv
from earl.envs.games.base import Game, Player, Turn
from earl.errors import EarlError
from earl.seeds import draws

RESULTS = {"win": "you win", "draw": "draw", "loss": "you lose"}

DEALS = 0xD1B54A32D192ED03
"""Sets what is dealt apart from the opponent's draws by the same seed."""


class TurnTable:
    """What an environment asks of a game. Of a small one all answers are remembered."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self._legal = getattr(game.legal, "__wrapped__", game.legal)  # of a large game only search remembers positions
        remembered = lru_cache(game.positions) if game.positions else lambda function: function
        self.advance = game.advance or remembered(self._advance)
        self.turn, self.seen, self.end = remembered(self._turn), remembered(game.seen), remembered(self._end)
        self.shown_actions = remembered(game.shown_actions)
        self._first = None if game.dealt else self._turn(game.deals[0][0])

    def first(self, seed: int) -> Turn:
        """The first turn of a game, whose deal `seed` draws."""
        return self._first or self.turn(self.game.deal(next(draws(seed ^ DEALS))))

    def _turn(self, state: Any) -> Turn:
        moves = self._legal(state)
        return state, state.player, moves, self.game.named(moves)

    def _advance(self, state: Any, move: int) -> Turn:
        return self.turn(self.game.play(state, move))

    def _end(self, state: Any, seat: int) -> tuple[str, float, str]:
        """What a seat is told at the end, the part of the stake that it wins, and the outcome."""
        winner = self.game.winner(state)
        outcome = "draw" if winner is None else "win" if winner == seat else "loss"
        text = f"{self.game.seen(state, seat)}\n{RESULTS[outcome]}"
        return text, self.game.gain(state, seat) / self.game.stake, outcome


turn_table = cache(TurnTable)


class BoardGameEnv(TextEnv):
    r"""A game seen from one seat. On a board an observation is the own mark, a space and the board, as in
    "X 123\n4X6\nO89"; where players do not see the same, it is what the seat may know.

    The opponent answers within `step`; with seat 1 it also moves first, within `reset`. Only the last step has a
    reward: 1 for a win, `draw_reward` for a draw, -1 for a loss; in games with payoffs, that part of the highest stake.
    """

    def __init__(self, game: Game, seat: int = 0, opponent: Player | None = None, draw_reward: float = 0.0) -> None:
        if seat not in (0, 1):
            raise EarlError(f"{game.name} has no seat {seat!r}; use 0 (moves first) or 1 (moves second)")
        if check := getattr(opponent, "check", None):  # scripted players do not play every game
            check(game)
        self.game, self._table = game, turn_table(game)
        self._shown = [self._table, self._table]  # how each seat is shown the board
        self._plain = game.image is None  # for both
        self.seat = seat
        self.opponent = opponent
        self.draw_reward = draw_reward
        self.instructions = game.instructions
        self.max_turns = (game.max_plies + 1) // 2
        self._turn: Turn = game.deals[0][0], 0, (), ()
        self.moves: list[str] = []
        """Made by `move` since `begin`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        """Begin a game. `seed` draws what is dealt and, in games that open alike, the opponent's moves before the first
        of this seat; `options["opponent_seed"]` seeds the opponent's others, else `seed` does."""
        self.keep_seed(seed)
        opponent_seed = options.get("opponent_seed", seed) if options else seed
        if opponent_seed is None:
            opponent_seed = int(self.np_random.integers(1 << 31))
        if seed is None:
            seed = opponent_seed
        self._turn = self._table.first(seed)
        if self.opponent is not None:  # a new one: a model that plays has a conversation for each
            self._rng = Random(0)
        if self._turn[1] != self.seat and self.game.opens_alike:
            self._draw_by("opening", seed)
            self._go_on()
        self._draw_by("opponent", opponent_seed)
        self._go_on()
        return self._table.seen(self.state, self.seat), {"role": "user", "legal_actions": self.shown_actions}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        """Make a move and the opponent's reply. Raises EarlError before `reset` and after the end."""
        state, _, moves, legal = self._turn
        if not self._plain:
            legal = self.shown_actions
        if action not in legal:
            if not legal:
                raise EarlError("step() outside an episode; call reset() to begin one")
            broken = self.rule(action) or ""
            return broken, 0.0, False, False, {"role": "user", "legal_actions": legal, "illegal": broken}
        self._turn = self._table.advance(state, moves[legal.index(action)])
        self._go_on()
        return self.seen_by(self.seat)

    @property
    def state(self) -> Any:
        return self._turn[0]

    @state.setter
    def state(self, state: Any) -> None:
        self._turn = self._table.turn(state)

    @property
    def player(self) -> int:
        """The seat of the player to move."""
        return self._turn[1]

    @property
    def legal(self) -> tuple[str, ...]:
        """The legal actions of the player to move; none before `reset` and after the end."""
        return self._turn[3]

    @property
    def shown_actions(self) -> tuple[str, ...]:
        """What they are called on the board that players are shown, in the same order."""
        if self._plain:
            return self._turn[3]
        state, player, moves, actions = self._turn
        table = self._shown[player]
        return table.shown_actions(state) if table.game.image and moves else actions

    def plain_action(self, shown: str) -> str:
        """The legal action that is called so there."""
        return self.legal[self.shown_actions.index(shown)]

    @property
    def dealt(self) -> bool:
        """Whether a game begins by chance."""
        return self.game.dealt

    @property
    def over(self) -> bool:
        return not self.legal

    def begin(self, seed: int) -> None:
        """Clear the board, or deal."""
        self.moves, self._turn = [], self._table.first(seed)

    def move(self, action: str) -> None:
        """Make a legal move of the player to move."""
        state, _, moves, legal = self._turn
        self.moves.append(action)
        self._turn = self._table.advance(state, moves[legal.index(action)])

    def show_as(self, seat: int, game: Game) -> None:
        """Show the board to a seat as another game of the same rules does."""
        self._shown[seat] = turn_table(game)
        self._plain = all(table.game.image is None for table in self._shown)

    def seen_by(self, seat: int) -> tuple[str, float, bool, bool, Info]:
        """What `step` returns from a seat."""
        table, (state, _, _, legal) = self._shown[seat], self._turn
        if legal:
            legal = legal if self._plain else self.shown_actions
            return table.seen(state, seat), 0.0, False, False, {"role": "user", "legal_actions": legal}
        text, reward, outcome = table.end(state, seat)
        if outcome == "draw" and not self.game.payoff:
            reward = self.draw_reward
        return text, reward, True, False, {"role": "user", "legal_actions": (), "outcome": outcome}

    def rule(self, action: str) -> str | None:
        """List the legal actions unless `action` is exactly one of them."""
        if action in (legal := self.shown_actions):
            return None
        return f"illegal: choose one of {' '.join(sorted(legal, key=self.game.actions.index))}"

    def draw(self, observation: str, action: str | None = None) -> Board | None:
        """Return the board of an observation, ignoring any lines below it, with the action played."""
        state = self.game.state_of(observation)
        if state is None:
            return None
        if action is None:
            return Board(self.game.cells(state))
        if action not in self.game.legal_actions(state):
            return None
        after = self.game.play(state, self.game.actions.index(action))
        new = (after.first | after.second) ^ (state.first | state.second)
        marked = next((place for place in np.ndindex(*self.game.size) if self.game.stone(*place) == new), None)
        return Board(self.game.cells(after), marked)

    def _draw_by(self, part: str, seed: int) -> None:
        """Seed what the opponent draws in one part of a game. Where none is given, its moves are drawn without a
        `Random`, which takes longer to seed than most games to play."""
        if self.opponent is None:
            self._draws = draws(seed if part == "opponent" else ~seed)
        else:  # not the plain seed: an agent that draws from Random(seed) would get the opponent's stream
            self._rng.seed(f"{part} {seed}")

    def _go_on(self) -> None:
        """Let the opponent move until it is this seat's turn, or the end."""
        state, player, moves, _ = turn = self._turn
        while moves and player != self.seat:
            if self.opponent is None:
                move = moves[int(next(self._draws) * len(moves))]
            else:
                move = self.opponent.move(self.game, state, self._rng)
            state, player, moves, _ = turn = self._table.advance(state, move)
        self._turn = turn


class SharedSeat(TextEnv):
    """A seat of a game whose other seat is played elsewhere: `step` answers OTHER_MOVES, and the board's `seen_by` says
    what followed once it is known. The board's own seat and opponent are not used."""

    charges_truncation = False  # so ends a game that the other seat forfeits

    def __init__(self, board: BoardGameEnv, seat: int) -> None:
        self.board, self.seat = board, seat
        self.instructions, self.max_turns = board.instructions, board.max_turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        """What this seat sees of the game as it stands."""
        observation, *_, info = self.board.seen_by(self.seat)
        return observation, info

    def step(self, action: str) -> Any:
        self.board.move(self.board.plain_action(action))
        return OTHER_MOVES

    def rule(self, action: str) -> str | None:
        return self.board.rule(action)

    def show_as(self, game: Game) -> None:
        """Show this seat the board as another game of the same rules does."""
        self.board.show_as(self.seat, game)
        self.instructions = game.instructions
