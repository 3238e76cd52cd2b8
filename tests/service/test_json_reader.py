"""JSON from outside: what is refused, and what is mended in a peer's answer (`service.json_reader`)."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.json_reader import read_json, read_peer_json

UNREADABLE = (
    b"",
    b"[" * 200_000,
    b"9" * 6_000,
    b"-" + b"9" * 6_000,
    b"NaN",
    b"Infinity",
    b"{'a':1}",
    b"[1,]",
    b"\x00",
    b'"a\x00"',
)


@pytest.mark.parametrize("data", UNREADABLE, ids=lambda data: repr(data[:12]))
def test_what_is_no_json_is_refused_by_both(data: bytes) -> None:
    for read in (read_json, read_peer_json):
        with pytest.raises(ValueError, match="line 1 column"):
            read(data)


@pytest.mark.parametrize(
    ("data", "mended"),
    [
        (b'{"info":"rank died \\ud83d"}', {"info": "rank died \ufffd"}),
        (b'{"\\udc00":1}', {"\ufffd": 1}),
        (b'"\\ud83d\\ude00 \\uD800"', "\U0001f600 \ufffd"),
        (b'"\\\\ud800 \\\\\\ud800"', "\\ud800 \\\ufffd"),
        (b'"\xff\xfe"', "\ufffd\ufffd"),
    ],
)
def test_damaged_text_of_a_peer_does_not_hide_the_rest(data: bytes, mended: object) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        read_json(data)
    assert read_peer_json(data) == mended


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=())), st.lists, max_leaves=20
    )
)
def test_whatever_a_peer_writes_can_be_written_again(value: object) -> None:
    """Also texts with halves of a pair, which Python's own writer escapes."""
    read = read_peer_json(json.dumps(value).encode())
    assert json.dumps(read, ensure_ascii=False).encode()
    assert read_peer_json(json.dumps(read).encode()) == read


def test_depth_is_bounded_far_below_the_interpreters_stack() -> None:
    assert read_json(b"[" * 100 + b"]" * 100)
    assert sys.getrecursionlimit() > 250
