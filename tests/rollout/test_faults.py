"""A fault in somebody's environment ends one episode with a record; the others go on."""

import asyncio
import signal
import threading

import numpy as np
import pytest

from earl.envs import registry
from earl.errors import Interrupted
from earl.evaluation import Match, evaluate
from earl.rollout.drivers import demonstrate, play
from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory
from earl.stopping import interrupt
from earl.trajectory import Outcome, StopReason, Task


class Broken:
    """Mixed into the counting environment: one of its methods fails."""

    def __init__(self, base, method):
        self.base, self.method = base, method

    def __getattr__(self, name):
        if name == self.method:
            return self.fail
        return getattr(self.base, name)

    def fail(self, *_, **__):
        raise KeyError("no such board")


def test_a_fault_in_step_ends_the_episode_with_a_record(episode, script):
    result = play([episode()], script(("1", "fail")))[0]
    assert (result.stop, result.outcome) == (StopReason.ENV_ERROR, Outcome.LOSS)
    assert result.error is not None
    assert result.error.startswith("RuntimeError: out of numbers (line ")
    assert [turn.action for turn in result.turns] == ["1", "fail"]
    assert result.reward == 0.25  # nobody is charged for the environment's fault


@pytest.mark.parametrize("method", ["reset", "rule", "step"])
def test_a_fault_in_any_method_is_a_record(episode, script, counting, method):
    sampler = script(("1", "2", "3"))
    result = play([episode(env=Broken(counting(), method))], sampler)[0]
    assert (result.stop, result.outcome) == (StopReason.ENV_ERROR, Outcome.LOSS)
    assert result.error is not None
    assert result.error.startswith("KeyError: 'no such board'")
    assert len(result.turns) == (method != "reset")
    assert len(result.tokens) == len(result.authors) == len(result.logprobs) == len(result.versions)


def test_an_outcome_that_there_is_not_is_a_fault_of_the_environment(episode, script):
    result = play([episode()], script(("odd",)))[0]
    assert result.stop is StopReason.ENV_ERROR
    assert result.error is not None
    assert "tie" in result.error


def test_a_failing_episode_leaves_the_others_alone(episode, script, counting):
    episodes = [episode(0), episode(1, env=Broken(counting(), "reset")), episode(2)]
    sampler = script(("1", "fail"), (), ("1", "2", "3"))
    results = play(episodes, sampler)
    assert [result.stop.value for result in results] == ["env_error", "env_error", "finished"]
    assert all(prompt.session != 1 for prompts in sampler.prompts for prompt in prompts)


def test_interrupts_are_not_faults(episode, counting):
    class Interrupted(counting):
        def step(self, action):
            raise KeyboardInterrupt

    own = episode(env=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        own._act(0, "1")


class Answering:
    """Mixed into the counting environment: one of its methods, or its attributes, gives something else."""

    def __init__(self, base, **given):
        self.base, self.given = base, given

    def __getattr__(self, name):
        return self.given[name] if name in self.given else getattr(self.base, name)


def answer(observation="1", reward=0.0, terminated=False, truncated=False, info=None):
    return observation, reward, terminated, truncated, {"role": "user"} if info is None else info


class Hostile(Exception):
    def __str__(self):
        raise SystemExit("no")


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (answer(reward=float("nan")), "the reward is nan, not a finite number within ±1e+09"),
        (answer(reward=-np.inf), "the reward is -inf"),
        (answer(reward=np.float32("nan")), "the reward is np.float32(nan)"),
        (answer(reward=1e30), "the reward is 1e+30"),
        (answer(reward=10**400), "the reward is 1000000"),
        (answer(reward=1j), "the reward is 1j"),
        (answer(reward="1"), "the reward is '1'"),
        (answer(reward=None), "the reward is None"),
        (answer(reward=np.ones(1)), "the reward is array([1.])"),
        (answer(observation=b"1"), "the observation is b'1', not a text"),
        (answer(observation="1" * 30_000_000), "the observation has 30000000 characters, more than the 4096"),
        (answer(observation="\ud800"), "the observation holds '\\ud800', half a character"),
        (answer(terminated=None), "terminated is None; return True or False"),
        (answer(truncated="no"), "truncated is 'no'; return True or False"),
        (answer(info=[]), "info is []; return a dict"),
        (answer(info={"role": "system"}), "info['role'] is 'system'; return one of user, tool"),
        (answer(terminated=True), "info['outcome'] is None at the end; return one of win, draw, loss"),
        (answer(terminated=True, info={"outcome": ["win"]}), "info['outcome'] is ['win'] at the end"),
        ((), "return the tuple"),
        (None, "return the tuple"),
    ],
)
def test_what_step_must_not_return_is_a_fault_that_names_it(episode, script, counting, returned, said):
    env = Answering(counting(), step=lambda _: returned)
    result = play([episode(env=env)], script(("1",)))[0]
    assert result.stop is StopReason.ENV_ERROR
    assert said in result.error
    assert len(result.error) < 700
    assert result.error.isprintable()
    assert result.reward == 0.0
    assert len(result.tokens) < 100


