"""What the tests of the report need: runs made by code, with the text in them that a test asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from earl.engine.tokenizer import character_tokenizer
from earl.group import Group
from earl.growth import ContextTokens
from earl.matches import MatchResult
from earl.runs import checkpoint, trajectories
from earl.runs.folder import RunFolder, create
from earl.runs.store import Store
from earl.runs.tables import RecordedDecision
from earl.trajectory import Author, Experience, Outcome, StopReason, Task, Trajectory, Turn

WARM = 10
STEPS = 60
OPPONENTS = ("random", "perfect")
FORECASTS = [f"forecast/{quantile}/{end}" for quantile in ("p50", "p95", "p99") for end in ("early", "median", "late")]
RECIPE = f"""
[env]
name = "tictactoe"
[env.opponents]
random = 1
perfect = 1
[context]
limit = 120
[warm_start]
steps = {WARM}
teacher = "perfect"
[evaluate]
opponents = ["random", "perfect"]
[run]
steps = {STEPS - WARM}
"""


@cache
def project_tokenizer() -> Any:
    """The tokenizer of the small model; it is what checkpoints of the project hold."""
    return character_tokenizer()


@cache
def byte_tokenizer() -> Any:
    """A tokenizer that knows every text, one token per byte, as those of large models do."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|user|>", special=True)])
    return tokenizer


def episode(
    encode: Callable[[str], Sequence[int]],
    exchanges: Sequence[tuple[str, str]],
    *,
    opponent: str = "random",
    seat: int = 0,
    outcome: Outcome = Outcome.WIN,
    speaker: Author = Author.ENVIRONMENT,
    logprob: float = -0.25,
    env: str = "tictactoe",
    **fields: Any,
) -> Trajectory:
    """An episode from (what the environment said, what the model replied) pairs; marks stand around both."""
    tokens: list[int] = []
    authors: list[Author] = []
    turns: list[Turn] = []

    def add(text: str, author: Author) -> None:
        ids = encode(text)
        tokens.extend(ids)
        authors.extend([author] * len(ids))

    for given, reply in exchanges:
        start = len(tokens)
        add("<|user|>", Author.TEMPLATE)
        add(given, speaker)
        asked = len(tokens)
        thought, mark, action = reply.rpartition("</think>")
        add(thought + mark, Author.THINKING)
        add(action + "<|end|>", Author.ACTION)
        turns.append(Turn(0, start, asked, len(tokens), action, 0.0, 1e-4))
    owned = np.array(authors, np.uint8)
    sampled = owned >= Author.THINKING
    facts = {"stop": StopReason.FINISHED, "illegal": 0, "error": None, **fields}
    return Trajectory(
        task=Task(env, 7, seat, opponent),
        seed=3,
        tokens=np.array(tokens, np.int32),
        authors=owned,
        logprobs=np.where(sampled, logprob, 0).astype(np.float32),
        versions=np.where(sampled, 4, -1).astype(np.int32),
        turns=tuple(turns),
        outcome=outcome,
        **facts,
    )


