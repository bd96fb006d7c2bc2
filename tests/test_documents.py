import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.documents import MOST_TOML_BYTES, parse_json, parse_json_object, parse_toml


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"x = " + b"[" * 5000, "nested more than 32 deep"),
        (b"x = " + b"[" * 40 + b"]" * 40, "nested more than 32 deep"),
        (b"[" + b".".join([b"a"] * 1000) + b"]", "nested more than 32 deep"),
        (b"x = 0x" + b"f" * 5000, "more than 128 bits"),
        (b"x = " + b"9" * 5000, "4300 digits"),
        (b"#" * (MOST_TOML_BYTES + 1), "too long"),
        (b"x = '\0'", "invalid character|Illegal character"),
        (b"\xff", "utf-8"),
    ],
)
def test_a_hostile_toml_document_is_refused(text: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_toml(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"[" * 200_000, "nested more than 32 deep"),
        (b"[" * 40 + b"]" * 40, "nested more than 32 deep"),
        (b"9" * 4000, "more than 128 bits"),
        (b"9" * 5000, "not JSON: Exceeds the limit"),
        (b'{"\xff": 1}', "not JSON"),
        (b'{"\\ud800": 1}', "surrogates not allowed"),
        (b"[]", "not a JSON object"),
        (b"", "not JSON"),
    ],
)
def test_a_hostile_json_document_is_refused(text: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_json_object(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_whatever_json_holds_comes_back(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value
