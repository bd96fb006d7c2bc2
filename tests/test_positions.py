"""Single moves at drawn positions, judged: beside a plain recursion over Tic-Tac-Toe."""

from functools import cache

import pytest

from earl.agents.chat import Chat
from earl.agents.scripted import perfect
from earl.envs.games.base import State
from earl.envs.games.connect4 import CONNECT4
from earl.envs.games.mnk import TICTACTOE as GAME
from earl.errors import EarlError
from earl.positions import drawn_positions, judged
from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory, board_game
from earl.trajectory import Completion


@cache
def value(state: State) -> int:
    """For the player to move, by trying everything."""
    if moves := GAME.legal(state):
        return max(-value(GAME.play(state, move)) for move in moves)
    return 0 if GAME.winner(state) is None else -1


def kept(state: State) -> set[int]:
    return {move for move in GAME.legal(state) if -value(GAME.play(state, move)) == value(state)}


class Choosing:
    """A sampler that replies what `choose` says of the board that it is shown; counts what it is asked."""

    def __init__(self, chat, choose, error=None):
        self.chat, self.choose, self.error, self.asked = chat, choose, error, 0

    def generate(self, prompts):
        self.asked += len(prompts)
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        text = self.chat.tokenizer.decode(prompt.tokens)
        tokens = self.chat.written(self.choose(text.rpartition("<|user|>")[2].partition("<|end|>")[0]))
        return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), finished=True, error=self.error)

    def release(self, sessions):
        pass


@pytest.fixture(scope="module")
def chat(characters):
    return Chat(characters)


def judge(chat, choose, games=150, seed=0, retries=0, error=None, **options):
    sampler = Choosing(chat, choose, error)
    world = EpisodeFactory("tictactoe", options, chat, Rules(retries=retries))
    return judged(world, sampler, games, seed), sampler.asked


def named(pick, **options):
    """What a board that is shown is answered: the move that `pick` takes of the position, as it is called there."""
    game = board_game("tictactoe", options).game

    def choose(text):
        return game.actions[pick(game.state_of(text))]

    return choose


def test_positions_are_those_where_a_legal_move_loses_value():
    drawn = drawn_positions(GAME, 300, 0)
    assert 100 < len(drawn) <= 300
    assert all(own == kept(state) != {*GAME.legal(state)} for state, own in drawn.items())
    assert {state.player for state in drawn} == {0, 1}
    assert drawn == drawn_positions(GAME, 300, 0) != drawn_positions(GAME, 300, 1)


def test_a_larger_game_is_judged_where_it_is_solved_soon():
    drawn = drawn_positions(CONNECT4, 40, 0)
    assert drawn
    for state in drawn:
        values = {end.value for end in perfect.solved(CONNECT4, state).values()}
        assert perfect.solved_soon(CONNECT4, state)
        assert len(values) > 1


@pytest.mark.parametrize("options", [{}, {"canonical": True, "symmetry": True}])
def test_moves_that_keep_the_value_are_optimal_and_others_are_not(chat, options):
    drawn = drawn_positions(GAME, 150, 0)
    for pick, share in (
        (lambda state: min(kept(state)), 1),
        (lambda state: min({*GAME.legal(state)} - kept(state)), 0),
    ):
        results, asked = judge(chat, named(pick, **options), **options)
        assert [result.seat for result in results] == [0, 1]
        assert sum(result.positions for result in results) == asked == len(drawn)
        for result in results:
            assert result.positions == sum(state.player == result.seat for state in drawn)
            assert (result.optimal, result.illegal) == (share * result.positions, 0)


def test_the_first_move_in_order_is_counted_as_a_recursion_counts_it(chat):
    results, _ = judge(chat, named(lambda state: min(GAME.legal(state))), seed=3)
    for result in results:
        told = [
            min(GAME.legal(state)) in kept(state)
            for state in drawn_positions(GAME, 150, 3)
            if state.player == result.seat
        ]
        assert (result.positions, result.optimal) == (len(told), sum(told))
        assert 0 < result.optimal < result.positions


@pytest.mark.parametrize("retries", [0, 2])
def test_an_illegal_first_reply_is_not_optimal_whatever_follows(chat, retries):
    results, asked = judge(chat, lambda _: "99", retries=retries)
    assert all((result.optimal, result.illegal) == (0, result.positions) for result in results)
    assert asked == (1 + retries) * sum(result.positions for result in results)


def test_a_reply_that_fails_is_no_result(chat):
    with pytest.raises(EarlError, match="no reply at a position: gone"):
        judge(chat, lambda _: "1", error="gone")


@pytest.mark.parametrize("env", ["kuhn", "nim", "arithmetic"])
def test_what_has_no_solver_is_refused(chat, env):
    world = EpisodeFactory(env, {}, chat, Rules())
    with pytest.raises(
        EarlError, match=f"{env} has no solver to judge moves; --positions is of tictactoe and connect4"
    ):
        judged(world, Choosing(chat, str), 10)