@dataclass
class Builder:
    """Makes runs in a folder of the test."""

    root: Path

    def empty(self, name: str = "demo", recipe: str = RECIPE) -> RunFolder:
        """A run that has only its recipe."""
        return create(self.root, name, recipe)

    def run(
        self, *, until: int = STEPS, final: bool = True, exact: bool = False, name: str = "demo", limit: int = 120
    ) -> RunFolder:
        """A run that recorded the steps 0 … until, with a checkpoint and a step's trajectories."""
        folder = self.empty(name, RECIPE.replace("limit = 120", f"limit = {limit}"))
        with Store(folder.database) as store:
            for step in range(until + 1):
                record(store, step, exact)
            store.event(min(until, 30), "limit", "raised the limit from 120 to 150")
            if final:
                store.record_step(until, {}, {}, matches(0.9, exact), "final")
                store.event(until, "finished", "all steps done")
        self.checkpoint(folder, until)
        if until > WARM:
            self.episodes(folder, until, board_games())
        return folder

    def checkpoint(self, folder: RunFolder, step: int, tokenizer: Any = None) -> None:
        """A checkpoint of a model of 4 × 6 + 6 = 30 parameters."""

        def write(path: Path) -> None:
            save_file(
                {"embed": np.zeros((4, 6), np.float32), "norm": np.zeros(6, np.float32)}, path / "model.safetensors"
            )
            (path / "config.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 6}')
            if tokenizer is None:
                project_tokenizer().save_pretrained(path)
            else:
                tokenizer.save(str(path / "tokenizer.json"))

        checkpoint.save(folder.checkpoints, step, write, {"step": step, "best_step": step})

    def episodes(self, folder: RunFolder, step: int, played: Sequence[Trajectory], learned: bool = True) -> None:
        """Keep trajectories of a step, and what was learned from them."""
        path = trajectories.path_of(folder.trajectories, step)
        experiences = [experience(trajectory) for trajectory in played] if learned else None
        trajectories.write(path, trajectories.to_table([Group(tuple(played))], step, experiences))

    def long(self, name: str = "long", steps: int = 500) -> RunFolder:
        """A run of many steps, with ten of its steps' episodes: 400 games of up to 8 turns with thinking."""
        folder = self.empty(name, RECIPE.replace(f"steps = {STEPS - WARM}", f"steps = {steps - WARM}"))
        with Store(folder.database) as store:
            for step in range(steps + 1):
                record(store, step, exact=False)
            store.record_step(steps, {}, {}, matches(0.9, exact=False), "final")
        self.checkpoint(folder, steps)
        for step in range(steps // 10, steps + 1, steps // 10):
            self.episodes(folder, step, long_games(step))
        return folder

    def hostile(self, texts: Sequence[str], name: str = "hostile") -> RunFolder:
        """A run whose model, environment, opponents, events, metrics and stages are all named by `texts`."""
        folder = self.empty(name)
        with Store(folder.database) as store:
            for number, text in enumerate(texts):
                result = MatchResult("tictactoe", text, 0, False, 40, 0.5, 0.25, 0.25, 0.0, 0.0)
                store.record_step(number, {text: 1.0, "reward": 0.5}, {text: 0.1}, [result], "train")
                store.event(number, text, text)
                store.decision(RecordedDecision(number, "update", text, "dp4 tp1", text, text, text))
        self.checkpoint(folder, 1, byte_tokenizer())
        played = [
            episode(lambda t: byte_tokenizer().encode(t).ids, [(text, text)], opponent=text, error=text)
            for text in texts
        ]
        self.episodes(folder, 1, played)
        return folder


def record(store: Store, step: int, exact: bool) -> None:
    """One step's numbers, of the shape that training writes."""
    done = min(1.0, step / STEPS)
    timings = {"rollout": 0.3, "update": 0.5, "weights": 0.001, "record": 0.01}
    numbers: dict[str, float] = {}
    if 0 < step <= WARM:
        numbers = {"warm_start/loss": 2.0 - done, "warm_start/entropy": 1.0, "warm_start/grad_norm": 0.5}
    elif step:
        numbers = {"reward": done, "illegal_replies": 0.1 * (1 - done), "entropy": 0.5, "loss": 0.01, "grad_norm": 0.2}
        numbers |= {f"context/turn/{name}": 18.0 for name in ("p50", "p95", "p99", "max")}
        for level in ("episode", "window"):
            quantiles = {"p50": 60.0, "p95": 80.0 + step / 3, "p99": 100.0, "max": 110.0}
            numbers |= {f"context/{level}/{name}": value for name, value in quantiles.items()}
        numbers |= {"context/limit": 120.0 if step < 30 else 150.0}
        numbers |= {f"tokens/{author.name.lower()}": 384.0 * 10 * author for author in Author}
        numbers |= {"truncation/prompt": 0.005, "truncation/reply": 0.003, "truncation/turn": 0.002}
        numbers |= {"memory/kv_bytes": 3e6 + 1e4 * step, "memory/activation_bytes": 9e6}
        numbers |= dict(
            zip(FORECASTS, (150.0, 170.0, float("inf"), 80.0, 90.0, 110.0, *[float("inf")] * 3), strict=True)
        )
        numbers |= {"stop/finished": 0.99, "stop/context_limit": 0.01, "episodes": 384.0, "tokens": 26000.0}
        numbers |= {"learning_rate": 1e-3, "kl_to_sampler": float("nan")}
    evaluated = step in (0, WARM) or step % 20 == 0
    phase = "start" if step == 0 else "warm_start" if step <= WARM else "train"
    played = matches(0.9 * done, exact) if evaluated else ()
    store.record_step(step, numbers, timings, played, phase, contexts(step) if step > WARM else ())


def contexts(step: int) -> list[ContextTokens]:
    """384 episodes with a first turn, half of them with a second; the model's action grows by one token a step."""
    return [
        ContextTokens(step, turn, author, episodes * tokens, episodes)
        for turn, episodes in ((0, 384), (1, 192))
        for author, tokens in ((Author.ENVIRONMENT, 12), (Author.ACTION, step))
    ]


def experience(trajectory: Trajectory) -> Experience:
    """What was sampled was learned from, and the update made every such token 1.1 times as likely."""
    sampled = trajectory.sampled
    advantages = np.linspace(-1, 1, len(trajectory.turns) + 1, dtype=np.float32)[: len(trajectory.turns)]
    changed = np.where(sampled, trajectory.logprobs + np.log(1.1), 0).astype(np.float32)
    return Experience(sampled, advantages, changed)


def matches(win: float, exact: bool) -> list[MatchResult]:
    """Results against every opponent from both seats: the second seat draws more; 0.3 % are lost at least."""
    loss = max(0.003, 0.8 - win)
    return [
        MatchResult(
            "tictactoe",
            opponent,
            seat,
            exact,
            400,
            win - 0.1 * seat * win,
            1 - loss - win + 0.1 * seat * win,
            loss,
            0.0,
            0.0,
        )
        for opponent in OPPONENTS
        for seat in (0, 1)
    ]


def board_games() -> list[Trajectory]:
    """48 games that differ in opponent, seat and outcome."""

    def encode(text: str) -> list[int]:
        return list(project_tokenizer()(text, add_special_tokens=False)["input_ids"])

    return [
        episode(
            encode,
            [("X 123\n456\n789", "5"), (f"X O23\n4X6\n{789 if number % 2 else '7O9'}", f"<think>{number}</think>3")],
            opponent=OPPONENTS[number % 2],
            seat=number // 2 % 2,
            outcome=tuple(Outcome)[number % 3],
            logprob=-0.05 * number,
            illegal=int(number % 5 == 0),
        )
        for number in range(48)
    ]


def long_games(step: int) -> list[Trajectory]:
    """40 games of Connect Four, some of 20 turns, in which nobody ever moves."""
    board = "X " + "\n".join(["......."] * 6)

    def encode(text: str) -> list[int]:
        return list(project_tokenizer()(text, add_special_tokens=False)["input_ids"])

    return [
        episode(
            encode,
            [
                (board, f"<think>{step} {number} {turn} {'so ' * (number % 9)}</think>4")
                for turn in range(1 + number % 20)
            ],
            opponent=OPPONENTS[number % 2],
            seat=number // 2 % 2,
            outcome=tuple(Outcome)[number % 3],
            stop=(StopReason.FINISHED, StopReason.CONTEXT_LIMIT)[number % 4 == 3],
            logprob=-0.02 * number,
            env="connect4",
        )
        for number in range(40)
    ]


@pytest.fixture
def runs(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "runs")


@pytest.fixture
def make_episode() -> Callable[..., Trajectory]:
    """Episodes in bytes: any text can stand in them."""
    return lambda exchanges, **fields: episode(lambda t: byte_tokenizer().encode(t).ids, exchanges, **fields)


@pytest.fixture
def bytewise() -> Any:
    return byte_tokenizer()


@pytest.fixture
def hostile_texts() -> list[str]:
    """What a model may write to harm a reader."""
    return [
        "<script>window.harmed = 1</script>",
        "</script><script>window.harmed = 2</script>",
        "<img src=https://example.com/x.png onerror='window.harmed = 3'>",
        '" onmouseover="window.harmed = 4" x="',
        "{{ 7 * 7 }}{% include '/etc/passwd' %}",
        "<!-- <!--<script> --!> ]]> </style></title></pre>",
        "right \u202e to left \u2066 isolate \u200b zero \ufeff width",
        "\x1b[31mred\x1b[0m \x07bell \x00nul \x7fdel \x85next",
        "line\u2028separator\u2029paragraph\r\nreturn\ttab",
        '<a href="javascript:window.harmed = 5">click</a>',
        "é 漢 \U0001f600 \u0301\u0301\u0301 ‎",
        "x" * 1_000_000,
    ]
