"""Both seats of one game are played by policies: two episodes over one board, each with a context of its own."""

from collections import Counter
from dataclasses import replace

import pytest

from earl.envs.games.mnk import TICTACTOE
from earl.errors import EarlError
from earl.league import League
from earl.placement.fragment import group_of
from earl.rollout.drivers import Greedy, play
from earl.rollout.episode import Rules
from earl.rollout.pack import by_seat, pack, trajectories_of
from earl.rollout.tasks import OTHER_SEAT, Draw, EpisodeFactory, group_episodes, passed
from earl.trajectory import Completion, Outcome, StopReason, Task


@pytest.fixture
def world(chat):
    """Makes the episodes of Tic-Tac-Toe; keywords are those of Rules."""
    return lambda options=None, **rules: EpisodeFactory("tictactoe", options or {}, chat, Rules(**rules))


@pytest.fixture
def seats(script):
    """A sampler that plays the replies of the first and of the second seat."""

    def make(first, second):
        sampler = script(first)
        sampler.replies[OTHER_SEAT] = list(second)
        return sampler

    return make


def both(world, sampler, seed=3):
    return play([world.game(Task("tictactoe", seed, 0, "self"), seed, 0)], sampler)


def test_one_game_gives_a_transcript_of_each_seat(world, seats, text):
    sampler = seats("123", "45")
    x, o = both(world(), sampler)
    # X takes the first row: it wins, and O, who had two turns, loses.
    assert text(x.tokens) == "(X 123\n456\n789$[1$(X X23\nO56\n789$[2$(X XX3\nOO6\n789$[3$"
    assert text(o.tokens) == "(O X23\n456\n789$[4$(O XX3\nO56\n789$[5$"
    assert [(one.task.seat, one.reward, one.outcome) for one in (x, o)] == [(0, 1, Outcome.WIN), (1, -1, Outcome.LOSS)]
    assert [prompt.session for [prompt] in sampler.prompts] == [0, OTHER_SEAT, 0, OTHER_SEAT, 0]
    assert sampler.released == [0, OTHER_SEAT]


def test_every_reply_of_both_seats_is_in_the_loss(world, seats):
    rows = pack(both(world(), seats("123", "45")))
    # A reply is a digit and the end: 3 turns of X are 6 tokens, 2 of O are 4.
    assert rows.per_row(rows.mask).tolist() == [6, 4]


def test_the_seats_draw_apart(world, seats):
    sampler = seats("123", "45")
    x, o = both(world(), sampler)
    assert x.seed != o.seed
    assert len({prompt.seed for [prompt] in sampler.prompts}) == 5


def test_a_draw_pays_both_what_a_draw_is_worth(world, seats):
    # X O X
    # O O X   X: 1 3 6 8 7, O: 2 5 4 9
    # X X O
    x, o = both(world({"draw_reward": 0.25}), seats("13687", "2549"))
    assert [(one.outcome, one.reward) for one in (x, o)] == [(Outcome.DRAW, 0.25)] * 2


def test_who_forfeits_is_charged_and_the_other_seat_is_not(world, seats, text):
    x, o = both(world(), seats("12", "11"))  # O takes the cell that X has
    assert (o.stop, o.reward, o.illegal) == (StopReason.ILLEGAL_ACTION, -1, 1)
    assert (x.stop, x.reward, x.illegal) == (StopReason.ENV_TRUNCATED, 0, 0)
    assert [turn.action for turn in x.turns] == ["1"]  # the turn that waited for an answer is kept


def test_a_seat_that_never_had_a_turn_has_no_transcript(world, seats):
    [x] = both(world(), seats(["no"], []))
    assert (x.task.seat, x.stop) == (0, StopReason.ILLEGAL_ACTION)


def test_a_refused_reply_is_asked_again_of_the_same_seat(world, seats):
    sampler = seats(["no", "1", "2", "3"], "45")
    x, o = both(world(retries=1), sampler)
    assert [prompt.session for [prompt] in sampler.prompts] == [0, 0, OTHER_SEAT, 0, OTHER_SEAT, 0]
    assert (x.illegal, o.illegal, x.outcome) == (1, 0, Outcome.WIN)


def test_a_context_that_is_full_ends_the_game_for_both(world, seats):
    # "(O X23\n456\n789$[" are 16 tokens, a reply 2; the next round takes 16 more.
    x, o = both(world(context_limit=30), seats("12", "4"))
    assert (x.stop, x.reward) == (StopReason.CONTEXT_LIMIT, -1)
    assert (o.stop, o.reward) == (StopReason.TURN_LIMIT, 0)  # there is no room for what a value would be read from


