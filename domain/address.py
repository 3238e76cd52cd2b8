"""Where a host is: an IPv4 address, an IPv6 address, or a name that DNS could hold; and how it stands in a URL.

One type for every surface, so that what was accepted can be connected to: `10.0.0.1:1026`, `a..b`, `[::1]` and
`http://x` are no hosts, whoever sends them. IPv6 is kept without brackets, as in a Pod's status; `host_port` and
`http_url` write them where a port follows.
"""

import ipaddress
import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

LONGEST_HOST: Final = 253
"""Characters of a whole name (RFC 1035, as text)."""

_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\Z", re.ASCII)


def host(text: str) -> str:
    """`text`, if it can be a host. Raises `ValueError`, which says what to write."""
    if ":" in text or "%" in text:
        try:
            return str(ipaddress.IPv6Address(text)) if "%" not in text else _refuse(text)
        except ValueError:
            return _refuse(text)
    labels = text.removesuffix(".").split(".")
    if labels[-1].isdigit():  # then it can only be an address: no top-level domain is a number (RFC 3696)
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            return _refuse(text)
    if len(text) > LONGEST_HOST or not all(_LABEL.match(label) for label in labels):
        return _refuse(text)
    return text


def _refuse(text: str) -> str:
    raise ValueError(f"{text[:LONGEST_HOST]!r} is no host: write an IPv4 or IPv6 address or a name, without port or brackets")


Host = Annotated[str, Field(min_length=1, max_length=LONGEST_HOST), AfterValidator(host)]
"""An IPv4 or IPv6 address, or a DNS name; no port, no brackets."""


LONGEST_URL: Final = 2_000


def peer_url(url: str) -> str:
    """The URL, if a connection to it can be tried at all; one that is remembered wrongly fails each push. Raises `ValueError`."""
    parts = urlsplit(url)  # ValueError: an address in brackets that is none, a port that is no number, or no port
    odd = parts.scheme not in ("http", "https") or parts.port == 0 or not url.isprintable() or " " in url
    if odd or not parts.hostname or (":" in parts.hostname) != ("[" in parts.netloc):
        raise ValueError("write http://host:port or https://host:port, the host as DNS has it")
    host(parts.hostname)
    return url


PeerUrl = Annotated[str, Field(min_length=1, max_length=LONGEST_URL), AfterValidator(peer_url)]
"""The base URL of a peer that announces itself or is configured."""


def host_port(at: str, port: int | str) -> str:
    """`10.0.0.1:1026`, `[2001:db8::1]:1026`, `node-3:1026`."""
    return f"[{at}]:{port}" if ":" in at else f"{at}:{port}"


def http_url(at: str, port: int) -> str:
    """`http://host:port`, with brackets where the host is IPv6."""
    return f"http://{host_port(at, port)}"
