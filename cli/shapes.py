"""The shape of a model that is only planned for: a well-known one, or a folder's."""

from pathlib import Path

from earl.errors import EarlError
from earl.parallel.catalogue import catalogue, known, nearest
from earl.parallel.memory import ModelShape


def shape_named(model: str) -> tuple[str, ModelShape]:
    """Name and shape of a model; a folder comes before a well-known name. The network is not asked.

    Raises:
        EarlError: for a name whose shape is not known here.
    """
    if (Path(model) / "config.json").is_file():
        return Path(model).resolve().name, _described(model)
    found = known(model)
    if found is not None:
        return found.name, found.shape
    near = nearest(model)
    hint = f"; did you mean {near!r}?" if near else "."
    raise EarlError(
        f"unknown model {model!r}{hint} Planned for can be a folder with a config.json, or: "
        f"{', '.join(sorted(catalogue()))}"
    )


def _described(folder: str) -> ModelShape:
    """By its config.json, as a run would read it."""
    from earl.config import ModelConfig
    from earl.engine.model import shape  # brings torch, which nothing else of a plan needs

    return shape(ModelConfig(path=folder))