def test_a_group_of_games_is_a_group_for_each_seat(world, script):
    sampler = script()
    sampler.replies = {s + seat * OTHER_SEAT: list(("123", "45")[seat]) for s in range(3) for seat in (0, 1)}
    episodes = group_episodes(world(), {0: Task("tictactoe", 3, 0, "self")}, 3, seed=9)
    play(episodes, sampler)
    first, second = by_seat([group_of(episodes)])
    assert [[one.task.seat for one in group.trajectories] for group in (first, second)] == [[0, 0, 0], [1, 1, 1]]
    assert {one.outcome for one in first.trajectories} == {Outcome.WIN}
    rows = [one.seed for one in group_of(episodes).trajectories]
    assert [one.seed for one in trajectories_of([first, second])] == rows  # packed in the same order after the split


@pytest.mark.parametrize("seat", [0, 1])
def test_a_checkpoint_replies_in_the_other_seat_and_is_not_learned_from(world, seats, seat):
    sampler = seats("123", "45")
    made = world()
    made = EpisodeFactory(made.env, {}, made.chat, made.rules, checkpoints=lambda name: made)
    [learned] = play([made.game(Task("tictactoe", 3, seat, "run:a@1"), 3, 0)], sampler)
    assert (learned.task.seat, learned.outcome) == (seat, (Outcome.WIN, Outcome.LOSS)[seat])
    assert [prompt.policy for [prompt] in sampler.prompts] == [["", "run:a@1"][(n + seat) % 2] for n in range(5)]


@pytest.mark.parametrize(
    ("options", "reply", "then", "shown"),
    [
        ({}, "7", "1", ["O 123\n456\n78X", "O 123\n45X\nO8X"]),
        ({"canonical": True}, "7", "1", ["O 123\n456\n78O", "O 123\n45O\nX8O"]),
        ({"symmetry": True}, "7", "9", ["O X23\n456\n789", "O XX3\n456\nO89"]),
    ],
)
def test_a_checkpoint_is_shown_boards_as_in_its_run(world, seats, options, reply, then, shown):
    sampler = seats(["9", "6", "3"], [reply, then])
    made, other = world(), world(options)
    made = EpisodeFactory(made.env, {}, made.chat, made.rules, checkpoints=lambda name: other)
    game = made.game(Task("tictactoe", 3, 0, "run:a@1"), 3, 0)
    play([game], sampler)
    context = "".join(map(chr, sampler.prompts[3][0].tokens))  # of its last prompt
    assert [one.partition("$")[0] for one in context.split("(")[1:]] == shown
    assert game.board.moves == ["9", "7", "6", "1", "3"]  # of the plain board


@pytest.mark.parametrize(
    ("env", "words"), [("kuhn", "'run:a@1' plays kuhn, not gomoku"), ("arithmetic", "arithmetic is no board game")]
)
def test_a_checkpoint_of_another_game_has_no_seat(chat, env, words):
    other = EpisodeFactory(env, {}, chat, Rules())
    made = EpisodeFactory("gomoku", {}, chat, Rules(), checkpoints=lambda name: other)
    with pytest.raises(EarlError, match=words):
        made.game(Task("gomoku", 3, 1, "run:a@1"), 3, 0)


def test_a_checkpoint_plays_on_boards_that_grew_since(chat):
    smaller = EpisodeFactory("gomoku", {"rows": 4, "columns": 4, "line": 3}, chat, Rules())
    made = EpisodeFactory("gomoku", {"rows": 5, "columns": 5, "line": 4}, chat, Rules(), checkpoints=lambda _: smaller)
    prompt = made.game(Task("gomoku", 3, 1, "run:a@1"), 3, 0).prompt()
    assert prompt.policy == "run:a@1"
    assert "".join(map(chr, prompt.tokens)) == "(X " + "\n".join(["....."] * 5) + "$["


def test_a_league_shows_each_checkpoint_boards_as_in_its_run(world, seats):
    league = League("tictactoe", {}, {"a": world(), "b": world({"symmetry": True})}, seats(["9", "6", "3"], ["7", "9"]))
    boards = []
    assert league.show(("a", "b"), 1, lambda board: boards.append(board) or board).points == 1
    assert boards[0].moves == ["9", "7", "6", "1", "3"]


