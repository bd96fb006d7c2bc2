"""Exact evaluation against a plain recursion over the game, sampled evaluation against exact."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from math import fsum, sqrt
from pathlib import Path
from random import Random

import pytest

from earl import evaluation
from earl.agents.chat import Chat
from earl.agents.scripted.registry import ANY, player
from earl.envs.games.base import State
from earl.envs.games.mnk import TICTACTOE as GAME
from earl.errors import EarlError
from earl.evaluation import FINAL_GAMES, Match, matches, strength
from earl.matches import MatchResult, wilson
from earl.rollout.episode import Rules
from earl.rollout.tasks import EVALUATION, EpisodeFactory
from earl.trajectory import Completion, StopReason
from tests.sampling import sampled


class Table:
    """A sampler without a model: reads the board off the prompt and answers what a function of it says."""

    def __init__(self, chat, choose):
        self.chat, self.choose = chat, choose

    def generate(self, prompts):
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        text = self.chat.tokenizer.decode(prompt.tokens)
        board = text.rpartition("<|user|>")[2].partition("<|end|>")[0]
        tokens = self.chat.written(self.choose(board[2:].replace("\n", "")))
        return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), finished=True)

    def release(self, sessions):
        pass


def lowest(cells):
    """The lowest free cell: free cells show their number."""
    return min(cell for cell in cells if cell.isdigit())


def always_nine(cells):
    return "9"


@cache
def drawn_once(cells):
    """A free cell at random, of a board always the same."""
    return Random(cells).choice([cell for cell in cells if cell.isdigit()])


def perfect_move(cells):
    """The first of the perfect moves."""
    stones = {mark: sum(1 << i for i, cell in enumerate(cells) if cell == mark) for mark in "XO"}
    (move, _), *_ = player("perfect", "tictactoe").distribution(GAME, State(stones["X"], stones["O"]))
    return str(move + 1)


def shown(state):
    return GAME.render(state).replace("\n", "")


def leaves(choose, seat, opponent):
    """Every end of the game with its probability: the obvious recursion over both players' moves."""
    rival = player("random" if opponent == ANY else opponent, "tictactoe")

    def below(state, probability):
        if GAME.over(state):
            winner = GAME.winner(state)
            yield "draw" if winner is None else "win" if winner == seat else "loss", probability
        elif state.player == seat:
            move = int(choose(shown(state))) - 1
            if move not in GAME.legal(state):
                yield "illegal", probability
            else:
                yield from below(GAME.play(state, move), probability)
        else:
            for move, share in rival.distribution(GAME, state):
                yield from below(GAME.play(state, move), probability * share)

    return list(below(State(), 1.0))


@pytest.fixture(scope="module")
def chat(characters):
    return Chat(characters)


@pytest.fixture(scope="module")
def world(chat):
    return EpisodeFactory("tictactoe", {}, chat, Rules())


OPPONENTS = ["random", "heuristic", "perfect", "perfect@0.25", "alphabeta:2"]
RESULTS = ("win", "draw", "loss", "illegal")
POLICIES = [lowest, always_nine, perfect_move]


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("opponent", OPPONENTS)
@pytest.mark.parametrize("choose", POLICIES)
def test_exact_fractions_equal_a_plain_recursion(world, chat, choose, opponent, seat):
    result = evaluation.evaluate(world, Table(chat, choose), Match(opponent, seat, exact=True))
    expected = leaves(choose, seat, opponent)
    assert result.episodes == len(expected)
    assert fsum(p for _, p in expected) == pytest.approx(1)
    for outcome in ("win", "draw"):
        assert getattr(result, outcome) == pytest.approx(fsum(p for o, p in expected if o == outcome))
    # A forfeit counts as a loss and is shown apart too.
    assert result.illegal == pytest.approx(fsum(p for o, p in expected if o == "illegal"))
    assert result.loss == pytest.approx(fsum(p for o, p in expected if o in ("loss", "illegal")))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("choose", POLICIES)
