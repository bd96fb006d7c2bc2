"""The teacher: clean labels on games with noisy execution, and a tool task from end to end."""

import numpy as np
import pytest

from earl.agents.scripted.registry import agent
from earl.errors import EarlError
from earl.rollout.drivers import demonstrate
from earl.rollout.episode import Rules
from earl.rollout.pack import pack
from earl.rollout.tasks import EpisodeFactory, draw_tasks
from earl.trajectory import Author, Outcome, StopReason, Task

ROOMY = Rules(max_turn_tokens=40, context_limit=512)


@pytest.fixture
def demonstrated(chat):
    """Demonstrates `count` episodes of a game or task."""

    def make(env, teacher, noise, count, seed=0, rules=ROOMY):
        world = EpisodeFactory(env, {}, chat, rules)
        tasks = draw_tasks({env: {"": 1} if env == "arithmetic" else {"random": 1}}, count, seed)
        episodes = [world.episode(task, seed + i, i) for i, task in enumerate(tasks)]
        return demonstrate(episodes, {env: (agent(teacher, env), agent("random", env))}, noise)

    return make


def test_a_tool_task_is_solved_by_calls_and_an_answer(chat, text):
    episode = EpisodeFactory("arithmetic", {}, chat, ROOMY).episode(Task("arithmetic", seed=5), seed=1, session=0)
    start, value, end = map(str, episode.env.results)
    first, second = (f'calc("{{}}{term:+}")' for term in episode.env.terms)
    trajectories, labels = demonstrate([episode], {"arithmetic": (agent("solver", "arithmetic"),) * 2}, 0.0)
    (result,) = trajectories
    assert (result.stop, result.outcome, result.reward) == (StopReason.FINISHED, Outcome.WIN, 1.0)
    actions = [first.format(start), second.format(value), end]
    assert [turn.action for turn in result.turns] == actions
    assert [text(labels[0][turn]) for turn in range(3)] == [f"{action}$" for action in actions]
    # The calculator answers as the tool, in the template's tool message.
    assert f"[{actions[0]}$|{value}$[" in text(result.tokens)
    by_tool = result.tokens[result.authors == Author.TOOL]
    assert text(by_tool) == value + end
    assert text(result.tokens[result.authors >= Author.THINKING]) == "$".join([*actions, ""])


def test_every_label_is_learned_where_nothing_was_disturbed(demonstrated):
    trajectories, labels = demonstrated("arithmetic", "solver", 0.0, 5)
    rows = pack(trajectories, labels)
    assert rows.targets[rows.mask].tolist() == rows.tokens[rows.mask].tolist()
    assert rows.mask.sum() == sum(len(tokens) for own in labels for tokens in own.values())


def test_noise_changes_what_is_played_and_never_the_label(demonstrated):
    trajectories, labels = demonstrated("tictactoe", "expert", 0.5, 200)
    departed = total = 0
    for trajectory, own in zip(trajectories, labels, strict=True):
        for number, turn in enumerate(trajectory.turns):
            departed += chr(own[number][0]) != turn.action
            total += 1
    # A random move equals the label about once in six: some 0.5 · 5/6 = 0.42 of the turns depart.
    assert 0.3 < departed / total < 0.5
    rows = pack(trajectories, labels)
    # Each departing turn learns its move alone, every other its move and the end: two tokens.
    assert rows.mask.sum() == 2 * total - departed


def test_the_same_seed_demonstrates_the_same(demonstrated):
    first, second = (demonstrated("tictactoe", "expert", 0.5, 20, seed=3)[0] for _ in range(2))
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(first, second, strict=True))


def test_demonstrations_carry_no_log_probability(demonstrated):
    trajectories, _ = demonstrated("tictactoe", "random", 1.0, 3)
    assert not any(trajectory.logprobs.any() for trajectory in trajectories)


def test_a_reply_that_the_student_could_not_finish_is_not_taught(demonstrated):
    # 'calc("37+48")' takes more than 8 characters.
    with pytest.raises(EarlError, match=r"set agent\.max_turn_tokens to at least [0-9]+"):
        demonstrated("arithmetic", "solver", 0.0, 1, rules=Rules(max_turn_tokens=8, context_limit=512))


def test_the_context_limit_cuts_a_teacher_as_it_cuts_a_student(demonstrated):
    (result,), _ = demonstrated("arithmetic", "solver", 0.0, 1, rules=Rules(max_turn_tokens=40, context_limit=30))
    assert (result.stop, len(result.tokens)) == (StopReason.CONTEXT_LIMIT, 30)
