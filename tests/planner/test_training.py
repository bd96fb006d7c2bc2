"""Cells of the learner: what a recipe leaves open is chosen, what it says stays."""

import pytest

from earl.planner.plan import training_cells
from tests.planner.asked import asked


def cells(gpus: str = "16x8xH100", recipe: dict | None = None, **wish: str) -> dict:
    question = asked(gpus, recipe=recipe, **wish)
    found = training_cells(question, question.costs.cluster.gpus)
    return {(c.stage, c.tp, c.context): c for c in found}


ONE_REPLICA = {"placement": {"replicas": 1}}


def test_replicas_save_what_goes_between_hosts_for_every_micro_batch() -> None:
    many = {"learner": {"micro_batch_tokens": 1024, "recompute": True}, "rollout": {"episodes": 2048}}
    free, one = (cells(contexts="1024", recipe={**many, **own})["update", 1, 1024] for own in ({}, ONE_REPLICA))
    assert free.choice.layout.replicas > 1 == one.choice.layout.replicas
    assert free.step_seconds < one.step_seconds
    assert free.need.needed_bytes > one.need.needed_bytes  # each replica has all of the moments


def test_experts_are_spread_within_a_host_where_that_is_faster() -> None:
    recipe = {"placement": {"replicas": 16}}  # a replica is a host
    found = cells(recipe=recipe, model="Qwen3-30B-A3B", contexts="1024")
    assert {cell.choice.layout.ep for cell in found.values()} <= {1, 2, 4, 8}
    assert any(cell.choice.layout.ep > 1 for cell in found.values() if cell.stage == "update")


def test_every_split_has_all_gpus() -> None:
    found = cells(contexts="1024")
    assert {(stage, tp, cell.choice.layout.dp) for (stage, tp, _), cell in found.items()} == {
        (stage, tp, 128 // tp) for stage in ("experience", "update") for tp in (1, 2, 4, 8)
    }


def test_memory_grows_with_the_context_or_activations_are_recomputed() -> None:
    found = cells(contexts="1024,32768", recipe={**ONE_REPLICA, "learner": {"micro_batch_tokens": 1024}})
    cells_of_both = found["update", 4, 1024], found["update", 4, 32_768]
    short, long = (cell.choice for cell in cells_of_both)
    assert (short.micro_batch_tokens, long.micro_batch_tokens) == (1024, 32_768)  # the longest row is one alone
    assert (short.recompute, long.recompute) == (False, True)
    assert all(cell.throughput for cell in cells_of_both)


def test_a_micro_batch_is_no_larger_than_a_rank_s_share() -> None:
    recipe = {"rollout": {"episodes": 256}, "learner": {"minibatches": 2}}
    found = cells(contexts="1024", recipe=recipe)
    for cell in found.values():
        # 128 rows of a minibatch x 1,024 tokens over dp parts, but at least learner.micro_batch_tokens = 2,048
        assert cell.choice.micro_batch_tokens <= max(2048, 128 * 1024 // cell.choice.layout.dp)


def test_what_the_recipe_says_stays() -> None:
    recipe = {"learner": {"recompute": False, "offload": False, "micro_batch_tokens": 2048}}
    for cell in cells(recipe=recipe).values():
        assert (cell.choice.recompute, cell.choice.offload) == (False, False)
        assert cell.choice.micro_batch_tokens == max(2048, cell.context)
    assert not cells(recipe=recipe, contexts="32768")["update", 1, 32_768].throughput


def test_moments_leave_only_where_nothing_else_fits() -> None:
    for cell in cells("4x8xH100").values():
        others = {"learner": {"offload": False}}
        if cell.stage == "update" and cell.choice.offload and cell.throughput:
            stays = cells("4x8xH100", recipe=others, contexts=str(cell.context))[cell.stage, cell.tp, cell.context]
            assert not stays.throughput


def test_the_reference_takes_room_beside() -> None:
    plain = cells(contexts="1024", recipe=ONE_REPLICA)["experience", 4, 1024]
    beside = cells(contexts="1024", recipe={**ONE_REPLICA, "algorithm": {"kl": 0.1}})["experience", 4, 1024]
    # 72.7 billion parameters x 4 bytes / 128 GPUs = 2.27 GB
    assert beside.need.needed_bytes - plain.need.needed_bytes == pytest.approx(72.7e9 * 4 / 128, rel=0.01)


def test_too_few_gpus_for_an_update_but_enough_to_sample() -> None:
    found = cells("8xH100")
    assert not any(cell.throughput for (stage, _, _), cell in found.items() if stage == "update")
    assert all(cell.verdict.startswith("out of memory: ") for cell in found.values() if not cell.throughput)
