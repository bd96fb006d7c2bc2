import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from earl.envs.tools.kit import MAX_LENGTH, calculator

TREES = st.recursive(
    st.integers(0, 999).map(str),
    lambda trees: st.builds("({}{}{})".format, trees, st.sampled_from("+-*"), trees) | trees.map("(-{})".format),
    max_leaves=8,
)


@given(TREES)
def test_agrees_with_pythons_own_arithmetic(text):
    assume(len(text) <= MAX_LENGTH)
    assert calculator(text) == eval(text)


@given(st.text(alphabet="0123456789+-*() ", max_size=MAX_LENGTH + 2))
def test_any_text_is_calculated_or_refused(text):
    try:
        assert isinstance(calculator(text), int)
    except ValueError as refusal:
        assert str(refusal)


@pytest.mark.parametrize(
    "text",
    ["", "1+", "1 2", "(1", "()", "2**3", "1/2", "1.5", "٣+1", "abs(1)", "__import__", "True", "'a'*9", "(" * 65, "\0"],
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ValueError):
        calculator(text)