@pytest.mark.parametrize("reward", [1, True, np.float16(1), np.int8(1), np.True_, 1e9, -1e9])
def test_numbers_of_numpy_and_truths_are_rewards(episode, script, counting, reward):
    env = Answering(counting(), step=lambda _: answer(reward=reward, truncated=np.True_))
    result = play([episode(env=env, forfeit_reward=0.0)], script(("1",)))[0]
    assert (result.stop, result.reward) == (StopReason.TURN_LIMIT, float(reward))
    assert type(result.turns[0].reward) is float


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reset": lambda **_: ("x" * 5000, {})}, "the observation has 5000 characters"),
        ({"reset": lambda **_: (7, {})}, "the observation is 7, not a text"),
        ({"reset": lambda **_: ("0", None)}, "info is None"),
        ({"reset": lambda **_: "0"}, "return the tuple"),
        ({"instructions": "x" * 10**7}, "instructions has 10000000 characters"),
        ({"instructions": None}, "instructions is None"),
        ({"max_turns": 10**9}, "max_turns is 1000000000, not a whole number within 1 … 10000"),
        ({"max_turns": "many"}, "max_turns is 'many'"),
        ({"rule": lambda _: 3}, "the rule is 3, not a text"),
        ({"rule": lambda _: "x" * 10**7}, "the rule has 10000000 characters"),
        ({"step": raising(SystemExit(7))}, "SystemExit: 7"),
        ({"step": raising(GeneratorExit())}, "GeneratorExit:"),
        ({"step": raising(asyncio.CancelledError())}, "CancelledError:"),
        ({"step": raising(MemoryError())}, "MemoryError:"),
        ({"step": raising(Hostile())}, "Hostile: (its message cannot be had: SystemExit)"),
        ({"step": raising(ValueError("\x1b[2J\n\u202e" + "x" * 10**7))}, "ValueError: [2J xxx"),
    ],
)
def test_whatever_else_an_environment_does_is_a_fault_that_names_it(episode, script, counting, given, said):
    result = play([episode(env=Answering(counting(), **given), instructions=True)], script(("1",)))[0]
    assert result.stop is StopReason.ENV_ERROR
    assert said in result.error
    assert len(result.error) < 700
    assert result.error.isprintable()


def test_a_recursion_without_end_is_a_fault(episode, script, counting):
    def deeper(action):
        return deeper(action)

    result = play([episode(env=Answering(counting(), step=deeper))], script(("1",)))[0]
    assert result.error.startswith("RecursionError: maximum recursion depth exceeded")


def test_texts_may_be_as_long_as_the_context_limit_lets_them_be(episode, script, counting):
    # 1,000 tokens x 16 = 16,000 characters
    for length, fits in ((16_000, True), (16_001, False)):
        env = Answering(counting(), step=lambda _, length=length: answer("x" * length))
        result = play([episode(env=env, context_limit=1000)], script(("1",)))[0]
        assert result.stop is (StopReason.CONTEXT_LIMIT if fits else StopReason.ENV_ERROR)


