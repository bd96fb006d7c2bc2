"""One process of a sharded learner: it joins the others, and builds its part.

with joined_mesh(rank, layout, address, port) as mesh:
    learner = sharded_learner(config, mesh)
    …                                    # every process calls the same methods with the same arguments
"""

from pathlib import Path

import torch

from earl.algorithms.registry import algorithm
from earl.config import Config
from earl.engine.checkpoint_tensors import Stored, TensorSource
from earl.engine.learner import Learner
from earl.engine.model import make, outline
from earl.engine.sharding.mesh import Mesh, join
from earl.engine.sharding.shards import Shards
from earl.engine.source import folder_of

__all__ = ["join", "sharded_learner"]


def sharded_learner(
    config: Config, mesh: Mesh, model: Path | None = None, carried: TensorSource | None = None
) -> Learner:
    """This process's part of the learner of a recipe.

    Weights of an existing model are read slice by slice: no process ever holds all of them.

    Args:
        model: a Hugging Face folder to begin from instead of the recipe's model, such as a checkpoint.
        carried: all that the processes of another layout had, to go on from instead.

    Raises:
        EarlError: when there is no such model, or the layout does not fit it.
    """
    if mesh.device.type == "cpu":
        torch.set_num_threads(1)  # processes share the cores
    path = model or config.model.path
    described = config.model.model_copy(update={"path": path and str(path)})
    if carried is not None:
        policy, ranks = outline(described), Shards(mesh, carried)
    elif path is None:
        policy, ranks = make(config.model, config.run.seed), Shards(mesh)
    else:
        policy, ranks = outline(described), Shards(mesh, Stored(folder_of(path)))
    values = algorithm(config.algorithm.name).needs_values
    learner = Learner(policy, config.algorithm, config.learner, config.rollout.temperature, ranks, values)
    if carried is not None:
        learner.take_over(carried)
    return learner
