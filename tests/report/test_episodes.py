import math
from typing import Any

import numpy as np

from earl.envs import registry
from earl.envs.base import Board
from earl.reports.data import Decoder, StoredEpisode, choose
from earl.reports.episodes import AUTHORS, Room, episode
from earl.trajectory import Author, Outcome, StopReason, TrainingRecord, Trajectory


def nothing(observation: str, action: str | None) -> Board | None:
    return None


def stored(trajectory: Trajectory, step: int = 1, number: int = 0, **more: Any) -> StoredEpisode:
    return StoredEpisode(step, number, trajectory, **more)


def pairs(given: list[list[Any]]) -> list[tuple[str, str]]:
    return [(AUTHORS[author], text) for author, text in given]


def test_a_turn_is_what_was_given_and_what_was_sampled(make_episode: Any, bytewise: Any) -> None:
    played = make_episode([("12é", "<think>so</think>5")], logprob=math.log(0.4))
    found = episode(stored(played), Decoder(bytewise), nothing)
    (turn,) = found["turns"]
    assert pairs(turn["given"]) == [("template", "<|user|>"), ("environment", "12é")]
    reply = turn["reply"]
    assert "".join(reply["texts"]) == "<think>so</think>5<|end|>"
    assert [AUTHORS[author] for author in reply["authors"]] == ["thinking"] * 17 + ["action"] * 2
    assert reply["marks"] == [len(reply["texts"]) - 1]
    assert set(reply["logprobs"]) == {-0.9163}  # ln 0.4
    assert found["logprob"] == -0.9163
    assert (turn["context"], turn["call"], turn["refused"], turn["boards"]) == (len(played.tokens), False, False, [])
    assert (found["length"], found["rest"], found["outcome"]) == (1, [], "win")


def test_what_was_learned_stands_at_its_tokens(make_episode: Any, bytewise: Any) -> None:
    played = make_episode([("a", "bc"), ("d", "e")], logprob=-1.0)
    mask = played.sampled.copy()
    mask[played.turns[1].action_start :] = False
    changed = np.where(mask, -0.5, 0).astype(np.float32)
    learned = TrainingRecord(mask, np.array([0.75, -0.25], np.float32), changed)
    first, second = episode(stored(played, experience=learned), Decoder(bytewise), nothing)["turns"]
    # from -1 to -0.5: e^0.5 times as likely
    assert first["reply"]["ratios"] == [1.649] * 3 and first["advantage"] == 0.75
    assert second["reply"]["ratios"] == [None] * 2 and second["advantage"] == -0.25
    unknown = episode(stored(played), Decoder(bytewise), nothing)["turns"][0]
    assert unknown["reply"]["ratios"] == [] and unknown["advantage"] is None


def test_boards_are_drawn_before_and_after_a_move(make_episode: Any, bytewise: Any) -> None:
    env = registry.make("tictactoe")
    played = make_episode([("X 123\n456\n789", "5"), ("illegal: choose one of 1", "x"), ("X 123\n4X6\n78O", "1")])
    first, second, third = episode(stored(played), Decoder(bytewise), env.draw)["turns"]
    assert [board["marked"] for board in first["boards"]] == [None, (1, 1)]
    assert first["boards"][1]["cells"] == [["", "", ""], ["", "X", ""], ["", "", ""]]
    assert second["boards"] == []
    assert third["boards"][1]["cells"] == [["X", "", ""], ["", "X", ""], ["", "", "O"]]


def test_a_tool_speaks_in_its_own_name(make_episode: Any, bytewise: Any) -> None:
    played = make_episode([("1+1", "call"), ("2", "2")])
    authors = played.authors.copy()
    turn = played.turns[1]
    authors[turn.prompt_start : turn.action_start][authors[turn.prompt_start : turn.action_start] == 1] = Author.TOOL
    played = Trajectory(**{**fields(played), "authors": authors})
    first, second = episode(stored(played), Decoder(bytewise), nothing)["turns"]
    assert (first["speaker"], second["speaker"]) == ("environment", "tool")
    assert (first["call"], second["call"]) == (True, False)


