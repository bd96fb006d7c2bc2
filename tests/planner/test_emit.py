"""Flags of other programs: their names, and that they say what the plan chose."""

import shlex

import pytest

from earl.planner.plan import plan
from earl.planner.sheet import launch_flags
from tests.planner.asked import asked

PLANNED = plan(asked(tps="4,8", contexts="2048,32768"))


def test_a_line_for_each_context_names_its_layouts() -> None:
    lines = launch_flags(PLANNED, "vllm")
    assert [line.partition(":")[0] for line in lines[::2]] == ["# context 2048", "# context 32768"]
    for line, step in zip(lines[1::2], PLANNED.steps, strict=True):
        rollout = next(part.layout for part in step.parts if part.stage == "rollout")
        assert f"--tensor-parallel-size {rollout.tp} " in line
        assert f"--max-model-len {step.context} " in line
        assert "--gpu-memory-utilization 0.85 --dtype bfloat16" in line


def test_vllm_knows_each_flag_that_it_is_given() -> None:
    """The names are those of its server's own argument parser, read without importing it."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    arguments = (Path(spec.origin).parent / "engine" / "arg_utils.py").read_text(encoding="utf-8")
    words = shlex.split(launch_flags(plan(asked(tps="8", contexts="2048")), "vllm")[1])
    for flag in (word for word in words if word.startswith("--")):
        assert f'"{flag}"' in arguments


def test_verl_and_torchtitan_are_given_the_update_as_well() -> None:
    cell = next(
        cell
        for cell in PLANNED.cells
        if (cell.stage, cell.context) == ("update", 32_768)
        and cell.tp == next(part.layout.tp for part in PLANNED.steps[1].parts if part.stage == "update")
    )
    layout = cell.choice.layout
    verl, titan = launch_flags(PLANNED, "verl")[3], launch_flags(PLANNED, "torchtitan")[3]
    assert "trainer.nnodes=16 trainer.n_gpus_per_node=8" in verl
    assert f"actor_rollout_ref.actor.megatron.tensor_model_parallel_size={cell.tp}" in verl
    assert f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={cell.choice.micro_batch_tokens}" in verl
    assert f"--parallelism.data_parallel_replicate_degree {layout.replicas} " in titan
    assert f"--parallelism.data_parallel_shard_degree {layout.dp // layout.replicas} " in titan
    assert f"--activation_checkpoint.mode {'full' if cell.choice.recompute else 'none'}" in titan


def test_a_context_that_does_not_fit_is_a_comment() -> None:
    lines = launch_flags(plan(asked(gpus="8xRTX4090", contexts="2048")), "vllm")
    assert len(lines) == 1
    assert lines[0].startswith("# context 2048: ")
