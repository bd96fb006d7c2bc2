import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from earl.config import ModelConfig
from earl.engine.model import character_tokenizer, make
from earl.envs.base import CHARACTERS

CELLS = character_tokenizer(cells=".XO")


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_every_character_is_a_token_of_its_own(characters):
    assert len(characters) == 106
    tokens = encode(characters, CHARACTERS)
    assert len(set(tokens)) == len(CHARACTERS) == 96
    assert characters.decode(tokens) == CHARACTERS


def test_spaces_and_lines_survive(characters):
    text = "  X 1 2\n\n ,.  !"
    assert characters.decode(encode(characters, text)) == text


def test_tags_are_single_tokens_that_decoding_keeps(characters):
    text = "<think>12</think><tool_call>3+4</tool_call>"
    tokens = encode(characters, text)
    assert len(tokens) == 2 + 2 + 2 + 3
    assert characters.decode(tokens, skip_special_tokens=True) == text
    assert "".join(map(characters.decode, tokens)) == text


def test_marks_are_single_tokens(characters):
    for mark in ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"):
        assert len(encode(characters, mark)) == 1
    assert characters.eos_token == "<|end|>"
    assert characters.pad_token_id == 0


def test_offsets_tell_the_character_of_each_token(characters):
    encoded = characters("a<think>b", add_special_tokens=False, return_offsets_mapping=True)
    assert encoded["offset_mapping"] == [(0, 1), (1, 8), (8, 9)]


def test_the_template(characters):
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    text = characters.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>1<|end|><|assistant|>2<|end|><|assistant|>"


def pieces(text):
    return [CELLS.decode([token]) for token in encode(CELLS, text)]


def test_cells_are_read_by_four_from_the_left_and_everything_else_by_characters(characters):
    assert pieces("X ..XO.X.\nO......\nillegal: 9") == [*"X ", "..XO", ".X.", "\n", "O...", "...", *"\nillegal: 9"]
    assert len(CELLS) == len(characters) + 3**2 + 3**3 + 3**4
    assert encode(CELLS, CHARACTERS.replace("O", "")) == encode(characters, CHARACTERS.replace("O", ""))


@given(st.text(st.sampled_from(".XO3\n "), max_size=60))
def test_cells_come_back(text):
    assert CELLS.decode(encode(CELLS, text)) == text
    assert all(len(piece) == 1 or {*piece} <= {*".XO"} for piece in pieces(text))


@given(st.sets(st.sampled_from("]^-\\&.["), min_size=3, max_size=4))
def test_any_characters_may_be_cells(cells):
    row = "".join(cells)
    tokenizer = character_tokenizer(cells=row)
    assert len(encode(tokenizer, f"{row}\n{row}a")) == 4
    assert tokenizer.decode(encode(tokenizer, f"{row}a")) == f"{row}a"


@pytest.mark.parametrize(
    ("cells", "text", "read"),
    [
        (".XO\n", "X ..XO.X.\nO......\n", ["X", " ", "..XO", ".X.", "\nO...", "...", "\n"]),
        ("XO\n", "X\nXOXOXO\n\nO\nlost", ["X", "\nXOXOXO", "\n", "\nO", "\n", "l", "o", "s", "t"]),
    ],
)
def test_a_line_break_before_cells_may_be_part_of_their_token(cells, text, read):
    tokenizer = character_tokenizer(cells=cells)
    assert [tokenizer.decode([token]) for token in encode(tokenizer, text)] == read
    assert len({*tokenizer.get_vocab().values()}) == len(tokenizer)


@pytest.mark.parametrize("cells", [".XO", "XO\n"])
def test_tokens_of_cells_begin_alike_where_their_cells_are_alike(cells):
    policy = make(ModelConfig(hidden=64, cells=cells), seed=0)
    vectors, index = policy.model.get_input_embeddings().weight, policy.tokenizer.convert_tokens_to_ids

    def changed(before: str, after: str) -> Tensor:
        return vectors[index(after)] - vectors[index(before)]

    first = changed("XXO", "OXO")
    torch.testing.assert_close(changed("XXX", "OXX"), first)
    assert not torch.allclose(changed("XXX", "XOX"), first, atol=0.05)  # another place
    if "\n" in cells:
        torch.testing.assert_close(changed("\nXXX", "\nOXX"), first)
        torch.testing.assert_close(changed("XXX", "\nXXX"), vectors[index("\n")])
    assert torch.equal(vectors, make(ModelConfig(hidden=64, cells=cells), seed=0).model.get_input_embeddings().weight)
