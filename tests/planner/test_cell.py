"""A cell as programs read it."""

from tests.planner.cells import cell


def test_oversubscription_is_what_is_asked_for_each_token_that_fits() -> None:
    asked = cell(32_768, 4, 50.0, responses=128)
    assert asked.oversubscription == 128 * 32_768 / 400_000
    assert cell(32_768, 4, 50.0, stage="update", responses=None).oversubscription is None


def test_a_cell_for_programs() -> None:
    told = cell(1024, 4, 123.456789).as_object
    assert (told["tokens_per_gpu_s"], told["tokens_per_gpu_s_low"], told["tokens_per_gpu_s_high"]) == (
        123.46,
        111.11,
        135.8,
    )
    assert (told["origin"], told["memory_gib_per_gpu"], told["oversubscription"]) == ("predicted", 25.0, 0.08192)
    assert {"stage", "context", "responses", "tp", "feasible", "waves", "kv_tokens_capacity"} <= set(told)
    nothing = cell(1024, 4, None).as_object
    assert (nothing["feasible"], nothing["tokens_per_gpu_s"], nothing["verdict"]) == (False, None, "TP 4 at 1024")
