"""Match results between processes: JSON, so that nothing is unpickled."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from earl.matches import MatchResult


def matches_to_bytes(results: Sequence[MatchResult]) -> bytes:
    """Match results as JSON; floats survive to the bit."""
    return json.dumps([asdict(result) for result in results]).encode()


def matches_from_bytes(data: bytes) -> list[MatchResult]:
    """What `matches_to_bytes` wrote."""
    return [MatchResult(**{**fields, "faults": tuple(fields["faults"])}) for fields in json.loads(data)]
