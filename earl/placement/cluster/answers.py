"""What members of a crew answer, and what became of those that do not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from earl.errors import OutOfMemory
from earl.placement.cluster.budget import of_memory
from earl.placement.peers import Lost

LEFT = "has lost its connection to another"
SHORT = "has no memory left"


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of one call to several members, by their numbers."""

    results: Mapping[int, Any]
    lost: Mapping[int, str]
    """Why, of those that did not answer."""


def take(
    reference: Any, number: int, name: str, results: dict[int, Any], lost: dict[int, str], short: list[OutOfMemory]
) -> None:
    """Note a member's answer, or why there is none."""
    try:
        results[number] = ray.get(reference)
    except RayTaskError as error:  # first: what a member's own code raised is of its cause's class too
        if isinstance(error.cause, OutOfMemory) or of_memory(error.cause):
            short.append(_short(error.cause, name))
            lost[number] = SHORT
            return
        if isinstance(error.cause, ObjectLostError | RayActorError):
            raise Lost("what one process held for another is gone with it") from error
        if not isinstance(error.cause, ConnectionError | Lost):
            raise error.cause from None
        lost[number] = LEFT
    except RayActorError:
        lost[number] = "has died"
    except ObjectLostError as error:
        raise Lost("what one process held for another is gone with it") from error


def _short(error: BaseException, name: str) -> OutOfMemory:
    """Who ran out of memory: a member, or another process whose error the member passes on."""
    if isinstance(error, OutOfMemory):
        return OutOfMemory(error.stage, error.who or name, error.said)
    return OutOfMemory("", name, str(error))
