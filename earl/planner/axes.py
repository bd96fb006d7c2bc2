"""What a plan is laid out over: contexts, responses and splits, as a user names them or as the model suggests them."""

import re

from earl.errors import EarlError
from earl.parallel.arrangement import splits
from earl.parallel.hardware import Cluster
from earl.parallel.memory import ModelShape

FIRST_CONTEXT = 1024
RESPONSES = (8, 16, 32, 64, 128)
MOST_VALUES = 32
"""Of one axis: more do not fit into a table."""
MOST_RESPONSES = 1 << 16
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a list, in order, each once.

    Args:
        option: to be named, such as "--contexts".

    Raises:
        EarlError: when the list is empty, holds something else, or is too long.

    Example:
        >>> numbers("--tp", "8, 4,8")
        (4, 8)
    """
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if not _NUMBER.fullmatch(item) or not int(item):
            what = repr(item) if item else "an empty item"
            raise EarlError(
                f"{option} {text!r}: {what} is not a whole number from 1; give numbers with commas between them, such "
                f"as {option} {_SUCH_AS[option]}"
            )
    found = tuple(sorted({int(item) for item in items}))
    if len(found) > MOST_VALUES:
        raise EarlError(f"{option} names {len(found)} values, a plan shows {MOST_VALUES} at most; name fewer")
    return found


_SUCH_AS = {"--contexts": "1024,2048", "--responses": "8,32,128", "--tp": "4,8"}


def contexts(given: str | None, longest: int | None, shape: ModelShape, name: str) -> tuple[int, ...]:
    """Tokens of the longest episode, for each bucket.

    Args:
        given: a list by a user.
        longest: the longest context that is expected; neither: all that the model was made for.
        name: of the model.

    Raises:
        EarlError: for a context that the model was not made for.
    """
    if given is not None:
        found = numbers("--contexts", given)
    else:
        most = longest if longest is not None else shape.max_positions
        powers = [FIRST_CONTEXT << by for by in range(30) if FIRST_CONTEXT << by < most]
        found = (*powers, most)
    if found[-1] > shape.max_positions:
        option = "--context" if given is None else "--contexts"
        raise EarlError(
            f"{option} {found[-1]}: {name} was made for contexts of {shape.max_positions} tokens at most; "
            f"give at most {shape.max_positions}, or another model"
        )
    return found


def responses(given: str | None) -> tuple[int, ...]:
    """Responses that one copy of the engine is given at once.

    Raises:
        EarlError: for a list that is none, or numbers beyond what an engine is given.
    """
    found = numbers("--responses", given) if given is not None else RESPONSES
    if found[-1] > MOST_RESPONSES:
        raise EarlError(
            f"--responses {found[-1]}: earl plans for {MOST_RESPONSES:,} at once per engine at most; give fewer"
        )
    return found


def tps(given: str | None, shape: ModelShape, cluster: Cluster, name: str) -> tuple[int, ...]:
    """Splits of one copy of the engine: all that the heads allow and that fill a host evenly, or those named.

    Raises:
        EarlError: for one that does not divide the heads, or is larger than a host.

    Example:
        Qwen2.5-72B on hosts of 8: 1, 2, 4, 8
    """
    host = cluster.gpus_per_host
    possible = [tp for tp in splits(shape, host, replicated=True) if host % tp == 0]
    if given is None:
        return tuple(possible)
    found = numbers("--tp", given)
    for tp in found:
        if tp > host:
            raise EarlError(
                f"--tp {tp}: one copy lies on one host, and a host of {cluster.where} has {host} GPUs; "
                f"nearest valid: {_nearest(tp, possible)} (possible: {_listed(possible)})"
            )
        if tp not in splits(shape, host, replicated=True):
            raise EarlError(
                f"--tp {tp}: {name} has {shape.heads} attention heads and {shape.kv_heads} key-value heads, which {tp} "
                f"GPUs cannot share evenly; nearest valid: {_nearest(tp, possible)} (possible: {_listed(possible)})"
            )
        if host % tp:
            raise EarlError(
                f"--tp {tp}: a host of {cluster.where} has {host} GPUs, which copies of {tp} do not fill; "
                f"nearest valid: {_nearest(tp, possible)} (possible: {_listed(possible)})"
            )
    return found


def _nearest(wanted: int, possible: list[int]) -> int:
    return min(possible, key=lambda tp: abs(tp - wanted))


def _listed(possible: list[int]) -> str:
    return ", ".join(map(str, possible))
