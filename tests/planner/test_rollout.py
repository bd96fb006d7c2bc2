"""Cells of the rollout follow from the room for keys and values."""

from earl.parallel.throughput.step import fitted
from earl.planner.plan import rollout_cells
from tests.planner.asked import asked


def cells(gpus: str = "16x8xH100", **wish: str) -> dict:
    question = asked(gpus, **wish)
    return {(c.tp, c.responses, c.context): c for c in rollout_cells(question, question.costs.cluster.gpus)}


def test_tokens_that_fit_waves_and_oversubscription() -> None:
    question = asked(contexts="8192", responses="8,128", tps="4")
    room = question.costs.engine(4).kv_tokens(fitted().values)
    found = cells(contexts="8192", responses="8,128", tps="4")
    few, many = found[4, 8, 8192], found[4, 128, 8192]
    assert few.kv_tokens_capacity == many.kv_tokens_capacity == room
    assert (few.waves, many.waves) == (1, -(-128 // (room // 8192)))
    assert few.verdict == f"{room:,} tokens of context fit: all 8 responses at once"
    assert f"fit: {room // 8192} of 128 responses at once, in {many.waves} waves" in many.verdict
    assert few.oversubscription == 8 * 8192 / room
    assert few.choice.layout.dp == 32  # 128 GPUs / 4
    assert few.need.needed_bytes < many.need.needed_bytes <= many.need.room_bytes


def test_every_cell_that_fits_stays_within_its_room() -> None:
    for cell in cells().values():
        fits = cell.need.needed_bytes <= cell.need.room_bytes
        assert fits == (not cell.need.why_not) == (cell.throughput is not None) == cell.as_object["feasible"]


def test_the_more_is_asked_of_it_the_more_an_engine_is_oversubscribed() -> None:
    found = cells()
    for (tp, responses, context), cell in found.items():
        larger = found.get((tp, responses, context * 2))
        if cell.oversubscription and larger:
            assert larger.oversubscription == 2 * cell.oversubscription
            assert larger.waves >= cell.waves


def test_half_the_weights_of_each_gpu_leave_more_than_twice_the_room() -> None:
    found = cells(contexts="1024", responses="8", tps="4,8")
    assert found[8, 8, 1024].kv_tokens_capacity > 2 * found[4, 8, 1024].kv_tokens_capacity


def test_what_does_not_fit_says_why() -> None:
    alone, one = (cells("8xH100", contexts="32768", responses="8", tps=tp)[int(tp), 8, 32_768] for tp in ("1", "2"))
    assert alone.verdict.startswith("out of memory: weights and workspace alone take 1")
    assert one.verdict.startswith("out of memory: weights and workspace alone take")


def test_a_split_wider_than_all_gpus_is_left_out() -> None:
    assert {tp for tp, _, _ in cells("4xH200")} == {1, 2, 4}
