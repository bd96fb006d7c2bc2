import math
from typing import Any

import numpy as np
import pytest

from earl.report.decoding import Decoder
from earl.report.episodes import MAX_TURNS, SAMPLED_TOKENS, choose, dialogue
from earl.trajectory import Author, Outcome, StopReason


def text(spans: Any) -> str:
    return "".join(span.text for span in spans)


def test_a_turn_is_what_was_given_and_what_was_sampled(make_episode: Any, bytewise: Any) -> None:
    played = make_episode([("12é", "<think>so</think>5")], logprob=math.log(0.4))
    shown = dialogue(played, Decoder(bytewise))
    turn = shown.exchanges[0]
    assert [(span.author, span.text) for span in turn.given] == [("template", "<|user|>"), ("environment", "12é")]
    assert text(turn.reply) == "<think>so</think>5<|end|>"
    assert {span.author for span in turn.reply} == {"thinking", "action"}
    assert [span.mark for span in turn.reply] == [False] * (len(turn.reply) - 1) + [True]
    # 0.4 is below 0.9 and 0.5, not below 0.1
    assert {span.doubt for span in turn.reply} == {2}
    assert turn.reply[0].probability == pytest.approx(0.4)
    assert turn.long and turn.probability == pytest.approx(0.4), "the mean over 19 tokens"
    short = dialogue(make_episode([("a", "5")], logprob=math.log(0.4)), Decoder(bytewise)).exchanges[0]
    assert not short.long and short.probability == pytest.approx(0.16), "0.4 for the 5, 0.4 for the end mark"
    assert (shown.left_out, shown.rest) == (0, [])


def test_a_tool_speaks_in_its_own_name(make_episode: Any, bytewise: Any) -> None:
    played = make_episode([("85", "66")], speaker=Author.TOOL)
    assert dialogue(played, Decoder(bytewise)).exchanges[0].speaker == "tool"


def test_the_choice_is_varied(make_episode: Any) -> None:
    many = [make_episode([(f"{number}", "5")], opponent="random") for number in range(50)]
    rare = [
        make_episode([("a", "5")], opponent="perfect", seat=1, outcome=Outcome.LOSS),
        make_episode([("b", "5")], opponent="random", stop=StopReason.ILLEGAL_ACTION, illegal=1, outcome=Outcome.LOSS),
    ]
    chosen = choose([*many, *rare], limit=3)
    assert {id(one) for one in rare} < {id(one) for one in chosen}
    assert len(choose(many)) == 12
    assert choose([many[0], many[0]]) == [many[0]], "no episode twice"
    assert choose([]) == []


def test_long_episodes_are_cut_and_say_so(make_episode: Any, bytewise: Any) -> None:
    shown = dialogue(make_episode([("board " * 1000, "x" * 300)] * (MAX_TURNS + 20)), Decoder(bytewise))
    assert len(shown.exchanges) == MAX_TURNS
    assert shown.left_out == 20
    assert [turn.number for turn in shown.exchanges][-1] == MAX_TURNS + 20
    # 1600 tokens over 30 turns: 53 each, and one note
    assert all(len(turn.reply) <= SAMPLED_TOKENS // MAX_TURNS + 1 for turn in shown.exchanges)
    assert "248 tokens left out" in text(shown.exchanges[0].reply)  # 301 - 53
    assert "characters left out" in text(shown.exchanges[0].given)


def test_what_follows_the_last_reply_is_shown(make_episode: Any, bytewise: Any) -> None:
    whole = make_episode([("a", "b"), ("c", "d")])
    cut = type(whole)(
        whole.task, 0, whole.tokens, whole.authors, whole.logprobs, whole.versions,
        whole.turns[:1], StopReason.CONTEXT_LIMIT, Outcome.LOSS, 0,
    )  # fmt: skip
    assert text(dialogue(cut, Decoder(bytewise)).rest) == "<|user|>cd<|end|>"


def test_an_episode_without_turns(make_episode: Any, bytewise: Any) -> None:
    empty = make_episode([])
    assert dialogue(empty, Decoder(bytewise)).exchanges == []
    assert empty.tokens.shape == np.empty(0).shape


def test_characters_of_several_tokens_stay_whole(bytewise: Any) -> None:
    decoder = Decoder(bytewise)
    ids = bytewise.encode("aé😀").ids
    assert list(decoder.pieces(ids)) == [("a", 0, 1), ("é", 1, 3), ("😀", 3, 7)]
    # the first byte of é alone, then a letter: no character, so each token for itself
    broken = [ids[1], ids[0]]
    assert [(start, end) for _, start, end in decoder.pieces(broken)] == [(0, 1), (1, 2)]


def test_tokens_that_nobody_knows_are_numbers(bytewise: Any) -> None:
    assert Decoder(bytewise).whole([bytewise.token_to_id("a"), 99_999]) == "a⟨token 99999⟩"
    assert Decoder(bytewise).whole([-1]) == "⟨token -1⟩"
    assert Decoder(None).whole([1, 2]) == "⟨token 1⟩⟨token 2⟩"
    assert Decoder(None).is_control(0) is False
