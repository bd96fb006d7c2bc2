"""What the model still sees under each history policy. `(`, `$`, `[` stand for the template; see conftest.py."""

import pytest

from earl.agents.chat import Chat
from earl.audit.rebuild import Slot, rebuild
from earl.envs import registry
from earl.rollout.drivers import play
from earl.rollout.episode import SUMMARY_REQUEST, Episode, HistoryPolicy, Rules
from earl.rollout.pack import pack
from earl.rollout.tasks import EpisodeFactory
from earl.trajectory import Author, Completion, Outcome, StopReason, Task


@pytest.fixture
def played(episode, script):
    """Plays one episode by a script."""
    return lambda *replies, **settings: play([episode(**settings)], script(replies))[0]


@pytest.mark.parametrize(
    ("name", "kept", "summary"),
    [("full", None, None), ("board_only", 0, None), ("last_turns:3", 3, None), ("summary:2", None, 2)],
)
def test_the_names_of_policies(name, kept, summary):
    assert HistoryPolicy.of(name) == HistoryPolicy(kept, summary)


def contexts(result, text):
    return [text(result.tokens[turn.context_start : turn.end]) for turn in result.turns]


def test_last_turns_gives_the_last_rounds_again(played, text):
    result = played("1", "2", "3", history="last_turns:1")
    assert contexts(result, text) == ["(0$[1$", "(0$[1$(1$[2$", "(1$[2$(2$[3$"]
    assert result.outcome is Outcome.WIN


def test_last_turns_is_full_history_while_there_are_no_more(played):
    assert played("1", "2", "3", history="last_turns:2").tokens.tolist() == played("1", "2", "3").tokens.tolist()


def test_what_is_given_again_keeps_its_author_and_is_not_learned_from(played):
    result = played("1", "2", "3", history="last_turns:1")
    # Third context: ( 1 $ [ 2 $ are 4 given and the 2 tokens sampled before, then ( 2 $ [ given, 3 $ sampled.
    third = slice(result.turns[2].context_start, result.turns[2].end)
    assert result.authors[third][4:6].tolist() == [Author.ACTION, Author.ACTION]
    assert result.sampled[third].tolist() == [False] * 10 + [True] * 2
    assert result.sampled.sum() == 6  # 3 replies of 2 tokens, each once


def test_a_round_begins_after_what_was_given_again(played, text):
    result = played("1", "2", "3", history="last_turns:1")
    rounds = [text(result.tokens[turn.prompt_start : turn.end]) for turn in result.turns]
    assert rounds == ["(0$[1$", "(1$[2$", "(2$[3$"]


def test_a_refused_reply_is_a_round_too(played, text):
    result = played("1", "8", "2", "3", history="last_turns:1", retries=1)
    assert contexts(result, text)[2] == "(1$[8$(a number$[2$"


def test_the_task_of_tools_is_never_forgotten(episode, script, counting, text):
    result = play([episode(env=counting(role="tool"), history="last_turns:1")], script(("1", "2", "3")))[0]
    assert contexts(result, text)[2] == "(0\n1$[2$|2$[3$"  # the task "0" stands before what the tool said


def test_the_limit_holds_for_each_context(played):
    assert played("1", "2", "3", history="last_turns:1", context_limit=12).outcome is Outcome.WIN
    cut = played("1", "2", "3", history="last_turns:1", context_limit=11)
    assert (cut.stop, len(cut.turns)) == (StopReason.CONTEXT_LIMIT, 2)


def test_a_summary_takes_the_place_of_what_was_before(played, text):
    result = played("1", "so far 1", "2", "s", "3", history="summary:1", max_turn_tokens=10)
    asked = f"(0$[1$({SUMMARY_REQUEST}$[so far 1$"
    assert text(result.tokens).startswith(asked + "(so far 1\n1$[2$")
    assert [turn.summary for turn in result.turns][:3] == [False, True, False]
    assert result.turns[1].action is None
    assert result.illegal == 0


def test_summaries_do_not_count_as_replies(played):
    result = played("1", "s", "2", "s", "3", history="summary:1")
    assert result.outcome is Outcome.WIN
    assert [turn.action for turn in result.turns] == ["1", None, "2", None, "3"]


def test_a_summary_has_a_length_of_its_own(episode):
    own = episode(history="summary:1", max_turn_tokens=3, summary_tokens=20)
    assert own.prompt().max_tokens == 3
    own.receive(Completion([ord("1"), ord("$")], [0.0, 0.0], [0, 0], True))
    assert own.summarising
    assert own.prompt().max_tokens == 20


def test_a_summary_that_is_cut_is_taken_as_far_as_it_goes(played, text):
    result = played("1", "too long", "2", "3", history="summary:2", summary_tokens=3, max_turn_tokens=3)
    assert "(to" not in text(result.tokens)  # asked after the second round
    result = played("1", "too long", "2", "s", "3", history="summary:1", summary_tokens=3, max_turn_tokens=3)
    assert "(too\n1$[" in text(result.tokens)


def test_a_summary_at_the_limit_ends_the_episode(played):
    # ( 0 $ [ 1 $ ( request $ [ are 6 + 3 + 30 tokens, and there is room for one more.
    room = 9 + len(SUMMARY_REQUEST) + 1
    result = played("1", "long", history="summary:1", context_limit=room)
    assert (result.stop, result.turns[-1].summary) == (StopReason.CONTEXT_LIMIT, True)


def test_a_thought_is_left_out_of_later_prompts_where_the_template_does_so(chatml, counting, script):
    chat = Chat(chatml("forgetting"))
    rules = Rules(thinking=True, retries=1, context_limit=999, max_turn_tokens=99)
    said = ["<think>the 12</think>\n1", "<think>never", "<think></think>2", "3"]
    sampled = [chat.written(reply) for reply in said]
    sampled[1] = sampled[1][:-1]  # cut
    own = Episode(counting(), chat, rules, Task("counting", seed=0), 0, 0)
    for tokens in sampled:
        finished = tokens[-1] == chat.end
        own.receive(Completion(tokens, [-0.5] * len(tokens), [3] * len(tokens), finished))
    result = own.trajectory()
    assert (result.outcome, result.illegal) == (Outcome.WIN, 1)
    seen = [chat.decode(tuple(result.tokens[turn.context_start : turn.action_start])) for turn in result.turns]
    assert ["the 12" in text for text in seen] == [False] * 4
    assert "assistant\n1<|im_end|>" in seen[1]
    assert "assistant\n<think>never<|im_end|>" in seen[2]  # not ended, which the template leaves in
    assert "assistant\n2<|im_end|>" in seen[3]
    assert result.tokens[result.sampled].tolist() == [token for tokens in sampled for token in tokens]
    assert pack([result]).num_rows == len({turn.context_start for turn in result.turns})
    registry.register("counting", counting)
    again = rebuild(EpisodeFactory("counting", {}, chat, rules), 1, 0, result, [Slot(result.task, result.seed)], {})
    assert not any(again.distance)  # as the audit replays it
