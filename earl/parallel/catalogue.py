"""Well-known models by name: their shapes, so that a run can be judged without a network.

models.csv holds one row for each; `hub` is also its source: https://huggingface.co/HUB/raw/main/config.json. The number
of parameters that the hub states stands beside the shape, and tests compare it with what the shape adds up to.
"""

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from earl.parallel.memory import ModelShape


@dataclass(frozen=True, slots=True)
class Known:
    """A model of the catalogue.

    Example:
        known("Qwen2.5-72B").hub   # Qwen/Qwen2.5-72B-Instruct
    """

    name: str
    hub: str
    """The hub id of the variant that chats."""
    type: str
    """As `transformers` calls the family."""
    experts: int
    """Feed-forward networks of a layer; 1: no mixture of experts."""
    tied: bool
    """Whether the output layer is the embeddings."""
    shape: ModelShape


@cache
def catalogue() -> dict[str, Known]:
    """Every known model by its name."""
    text = files("earl.parallel").joinpath("models.csv").read_text(encoding="utf-8")
    return {row["name"]: _known(row) for row in csv.DictReader(text.splitlines())}


def known(name: str) -> Known | None:
    """The model of that name, whether by the catalogue's name or its hub id, in any case; None: not in it."""
    wanted = name.lower()
    for model in catalogue().values():
        if wanted in (model.name.lower(), model.hub.lower(), model.hub.lower().split("/")[1]):
            return model
    return None


def nearest(name: str) -> str | None:
    """The known name that is most like `name`, if one is."""
    names = {model.lower(): model for model in catalogue()}
    near = difflib.get_close_matches(name.lower().split("/")[-1].removesuffix("-instruct"), names, n=1)
    return names[near[0]] if near else None


def _known(row: dict[str, str]) -> Known:
    numbers = {key: int(value) for key, value in row.items() if value.isdecimal()}
    shape = ModelShape(
        parameters=numbers["parameters"],
        layers=numbers["layers"],
        hidden=numbers["hidden"],
        heads=numbers["heads"],
        kv_heads=numbers["kv_heads"],
        head_dim=numbers["head_dim"],
        intermediate=numbers["intermediate"] * numbers["experts_per_token"],
        vocab=numbers["vocab"],
        max_positions=numbers["max_positions"],
    )
    return Known(row["name"], row["hub"], row["type"], numbers["experts"], row["tied"] == "true", shape)
