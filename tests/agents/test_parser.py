import pytest

from earl.agents.parser import Reply, parse


@pytest.mark.parametrize("text", ["5", " 5", "5\n", "", "5 6", "<think>centre</think>5", "I play 5."])
def test_without_thinking_the_whole_text_is_the_action(text):
    assert parse(text, thinking=False) == Reply("", text)


@pytest.mark.parametrize(
    ("text", "thinking", "action"),
    [
        ("<think>centre</think>5", "<think>centre</think>", "5"),
        ("<think>\ncentre\n</think>\n\n5\n", "<think>\ncentre\n</think>", "5"),
        ("<think></think>5", "<think></think>", "5"),
        ("5", "", "5"),  # thinking is allowed, not demanded
        ("<think>a</think>5</think>6", "<think>a</think>", "5</think>6"),  # the first end counts
        ("<think>centre", "", "<think>centre"),  # never closed
        ("5<think>centre</think>", "", "5<think>centre</think>"),  # only a leading span is one
        (" <think>a</think>5", "", " <think>a</think>5"),
    ],
)
def test_one_leading_span_is_split_off(text, thinking, action):
    assert parse(text, thinking=True) == Reply(thinking, action)


def test_a_second_span_is_part_of_the_action():
    reply = parse("<think>a</think><think>b</think>5", thinking=True)
    assert reply.action == "<think>b</think>5"
