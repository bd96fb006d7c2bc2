"""How devices are shared: splits that heads allow, and the simple choice."""

import pytest

from earl.errors import EarlError
from earl.parallel.layout import check_split, splits
from earl.parallel.memory import known

QWEN_7B = known("Qwen2.5-7B").shape  # 28 heads, 4 key-value heads


def test_splits_divide_heads_and_key_value_heads() -> None:
    assert splits(QWEN_7B, 8) == [1, 2, 4]
    # vLLM may hold a key-value head twice, but 28 = 4 x 7 devices cannot share 18,944 = 37 x 512 columns evenly.
    assert splits(QWEN_7B, 28, replicated=True) == [1, 2, 4]
    # 4 key-value heads of 32: twice each.
    assert splits(known("Qwen3-30B-A3B").shape, 8, replicated=True) == [1, 2, 4, 8]
    assert splits(known("Qwen3-30B-A3B").shape, 8) == [1, 2, 4]  # of a mixture the attention: 4 key-value heads


def test_a_split_that_heads_do_not_allow_is_refused() -> None:
    check_split(QWEN_7B, "placement.tp", 4, replicated=False)
    with pytest.raises(EarlError, match=r"placement.tp = 8: the model has 28 attention heads.* set .* one of 1, 2, 4$"):
        check_split(QWEN_7B, "placement.tp", 8, replicated=False)
    with pytest.raises(EarlError, match=r"placement.tp = 7: the model has 4 key-value heads"):
        check_split(QWEN_7B, "placement.tp", 7, replicated=False)
