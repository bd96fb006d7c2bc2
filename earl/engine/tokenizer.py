"""The tokenizer of the small model: one token per character, and chat markers."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from earl.envs.base import CHARACTERS

CONTROL = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def character_tokenizer() -> Any:
    """A `transformers` fast tokenizer of 106 ids: 6 control tokens, 4 tags, 96 characters, no unknown token."""
    words = [*CONTROL, *TAGS, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in CONTROL])
    # Tags are text that the model may write: decoding keeps them.
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
