"""JSON from outside, read in one way.

`read_json` is for what is sent to us, and refuses: half a UTF-16 pair ("\\ud800"), bytes that are no UTF-8, more than 200
levels, numbers of thousands of digits, NaN. What comes out can be written down again, and no reader of it runs out of
stack. `read_peer_json` is for what peers answer: a text of theirs that is damaged must not hide the rest of what they say,
so damaged characters become U+FFFD; all else is refused alike.
"""

import re
from typing import Any, Final

from pydantic_core import from_json

_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
_PAIR_LENGTH: Final = 12
_LONE_LENGTH: Final = 6


def read_json(data: bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, whose message says what is wrong, and where."""
    return from_json(data, allow_inf_nan=False, cache_strings="keys")


def read_peer_json(data: bytes) -> Any:
    """As `read_json`, with U+FFFD for every character that is none. Raises `ValueError`."""
    try:
        return read_json(data)
    except ValueError:
        mended = _ESCAPE.sub(_whole, data.decode("utf-8", "replace").encode())
        return read_json(mended)


def _whole(found: re.Match[bytes]) -> bytes:
    """An escape as it is, unless it is half a pair."""
    escape = found.group()
    return rb"\ufffd" if len(escape) == _LONE_LENGTH else escape
