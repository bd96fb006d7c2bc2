"""Where a run is placed, and what its devices hold, as lines."""

from collections.abc import Mapping

from earl.placement.cluster.policies import Fragment
from earl.preflight.machine import size
from earl.preflight.placement import Placed


def in_lines(placed: Placed, processes: int) -> list[str]:
    """The fragments, and the memory of one device of each.

    Example:
        placement: colocated on --gpus 16x8xH100, sampler vllm, bfloat16
          learner  128 x 1 GPU  (dp 128 x tp 1), joined by collectives, in turns on the same devices
          rollout  16 x 4 GPU  (tp 4), joined by objects, in turns on the same devices
    """
    where = f", {placed.gpus} x {placed.gpu or 'GPUs of a kind that is not listed'}" if placed.gpus else ""
    head = f"placement: {placed.kind} on {placed.where}{where}; sampler {placed.engine}, {placed.dtype}"
    if placed.kind == "embedded":
        parts = [f"  {processes} x learner and sampler, in turns"]
    else:
        width = max(len(fragment.name) for fragment in placed.fragments)
        parts = [_line(placed, fragment, max(width, 8)) for fragment in placed.fragments]
        parts += [f"  {idle} GPUs idle {when}" for when, idle in _idle(placed) if placed.gpus and idle > 0]
    unit = "each GPU" if placed.gpus else "each process"
    return [
        head,
        *parts,
        f"memory of {unit}, at least" + (f", of {size(placed.device_bytes)}" if placed.device_bytes else ""),
        f"  update   {_sum(placed.update)}",
        f"  rollout  {_sum(placed.rollout)}",
    ]


def _line(placed: Placed, fragment: Fragment, width: int) -> str:
    device = "GPU" if placed.gpus and not fragment.processors else "CPU"
    return (
        f"  {fragment.name:{width}} {fragment.actors} x {fragment.devices} {device}{_layout(placed, fragment.name)}, "
        f"joined by {fragment.join}, {_pool(fragment.pool)}"
    )


def _idle(placed: Placed) -> list[tuple[str, int]]:
    """GPUs without work, and when."""
    learner, sampler = placed.dp * placed.tp * placed.cp, placed.samplers * placed.sampler_tp
    if placed.kind == "colocated":
        return [("in update", placed.gpus - learner), ("in rollout", placed.gpus - sampler)]
    return [("always", placed.gpus - learner - sampler)]


def _layout(placed: Placed, name: str) -> str:
    if name == "environments":
        return ""
    cut = f" x cp {placed.cp}" if placed.cp > 1 else ""
    return f"  (dp {placed.dp} x tp {placed.tp}{cut})" if name == "learner" else f"  (tp {placed.sampler_tp})"


def _pool(name: str) -> str:
    return {"shared": "in turns on the same devices", "environments": "on any node"}.get(name, "on devices of its own")


def _sum(parts: Mapping[str, int]) -> str:
    terms = [f"{name} {size(count)}" for name, count in parts.items() if name != "peak" and count]
    return f"{' + '.join(terms)}; at once {size(parts['peak'])}"
