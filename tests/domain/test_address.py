"""What a host is, and how it stands in a URL: what is accepted can be connected to."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from domain.address import Host, host_port, http_url, peer_url

HOSTS: TypeAdapter[str] = TypeAdapter(Host)

GOOD = ("10.0.0.1", "127.0.0.1", "::1", "2001:db8::a1", "fe80::1", "node-3", "pod_7.ns.svc.cluster.local", "a.b.", "x" * 63)
BAD = (
    *("", " ", "10.0.0.1:1026", "[::1]", "::1%eth0", "a..b", ".a", "-a", "a-", "a b", "http://a", "a/b", "a?b", "a#b", "u@a"),
    *("256.0.0.1", "10.0.1", "1", "a.1", "x" * 64, "x." * 127, "ä", "a\n", "a\0", "\ud800", ":::", "1:2:3", "*"),
)


@pytest.mark.parametrize("text", GOOD)
def test_addresses_and_names_are_hosts(text: str) -> None:
    assert HOSTS.validate_python(text)
    assert httpx.URL(http_url(text, 1026)).port == 1026


@pytest.mark.parametrize("text", BAD)
def test_what_nothing_can_connect_to_is_no_host(text: str) -> None:
    with pytest.raises(ValidationError):
        HOSTS.validate_python(text)


def test_ipv6_has_one_spelling_and_brackets_before_a_port() -> None:
    assert HOSTS.validate_python("2001:DB8:0:0::1") == "2001:db8::1"
    assert host_port("2001:db8::1", 80) == "[2001:db8::1]:80"
    assert host_port("10.0.0.1", 80) == "10.0.0.1:80"


@given(st.text(max_size=300))
def test_whatever_is_accepted_makes_a_url(text: str) -> None:
    try:
        at = HOSTS.validate_python(text)
    except ValidationError:
        return
    assert httpx.URL(http_url(at, 65535)).host
    assert at.encode("idna") or ":" in at


@pytest.mark.parametrize("url", ["http://10.0.0.1:1026", "https://[::1]:1", "http://coordinator-0", "http://a:1/prefix"])
def test_urls_of_peers(url: str) -> None:
    assert peer_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "ftp://a",
        "http://::1:80",
        "http://a..b",
        "http://a:0",
        "http://a:x",
        "http://a b",
        "http://a\n",
        "http://a:99999",
    ],
)
def test_what_can_be_no_url_of_a_peer(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        peer_url(url)
