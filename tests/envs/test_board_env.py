from random import Random

import pytest

from earl.envs import registry
from earl.envs.games import GAMES
from earl.envs.games.base import State
from earl.envs.games.env import BoardGameEnv, turn_table
from earl.envs.games.mnk import TICTACTOE
from earl.errors import EarlError


class Fixed:
    """A player that makes the given moves in order."""

    def __init__(self, *moves: int):
        self.moves = list(moves)

    def distribution(self, game, state):
        return ((self.moves[0], 1.0),)

    def move(self, game, state, rng):
        return self.moves.pop(0)


def test_observation_is_the_own_mark_and_the_board_after_the_reply():
    env = BoardGameEnv(TICTACTOE, seat=0, opponent=Fixed(2))
    assert env.reset(seed=0) == (
        "X 123\n456\n789",
        {"role": "user", "legal_actions": ("1", "2", "3", "4", "5", "6", "7", "8", "9")},
    )
    observation, reward, terminated, truncated, info = env.step("1")
    assert observation == "X X2O\n456\n789"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"role": "user", "legal_actions": ("2", "4", "5", "6", "7", "8", "9")}


def test_in_the_second_seat_the_opponent_moves_first():
    env = BoardGameEnv(TICTACTOE, seat=1, opponent=Fixed(4))
    assert env.reset(seed=0)[0] == "O 123\n4X6\n789"


# X: 1 2 3 against O: 4 5, the same the other way round, and a full board without a line.
@pytest.mark.parametrize(
    ("seat", "actions", "replies", "reward", "outcome", "words"),
    [
        (0, "123", (3, 4), 1.0, "win", "you win"),
        (1, "78", (0, 1, 2), -1.0, "loss", "you lose"),
        (0, "12678", (2, 3, 4, 8), 0.25, "draw", "draw"),  # X X O / O O X / X X O
    ],
)
def test_only_the_end_is_rewarded(seat, actions, replies, reward, outcome, words):
    env = BoardGameEnv(TICTACTOE, seat, Fixed(*replies), draw_reward=0.25)
    env.reset(seed=0)
    *before, last = [env.step(action) for action in actions]
    assert all(step[1:4] == (0.0, False, False) and "outcome" not in step[4] for step in before)
    assert last[1:4] == (reward, True, False)
    assert last[4] == {"role": "user", "legal_actions": (), "outcome": outcome}
    assert last[0].endswith(f"\n{words}")


def test_draws_are_worth_nothing_unless_said():
    assert BoardGameEnv(TICTACTOE).draw_reward == 0.0


@pytest.mark.parametrize("text", ["", "1", " 2", "2 ", "2\n", "02", "2.", "2 or 4", "9" * 4096, "two", "²"])
def test_an_illegal_action_is_answered_with_the_legal_ones(text):
    env = BoardGameEnv(TICTACTOE, seat=0, opponent=Fixed(2))
    env.reset(seed=0)
    env.step("1")
    state = env.state
    rule = "illegal: choose one of 2 4 5 6 7 8 9"
    for _ in range(20):  # the environment never ends by itself because of them
        observation, reward, terminated, truncated, info = env.step(text)
        assert (observation, info["illegal"], env.rule(text)) == (rule, rule, rule)
        assert (reward, terminated, truncated, env.state) == (0.0, False, False, state)


def test_the_opponent_is_seeded_apart_from_the_problem():
    def first_moves(**options):
        env = BoardGameEnv(GAMES["connect4"], seat=1)
        return [env.reset(seed=0, options={"opponent_seed": seed} if options else None)[0] for seed in range(20)]

    assert len(set(first_moves())) == 1
    assert len(set(first_moves(own=True))) > 1


def test_without_a_seed_resets_continue_the_seeded_stream():
    def resets():
        env = BoardGameEnv(GAMES["connect4"], seat=1)
        env.reset(seed=5)
        return [env.reset()[0] for _ in range(20)]

    assert resets() == resets()
    assert len(set(resets())) > 1


def test_an_agent_seeded_alike_is_not_mirrored_by_the_opponent():
    # Both drawing from the same stream, Connect Four's first player would stack four stones and always win.
    wins = 0
    for seed in range(100):
        env, rng = BoardGameEnv(GAMES["connect4"]), Random(seed)
        _, info = env.reset(seed=seed)
        while info["legal_actions"]:
            *_, info = env.step(rng.choice(info["legal_actions"]))
        wins += info["outcome"] == "win"
    assert 30 <= wins <= 80  # 55.8 % expected, five standard deviations are 25


def test_steps_outside_an_episode_and_unknown_seats_are_refused():
    env = BoardGameEnv(TICTACTOE, opponent=Fixed(3, 4))
    with pytest.raises(EarlError, match=r"call reset\(\)"):
        env.step("1")
    env.reset(seed=0)
    for action in "123":
        env.step(action)
    with pytest.raises(EarlError, match=r"call reset\(\)"):
        env.step("6")
    with pytest.raises(EarlError, match="no seat 2; use 0"):
        BoardGameEnv(TICTACTOE, seat=2)


@pytest.mark.parametrize("name", ["tictactoe", "connect4", "gomoku", "othello", "nim", "kuhn", "leduc", "bargain"])
def test_turns_follow_each_other_as_play_and_legal_say(name: str) -> None:
    game = registry.make(name).game
    for seed in range(20):
        rng, turn = Random(seed), turn_table(game).first(seed)
        while turn[2]:
            move = rng.choice(turn[2])
            after = game.play(turn[0], move)
            turn = turn_table(game).advance(turn[0], move)
            assert turn == (after, after.player, game.legal(after), game.legal_actions(after))
            assert type(turn[0]) is type(after)


def test_max_turns_are_half_the_plies_rounded_up():
    assert registry.make("tictactoe").max_turns == 5  # 9 plies, X makes 5 of them
    assert registry.make("connect4").max_turns == 21  # 42 plies


@pytest.mark.parametrize("name", ["tictactoe", "connect4"])
def test_a_board_is_drawn_from_its_observation(name: str) -> None:
    env = registry.make(name)
    game, rng, state = env.game, Random(5), State()
    while not game.over(state):
        told = f"X {game.render(state)}"
        drawn = env.draw(told)
        assert drawn and drawn.marked is None and drawn.cells == game.cells(state)
        move = rng.choice(game.legal(state))
        after = env.draw(f"{told}\nillegal: choose one of 1", game.actions[move])
        state = game.play(state, move)
        assert after and after.cells == game.cells(state)
        row, column = after.marked
        assert state[1 - state.player] & game.stone(row, column)


def test_what_is_no_board_is_not_drawn() -> None:
    env = registry.make("tictactoe")
    for text in (
        "",
        "illegal: choose one of 1",
        "X 123\n456",
        "X 123\n456\n78X9",
        "X 193\n456\n789",
        "X <b>\n456\n789",
    ):
        assert env.draw(text) is None
    assert env.draw("X X23\n456\n789", "1") is None, "that cell is taken"
    assert env.draw("X 123\n456\n789", "two") is None
    assert registry.make("arithmetic").draw("37+48-19") is None