def fields(played: Trajectory) -> dict[str, Any]:
    return {name: getattr(played, name) for name in Trajectory.__slots__}


def test_the_choice_is_varied(make_episode: Any) -> None:
    many = [stored(make_episode([(f"{number}", "5")], opponent="random"), number=number) for number in range(50)]
    rare = [
        make_episode([("a", "5")], opponent="perfect", seat=1, outcome=Outcome.LOSS),
        make_episode([("b", "5")], opponent="random", stop=StopReason.ILLEGAL_ACTION, illegal=1, outcome=Outcome.LOSS),
    ]
    wanted = [stored(one, number=50 + place) for place, one in enumerate(rare)]
    later = stored(many[0].trajectory, step=2)
    chosen = choose([*many, *wanted, later], limit=4)
    assert {one.number for one in wanted} < {one.number for one in chosen}
    assert chosen[0].step == 2, "the latest first, and an episode of another step is another episode"
    assert len(choose(many, 12)) == 12
    assert choose([many[0], many[0]], 12) == [many[0]], "no episode twice"
    assert choose([], 12) == []


def test_long_episodes_are_cut_and_say_so(make_episode: Any, bytewise: Any) -> None:
    played = make_episode([("board " * 1000, "x" * 300)] * (Room().turns + 20))
    found = episode(stored(played), Decoder(bytewise), nothing, Room(tokens=1600, characters=16_000))
    assert len(found["turns"]) == Room().turns and found["length"] == Room().turns + 20
    assert found["turns"][found["head"]]["number"] == found["head"] + 1 + 20
    # 1600 tokens over 40 turns: 40 each, of 301
    reply = found["turns"][0]["reply"]
    assert len(reply["texts"]) == 40 and reply["cut"] == [26, 261]
    assert reply["marks"] == [39], "the mark that ends the reply is kept, at its place among those that are shown"
    assert "characters left out" in found["turns"][0]["given"][1][1]


def test_what_follows_the_last_reply_is_shown(make_episode: Any, bytewise: Any) -> None:
    whole = make_episode([("a", "b"), ("c", "d")])
    cut = Trajectory(**{**fields(whole), "turns": whole.turns[:1], "stop": StopReason.CONTEXT_LIMIT})
    found = episode(stored(cut), Decoder(bytewise), nothing)
    assert "".join(text for _, text in pairs(found["rest"])) == "<|user|>cd<|end|>"


def test_an_episode_without_turns(make_episode: Any, bytewise: Any) -> None:
    found = episode(stored(make_episode([])), Decoder(bytewise), nothing)
    assert (found["turns"], found["rest"], found["logprob"]) == ([], [], None)


def test_characters_of_several_tokens_stay_whole(bytewise: Any) -> None:
    decoder = Decoder(bytewise)
    ids = bytewise.encode("aé😀").ids
    assert list(decoder.pieces(ids)) == [("a", 0, 1), ("é", 1, 3), ("😀", 3, 7)]
    # the first byte of é without its second one is no character
    assert [(start, end) for _, start, end in decoder.pieces([ids[1], ids[0]])] == [(0, 2)]
    assert [(start, end) for _, start, end in decoder.pieces([ids[1]] * 10)] == [(0, 8), (8, 10)]


def test_tokens_that_nobody_knows_are_numbers(bytewise: Any) -> None:
    assert Decoder(bytewise).whole([bytewise.token_to_id("a"), 99_999]) == "a⟨token 99999⟩"
    assert Decoder(bytewise).whole([-1]) == "⟨token -1⟩"
    assert Decoder(None).whole([1, 2]) == "⟨token 1⟩⟨token 2⟩"
    assert Decoder(None).is_control(0) is False
