"""An environment of somebody else, with `reset` and `step` alone, and what stands for all that it leaves out."""

import asyncio

import pytest

from earl.envs import registry
from earl.envs.base import MOST_TURNS, Plain, checked_reset, checked_step
from earl.errors import EarlError


class Guess:
    """Name the number."""

    def __init__(self, rewards=(0.0, 1.0), end="terminated", **info):
        self.rewards, self.end, self.info = rewards, end, info

    def reset(self, seed=None):
        self.left = list(self.rewards)
        return f"welche Zahl? 数字 🎲 {seed}"

    def step(self, action):
        reward = self.left.pop(0)
        over = not self.left
        return action, reward, over and self.end == "terminated", over and self.end == "truncated", dict(self.info)


def played(env):
    """The last step of an episode."""
    env.reset(seed=1)
    while True:
        step = checked_step(env.step("7"), 100)
        if step[2] or step[3]:
            return step


def test_an_observation_alone_is_a_reset_and_only_the_seed_is_given():
    observation, info = checked_reset(Plain(Guess()).reset(seed=3, options={"opponent_seed": 4}), 100)
    assert (observation, info) == ("welche Zahl? 数字 🎲 3", {})


def test_methods_may_be_asynchronous(monkeypatch):
    class Slow(Guess):
        async def reset(self, seed=None):
            self.lock = asyncio.Lock()  # of the loop that the whole episode runs on
            return super().reset(seed)

        async def step(self, action):
            async with self.lock:
                await asyncio.sleep(0)
                return super().step(action)

        async def close(self):
            closed.append(await asyncio.sleep(0, "closed"))

    closed = []
    monkeypatch.setattr(registry, "_targets", {**registry._targets, "slow": Slow})
    env = registry.make("slow")
    assert played(env)[:4] == ("7", 1.0, True, False)
    env.close()
    assert closed == ["closed"]


def test_options_are_given_to_those_who_take_them():
    class Both(Guess):
        def reset(self, **given):
            self.given = given
            return "?", {"role": "tool"}

    env = Both()
    assert Plain(env).reset(seed=3, options={"a": 1}) == ("?", {"role": "tool"})
    assert env.given == {"seed": 3, "options": {"a": 1}}


@pytest.mark.parametrize(
    ("observation", "told"),
    [
        ({"role": "user", "content": "你好 🙂"}, ("你好 🙂", {"role": "user"})),
        ({"role": "tool", "content": "42"}, ("42", {"role": "tool"})),
        ([{"role": "system", "content": "Rate!"}, {"role": "user", "content": "?"}], ("Rate!\n\n?", {"role": "user"})),
        ([{"role": "system", "content": "Rate!"}], ("Rate!", {"role": "user"})),
    ],
)
def test_chat_messages_are_observations(observation, told):
    class Chatting(Guess):
        def reset(self):
            return observation

        def step(self, action):
            return observation, 0.0, False, True, {}

    env = Plain(Chatting())
    assert checked_reset(env.reset(), 100) == told
    assert checked_step(env.step("7"), 100)[::4] == told


@pytest.mark.parametrize(
    "wrong", [[], [{"role": "assistant", "content": "5"}], [{"role": "user"}], {"content": "?"}, {}]
)
def test_other_messages_are_named(wrong):
    env = Guess()
    env.reset = lambda: wrong
    with pytest.raises(EarlError, match=r"the observation is [\[{].*, not a text; return a str"):
        checked_reset(Plain(env).reset(), 100)


@pytest.mark.parametrize(
    ("rewards", "outcome"),
    [((0.0, 1.0), "win"), ((-1.0, 0.5), "loss"), ((-1.0, 1.0), "draw"), ((0.0,), "draw"), ((True, -0.5), "win")],
)
def test_the_outcome_follows_from_the_sum_of_the_rewards(rewards, outcome):
    env = Plain(Guess(rewards))
    assert played(env)[4]["outcome"] == outcome
    assert played(env)[4]["outcome"] == outcome  # of each episode alone


def test_an_outcome_that_is_told_stands():
    assert played(Plain(Guess((1.0,), outcome="loss")))[4]["outcome"] == "loss"


