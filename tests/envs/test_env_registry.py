import subprocess
import sys
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from earl.envs import registry
from earl.envs.games.env import BoardGameEnv
from earl.envs.games.mnk import tictactoe
from earl.errors import EarlError

pytestmark = pytest.mark.cold


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_targets", dict(registry._targets))
    monkeypatch.setattr(registry, "_loaded", {})


def test_makes_environments_by_name():
    env = registry.make("tictactoe", seat=1, draw_reward=0.5)
    assert isinstance(env, BoardGameEnv)
    assert (env.game.name, env.seat, env.draw_reward) == ("tictactoe", 1, 0.5)
    assert {"arithmetic", "connect4", "tictactoe"} <= set(registry.names())


def test_unknown_names_and_options_are_refused_with_the_nearest():
    with pytest.raises(EarlError, match="unknown environment 'tictacto'; did you mean 'tictactoe'"):
        registry.make("tictacto")
    with pytest.raises(EarlError, match="unknown option of environment connect4 'seet'; did you mean 'seat'"):
        registry.make("connect4", seet=1)
    with pytest.raises(EarlError, match="unknown environment"):
        registry.spec("nothing")


def test_register_returns_its_target_and_keeps_names_apart(own_registry):
    assert registry.register("mine", tictactoe) is tictactoe
    assert registry.register("mine", tictactoe) is tictactoe
    assert isinstance(registry.make("mine"), BoardGameEnv)
    with pytest.raises(EarlError, match="'mine' is registered already"):
        registry.register("mine", "module:attribute")


@pytest.mark.parametrize("target", ["no_such_module:make", "earl.envs.base:Nothing", "earl.envs.base", ""])
def test_targets_that_cannot_be_loaded_are_named(own_registry, target):
    registry.register("broken", target)
    with pytest.raises(EarlError, match=r"environment 'broken': cannot load .*module:attribute"):
        registry.make("broken")


def test_spec_tells_what_envs_show_needs():
    spec = registry.spec("arithmetic")
    assert spec.options == {"num_operations": 2, "max_operand": 99, "min_operations": None, "max_value": 999}
    assert (spec.seats, spec.max_turns) == (1, 4)
    assert spec.target == "earl.envs.tools.arithmetic:ArithmeticEnv"
    assert "calculator" in spec.instructions
    board = registry.spec("tictactoe")
    assert (board.seats, board.max_turns, board.observation) == (2, 5, "X 123\n456\n789")
    assert registry.seats("connect4") == 2


@pytest.mark.parametrize("gymnasium_id", registry.GYMNASIUM_IDS)
def test_gymnasium_makes_and_checks_them(gymnasium_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(gymnasium_id)
        check_env(env.unwrapped)
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space and info["role"] == "user"


def test_the_id_alone_is_enough_in_a_fresh_process():
    code = (
        "import gymnasium; env = gymnasium.make('earl.envs.registry:earl/TicTacToe-v0', seat=1); "
        "print(env.reset(seed=0)[0][0])"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("O\n", "")


def test_nothing_heavy_and_no_environment_is_loaded_with_the_registry():
    code = (
        "import sys, earl.envs.registry; "
        "heavy = {'torch', 'ray', 'vllm', 'pettingzoo', 'pygame'}; "
        "print([name for name in sys.modules if name.split('.')[0] in heavy "
        "or name.startswith(('earl.envs.games', 'earl.envs.tools'))])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_numba_is_not_imported_to_begin_episodes():
    # It takes half a second, and Othello's rules need it once a move is made.
    code = (
        "import sys; from earl.envs import registry; "
        "[registry.spec(name) for name in registry.names()]; print('numba' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