def test_an_exploiter_wins_by_each_line_that_was_lost(world, chat, choose, exact):
    policy = Table(chat, choose)
    result = evaluation.evaluate(world, policy, Match("random", 1, exact))
    assert bool(result.lost) == (choose is not perfect_move)
    for moves in result.lost:
        again = evaluation.evaluate(world, policy, Match(f"exploiter:{moves}", 1, episodes=1))
        assert (again.loss, again.lost) == (1, (moves,))


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("choose", POLICIES)
def test_any_counts_every_leaf_alike(world, chat, choose, seat):
    result = evaluation.evaluate(world, Table(chat, choose), Match(ANY, seat, exact=True))
    counted = Counter(outcome for outcome, _ in leaves(choose, seat, ANY))
    assert result.episodes == counted.total()
    assert result.win == pytest.approx(counted["win"] / counted.total())
    assert result.loss == pytest.approx((counted["loss"] + counted["illegal"]) / counted.total())
    assert result.opponent == ANY


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("opponent", ["random", "perfect@0.25"])
def test_every_leaf_is_played_exactly_once_with_its_probability(world, chat, monkeypatch, opponent, seat):
    rivals = []

    class Noted(evaluation.Explorer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            rivals.append(self)

    monkeypatch.setattr(evaluation, "Explorer", Noted)
    episodes, weights = evaluation._enumerate(world, Table(chat, lowest), Match(opponent, seat, exact=True))
    played = [episode.trajectory() for episode in episodes]
    # The agent's moves follow from the opponent's, so the opponent's choices name the leaf.
    assert len({tuple(rival.path) for rival in rivals}) == len(rivals) == len(played)
    assert all(trajectory.stop is StopReason.FINISHED for trajectory in played)
    expected = sorted((outcome, round(p, 12)) for outcome, p in leaves(lowest, seat, opponent))
    found = sorted((t.outcome.value, round(weight, 12)) for t, weight in zip(played, weights, strict=True))
    assert found == expected


def test_games_that_are_alike_count_once(world, chat):
    # The lowest cell against a deterministic opponent: one game, 40 times.
    alone = evaluation.evaluate(world, Table(chat, lowest), Match("heuristic", 0, episodes=40))
    assert (alone.episodes, alone.distinct_games) == (40, 1)
    assert alone.share("win") == (alone.win, *wilson(alone.win, 1))
    # Of 300 games against random play, as many differ as there are leaves that were reached.
    many = evaluation.evaluate(world, Table(chat, lowest), Match("random", 0, episodes=300))
    reached = {(outcome, round(p, 9)) for outcome, p in leaves(lowest, 0, "random")}
    assert 1 < len(reached) <= many.distinct_games < 300
    assert many.distinct_win + many.distinct_draw + many.distinct_loss == pytest.approx(1)
    assert many.share("win")[0] == many.distinct_win
    assert many.share("illegal")[1:] == wilson(0, 300)
    every = evaluation.evaluate(world, Table(chat, lowest), Match(ANY, 0, exact=True))
    assert every.distinct_games == every.episodes
    assert every.share("loss") == (every.loss,) * 3


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("choose", [lowest, perfect_move])
def test_moves_are_judged_by_the_game_s_value(world, chat, choose, seat):
    result = evaluation.evaluate(world, Table(chat, choose), Match(ANY, seat, exact=True))
    made = Counter()

    def below(state):
        if GAME.over(state):
            return 1
        if state.player != seat:
            return sum(below(GAME.play(state, move)) for move in GAME.legal(state))
        move = int(choose(shown(state))) - 1
        ends = below(GAME.play(state, move))
        made[state, move] += ends  # the move is made in so many games
        return ends

    below(State())
    lost = {key: value(key[0]) + value(GAME.play(*key)) for key in made}  # the second one is the opponent's
    assert result.value_lost == pytest.approx(sum(lost[key] * made[key] for key in made) / made.total())
    assert result.optimal == pytest.approx(sum(made[key] for key in made if not lost[key]) / made.total())
    assert (result.optimal == 1) is (choose is perfect_move)


@cache
def value(state):
    """Plain minimax, for the player to move."""
    if GAME.over(state):
        return 0 if GAME.winner(state) is None else -1
    return max(-value(GAME.play(state, move)) for move in GAME.legal(state))


def test_a_forfeit_is_told_apart(world, chat):
    result = evaluation.evaluate(world, Table(chat, always_nine), Match("random", 0, episodes=50))
    assert result.forfeit == result.illegal > 0
    assert result.turn_tokens == 2  # a cell and the end of the turn
    task = EpisodeFactory("arithmetic", {}, chat, Rules(max_turn_tokens=40, context_limit=300))
    (match,) = matches(task, [], exact=False, episodes=6)
    result = evaluation.evaluate(task, Table(chat, lambda _: "0"), match)
    assert (result.optimal, result.distinct_games) == (None, 6)


def prove(world, chat, choose):
    planned = matches(world, [ANY], exact=True, episodes=1)
    return evaluation.proof([evaluation.evaluated(world, Table(chat, choose), match, 0, {})[1] for match in planned])


def checked(path, text):
    """What the independent program says of a proof."""
    path.write_text(text)
    command = [sys.executable, "-I", "docs/check_proof.py", str(path)]
    return subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("choose", POLICIES)
def test_a_proof_is_accepted_by_a_program_of_its_own(world, chat, choose, tmp_path):
    text = prove(world, chat, choose)
    said = checked(tmp_path / "proof", text)
    assert (said.returncode, said.stderr) == (0, "")
    counted = [Counter(outcome for outcome, _ in leaves(choose, seat, ANY)) for seat in (0, 1)]
    told = (", ".join(f"{one[n]} {n.replace('illegal', 'forfeit')}" for n in RESULTS) for one in counted)
    assert said.stdout == "accepted: " + ", ".join(f"seat {n}: {one}" for n, one in enumerate(told, 1)) + "\n"


@pytest.mark.slow
def test_lines_have_the_moves_of_the_plain_board_where_images_are_shown_alike(world, chat, tmp_path):
    alike = replace(world, options={"symmetry": True})
    said = checked(tmp_path / "proof", prove(alike, chat, perfect_move))
    assert (said.returncode, said.stdout.count(" 0 loss, 0 forfeit")) == (0, 2)
    best, careless = (
        evaluation.evaluate(alike, Table(chat, own), Match(ANY, 1, exact=True)) for own in (perfect_move, lowest)
    )
    assert (best.lost, best.optimal) == ((), 1.0)
    assert careless.optimal < 1
    assert all(GAME.winner(GAME.after(moves.replace(" ", ""))) == 0 for moves in careless.lost)


@pytest.mark.slow
def test_a_proof_that_was_changed_is_refused(world, chat, tmp_path):
    text = prove(world, chat, perfect_move)
    lines = text.splitlines()
    rng = Random(0)
    for trial in range(12):
        number = rng.choice([n for n, line in enumerate(lines) if line[0].isdigit()])
        second = number > lines.index(next(line for line in lines if line.startswith("seat 2")))
        moves, result = lines[number].split()
        at = rng.randrange(second, len(moves), 2)  # a reply of the policy
        other = rng.choice([move for move in "123456789" if move != moves[at]])
        flipped = f"{moves[:at]}{other}{moves[at + 1 :]} {result}"
        flipped = flipped if trial % 4 else f"{moves} {'win' if result == 'draw' else 'draw'}"
        said = checked(tmp_path / "proof", "\n".join([*lines[:number], flipped, *lines[number + 1 :], ""]))
        assert said.returncode == 1 and "ValueError" in said.stderr, flipped
    for number in rng.sample([n for n, line in enumerate(lines) if line[0].isdigit()], 2):  # left out, or twice
        for changed in ([*lines[:number], *lines[number + 1 :]], [*lines[: number + 1], *lines[number:]]):
            assert "ValueError" in checked(tmp_path / "proof", "\n".join([*changed, ""])).stderr


def test_games_of_the_end_are_others_than_those_of_selection(world, chat):
    policy = Table(chat, lowest)
    by_stream = [
        evaluation.evaluate(world, policy, matches(world, ["random"], False, 200, stream)[0])
        for stream in (EVALUATION, FINAL_GAMES)
    ]
    assert by_stream[0] != by_stream[1]
    assert matches(world, ["random"], False, 200)[0].stream == FINAL_GAMES


@pytest.mark.slow
def test_any_and_random_play_one_tree(world, chat):
    policy, trees = Table(chat, lowest), evaluation.Trees()
    for opponent in (ANY, "random", "perfect"):
        match = Match(opponent, 1, exact=True)
        assert evaluation.evaluated(world, policy, match, 0, trees)[0] == evaluation.evaluate(world, policy, match)
    assert [*trees] == [("tictactoe", 1)]


def test_of_games_against_itself_the_seat_of_the_match_counts(world, chat):
    # 1 to 7 in turns: the first player has 3, 5 and 7.
    results = [evaluation.evaluate(world, Table(chat, lowest), Match("self", seat, episodes=3)) for seat in (0, 1)]
    assert [(one.seat, one.episodes, one.win, one.loss) for one in results] == [(0, 3, 1, 0), (1, 3, 0, 1)]
    with pytest.raises(EarlError, match="no game against 'self' came to seat 2"):  # the first forfeits at once
        evaluation.evaluate(world, Table(chat, lambda _: "0"), Match("self", 1, episodes=3))


def test_waves_do_not_show(world, chat, monkeypatch):
    whole = evaluation.evaluate(world, Table(chat, lowest), Match("random", 1, exact=True))
    monkeypatch.setattr(evaluation, "WAVE", 7)
    again = evaluation.evaluate(world, Table(chat, lowest), Match("random", 1, exact=True))
    assert (again.episodes, again.win) == (whole.episodes, pytest.approx(whole.win))
    assert evaluation.evaluate(world, Table(chat, lowest), Match("random", 1, episodes=20)).episodes == 20


def test_perfect_play_never_loses_to_anybody(world, chat):
    for seat in (0, 1):
        result = evaluation.evaluate(world, Table(chat, perfect_move), Match(ANY, seat, exact=True))
        assert (result.loss, result.illegal) == (0, 0)
        drawn = evaluation.evaluate(world, Table(chat, perfect_move), Match("perfect", seat, exact=True))
        assert drawn.draw == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choose", "seat", "opponent"),
    sampled(product([lowest, drawn_once, perfect_move], [0, 1], ["random", "heuristic@0.3"]), every=3),
)
def test_samples_come_near_the_exact_fraction(world, chat, choose, opponent, seat):
    table, games = Table(chat, choose), 1000
    exact = evaluation.evaluate(world, table, Match(opponent, seat, exact=True))
    sampled = evaluation.evaluate(world, table, Match(opponent, seat, episodes=games), seed=3)
    assert (sampled.episodes, sampled.exact) == (games, False)
    for outcome in ("win", "draw", "loss"):
        share = getattr(exact, outcome)
        assert abs(getattr(sampled, outcome) - share) <= 4 * sqrt(share * (1 - share) / games) + 1e-9
        low, high = wilson(getattr(sampled, outcome) * games, games, z=4)
        assert low - 1e-9 <= share <= high + 1e-9


