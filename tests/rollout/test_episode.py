"""The agent loop, with a scripted sampler: what is asked, what is recorded, and every way to end."""

import pytest

from earl.rollout.drivers import play
from earl.trajectory import Author, Completion, Outcome, StopReason

LETTERS = {
    Author.TEMPLATE: ".",
    Author.ENVIRONMENT: "e",
    Author.TOOL: "t",
    Author.THINKING: "h",
    Author.ACTION: "a",
}


def authors(trajectory):
    return "".join(LETTERS[Author(author)] for author in trajectory.authors)


@pytest.fixture
def played(episode, script):
    """Plays one episode by a script."""
    return lambda *replies, **settings: play([episode(**settings)], script(replies))[0]


def test_a_whole_episode_token_by_token(played, text):
    result = played("1", "2", "3")
    assert text(result.tokens) == "(0$[1$(1$[2$(2$[3$"
    assert authors(result) == ".e..aa.e..aa.e..aa"
    assert result.logprobs[4:7].tolist() == [-0.5, -1.5, 0.0]
    assert result.versions.tolist() == [-1] * 4 + [3, 3] + [-1] * 4 + [3, 3] + [-1] * 4 + [3, 3]
    assert [(t.context_start, t.prompt_start, t.action_start, t.end) for t in result.turns] == [
        (0, 0, 4, 6),
        (0, 6, 10, 12),
        (0, 12, 16, 18),
    ]
    assert [(t.action, t.reward) for t in result.turns] == [("1", 0.25), ("2", 0.25), ("3", 0.25)]
    assert (result.stop, result.outcome, result.reward) == (StopReason.FINISHED, Outcome.WIN, 0.75)
    assert (result.illegal, result.error, result.truncated) == (0, None, False)


def test_the_environment_and_its_opponent_are_seeded_apart(episode):
    assert episode(seed=11).env.seeds == (7, 11)


def test_every_prompt_is_the_chain_so_far_with_its_own_noise(episode, script, text):
    sampler = script(("1", "2", "3"))
    own = episode(max_turn_tokens=5, context_limit=17)
    seen = []
    while own.stop is None:
        prompt = own.prompt()
        assert own.prompt() == prompt  # asking changes nothing
        seen.append((text(prompt.tokens), prompt.max_tokens, prompt.seed))
        own.receive(sampler.answer(prompt))
    # Room is left for 17 - 4 = 13 tokens, then 17 - 10 = 7, then 17 - 16 = 1.
    assert [(context, room) for context, room, _ in seen] == [
        ("(0$[", 5),
        ("(0$[1$(1$[", 5),
        ("(0$[1$(1$[2$(2$[", 1),
    ]
    assert len({noise for *_, noise in seen}) == 3
    assert episode(seed=12).prompt().seed != seen[0][2]


def test_a_broken_rule_without_retries_is_a_forfeit(played):
    result = played("1", "9")
    assert (result.stop, result.outcome, result.illegal) == (StopReason.ILLEGAL_ACTION, Outcome.LOSS, 1)
    assert [(turn.action, turn.reward) for turn in result.turns] == [("1", 0.25), (None, -1.0)]


@pytest.mark.parametrize("reply", ["", " 1", "1 ", "1\n", "1 2", "<think>x</think>1"])
def test_nothing_is_guessed_from_a_reply(played, reply):
    assert played(reply, max_turn_tokens=20).stop is StopReason.ILLEGAL_ACTION


def test_retries_are_answered_with_the_rule_and_bounded_over_the_episode(played, text):
    result = played("9", "1", "8", "2", "7", retries=2)
    assert text(result.tokens) == "(0$[9$(a number$[1$(1$[8$(a number$[2$(2$[7$"
    assert (result.stop, result.illegal) == (StopReason.ILLEGAL_ACTION, 3)
    assert [turn.action for turn in result.turns] == [None, "1", None, "2", None]
    assert result.reward == 0.25 + 0.25 - 1.0
    # The rule is told by the environment's side, whatever role the environment speaks in.
    assert authors(result)[6:18] == ".eeeeeeee..a"


def test_retries_leave_room_for_as_many_turns_as_the_environment_needs(played):
    result = played("9", "1", "2", "3", retries=1)
    assert (result.stop, result.outcome) == (StopReason.FINISHED, Outcome.WIN)


def test_the_turn_limit_is_a_forfeit(played):
    result = played("1", "2", max_turns=2, forfeit_reward=-0.5)
    assert (result.stop, result.outcome) == (StopReason.TURN_LIMIT, Outcome.LOSS)
    assert [turn.reward for turn in result.turns] == [0.25, -0.25]


def test_an_environment_that_gives_up_counts_as_the_turn_limit(played):
    assert played("stop").stop is StopReason.TURN_LIMIT


def test_a_truncation_that_is_not_charged_ends_with_the_prompt_that_would_have_followed(played, timed, text):
    result = played("1", "stop", env=timed(), forfeit_reward=-5.0, max_turn_tokens=8)
    assert (result.stop, result.reward, result.bootstrapped, result.num_values) == ("env_truncated", 0.25, True, 3)
    assert text(result.tokens) == "(0$[1$(1$[stop$(enough$["
    assert result.turns[-1].end == len(result.tokens) - len("(enough$[")


def test_without_room_for_the_last_observation_nothing_is_estimated(played, timed, text):
    result = played("stop", env=timed(), max_turn_tokens=8, context_limit=len("(0$[stop$(enough$"))
    assert (result.stop, result.reward, result.bootstrapped, result.num_values) == ("turn_limit", 0.0, False, 1)
    assert text(result.tokens) == "(0$[stop$"


