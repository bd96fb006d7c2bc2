"""Episodes made by code, with the text in them that a test asks for, and what was learned of them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from earl.engine.model import character_tokenizer
from earl.trajectory import Author, Outcome, StopReason, Task, TrainingRecord, Trajectory, Turn

OPPONENTS = ("random", "perfect")


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


def experience(trajectory: Trajectory) -> TrainingRecord:
    """What was sampled was learned from, and the update made every such token 1.1 times as likely."""
    sampled = trajectory.sampled
    advantages = np.linspace(-1, 1, len(trajectory.turns) + 1, dtype=np.float32)[: len(trajectory.turns)]
    changed = np.where(sampled, trajectory.logprobs + np.log(1.1), 0).astype(np.float32)
    return TrainingRecord(sampled, advantages, changed)


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
