"""Profiles on disk, one file for each key: what is kept for another model, machine or version is never read.

$XDG_CACHE_HOME/earl/profiles/0123456789abcdef.json     key, timings, seconds of switches
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.parallel.choice import Choice
from earl.parallel.profile.timings import Point, Timing
from earl.runs.storage import storage, write_text

_TIMING, _CHOICE = TypeAdapter(Timing), TypeAdapter(Choice)


@dataclass(slots=True)
class Profile:
    """What was measured for one key."""

    key: Mapping[str, Any]
    timings: dict[Point, Timing] = field(default_factory=dict)
    switches: dict[Choice, float] = field(default_factory=dict)
    """Seconds that it took to come to a choice, the last time."""

    @property
    def measured_at(self) -> str:
        """When the last of it was measured; empty: never."""
        return max((timing.measured_at for timing in self.timings.values()), default="")

    def as_object(self) -> dict[str, Any]:
        """As JSON holds it."""
        switches = [{"choice": choice.as_object(), "seconds": own} for choice, own in self.switches.items()]
        return {"key": self.key, "cells": [own.as_object() for own in self.timings.values()], "switches": switches}


def path_of(key: Mapping[str, Any]) -> Path:
    """Where the profile of a key lies, whether there is one or not."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return Path(home) / "earl" / "profiles" / f"{digest[:16]}.json"


def read(key: Mapping[str, Any]) -> Profile:
    """What is kept for a key; nothing where there is none.

    Raises:
        EarlError: when there is a file that earl did not write.
    """
    file = path_of(key)
    if not file.is_file():
        return Profile(key)
    try:
        kept = parse_json_object(file.read_bytes())
        if kept["key"] != json.loads(json.dumps(key)):
            return Profile(key)
        timings = [_TIMING.validate_python({**fields, "point": fields}) for fields in kept["cells"]]
        switches = {_CHOICE.validate_python(own["choice"]): float(own["seconds"]) for own in kept["switches"]}
    except (ValueError, TypeError, KeyError) as error:
        raise EarlError(f"{file} is not what earl wrote ({error}); remove it, then measure again") from error
    return Profile(key, {timing.point: timing for timing in timings}, switches)


def write(profile: Profile) -> Path:
    """Keep a profile, whole or not at all."""
    file = path_of(profile.key)
    with storage(file.parent, then="measure again"):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(profile.as_object(), indent=1))
    return file