def test_a_reply_that_is_too_long_is_cut(played, text):
    result = played("1" * 9, max_turn_tokens=3)
    assert text(result.tokens) == "(0$[111"
    assert (result.stop, result.illegal, result.truncated) == (StopReason.TRUNCATED_TURN, 1, True)
    assert result.turns[0].action is None


def test_a_reply_that_was_cut_is_closed_by_the_template_before_the_retry(played, text):
    result = played("1" * 9, "1", "2", "3", max_turn_tokens=3, retries=1)
    assert text(result.tokens).startswith("(0$[111$(too long: end the reply within 3 tokens$[1$(1$[")
    assert authors(result).startswith(".e..aaa..e")
    assert result.outcome is Outcome.WIN


def test_the_context_limit_is_never_passed(played, text):
    result = played("111111", context_limit=8, max_turn_tokens=8)
    assert text(result.tokens) == "(0$[1111"  # 8 tokens, the reply included
    assert (result.stop, result.truncated, result.illegal) == (StopReason.CONTEXT_LIMIT, True, 0)
    assert result.turns[-1].reward == -1.0


def test_a_full_context_after_the_observation_ends_the_episode_too(played, text):
    result = played("1", "2", context_limit=10)
    assert text(result.tokens) == "(0$[1$(1$["  # 10 tokens: no room for a reply
    assert (result.stop, len(result.turns)) == (StopReason.CONTEXT_LIMIT, 1)
    assert result.reward == 0.25 - 1.0


def test_a_reply_that_just_fits_counts(played):
    # 4 + 2 tokens, then 4 more, 2 more, 4 more and 2 more: 18.
    assert played("1", "2", "3", context_limit=18).outcome is Outcome.WIN


@pytest.mark.parametrize("limit", [1, 4])
def test_a_first_prompt_without_room_for_a_reply_is_a_fault_of_its_episode(played, limit):
    result = played("1", context_limit=limit)
    assert (result.stop, len(result.turns)) == (StopReason.ENV_ERROR, 0)
    assert f"context.limit is {limit} tokens, but the first prompt" in result.error
    assert "at least 12" in result.error


def test_instructions_are_given_once_when_asked_for(played, text):
    assert text(played("1", "2", "3", instructions=True).tokens).startswith("{Count.$(0$[1$(1$[")
    assert "Count" not in text(played("1", "2", "3").tokens)


def test_tool_answers_are_authored_by_the_tool(episode, script, counting, text):
    result = play([episode(env=counting(role="tool"))], script(("1", "2", "3")))[0]
    assert text(result.tokens) == "(0$[1$|1$[2$|2$[3$"
    assert authors(result) == ".e..aa.t..aa.t..aa"


def test_thinking_is_told_from_the_action(played, text):
    result = played("<think>one</think>1", "2", "<think>", thinking=True, max_turn_tokens=30)
    assert [turn.action for turn in result.turns] == ["1", "2", None]
    assert text(result.tokens[4:25]) == "<think>one</think>1$("
    assert authors(result)[4:25] == "h" * 18 + "aa" + "."
    assert "h" not in authors(result)[25:]


def test_thinking_that_was_cut_is_thinking_still(played):
    result = played("<think>one and two", thinking=True, max_turn_tokens=12)
    assert authors(result)[4:] == "h" * 12
    assert set(authors(played("<think>", thinking=True, max_turn_tokens=30))[4:]) == {"a"}  # ended: no action at all


def test_a_token_that_closes_the_span_belongs_to_it(episode, chat, monkeypatch):
    # The last character of "</think>" and the action in one token: the token belongs to the thinking.
    own = episode(thinking=True)
    merged = {1: "<think>x</think", 2: ">1", 3: "$"}
    monkeypatch.setattr(chat, "decode", lambda tokens: "".join(merged[token] for token in tokens))
    assert own._policy_authors([1, 2, 3], "<think>x</think>") == bytes(
        [Author.THINKING, Author.THINKING, Author.ACTION]
    )


def test_board_only_starts_every_turn_from_the_last_observation(played, text):
    result = played("1", "2", "3", history="board_only")
    assert text(result.tokens) == "(0$[1$" + "(1$[2$" + "(2$[3$"
    assert [turn.context_start for turn in result.turns] == [0, 6, 12]
    assert [turn.prompt_start for turn in result.turns] == [0, 6, 12]
    assert authors(result) == ".e..aa" * 3


def test_board_only_repeats_the_observation_with_the_rule(played, text):
    result = played("1", "8", "9", "2", "3", history="board_only", retries=2)
    contexts = [text(result.tokens[turn.context_start : turn.end]) for turn in result.turns]
    assert contexts == ["(0$[1$", "(1$[8$", "(1\na number$[9$", "(1\na number$[2$", "(2$[3$"]


def test_board_only_measures_the_limit_per_context(played):
    assert played("1", "2", "3", history="board_only", context_limit=6).outcome is Outcome.WIN


def test_board_only_keeps_the_instructions(played, text):
    result = played("1", "2", "3", history="board_only", instructions=True)
    assert text(result.tokens).count("{Count.$") == 3


def test_a_reply_may_span_two_weight_versions(episode):
    running = episode()
    running.receive(Completion([ord("1"), ord("$")], [-0.5, -0.1], [3, 4], True))
    own = running.token_log
    sampled = [(chr(token), version) for token, version in zip(own.tokens, own.versions, strict=True)]
    assert [pair for pair in sampled if pair[1] >= 0] == [("1", 3), ("$", 4)]