def test_what_is_left_out_has_its_default():
    env = Plain(Guess())
    assert (env.instructions, env.max_turns, env.rule("anything"), env.draw("?")) == (
        "Name the number.",
        MOST_TURNS,
        None,
        None,
    )
    assert not env.charges_truncation
    assert not hasattr(env, "random_action")


def test_what_is_there_is_used():
    class More(Guess):
        instructions, max_turns = "say a digit", 4

        def rule(self, action):
            return None if action.isdigit() else "a digit, please"

        def random_action(self, rng):
            return str(rng.randrange(10))

    env = Plain(More())
    assert (env.instructions, env.max_turns, env.rule("x"), env.rule("1")) == (
        "say a digit",
        4,
        "a digit, please",
        None,
    )
    assert callable(env.random_action)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (
            ("a", 1.0, True, {}),
            r"step\(\) returned .* return the tuple \(observation, reward, terminated, truncated, i",
        ),
        (None, r"step\(\) returned None; return the tuple"),
        (("a", "1", True, False, {"outcome": "win"}), "the reward is '1', not a finite number"),
        (("a", 1.0, True, False, None), "info is None; return a dict"),
        ((b"a", 1.0, True, False, {}), "the observation is b'a', not a text"),
    ],
)
def test_a_wrong_return_names_the_value_and_the_rule(returned, words):
    env = Guess()
    env.step = lambda _: returned
    with pytest.raises(EarlError, match=words):
        played(Plain(env))


def test_a_wrong_reset_names_the_value_and_the_rule():
    env = Guess()
    env.reset = lambda: ("a", {}, 1)
    with pytest.raises(EarlError, match=r"reset\(\) returned \('a', {}, 1\); return the tuple \(observation, info\)"):
        Plain(env).reset()


def test_an_object_without_a_step_is_refused():
    with pytest.raises(EarlError, match=r"object has no method reset\(\); an environment needs reset and step"):
        Plain(object())


@pytest.fixture
def own(monkeypatch, tmp_path):
    """A registry and a user's folder of the test's own, and a module that can be imported from the present folder."""
    for name in ("_allowed", "_remembered"):
        monkeypatch.setattr(registry, name, set())
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    (tmp_path / "guess_here.py").write_text(
        "class Guess:\n    def reset(self):\n        return '?'\n    def step(self, action):\n        return 1\n"
        "def ran(*arguments):\n    open('ran', 'w').close()\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_import_string_is_made_only_once_its_user_has_named_it(own):
    with pytest.raises(EarlError, match="'guess_here:Guess' is code that a recipe names, and you never named it"):
        registry.make("guess_here:Guess")
    registry.remember("guess_here:Guess")
    assert registry.make("guess_here:Guess").reset(seed=1) == ("?", {})
    assert (own / "user" / "earl" / "environments").read_text() == "guess_here:Guess\n"
    for name in ("_allowed", "_remembered", "_loaded"):  # another process of this user
        getattr(registry, name).clear()
    assert registry.make("guess_here:Guess").reset(seed=1) == ("?", {})


def test_what_is_no_environment_is_not_remembered(own):
    registry.remember("guess_here:ran")
    with pytest.raises(EarlError, match=r"NoneType has no method reset\(\)"):
        registry.make("guess_here:ran")
    assert not (own / "user").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("guess_here:Gues", "cannot load 'guess_here:Gues' .*no attribute 'Gues'"),
        ("nowhere.at.all:Guess", "No module named 'nowhere'"),
        ("guess_here:__name__", "not a callable"),
    ],
)
def test_an_import_string_that_leads_nowhere_is_named_with_the_rule(own, name, words):
    registry.remember(name)
    with pytest.raises(EarlError, match=words) as error:
        registry.make(name)
    assert 'write the target as "module:attribute"' in str(error.value)


def test_a_module_that_raises_anything_is_an_error_of_one_line(own):
    (own / "broken_here.py").write_text("raise SystemExit(3)\n")
    registry.remember("broken_here:Guess")
    with pytest.raises(EarlError, match=r"cannot load 'broken_here:Guess' \(SystemExit: 3"):
        registry.make("broken_here:Guess")


def test_an_entry_point_is_an_environment_by_its_name(own, monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda: {"guess": "guess_here:Guess"})
    monkeypatch.syspath_prepend(own)
    assert "guess" in registry.names()
    assert registry.make("guess").reset(seed=1) == ("?", {})
