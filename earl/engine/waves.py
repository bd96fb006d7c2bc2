"""Which prompts are completed together where keys and values of all of them do not fit."""

from collections.abc import Sequence

from earl.errors import EarlError
from earl.rollout.prompt import Prompt


def need(prompt: Prompt) -> int:
    """The positions that a prompt and its reply take at most; padding has the last, where nothing is read."""
    return len(prompt.tokens) + prompt.max_tokens


def waves(needs: Sequence[int], room: int) -> list[list[int]]:
    """The numbers of the prompts, wave by wave: as few waves as there can be.

    Slots are as long as the longest of their wave, so prompts that are alike in length go together.

    Args:
        needs: positions of each prompt.
        room: positions of all slots together.

    Raises:
        EarlError: when the longest does not fit by itself.

    Example:
        >>> waves([5, 9, 4, 5], room=10)   # 1 x 9, then 2 x 5, then 1 x 4
        [[1], [0, 3], [2]]
    """
    left = sorted(range(len(needs)), key=lambda number: -needs[number])
    if left and (longest := needs[left[0]]) > room:
        raise EarlError(
            f"an episode needs keys and values for {longest} tokens, and sampler.kv_cache_gib has room for {room}; "
            "raise it, split the sampler over more processes with sampler.tp, or lower the context limit"
        )
    planned = []
    while left:
        size = room // needs[left[0]]
        planned.append(sorted(left[:size]))
        left = left[size:]
    return planned
