"""What is asked: how a context divides, which ways of naming it exclude each other, what an engine is given."""

from dataclasses import replace

import pytest

from earl.errors import EarlError
from earl.parallel.throughput.step import TENSORRT_LLM
from tests.planner.asked import asked


def test_a_context_is_written_unless_something_of_it_is_read() -> None:
    assert asked().costs.split(2048) == (0, 2048)
    assert asked(prompt_tokens=512).costs.split(2048) == (512, 1536)
    assert asked(reply_tokens=128).costs.split(2048) == (1920, 128)


def test_prompt_and_reply_together_are_the_context() -> None:
    found = asked(prompt_tokens=2048, reply_tokens=128)
    assert found.contexts == (2176,)
    assert found.costs.split(2176) == (2048, 128)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"contexts": "1024", "longest": 2048}, "--contexts and --context both say how long contexts are"),
        (
            {"contexts": "1024", "prompt_tokens": 1, "reply_tokens": 2},
            "--contexts and --prompt-tokens with --reply-tokens both say",
        ),
        (
            {"contexts": "512,1024", "prompt_tokens": 512},
            "--prompt-tokens 512 leaves no room in a context of 512 tokens",
        ),
        ({"contexts": "512,1024", "reply_tokens": 513}, "--reply-tokens 513 leaves no room in a context of 512 tokens"),
        ({"prompt_tokens": 32_768, "reply_tokens": 1}, "was made for contexts of 32768 tokens at most"),
    ],
)
def test_what_contradicts_itself(wish: dict, words: str) -> None:
    with pytest.raises(EarlError, match=words):
        asked(**wish)


def test_vllm_takes_what_the_recipe_says_and_other_engines_what_they_do_by_themselves() -> None:
    assert asked().costs.engine(4).utilization == 0.85
    assert asked(recipe={"sampler": {"memory_share": 0.9}}).costs.engine(4).utilization == 0.9
    other = replace(asked().costs, software=TENSORRT_LLM)
    assert other.engine(4).utilization is None


def test_a_link_in_bytes() -> None:
    assert asked(network_gbps=400.0).costs.network_bandwidth == 50e9  # 400 / 8
