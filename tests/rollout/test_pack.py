"""From trajectories to rows: masks, labels that depart from what was played, contexts that restart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.algorithms.base import Advantages
from earl.rollout.drivers import play
from earl.rollout.pack import complete, experiences, pack, trajectories_of
from earl.trajectory import Author, Group

HISTORIES = ("full", "board_only")


def dots(flags):
    return "".join("x" if flag else "." for flag in flags)


def numbers(turns):
    return "".join("-" if turn < 0 else str(turn) for turn in turns)


@pytest.fixture(scope="session")
def played(episode, script):
    """Plays one episode for every script of replies."""

    def make(*replies, **rules):
        episodes = [episode(session, **rules) for session in range(len(replies))]
        return play(episodes, script(*replies))

    return make


def test_a_whole_episode_is_one_row(played, text):
    rows = pack(played(("1", "2", "3")))
    assert rows.offsets.tolist() == [0, 18]
    assert text(rows.tokens) == "(0$[1$(1$[2$(2$[3$"
    assert dots(rows.mask) == "....xx....xx....xx"
    # A turn begins at the last token of its prompt, where its value is read.
    assert numbers(rows.turns) == "---000---111---222"
    assert dots(rows.value_mask) == "...x.....x.....x.."
    assert rows.targets.tolist() == rows.tokens.tolist()
    assert rows.logprobs[rows.mask].tolist() == [-0.5, -1.5] * 3


def test_turns_are_numbered_through_all_episodes(played):
    rows = pack(played(("1", "9"), ("1", "2", "3")))
    assert rows.lengths.tolist() == [12, 18]
    assert numbers(rows.turns[rows.value_mask]) == "01234"


def test_contexts_that_restart_are_rows_of_their_own(played, text):
    rows = pack(played(("1", "2", "3"), ("9",), history="board_only"))
    assert rows.lengths.tolist() == [6, 6, 6, 6]
    assert text(rows.tokens) == "(0$[1$" + "(1$[2$" + "(2$[3$" + "(0$[9$"
    assert numbers(rows.turns) == "---000" + "---111" + "---222" + "---333"
    assert dots(rows.mask) == "....xx" * 4


def test_what_follows_the_last_reply_is_left_out(played, text):
    # The context was full after the answer "(1$[": nothing was learned there.
    rows = pack(played(("1",), context_limit=10))
    assert text(rows.tokens) == "(0$[1$"


def test_what_would_have_followed_a_truncation_has_a_value_and_no_loss(played, episode, script, timed, text):
    cut = [episode(number, env=timed(), max_turn_tokens=8, history=history) for number, history in enumerate(HISTORIES)]
    rows = pack([*play(cut, script(("1", "stop"), ("1", "stop"))), *played(("1", "9"))])
    assert text(rows.tokens) == "(0$[1$(1$[stop$(enough$[" + "(0$[1$" + "(1$[stop$(enough$[" + "(0$[1$(1$[9$"
    assert numbers(rows.turns[rows.value_mask]) == "01234567"
    assert numbers(rows.turns[:24]) == "---000---111111--------2"
    assert dots(rows.mask[:24]) == "....xx....xxxxx........."
    batch = complete(rows, Advantages(np.arange(8, dtype=np.float32), np.zeros(8, np.float32)), None)
    assert sorted({*batch.advantages[batch.mask]}) == [0, 1, 3, 4, 6, 7]  # not the values of 2 and 5


def test_the_record_of_a_truncated_episode_has_its_turns_alone(episode, script, timed):
    (cut,) = play([episode(env=timed(), max_turn_tokens=8)], script(("1", "stop")))
    rows = pack([cut])
    batch = complete(rows, Advantages(np.array([3, 4, 9], np.float32), np.zeros(3, np.float32)), None)
    (record,) = experiences([Group((cut,))], [group := Group((cut,))], batch, batch.advantages)
    assert record.advantages.tolist() == [3, 4]
    assert record.mask.tolist() == [*batch.mask]
    assert group.trajectories[0] is cut


def test_a_retry_is_a_turn_of_its_own(played):
    rows = pack(played(("9", "1", "2", "3"), retries=1))
    assert numbers(rows.turns[rows.value_mask]) == "0123"
    assert rows.mask.sum() == 8


def label(text):
    return [ord(character) for character in text]


def test_labels_that_agree_are_learned_whole(played, text):
    rows = pack(played(("1", "2", "3")), [{0: label("1$"), 1: label("2$"), 2: label("3$")}])
    assert dots(rows.mask) == "....xx....xx....xx"
    assert rows.targets.tolist() == rows.tokens.tolist()


def test_a_label_is_learned_up_to_the_first_token_that_departs(played, text):
    # "12" against the played "13": the end token after "13" was never the answer to "12".
    trajectories = played(("13", "x"), retries=1)
    rows = pack(trajectories, [{0: label("12$"), 1: label("1$")}])
    assert text(rows.tokens).startswith("(0$[13$(")
    assert text(rows.targets[4:7]) == "12$"
    assert dots(rows.mask[:7]) == "....xx."
    # "1$" against "x$": only the first token.
    assert dots(rows.mask[-2:]) == "x."
    assert text(rows.targets[-2:]) == "1$"
    assert text(rows.tokens[-2:]) == "x$"


def test_a_label_that_ends_before_what_was_played(played, text):
    # "1$" against "13$": the end token departs from "3", and nothing behind it is learned.
    rows = pack(played(("13",)), [{0: label("1$")}])
    assert dots(rows.mask) == "....xx."
    assert text(rows.targets[4:]) == "1$$"


def test_turns_without_a_label_teach_nothing(played):
    rows = pack(played(("1", "2", "3")), [{1: label("2$")}])
    assert dots(rows.mask) == "..........xx......"


def test_no_trajectories_pack_to_no_rows():
    rows = pack([])
    assert (rows.num_rows, len(rows.tokens)) == (0, 0)
    assert rows.mask.dtype == np.bool_
    assert complete(rows, Advantages(np.zeros(0, np.float32), np.zeros(0, np.float32)), None).num_rows == 0


def test_completing_spreads_turns_over_their_tokens(played):
    rows = pack(played(("1", "9"), ("1", "2", "3")))
    advantages = np.arange(1, 6, dtype=np.float32)
    batch = complete(rows, Advantages(advantages, advantages * 10), None)
    assert batch.advantages[batch.mask].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert not batch.advantages[~batch.mask].any()
    assert batch.returns[batch.value_mask].tolist() == [10, 20, 30, 40, 50]
    assert not batch.returns[~batch.value_mask].any()
    assert not batch.reference.any()


def test_turn_values_are_read_where_completing_writes_returns(played):
    rows = pack(played(("1", "9"), ("1", "2", "3"), history="board_only"))
    values = np.arange(5, dtype=np.float32)
    returns = complete(rows, Advantages(values, values), None).returns
    assert dict(zip(rows.turns[rows.value_mask].tolist(), returns[rows.value_mask].tolist(), strict=True)) == {
        turn: float(turn) for turn in range(5)
    }


REPLIES = st.lists(st.sampled_from(["1", "2", "33", "9", "9999999"]), min_size=5, max_size=5)


@given(
    st.lists(REPLIES, min_size=1, max_size=4),
    st.sampled_from(["full", "board_only"]),
    st.integers(0, 2),
    st.integers(8, 40),
)
def test_every_sampled_token_is_learned_exactly_once(played, scripts, history, retries, limit):
    trajectories = played(*scripts, history=history, retries=retries, context_limit=limit, max_turn_tokens=4)
    rows = pack(trajectories)
    sampled = [t.tokens[t.authors >= Author.THINKING].tolist() for t in trajectories]
    assert rows.tokens[rows.mask].tolist() == [token for tokens in sampled for token in tokens]
    turns = sum(len(t.turns) for t in trajectories)
    assert rows.turns[rows.value_mask].tolist() == list(range(turns))
    assert int(rows.lengths.max()) <= limit
    assert not rows.mask[rows.offsets[:-1]].any()  # something always stands before what is predicted
    # What a row holds is what the sampler had seen: the context of its last turn, then the reply.
    assert rows.num_rows == (turns if history == "board_only" else len(trajectories))


def test_trajectories_keep_their_order_through_groups(played):
    a, b, c = played(("9",), ("1", "9"), ("1", "2", "3"))
    assert trajectories_of([Group((a, b)), Group((c,))]) == [a, b, c]
