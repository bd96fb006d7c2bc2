"""The axes of a plan: lists as users write them, and what the model suggests."""

import re

import pytest

from earl.errors import EarlError
from earl.parallel.hardware import of_gpus
from earl.parallel.memory import known
from earl.planner.question import Wish, contexts, numbers, responses, tps

QWEN, SMALL = known("Qwen2.5-72B").shape, known("Qwen2.5-7B").shape
CLUSTER = of_gpus("16x8xH100")


def test_lists_are_sorted_and_hold_each_number_once() -> None:
    assert numbers("--contexts", "4096, 1024,4096") == (1024, 4096)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty item is not a whole number from 1"),
        ("1024,,2048", "'1024,,2048': an empty item"),
        ("1024,", "an empty item"),
        (
            "1k",
            "'1k' is not a whole number from 1; give numbers with commas between them, such as --contexts 1024,2048",
        ),
        ("0", "'0' is not a whole number from 1"),
        ("-8", "'-8' is not"),
        ("8.5", "'8.5' is not"),
        ("٣", "'٣' is not"),
        ("9999999999", "is not a whole number"),
        (",".join(map(str, range(1, 34))), "names 33 values; name 32 at most"),
    ],
)
def test_what_is_no_list_of_numbers(text: str, words: str) -> None:
    with pytest.raises(EarlError, match=re.escape(words)):
        numbers("--contexts", text)


def test_contexts_are_powers_of_two_up_to_the_positions_or_to_the_longest_expected() -> None:
    assert contexts(Wish(), QWEN, "Qwen") == (1024, 2048, 4096, 8192, 16_384, 32_768)
    assert contexts(Wish(longest=3000), QWEN, "Qwen") == (1024, 2048, 3000)
    assert contexts(Wish(longest=512), QWEN, "Qwen") == (512,)
    assert contexts(Wish(contexts="512,32768"), QWEN, "Qwen") == (512, 32_768)


@pytest.mark.parametrize(
    ("given", "longest", "option"), [("1024,65536", None, "--contexts"), (None, 65_536, "--context")]
)
def test_a_context_that_the_model_was_not_made_for(given: str | None, longest: int | None, option: str) -> None:
    words = f"{option} 65536: Qwen was made for contexts of 32768 tokens at most; give at most 32768"
    with pytest.raises(EarlError, match=words):
        contexts(Wish(given, longest), QWEN, "Qwen")


def test_responses() -> None:
    assert responses(None) == (8, 16, 32, 64, 128)
    assert responses("128,32") == (32, 128)
    with pytest.raises(EarlError, match="--responses 100000: earl plans for 65,536 at once"):
        responses("100000")


def test_splits_divide_heads_and_hosts() -> None:
    assert tps(None, QWEN, CLUSTER, "Qwen") == (1, 2, 4, 8)
    assert tps(None, SMALL, CLUSTER, "small") == (1, 2, 4)  # 28 heads over 8 do not go
    assert tps("8,4", QWEN, CLUSTER, "Qwen") == (4, 8)
    assert tps(None, QWEN, of_gpus("6xH100"), "Qwen") == (1, 2)  # 4 do not fill a host of 6


@pytest.mark.parametrize(
    ("given", "gpus", "words"),
    [
        (
            "4,16",
            "16x8xH100",
            "--tp 16: one copy lies on one host, and a host of --gpus 16x8xH100 has 8 GPUs; nearest valid: 8",
        ),
        ("3", "16x8xH100", "Qwen has 64 attention heads and 8 key-value heads, which 3 GPUs cannot share evenly"),
        ("3", "16x8xH100", "nearest valid: 2 (possible: 1, 2, 4, 8)"),
        ("4", "6xH100", "has 6 GPUs, which copies of 4 do not fill; nearest valid: 2"),
    ],
)
def test_splits_that_cannot_be(given: str, gpus: str, words: str) -> None:
    with pytest.raises(EarlError, match=re.escape(words)):
        tps(given, QWEN, of_gpus(gpus), "Qwen")