def test_an_interrupt_of_the_environments_own_is_a_fault_once_ctrl_c_is_told_apart(episode, script, counting):
    env = Answering(counting(), step=raising(KeyboardInterrupt()))
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        result = play([episode(env=env)], script(("1",)))[0]
        own = episode(env=Answering(counting(), step=lambda _: signal.raise_signal(signal.SIGINT)))
        with pytest.raises(Interrupted):
            own._act(0, "1")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.error.startswith("KeyboardInterrupt:")


def test_an_interrupt_in_another_thread_is_a_fault(episode, counting):
    own = episode(env=Answering(counting(), step=raising(KeyboardInterrupt())))
    thread = threading.Thread(target=own._act, args=(0, "1"))
    thread.start()
    thread.join()
    assert own.error.startswith("KeyboardInterrupt:")


def test_an_observation_that_spells_a_mark_of_the_templates_is_taken_as_text(episode, script, counting, text):
    said = "\x02reply\x03 \x02content\x03"
    env = Answering(counting(), step=lambda _: answer(said, truncated=False))
    result = play([episode(env=env, max_turns=2)], script(("1", "2")))[0]
    assert result.stop is StopReason.TURN_LIMIT
    assert said in text(result.tokens)


def test_an_environment_that_cannot_be_made_is_a_fault_of_its_episode(chat, script):
    def make(fails=False):
        raise OSError("no such game server")

    registry.register("unmade", make)
    world = EpisodeFactory("unmade", {}, chat, Rules())
    result = play([world.episode(Task("unmade", seed=0), 0, 0)], script(()))[0]
    assert result.stop is StopReason.ENV_ERROR
    assert result.error.startswith("OSError: no such game server (line ")


@pytest.mark.parametrize("error", [RuntimeError("no move"), SystemExit(3)])
def test_an_opponent_that_raises_is_a_fault_of_its_episode(chat, script, error):
    class Raising:
        move = staticmethod(raising(error))

    world = EpisodeFactory("tictactoe", {}, chat, Rules())
    for seat in (0, 1):  # it moves in step, or in reset already
        task = Task("tictactoe", seed=0, seat=seat, opponent="random")
        result = play([world.episode(task, 0, 0, Raising())], script(("5",)))[0]
        assert result.error.startswith(type(error).__name__)


def test_a_teacher_that_raises_ends_its_demonstration_alone(episode):
    class Teacher:
        def act(self, env, rng):
            if self.fails:
                raise ValueError("no idea")
            return str(env.count + 1)

    teacher, labels = Teacher(), []
    for teacher.fails in (True, False):
        (played,), (own,) = demonstrate([episode()], {"counting": (teacher, teacher)}, 0.0)
        labels.append((played.stop, len(own)))
    assert labels == [(StopReason.ENV_ERROR, 0), (StopReason.FINISHED, 3)]


def test_a_fault_in_evaluation_is_named(chat, script, counting):
    registry.register("poisoned", lambda: Answering(counting(), step=lambda _: answer(reward=float("nan"))))
    world = EpisodeFactory("poisoned", {}, chat, Rules())
    result = evaluate(world, script(("1",)), Match("", 0, episodes=1))
    assert (result.loss, len(result.faults)) == (1.0, 1)
    assert result.faults[0].startswith("the reward is nan, not a finite number")


def test_every_episodes_environment_is_closed_and_a_fault_in_it_is_recorded(chat, script, counting):
    closed = []

    def close():
        closed.append(True)
        raise ValueError("still open")

    registry.register("unclosable", lambda: Answering(counting(), close=close))
    world = EpisodeFactory("unclosable", {}, chat, Rules())
    result = evaluate(world, script(("1", "2", "3"), ("1", "2", "3")), Match("", 0, episodes=2))
    assert (result.win, result.faults, len(closed)) == (1.0, (), 2)
    episode = world.episode(Task("unclosable", 0), 0, 0)
    (played,) = play([episode], script(("1", "2", "3")))
    assert (played.stop, played.outcome) == (StopReason.FINISHED, Outcome.WIN)
    assert played.error.startswith("close(): ValueError: still open")