def test_sampled_results_equal_exact_ones_within_their_intervals(world, chat):
    games, pairs = 100, []
    for choose, seat in product([lowest, drawn_once, perfect_move], [0, 1]):
        policy = Table(chat, choose)
        exact = evaluation.evaluate(world, policy, Match("random", seat, exact=True))
        sampled = evaluation.evaluate(world, policy, Match("random", seat, episodes=games), seed=1)
        pairs += [(getattr(exact, outcome), getattr(sampled, outcome)) for outcome in ("win", "draw", "loss")]

    def covered(z):
        intervals = [(share, wilson(found * games, games, z)) for share, found in pairs]
        return sum(low - 1e-9 <= share <= high + 1e-9 for share, (low, high) in intervals)

    # 3 policies x 2 seats x 3 outcomes = 18 intervals. Of 95 % each, 17.1 are expected to cover the exact share; with
    # z = 2.99 one in 360 misses it, and so all 18 cover theirs with 95 %.
    assert covered(1.96) >= 15
    assert covered(2.99) == 18


def test_samples_are_the_seeds(world, chat):
    first, same, other = (
        evaluation.evaluate(world, Table(chat, lowest), Match("random", 0, episodes=300), seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


def test_a_match_for_every_opponent_and_seat(world):
    planned = matches(world, ["random", "perfect"], exact=True, episodes=5)
    assert [(match.opponent, match.seat, match.exact) for match in planned] == [
        ("random", 0, True),
        ("random", 1, True),
        ("perfect", 0, True),
        ("perfect", 1, True),
    ]


def test_a_task_is_its_own_match(chat):
    world = EpisodeFactory("arithmetic", {}, chat, Rules(max_turn_tokens=40, context_limit=300))
    (match,) = matches(world, [], exact=False, episodes=6)
    result = evaluation.evaluate(world, Table(chat, lambda _: "0"), match)
    assert (result.opponent, result.seat, result.episodes) == ("", 0, 6)
    assert result.win + result.loss == pytest.approx(1)


def test_combinations_that_mean_nothing_are_refused(world, chat):
    task = EpisodeFactory("arithmetic", {}, chat, Rules())
    for opponents, exact in ((["random"], False), ([], True)):
        with pytest.raises(EarlError, match="without opponents"):
            matches(task, opponents, exact, 5)
    with pytest.raises(EarlError, match="name one"):
        matches(world, [], False, 5)
    with pytest.raises(EarlError, match="needs --exact"):
        matches(world, [ANY], False, 5)


def test_a_tree_that_is_too_large_is_refused(world, chat, monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_LEAVES", 50)
    with pytest.raises(EarlError, match="more than 50 leaves; leave out --exact"):
        evaluation.evaluate(world, Table(chat, lowest), Match("random", 0, exact=True))


def test_a_failing_environment_is_named(world, chat, monkeypatch):
    def fail(*_):
        raise RuntimeError("no board")

    monkeypatch.setattr("earl.envs.games.env.BoardGameEnv.step", fail)
    result = evaluation.evaluate(world, Table(chat, lowest), Match("random", 0, episodes=3))
    assert (result.loss, len(result.faults)) == (1.0, 3)
    assert result.faults[0].startswith("RuntimeError: no board")


@cache
def result(win, loss):
    return MatchResult("tictactoe", "random", 0, False, 100, win, 1 - win - loss, loss, 0.0, 0.0)


def test_fewer_losses_come_before_more_wins():
    assert strength([result(0.5, 0.0)]) > strength([result(0.9, 0.1)])
    assert strength([result(0.6, 0.1)]) > strength([result(0.5, 0.1)])
    # Losses 0.1 + 0.0 against 0.0 + 0.2.
    assert strength([result(0.5, 0.1), result(0.5, 0.0)]) > strength([result(0.9, 0.0), result(0.8, 0.2)])


def test_games_that_begin_by_chance_are_told_apart_by_what_was_seen(chat):
    world = EpisodeFactory("kuhn", {}, chat, Rules(max_turn_tokens=6, context_limit=48, history="board_only"))
    bold = Table(chat, lambda prompt: "call" if "bet" in prompt else "bet")
    result = evaluation.evaluate(world, bold, Match("random", 0, episodes=60))
    # It bets, and the other player folds or calls: with a J or a Q it wins or loses then, with a K it wins.
    assert (result.distinct_games, result.optimal, result.forfeit) == (5, None, 0)
