from random import Random

import pytest

from earl.agents.scripted.registry import agent
from earl.envs import registry
from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.errors import EarlError


def opened(seed: int = 0, **options: int) -> tuple[ArithmeticEnv, str]:
    env = ArithmeticEnv(**options)
    return env, env.reset(seed=seed)[0]


@pytest.mark.parametrize("options", [{}, {"num_operations": 16, "max_operand": 499}, {"num_operations": 1}])
def test_results_on_the_way_stay_short(options):
    for seed in range(200):
        env, chain = opened(seed, **options)
        # Chains hold + and - alone, so Python's own order is the one from left to right.
        total = 0
        for term, result in zip(chain.replace("-", "+-").split("+"), env.results, strict=True):
            total += int(term)
            assert 0 <= total == result <= 999
        assert len(env.terms) == env.num_operations == env.max_turns - 2


def test_problems_depend_on_the_seed_alone():
    assert opened(seed=3)[1] == opened(seed=3)[1]
    assert len({opened(seed)[1] for seed in range(100)}) > 90
    env = ArithmeticEnv()
    assert env.reset(seed=3, options={"opponent_seed": 9})[0] == opened(seed=3)[1]


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        ('calc("5-9")', "-4"),
        ('calc(expression="6*7")', "42"),
        ('[calc("37"), calc("-6+7")]', "1: 37\n2: 1"),
        ('calc("1+2+3")', "error: one operation per call"),
        ('calc("1/2")', "error: it takes whole numbers, +, -, * and parentheses, not 1 / 2"),
    ],
)
def test_the_calculator_answers_any_well_formed_call(call, reply):
    env, _ = opened()
    assert env.step(call)[:4] == (reply, 0.0, False, False)
    assert env.solved == 0 and env.turns == 1


@pytest.mark.parametrize(
    "action",
    ["", "sixty", " 66", "66\n", "-4", "6.6", "²", "٣", "37+48", "<tool_call>1+2", 'calc("1+2"', "calc(1)",
     'add("1+2")', 'calc("1+2")\n', ' calc("1+2")', 'calc("1", "2")', '66 calc("1+2")',  f"calc({'9' * 5000})"],
)  # fmt: skip
def test_anything_else_breaks_the_rule_and_changes_nothing(action):
    env, _ = opened()
    for _ in range(10):
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation == info["illegal"] == env.rule(action)
        assert (reward, terminated, truncated, env.turns) == (0.0, False, False, 0)


def test_answers_are_compared_as_numbers_of_any_length():
    env, _ = opened()
    assert env.step(f"00{env.results[-1]}")[1] == 1.0
    env, _ = opened()
    assert env.step("9" * 4096)[:4] == ("wrong", 0.0, True, False)
    env, _ = opened()
    assert env.step("1000")[4]["outcome"] == "loss"


def test_too_many_calls_are_truncated():
    env, _ = opened()  # 2 operations + 2 turns
    steps = [env.step('calc("1+1")') for _ in range(4)]
    assert [step[2:4] for step in steps] == [(False, False)] * 3 + [(False, True)]
    with pytest.raises(EarlError, match=r"call reset\(\)"):
        env.step("2")


def test_chains_of_many_lengths_are_padded_to_one():
    lengths = set()
    for seed in range(200):
        env, chain = opened(seed, num_operations=6, min_operations=2, max_operand=4, max_value=9)
        # 7 operands of one digit and 6 signs.
        assert len(chain) == 13
        assert sum(chain.count(sign) for sign in "+-") == len(env.terms)
        assert all(0 <= result <= 9 for result in env.results)
        lengths.add(len(env.terms))
    assert lengths == {2, 3, 4, 5, 6}


def test_sizes_out_of_range_are_refused():
    for options in (
        {"num_operations": 0},
        {"num_operations": 4097},
        {"max_operand": 0},
        {"max_operand": 500},
        {"min_operations": 0},
        {"min_operations": 3},  # more than the two of num_operations
        {"max_value": 1, "max_operand": 1},
        {"max_value": 1000},
        {"max_value": 9, "max_operand": 5},
    ):
        with pytest.raises(EarlError, match=r"is not within [12] …"):
            registry.make("arithmetic", **options)


def test_the_solver_always_solves_and_chance_hardly_ever():
    def wins(name: str) -> int:
        count = 0
        for seed in range(300):
            env, _ = opened(seed)
            rng, over, info = Random(seed), False, {}
            while not over:
                _, _, terminated, truncated, info = env.step(agent(name, "arithmetic").act(env, rng))
                over = terminated or truncated
            count += info.get("outcome") == "win"
        return count

    assert wins("solver") == 300
    assert wins("random") < 15
    assert wins("random") < wins("solver@0.5") < 300
