"""Environments of other libraries, played with the libraries themselves."""

import random
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from earl.agents.scripted import registry as scripted
from earl.envs import registry
from earl.envs.adapters.gymnasium import text_of
from earl.envs.check import check, play
from earl.errors import EarlError

TASKSETS = Path(__file__).parent / "tasksets"
NAMES = [
    *("openspiel:kuhn_poker", "openspiel:tic_tac_toe", "openspiel:2048", "openspiel:goofspiel"),
    *("pettingzoo:connect_four_v3", "pettingzoo:rps_v2", "pettingzoo:chess_v6"),
    *("gymnasium:FrozenLake-v1", "gymnasium:Blackjack-v1", "gymnasium:CartPole-v1"),
    *("reasoning_gym:chain_sum", "reasoning_gym:leg_counting"),
    *("textarena:TicTacToe-v0", "textarena:GuessTheNumber-v0", "textarena:KuhnPoker-v0"),
    *("verifiers:sums_of_verifiers", "verifiers:words_of_verifiers"),
]

LONG = {"pettingzoo:chess_v6": 4}
"""Fewer than a hundred episodes, which would take half a minute."""


@pytest.fixture(autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what could not be built on this machine; tasksets can be imported, and those of NAMES are trusted."""
    monkeypatch.syspath_prepend(TASKSETS)
    monkeypatch.setattr(registry, "_allowed", {name for name in NAMES if name.startswith("verifiers")})
    name = request.node.callspec.params.get("name", "") if hasattr(request.node, "callspec") else ""
    if name.startswith(("reasoning_gym", "textarena", "verifiers")):
        pytest.importorskip(name.partition(":")[0])


def seats(name: str) -> list[dict[str, Any]]:
    return [{"seat": 0}, {"seat": 1}] if registry.seats(name) == 2 else [{}]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_random_episodes_end_and_the_same_seeds_give_them_again(name: str) -> None:
    for options in seats(name):
        env, another = registry.make(name, **options), registry.make(name, **options)
        list(play(another, 1000))
        for seed in range(LONG.get(name, 100) // len(seats(name))):
            steps = list(play(env, seed, opponent_seed=seed + 1))
            assert steps[-1].last
            assert seed % 10 or steps == list(play(another, seed, opponent_seed=seed + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["openspiel:kuhn_poker", "pettingzoo:connect_four_v3", "gymnasium:Blackjack-v1", "textarena:TicTacToe-v0"]
)
def test_the_contract_of_earls_own_environments_holds(name: str) -> None:
    assert [result for result in check(name) if not result.passed] == []


def test_a_move_that_is_not_listed_is_answered_with_the_rule_and_changes_nothing() -> None:
    env = registry.make("openspiel:tic_tac_toe", seat=0)
    first, _ = env.reset(seed=1)
    told, reward, terminated, truncated, info = env.step("x(9,9)")
    assert told == info["illegal"]
    assert told.startswith("illegal: choose one of x(0,0), x(0,1)")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert first.startswith("...\n...\n...\nactions: x(0,0)")
    board, *_ = env.step("x(1,1)")
    assert board.count("x") - board.count("x(") == 1 + 0
    assert "o" in board.split("actions")[0]


class Last:
    """Takes the last action that is listed."""

    def act(self, env: Any, rng: Random) -> str:
        return env.actions()[-1]


def test_an_opponent_has_the_other_seat_and_moves_first_from_the_first() -> None:
    env = registry.make("openspiel:tic_tac_toe", seat=1, opponent=Last())
    observation, _ = env.reset(seed=0)
    assert observation.startswith("...\n...\n..x\n")
    assert scripted.names("openspiel:tic_tac_toe") == ("random",)
    assert scripted.player("random", "openspiel:tic_tac_toe").act(env, Random(0)).startswith("o(")
    with pytest.raises(EarlError, match="unknown opponent 'alphabeta'"):
        scripted.player("alphabeta", "openspiel:tic_tac_toe")


def test_the_results_are_those_of_the_library() -> None:
    pyspiel = pytest.importorskip("pyspiel")
    for seed in range(20):
        env = registry.make("openspiel:tic_tac_toe", seat=0, opponent=Last())
        actions = [step.action for step in play(env, seed)]
        state = pyspiel.load_game("tic_tac_toe").new_initial_state()
        for action in actions[1:]:
            state.apply_action(state.string_to_action(action))
            if not state.is_terminal():
                state.apply_action(state.legal_actions()[-1])
        *_, last = play(registry.make("openspiel:tic_tac_toe", seat=0, opponent=Last()), seed)
        assert last.reward == state.returns()[0]
        assert last.info["outcome"] == {1.0: "win", 0.0: "draw", -1.0: "loss"}[last.reward]


def test_an_answer_is_scored_by_the_task_that_asked() -> None:
    pytest.importorskip("reasoning_gym")
    env = registry.make("reasoning_gym:chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    question, _ = env.reset(seed=5)
    left, sign, right = question.rstrip(" =").split(": ")[-1].split()
    total = int(left) + int(right) if sign == "+" else int(left) - int(right)
    assert env.step(str(total))[1:3] == (1.0, True)
    env.reset(seed=5)
    assert env.step(str(total + 1))[4]["outcome"] == "loss"


def test_a_game_that_draws_from_the_process_leaves_its_generators_alone() -> None:
    pytest.importorskip("textarena")
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), repr(np.random.get_state())
    list(play(registry.make("textarena:GuessTheNumber-v0"), 3))
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_a_player_hears_what_was_said_since_its_last_turn_but_not_itself() -> None:
    pytest.importorskip("textarena")
    env = registry.make("textarena:TicTacToe-v0", seat=0)
    first, _ = env.reset(seed=0)
    second, *_ = env.step("[4]")
    assert "Your goal is to win three in a row" in first
    assert "Your goal" not in second
    assert "Player 0 placed their symbol (O) in cell 4" in second
    assert "Player 1 placed" in second
    assert not second.startswith("[4]")


def test_tasks_of_verifiers_are_scored_by_their_own_rewards() -> None:
    pytest.importorskip("verifiers")
    env = registry.make("verifiers:sums_of_verifiers")
    question, _ = env.reset(seed=3)
    assert env.step(str(int(question.partition("+")[0]) + 1))[1:3] == (1.0, True)
    env.reset(seed=3)
    assert env.step("no")[4]["outcome"] == "loss"
    env = registry.make("verifiers:words_of_verifiers", count=2)
    words = {env.reset(seed=seed)[0] for seed in range(20)}
    assert (words, env.instructions) == ({"straße", "火车"}, "Write the word backwards.")
    word, _ = env.reset(seed=3)
    assert env.step(word)[1] == 0.25  # as long as it should be
    with pytest.raises(EarlError, match=r"'words_of_verifiers' cannot be made with .*count"):
        registry.make("verifiers:words_of_verifiers", count="many")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openspiel:kuhn_pokr", "unknown game of openspiel 'kuhn_pokr'; did you mean 'kuhn_poker'"),
        ("pettingzoo:chess_v5", "unknown game of pettingzoo 'chess_v5'; did you mean 'chess_v6'"),
        ("reasoning_gym:chain_sums", "unknown task of reasoning_gym 'chain_sums'; did you mean 'chain_sum'"),
        ("textarena:Wordl-v0", "unknown game of textarena 'Wordl-v0'; did you mean 'Wordle-v0'"),
        ("textarena:ThreePlayerTicTacToe-v0", "is for 3 players; choose one for one or two"),
        ("gymnasium:antigravity:Thing-v0", "unknown environment of gymnasium 'antigravity:Thing-v0'"),
        ("gymnasium:Pendulum-v1", "acts in Box.*choose an environment with Discrete or Text actions"),
        ("verifiers:os", "is code that a recipe names, and you never named it yourself"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, said: str) -> None:
    with pytest.raises(EarlError, match=said):
        registry.make(name)


def test_options_go_to_the_library_and_wrong_ones_come_back() -> None:
    board, _ = registry.make("gymnasium:FrozenLake-v1", picture=True, map_name="8x8").reset(seed=0)
    assert board.count("\n") >= 8
    with pytest.raises(EarlError, match=r"'FrozenLake-v1' cannot be made with \{'colour': 3\}: .*colour"):
        registry.make("gymnasium:FrozenLake-v1", colour=3)
    assert len(registry.make("openspiel:go", board_size=5, seat=0).reset(seed=0)[0]) < 1000


def test_a_library_that_is_not_installed_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "earl.envs.adapters.openspiel", None)
    with pytest.raises(EarlError, match=r"openspiel cannot be imported .*pip install 'earl\[openspiel\]'"):
        registry.make("openspiel:chess")


def test_what_a_library_offers_is_listed() -> None:
    assert "openspiel:kuhn_poker" in registry.offered("openspiel")
    assert "pettingzoo:chess_v6" in registry.offered("pettingzoo")
    assert "gymnasium:CartPole-v1" in registry.offered("gymnasium")
    with pytest.raises(EarlError, match="unknown library 'openspeil'; did you mean 'openspiel'"):
        registry.offered("openspeil")


def test_observations_as_text() -> None:
    planes = np.zeros((2, 3, 2), bool)
    planes[0, 1, 1] = planes[1, 2, 0] = True
    assert text_of(planes) == ".b.\n..a"
    assert text_of((18, 10, False)) == "18 10 0"
    assert text_of(np.array([0.25, -1.5])) == "0.25 -1.5"
    assert text_of({"a": "x", "b": 2}) == "a: x\nb: 2"
