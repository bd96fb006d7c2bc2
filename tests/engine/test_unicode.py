"""The tokenizer of a new model that reads and writes any text: every character that is not ASCII is its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from earl.agents.chat import Chat
from earl.engine.model import character_tokenizer
from earl.trajectory import Author

TOKENIZER = character_tokenizer("unicode")
CHAT = Chat(TOKENIZER)


def test_ascii_has_the_tokens_that_it_always_had() -> None:
    text = "<think>7+5</think>\nA ~"
    assert TOKENIZER(text)["input_ids"] == character_tokenizer()(text)["input_ids"]
    assert len(TOKENIZER) == len(character_tokenizer()) + 256


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_text_comes_back(text: str) -> None:
    tokens = CHAT.written(text)
    assert CHAT.decode(tuple(tokens)) == text
    assert all(token < len(TOKENIZER) for token in tokens)


def test_the_bytes_of_an_observation_are_the_environments() -> None:
    piece = CHAT.opening("", "Äpfel 🍎")
    assert bytes(piece.authors).count(Author.ENVIRONMENT) == len("Äpfel 🍎".encode())


def test_half_a_character_is_text_too() -> None:
    half = TOKENIZER("é")["input_ids"][:1]
    assert CHAT.decode(tuple(half)) == "\N{REPLACEMENT CHARACTER}"
