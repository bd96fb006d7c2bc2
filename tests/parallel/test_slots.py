"""What earl's own sampler holds: the arithmetic written out."""

from earl.parallel.memory import RESIDUE_BYTES, ModelShape, Sampling, room_for, slot_bytes

SMALL = ModelShape(186_240, 3, 64, 4, 2, 32, 128, 40, 1024)
TOKEN = 2 * 3 * 2 * 32 * 4
"""Keys and values: 2 x 3 layers x 2 heads x 32 x 4 bytes."""


def test_room_doubles() -> None:
    assert [room_for(count) for count in (0, 1, 16, 17, 64, 65)] == [0, 16, 16, 32, 64, 128]


def test_replies_fill_slots() -> None:
    held = slot_bytes(SMALL, Sampling(contexts=60, prompt_tokens=2, tokens=250, on_host=False))
    assert (held.moment, held.weights, held.residue) == ("reply", 4 * 186_240, 0)
    # 60 contexts have 64 slots, 250 tokens 256 positions; keys and values of one layer also as they were, with 128.
    assert held.slots == 64 * 256 * TOKEN + 64 * 128 * TOKEN // 3
    # A layer's queries at 60 x (4 x 64 + 3 x 128), its keys and values of 60 x 250 positions, and the mask.
    assert held.activations == 60 * 640 * 4 + 60 * 250 * TOKEN // 3 + 60 * 250 * 4
    assert held.logits == 2 * 60 * 40 * 4


def test_prompts_are_read_in_passes_of_16384_tokens() -> None:
    few, many = (slot_bytes(SMALL, Sampling(contexts, 1000, 1010, on_host=False)) for contexts in (16, 200))
    assert few.moment == "prompts"
    # 16 rows at once: four tensors of the stream, queries as they are turned, keys and values; and a mask for each row.
    assert few.activations == many.activations == 16_000 * (4 * 64 + 3 * 128 + 2 * 64) * 4 + 16 * 1000 * 1000 * 4


def test_a_host_keeps_what_its_libraries_keep() -> None:
    assert slot_bytes(SMALL, Sampling(contexts=8, prompt_tokens=100, tokens=1000)).residue == RESIDUE_BYTES


def test_drawing_takes_four_copies_of_the_logits() -> None:
    wide = ModelShape(186_240, 3, 64, 4, 2, 32, 128, 400_000, 1024)
    held = slot_bytes(wide, Sampling(contexts=8, prompt_tokens=4, tokens=8))
    assert (held.moment, held.logits) == ("draw", 4 * 8 * 400_000 * 4)
