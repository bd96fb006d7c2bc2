"""Well-known models by name: their shapes, so that a run can be judged without a network.

models.csv holds one row for each. `checked` names the source that its shape was compared with: a table of another
project, or a hub id whose config.json was read (Qwen2-72B's is the model's own, the others are copies or derived
models). Parameter counts were confirmed by other public lists, and tests compare them with the shapes.

    litgpt         https://github.com/Lightning-AI/litgpt at 2685705, litgpt/config.py: mostly from the base model's
                   config.json; tied embeddings are inferred from the parameter counts
    gemma_pytorch  https://github.com/google/gemma_pytorch at 014acb7, gemma/config.py

`max_positions` is max_position_embeddings of the chat variant: with the rope scaling of its config.json (Llama 3.1 and
later), without extensions that only its card advises (YaRN of Qwen2-72B). Copies of Mistral-Nemo's differ: the earlier
read 1024000, later ones 131072.
"""

import csv
import difflib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from earl.parallel.memory import ModelShape

HEAD_NORMS = ("qwen3", "qwen3_moe")  # families with norms of queries and keys


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    hub: str  # hub id of the chat variant
    type: str  # name of the family in `transformers`
    shape: ModelShape


@cache
def catalogue() -> dict[str, Known]:
    text = files("earl.parallel").joinpath("models.csv").read_text(encoding="utf-8")
    return {row["name"]: _known(row) for row in csv.DictReader(text.splitlines())}


def known(name: str) -> Known | None:
    """The model of that catalogue name or hub id, ignoring case; None: unknown."""
    wanted = name.lower()
    for model in catalogue().values():
        if wanted in (model.name.lower(), model.hub.lower(), model.hub.lower().split("/")[1]):
            return model
    return None


def nearest(name: str) -> str | None:
    """The known name that is most similar to `name`, if any."""
    names = {model.lower(): model for model in catalogue()}
    near = difflib.get_close_matches(name.lower().split("/")[-1].removesuffix("-instruct"), names, n=1)
    return names[near[0]] if near else None


def _known(row: dict[str, str]) -> Known:
    numbers = {field.name: int(row[field.name]) for field in fields(ModelShape) if row.get(field.name, "").isdecimal()}
    numbers["intermediate"] *= numbers["experts_per_token"]
    shape = ModelShape(**numbers, tied=row["tied"] == "true", head_norms=row["type"] in HEAD_NORMS)
    return Known(row["name"], row["hub"], row["type"], shape)
