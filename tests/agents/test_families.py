"""Conversations in the chat templates of twelve model families, and what the growing context has in another way."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from earl.agents.chat import Chat
from earl.agents.parser import parse
from earl.envs.base import CHARACTERS, Plain
from earl.errors import EarlError
from earl.rollout.episode import Episode, Rules
from earl.trajectory import Completion, Task

FAMILIES = tomllib.loads(Path(__file__).with_name("templates.toml").read_text())
CHARACTER_WORDS = sorted({*CHARACTERS})


@cache
def tokenizer(family):
    """One token for each character and each special token."""
    known = FAMILIES[family]
    special = dict.fromkeys([*known["ends"], "<|pad|>", "<think>", "</think>"])
    words = {word: number for number, word in enumerate([*special, *CHARACTER_WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<|pad|>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=known["ends"][0], pad_token="<|pad|>", chat_template=known["template"]
    )
    fast.stop_ids = frozenset(words[word] for word in known["ends"])
    return fast


@cache
def chat(family):
    return Chat(tokenizer(family))


def rendered(family, messages):
    """What the template makes of a whole conversation."""
    return tokenizer(family).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def same(family, context, whole):
    """Whether they are equal, beside what the family's `differs` says."""
    if FAMILIES[family].get("differs") == "white space around replies":
        context, whole = (re.sub(r"\s+", "", text) for text in (context, whole))
    return context == whole


TEXT = st.text("abc 5.\n", min_size=1, max_size=12).filter(lambda text: text == text.strip())
ROUNDS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4)


class Talking:
    """Says the given texts in turn."""

    instructions, max_turns = "", 9

    def __init__(self, texts):
        self.texts = [*texts]

    def reset(self):
        return self.texts.pop(0)

    def step(self, action):
        return self.texts.pop(0), 0.0, False, False, {}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinking", [False, True])
@settings(max_examples=25)
@given(rounds=ROUNDS, thoughts=st.lists(st.none() | TEXT, min_size=4, max_size=4))
def test_the_prompts_of_an_episode_are_the_templates_own_renderings(family, thinking, rounds, thoughts):
    opens, forgets = (FAMILIES[family].get(key, False) for key in ("opens", "forgets"))
    rules = Rules(thinking=thinking, max_turn_tokens=99, context_limit=9999)
    env = Plain(Talking([*(asked for asked, _ in rounds), "the end"]))
    episode = Episode(env, chat(family), rules, Task("talking", 0), 0, 0)
    messages, sampled, thought = [], [], False
    for (asked, reply), own in zip([*rounds, ("the end", None)], [*thoughts, None], strict=False):
        messages.append({"role": "user", "content": asked})
        if thinking or not (opens and sampled):  # a span that nobody may use stays open in an earlier turn
            assert same(family, tokenizer(family).decode(episode.prompt().tokens), rendered(family, messages))
        if reply is None:
            break
        if thinking and (opens or own):
            reply, thought = f"{'' if opens else '<think>'}{own}</think>\n\n{reply}", True
        messages.append({"role": "assistant", "content": reply})
        tokens = chat(family).written(reply)
        episode.receive(Completion(tokens, [-1.0] * len(tokens), [0] * len(tokens), True))
        sampled += tokens
    made = episode.token_log
    assert [token for token, version in zip(made.tokens, made.versions, strict=True) if version == 0] == sampled
    assert bool(episode._context_start) == (forgets and thought)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_system_prompt_is_told_whether_or_not_the_template_has_a_place_for_it(family):
    context = tokenizer(family).decode(chat(family).opening("Play well.", "a board").tokens)
    try:
        whole = rendered(family, [{"role": "system", "content": "Play well."}, {"role": "user", "content": "a board"}])
    except Exception:  # the template's own
        assert family in ("gemma", "mistral")
        whole = rendered(family, [{"role": "user", "content": "Play well.\n\na board"}])
    assert context == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_ends_by_the_templates_token_and_a_model_may_end_it_by_others(family):
    made, ends = chat(family), FAMILIES[family]["ends"]
    assert tokenizer(family).decode([made.end]) in ends
    assert made.stop == {*tokenizer(family).convert_tokens_to_ids(ends)}
    cut, closed = (tokenizer(family).decode(made.reply("user", "b", whole).tokens) for whole in (False, True))
    assert cut.lstrip() == tokenizer(family).decode([made.end]) + closed


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tools_answer_is_told_by_the_user_where_a_template_has_no_tools(family):
    told = tokenizer(family).decode(chat(family).reply("tool", "the sum is 5", True).tokens)
    assert told.count("the sum is 5") == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_thinking_that_a_template_opens_is_the_beginning_of_the_reply(family):
    opens = FAMILIES[family].get("opens", False)
    assert chat(family).opens_thinking == opens
    reply = parse("the centre</think>\n\n5", thinking=True, opened=opens)
    assert reply.action == ("5" if opens else "the centre</think>\n\n5")


def test_a_template_is_given_what_the_recipe_names():
    plain, off = (Chat(tokenizer("qwen3"), given) for given in ({}, {"enable_thinking": False}))
    end = "<|im_start|>assistant\n"
    assert tokenizer("qwen3").decode(plain.opening("", "b").tokens).endswith(end)
    assert tokenizer("qwen3").decode(off.opening("", "b").tokens).endswith(f"{end}<think>\n\n</think>\n\n")
    assert not off.opens_thinking


@pytest.mark.parametrize("family", ["qwen2", "gemma"])
def test_examples_stand_before_every_conversation(family):
    examples = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "1"}]
    made = Chat(tokenizer(family), {}, "Be brief.", examples)
    told = [{"role": "system", "content": "Be brief.\n\nRules."}, *examples, {"role": "user", "content": "b"}]
    if family == "gemma":
        told = [{"role": "user", "content": "Be brief.\n\nRules.\n\na"}, *told[2:]]
    piece = made.opening("Rules.", "b")
    assert tokenizer(family).decode(piece.tokens) == rendered(family, told)
    mine = [token for token, author in zip(piece.tokens, piece.authors, strict=True) if author]
    assert tokenizer(family).decode(mine) == "b"


def test_an_ending_that_no_setting_names_is_refused():
    known = tokenizer("llama3")
    known.stop_ids = frozenset()
    try:
        with pytest.raises(EarlError, match=r"ends a reply with '<\|eot_id\|>.*name it in eos_token_id"):
            Chat(known).reply("user", "b", True)
    finally:
        tokenizer.cache_clear()
