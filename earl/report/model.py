"""What a checkpoint's files say about the model, without loading it: size, shape, tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from earl.documents import parse_json_object
from earl.errors import EarlError, boundary
from earl.runs import checkpoint
from earl.runs.storage import checked, read_below, step_name, storage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

JSON_BYTES = 16 << 20
"""Of a file that describes a model or a run's state."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model of a run's latest checkpoint."""

    step: int
    best_step: int | None
    """Whose weights are kept as the best; None when the checkpoint does not say."""
    parameters: int | None
    config: dict[str, Any]
    """The model's own config.json; empty when it is not there."""
    tokenizer: "Tokenizer | None"

    @property
    def shape(self) -> str:
        """Architecture, layers and width in words; empty when unknown."""
        kind, layers, width = (self.config.get(key) for key in ("model_type", "num_hidden_layers", "hidden_size"))
        parts = [str(kind)] if kind else []
        parts += [f"{layers} layer{'' if layers == 1 else 's'}"] if layers else []
        parts += [f"width {width}"] if width else []
        return ", ".join(parts)


def model_facts(checkpoints: Path) -> ModelFacts | None:
    """What the latest checkpoint says; None when there is none yet.

    Raises:
        EarlError: when one of its files cannot be read.
    """
    steps = checkpoint.all_steps(checkpoints)
    if not steps:
        return None
    path = checkpoints / step_name(steps[-1])
    with storage(path):
        state = _json(path / checkpoint.STATE).get("state")
        best = state.get("best_step") if isinstance(state, dict) else None
        return ModelFacts(
            step=steps[-1],
            best_step=best if isinstance(best, int) else None,
            parameters=_parameters(path),
            config=_json(path / "config.json"),
            tokenizer=_tokenizer(path / "tokenizer.json"),
        )


def _run_of(path: Path) -> Path:
    """The run's folder, of a file in one of its checkpoints."""
    return path.parent.parent.parent


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    data = read_below(_run_of(path), path)
    try:
        return parse_json_object(data)
    except ValueError as error:
        raise EarlError(f"{path} is {error}: the checkpoint is damaged; continue the run to get a new one") from error


def _parameters(folder: Path) -> int | None:
    """Numbers in the model's tensors, from the files' headers."""
    files = sorted(folder.glob("model*.safetensors"))
    if pipes := [path for path in files if not path.is_file()]:  # reading one would wait without end
        raise EarlError(f"{pipes[0]} is no regular file: the checkpoint is damaged; continue the run to get a new one")
    try:
        return sum(map(_numbers_in, files)) if files else None
    except SafetensorError as error:
        raise EarlError(f"{folder} has unreadable weights ({error}); continue the run to get a new one") from error


def _numbers_in(path: Path) -> int:
    total = 0
    with safe_open(checked(_run_of(path), path), framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a dict)
            size = 1
            for length in tensors.get_slice(name).get_shape():
                size *= length
            total += size
    return total


def _tokenizer(path: Path) -> "Tokenizer | None":
    if not path.is_file():
        return None
    checked(_run_of(path), path)
    from tokenizers import Tokenizer  # only here: reports without episodes need none

    with boundary() as fault:  # tokenizers raises bare Exceptions
        return Tokenizer.from_file(str(path))
    raise EarlError(f"tokenizer {path} cannot be read ({fault.message}); continue the run to get a new checkpoint")
