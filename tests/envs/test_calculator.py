import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from earl.envs.tools.arithmetic import MAX_LENGTH, MAX_MAGNITUDE, Refusal, calculate

Tree = int | tuple
"""A number, ("-", tree) for a sign, or (operator, left, right)."""

TREES = st.recursive(
    st.integers(0, 999),
    lambda trees: st.one_of(st.tuples(st.just("-"), trees), st.tuples(st.sampled_from("+-*"), trees, trees)),
    max_leaves=8,
)


def value(tree: Tree) -> int:
    """Python's own arithmetic on the tree."""
    if isinstance(tree, int):
        return tree
    if len(tree) == 2:
        return -value(tree[1])
    left, right = value(tree[1]), value(tree[2])
    return {"+": left + right, "-": left - right, "*": left * right}[tree[0]]


def written(tree: Tree, least: int = 0) -> str:
    """The tree with no parentheses but the needed ones. Levels: 0 sum, 1 product, 2 factor."""
    if isinstance(tree, int):
        return str(tree)
    if len(tree) == 2:
        return f"-{written(tree[1], 2)}"
    level = 1 if tree[0] == "*" else 0
    text = f"{written(tree[1], level)}{tree[0]}{written(tree[2], level + 1)}"
    return f"({text})" if level < least else text


def operations(tree: Tree) -> int:
    if isinstance(tree, int):
        return 0
    return operations(tree[1]) + (1 + operations(tree[2]) if len(tree) == 3 else 0)


def largest(tree: Tree) -> int:
    below = () if isinstance(tree, int) else tree[1:]
    return max([abs(value(tree)), *map(largest, below)])


@given(TREES)
def test_agrees_with_pythons_own_arithmetic(tree):
    text = written(tree)
    assume(len(text) <= MAX_LENGTH and largest(tree) <= MAX_MAGNITUDE)
    assert calculate(text) == value(tree)
    assert calculate(text, max_operations=operations(tree)) == value(tree)
    if operations(tree):
        with pytest.raises(Refusal):
            calculate(text, max_operations=operations(tree) - 1)


@given(st.text(alphabet="0123456789+-*() ", max_size=MAX_LENGTH + 2))
def test_any_text_is_calculated_or_refused(text):
    try:
        assert isinstance(calculate(text), int)
    except Refusal as refusal:
        assert str(refusal)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("10-4-3", 3),  # from left to right: (10-4)-3
        ("--5", 5),
        ("2*-3", -6),
        ("-2*3", -6),
        (" 1 + 2 ", 3),
        ("007", 7),
        ("(((1)))", 1),
    ],
)
def test_examples(text, expected):
    assert calculate(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a number is missing"),
        ("1+", "a number is missing"),
        ("+1", r"unexpected \+"),
        ("1 2", "unexpected 2"),
        ("(1", "not closed"),
        ("1)", r"unexpected \)"),
        ("()", r"unexpected \)"),
        ("2**3", r"unexpected \*"),
        ("1/2", "cannot read '/'"),
        ("1.5", "cannot read '.'"),
        ("٣+1", r"cannot read '\\u0663'"),
        ("abs(1)", "cannot read 'a'"),
        ("__import__", "cannot read '_'"),
        ("1" * 14, "too large"),
        ("999999*9999999", "too large"),
        ("(" * 65, "more than 64 characters"),
        ("(" * 64, "a number is missing"),
        ("-" * 63 + "1", None),
    ],
)
def test_what_is_no_expression_is_refused(text, words):
    if words is None:
        assert calculate(text) == -1  # 63 signs, an odd number
        return
    with pytest.raises(Refusal, match=words):
        calculate(text)


def test_one_operation_per_call():
    assert calculate("37+48", max_operations=1) == 85
    assert calculate("-37-48", max_operations=1) == -85
    with pytest.raises(Refusal, match=r"^one operation per call$"):
        calculate("37+48-19", max_operations=1)
