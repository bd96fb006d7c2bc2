"""How fast environments step: `python -m tests.envs.speed [adapters] [bundled] [loop]` prints medians and ranges.

adapters  the environments of other libraries through earl's adapters, against the same random play by the library's own
          calls, which also make the text that an agent reads before each of its turns; ratio pair by pair of repeats
bundled   earl's own environments under random legal actions
loop      what the agent loop takes for a turn whose observation has 4,000 characters, and how much of it the tokenizer
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from earl.benchmarks.envs import LIBRARIES, Episode, own, rate
from earl.benchmarks.repeats import in_turns, interval
from earl.envs import registry
from earl.envs.adapters.gymnasium import text_of

REPEATS = 7
TURNS, CHARACTERS = 20, 4000


def gymnasium(name: str) -> Episode:
    import gymnasium

    env = gymnasium.make(name)

    def episode(seed: int, rng: Random) -> int:
        steps, over = 0, False
        text_of(env.reset(seed=seed)[0])
        actions = range(env.action_space.n)  # type: ignore[attr-defined]
        while not over:
            seen, _, terminated, truncated, _ = env.step(rng.choice(actions))
            text_of(seen)
            steps, over = steps + 1, terminated or truncated
        return steps

    return episode


def reasoning_gym(name: str) -> Episode:
    from reasoning_gym import create_dataset

    def episode(seed: int, rng: Random) -> int:
        tasks = create_dataset(name, seed=seed, size=1)
        tasks.score_answer(str(rng.randint(-99, 99)), tasks[0])
        return 1

    return episode


def verifiers(name: str) -> Episode:
    import verifiers.v1 as vf

    tasks = list(vf.load_taskset(vf.taskset_config_type(name).model_validate({"id": name})))
    loop = asyncio.new_event_loop()

    def episode(seed: int, rng: Random) -> int:
        task = rng.choice(tasks)
        said = [
            vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text)),
            vf.MessageNode(parent=0, message=vf.AssistantMessage(content=str(rng.randint(-99, 99))), sampled=True),
        ]
        agent, own = vf.AgentInfo(config=vf.AgentConfig()), vf.TraceTask(type=type(task).__name__, data=task.data)
        loop.run_until_complete(task.score(vf.Trace(task=own, agent=agent, nodes=said)))
        return 1

    return episode


BARE = {make.__name__: make for make in (gymnasium, reasoning_gym, verifiers)}
NAMES = [
    *("openspiel:kuhn_poker", "openspiel:tic_tac_toe", "openspiel:chess", "pettingzoo:connect_four_v3"),
    *("pettingzoo:chess_v6", "gymnasium:FrozenLake-v1", "gymnasium:Blackjack-v1", "gymnasium:CartPole-v1"),
    *("reasoning_gym:chain_sum", "reasoning_gym:leg_counting", "textarena:TicTacToe-v0"),
    *("textarena:GuessTheNumber-v0", "verifiers:sums_of_verifiers", "verifiers:words_of_verifiers"),
]


def show(name: str, **values: dict[str, float]) -> None:
    told = (f"{key} {own['median']:,.4g} ({own['min']:,.4g} … {own['max']:,.4g})" for key, own in values.items())
    print(f"{name:28}", "   ".join(told), flush=True)


def adapters() -> None:
    sys.path.insert(0, str(Path(__file__).parent / "tasksets"))
    registry.allow(*(name for name in NAMES if name.startswith("verifiers")))
    for name in NAMES:
        library, _, called = name.partition(":")
        bare = BARE[library](called) if library in BARE else LIBRARIES[library](called)[library]
        ways = {"bare": partial(rate, bare), "adapter": partial(rate, own(name))}
        rates = in_turns(ways, REPEATS, warm=1)
        ratios = [mine / theirs for mine, theirs in zip(rates["adapter"], rates["bare"], strict=True)]
        show(name, ratio=interval(ratios), **{way: interval(spread) for way, spread in rates.items()})


def bundled() -> None:
    for name in (
        "tictactoe",
        "connect4",
        "gomoku",
        "othello",
        "nim",
        "kuhn",
        "leduc",
        "bargain",
        "words",
        "arithmetic",
    ):
        show(name, steps_per_second=interval([rate(own(name), number) for number in range(REPEATS)]))


class Telling:
    """Tells a text of 4,000 characters in each turn, never the same twice."""

    max_turns = TURNS

    def __init__(self) -> None:
        self._texts = ["".join(Random(turn).choices("the12 abc\n", k=CHARACTERS)) for turn in range(TURNS + 1)]

    def reset(self, seed: int | None = None) -> str:
        return self._texts.pop()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._texts.pop(), 0.0, False, False, {}


def loop() -> None:
    from earl.agents.chat import Chat
    from tests.conftest import PLAIN, bpe_tokenizer

    tokenizer = bpe_tokenizer(PLAIN, ["12", "th", "the"])
    turns = [turn for _ in range(REPEATS) for turn in overhead(Chat(tokenizer), tokenizer)]
    for name, part in (("without the tokenizer", 0), ("tokenizer", 1), ("template", 2), ("the rest", 3)):
        seconds = sorted(turn[part] for turn in turns)
        low, high = (seconds[len(seconds) * tenths // 10] * 1e3 for tenths in (1, 9))
        print(f"loop, ms a turn: {name:21} {median(seconds) * 1e3:.3f} (80 % within {low:.3f} … {high:.3f})")


def overhead(chat: Any, tokenizer: Any) -> Iterator[tuple[float, float, float, float]]:
    """Seconds of processor time, which include the process that renders templates."""
    from earl.envs.base import Plain
    from earl.rollout.episode import Episode, Rules
    from earl.trajectory import Completion, Task

    spent, made = {"tokenizer": 0.0, "template": 0.0}, []

    def seconds() -> float:
        renders = chat._template._process
        return time.process_time() + (time.clock_gettime(~renders.pid << 3 | 2) if renders else 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = seconds()
            made.append(function(*arguments, **named))
            spent[part] += seconds() - began
            return made[-1]

        return call

    chat._encode = timed("tokenizer", chat._encode)
    chat._template.render = timed("template", chat._template.render)
    episode = Episode(Plain(Telling()), chat, Rules(context_limit=1_000_000), Task("telling", 0), 0, 0)
    reply = [*tokenizer("the 12", add_special_tokens=False)["input_ids"], chat.end]
    for _ in range(TURNS - 1):
        before = dict(spent)
        began = seconds()
        episode.receive(Completion(reply, [0.0] * len(reply), [0] * len(reply), True))
        episode.prompt()
        timed("tokenizer", made.clear)()  # what it made is freed here, not in the loop
        whole = seconds() - began
        tokenizing, rendering = (spent[part] - before[part] for part in ("tokenizer", "template"))
        yield whole - tokenizing, tokenizing, rendering, whole - tokenizing - rendering


if __name__ == "__main__":
    for part in sys.argv[1:] or ["adapters", "bundled", "loop"]:
        {"adapters": adapters, "bundled": bundled, "loop": loop}[part]()
