from earl.envs.base import CHARACTERS


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
