"""Questions made by hand."""

from typing import Any

from earl.config import Config
from earl.parallel.hardware import of_gpus
from earl.parallel.memory import known
from earl.parallel.throughput.step import VLLM, Precision
from earl.planner.question import Question, Wish, question


def asked(
    gpus: str = "16x8xH100", model: str = "Qwen2.5-72B", recipe: dict[str, Any] | None = None, **wish: Any
) -> Question:
    """What a user would ask with `--set` as in `recipe` and options as in `wish`."""
    config = Config.model_validate({"env": {"name": "connect4"}, **(recipe or {})})
    shape = known(model).shape
    return question(config, model, shape, of_gpus(gpus), Precision(), VLLM, Wish(**wish))