def test_evaluation_is_greedy_but_not_for_the_opponent(world, seats):
    sampler = seats("123", "45")
    made = world()
    made = EpisodeFactory(made.env, {}, made.chat, made.rules, checkpoints=lambda name: made)
    play([made.game(Task("tictactoe", 3, 0, "run:a@1"), 3, 0)], Greedy(sampler))
    assert [prompt.greedy for [prompt] in sampler.prompts] == [True, False, True, False, True]


class FirstLegal:
    """Replies with the lowest free cell, so that only chance makes games differ."""

    def __init__(self):
        self.asked = []

    def generate(self, prompts):
        self.asked += [(prompt.session, "".join(map(chr, prompt.tokens))) for prompt in prompts]
        cells = [next(c for c in text[text.rindex("(") :] if c.isdigit()) for _, text in self.asked[-len(prompts) :]]
        return [Completion([ord(cell), ord("$")], [-1.0] * 2, [0, 0], True) for cell in cells]

    def release(self, sessions):
        pass


@pytest.mark.parametrize("seat", [0, 1])
def test_a_late_seat_begins_after_its_random_moves(world, seat):
    made = replace(world(history="board_only"), random_replies=4)
    stones = {0: Counter(), 1: Counter()}  # own ones on the board of a seat's first prompt
    for seed in range(80):
        sampler = FirstLegal()
        play([made.game(Task("tictactoe", seed, seat, "self"), seed, 0)], sampler)
        for session, prompt in reversed(sampler.asked):  # the first one is written last
            own = int(session > 0)
            stones[own][seed] = prompt[3:].count("XO"[own])
    assert {*stones[seat].values()} == {0}
    assert {*stones[1 - seat].values()} >= {0, 1, 2}


def test_the_number_of_random_moves_is_the_same_in_a_group_and_the_moves_are_not(world):
    made = replace(world(), random_replies=4)
    games = group_episodes(made, {0: Task("tictactoe", 8, 0, "self")}, 8, seed=9)
    lates = [game._late.__self__ for game in games]
    assert len({late.left for late in lates}) == 1
    assert len({late.rng.random() for late in lates}) == 8


def test_a_game_begins_after_the_moves_of_its_opening(world, seats, text):
    # X 1, O 4, X 2 lie on the board; O is to move, does not see the threat, and loses to 3.
    game = world(history="board_only").game(Task("tictactoe", 3, 0, "self:1 4 2"), 3, 0)
    x, o = play([game], seats("3", "5"))
    assert text(o.tokens) == "(O XX3\nO56\n789$[5$"
    assert text(x.tokens) == "(X XX3\nOO6\n789$[3$"
    assert (x.outcome, o.outcome) == (Outcome.WIN, Outcome.LOSS)


@pytest.mark.parametrize("options", [{}, {"symmetry": True}])
@pytest.mark.parametrize("opponent", ["self", "self:9 4"])
def test_positions_of_a_game_are_found_from_the_actions_of_its_seats(world, opponent, options):
    made = replace(world(options, history="board_only"), random_replies=3)
    drawn = Draw(1, [Task("tictactoe", seed, seed % 2, opponent) for seed in range(12)], 9)
    games = group_episodes(made, dict(enumerate(drawn.tasks)), 2, 9)
    seen = []  # of the seat to move, before each reply
    sampler = FirstLegal()
    for game in games:
        sampler.asked.clear()
        play([game], sampler)
        seen += [prompt.rsplit("(", 1)[1].split("$")[0] for _, prompt in sampler.asked]
    groups = by_seat([group_of(games[start : start + 2]) for start in range(0, len(games), 2)])
    found = [*passed(made, drawn, 2, groups)]
    assert [one.seen for one in found] == seen
    for one in found:
        board, _ = made._board(Task("tictactoe", 0, 0, f"self:{one.moves}"), 0)
        board.begin(0)
        for action in one.moves.split():
            board.move(action)
        assert board.seen_by(board.player)[0] == one.seen
        assert board.state == TICTACTOE.after(one.moves.replace(" ", ""))
    assert {one.lost for one in found} == {True, False}


def test_a_position_before_an_illegal_reply_is_lost_by_the_seat_that_made_it_alone(world, seats):
    made, drawn = world(), Draw(1, [Task("tictactoe", 3, 0, "self")], 9)
    games = group_episodes(made, {0: drawn.tasks[0]}, 1, 9)
    play(games, seats("12", "11"))  # O takes the cell that X has
    found = [*passed(made, drawn, 1, by_seat([group_of(games)]))]
    assert [(one.moves, one.lost) for one in found] == [("", False), ("1", True)]
