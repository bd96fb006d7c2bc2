"""Boards that are shown alike where they are turned or mirrored images of each other."""

from random import Random

import pytest

from earl.agents.scripted.registry import agent, player
from earl.envs.games import connect4, mnk
from earl.envs.games.base import State
from earl.envs.games.env import SharedSeat
from earl.envs.registry import make
from earl.trajectory import Outcome

GAMES = [*mnk.ALIKE.items(), *connect4.ALIKE.items()]
TICTACTOE = mnk.ALIKE[mnk.TICTACTOE]
NAMES = ["tictactoe", "connect4"]


def lines(game, state):
    """A board's marks, top row first."""
    return ["".join(mark or "." for mark in row) for row in game.cells(state)]


def naive_images(game, state):
    """All images of a board, from its text: a square one is turned as well."""
    found, board = set(), lines(game, state)
    for _ in range(4 if game.size[0] == game.size[1] else 1):
        found |= {"\n".join(board), "\n".join(line[::-1] for line in board)}
        board = ["".join(column) for column in zip(*board[::-1], strict=True)]
    return found


def positions(game, number):
    """Those of random games."""
    rng = Random(number)
    state = State()
    while True:
        yield state
        if game.over(state):
            return
        state = game.play(state, rng.choice(game.legal(state)))


@pytest.mark.parametrize(("plain", "game"), GAMES)
@pytest.mark.parametrize("number", range(20))
def test_what_is_shown_is_an_image_in_which_every_move_leads_to_the_same_position(plain, game, number):
    for state in positions(plain, number):
        shown, names = game.shown(state)
        assert sorted(names) == sorted(plain.actions)
        assert "\n".join(lines(plain, shown)) in naive_images(plain, state)
        assert game.shown(shown) == (shown, plain.actions)  # what is shown is shown as it is
        assert sorted(game.shown_actions(state)) == sorted(plain.legal_actions(shown))
        for move, name in zip(game.legal(state), game.shown_actions(state), strict=True):
            there = plain.play(shown, plain.actions.index(name))
            assert naive_images(plain, there) == naive_images(plain, plain.play(state, move))


@pytest.mark.parametrize(("plain", "game"), GAMES)
@pytest.mark.parametrize("number", range(20))
def test_all_images_of_a_board_are_shown_alike(plain, game, number):
    for state in positions(plain, number):
        texts = [text.split() for text in naive_images(plain, state)]
        cells = [[(mark, plain.stone(r, c)) for r, row in enumerate(t) for c, mark in enumerate(row)] for t in texts]
        images = [State(*(sum(bit for mark, bit in image if mark == own) for own in plain.marks)) for image in cells]
        assert {game.seen(image, 1) for image in images} == {game.seen(state, 1)}


def test_tictactoe_has_765_boards_to_show():
    found, waiting = set(), {State()}
    while waiting:
        state = waiting.pop()
        found.add(state)
        waiting |= {TICTACTOE.play(state, move) for move in TICTACTOE.legal(state)} - found
    assert len(found) == 5478
    assert len({TICTACTOE.shown(state)[0] for state in found}) == 765


@pytest.mark.parametrize(("plain", "game"), GAMES)
def test_the_game_says_so(plain, game):
    assert "The board may be shown turned or mirrored. Answer with" in game.instructions
    assert "turned" not in plain.instructions


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("seat", [0, 1])
def test_moves_of_a_teacher_are_those_of_the_board_that_is_shown(name, canonical, seat):
    plain = make(name, seat=seat, opponent=player("random", name), canonical=canonical)
    alike = make(name, seat=seat, opponent=player("random", name), canonical=canonical, symmetry=True)
    teacher = agent("alphabeta:1", name)
    for seed in range(10):
        for env in (plain, alike):
            env.reset(seed=seed)
        ended = False
        rngs = Random(seed), Random(seed)
        while not ended:
            action = teacher.act(alike, rngs[0])
            observation, reward, ended, _, info = alike.step(action)
            assert (reward, ended) == plain.step(teacher.act(plain, rngs[1]))[1:3]
            assert alike.state == plain.state
            assert observation.startswith(alike.game.seen(alike.state, seat))
            if not ended:
                assert info["legal_actions"] == alike.game.shown_actions(alike.state)


def test_an_action_that_is_legal_on_the_plain_board_alone_is_refused():
    env = make("tictactoe", seat=0, symmetry=True)
    env.begin(0)
    env.move("9")  # shown in the corner that has the lowest number
    assert env.seen_by(1)[0] == "O X23\n456\n789"
    assert env.rule("1") == "illegal: choose one of 2 3 4 5 6 7 8 9"
    assert env.rule("9") is None and "9" not in env.legal


@pytest.mark.parametrize("name", ["gomoku", "bargain"])
def test_elsewhere_a_rule_lists_actions_in_the_order_of_the_game(name):
    env = make(name)
    env.begin(0)
    assert env.rule("?") == f"illegal: choose one of {' '.join(env.legal)}"
    assert list(env.legal) != sorted(env.legal)


def test_a_shared_board_keeps_the_moves_of_the_plain_board():
    env = make("tictactoe", symmetry=True)
    env.begin(0)
    first, second = SharedSeat(env, 0), SharedSeat(env, 1)
    first.step("9")
    second.step("3")
    assert env.moves in (["9", "3"], ["9", "7"])  # the next corner
    assert TICTACTOE.after("".join(env.moves)) == env.state
    board = first.reset()[0]
    assert board.count("X") == 2 and board.count("O") == 1  # the mark, and a stone of each


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_shows_the_move_where_it_was_made_on_the_board_that_was_shown(name):
    env = make(name, seat=0, opponent=player("random", name), symmetry=True)
    observation, info = env.reset(seed=3)
    ended = False
    while not ended:
        action = info["legal_actions"][-1]
        board = env.draw(observation, action)
        assert board is not None and board.marked is not None
        column = int(action) - 1
        assert board.marked[1] == (column % 3 if name == "tictactoe" else column)
        observation, _, ended, _, info = env.step(action)
    assert info["outcome"] in list(Outcome)
