"""Ports stay free for whoever reserved them."""

import socket

import pytest

from lab.stack.ports import NoFreePort, PortLease, ephemeral_start


def test_two_leases_never_share_a_port() -> None:
    with PortLease(seed=1) as one, PortLease(seed=1) as other:
        mine = {one.take() for _ in range(20)}
        theirs = {other.take() for _ in range(20)}
    assert len(mine) == len(theirs) == 20
    assert not mine & theirs


def test_ports_lie_below_the_range_of_outgoing_connections() -> None:
    with PortLease() as lease:
        assert all(lease.take() < ephemeral_start() for _ in range(20))


def test_a_block_is_consecutive_and_wholly_reserved() -> None:
    with PortLease(seed=2) as lease, PortLease() as other:
        first = lease.take_block(4)
        assert lease.ports == {first, first + 1, first + 2, first + 3}
        for port in lease.ports:
            with pytest.raises(NoFreePort):
                other.take_exactly(port, "a test")


def test_a_port_that_somebody_listens_on_is_refused_with_its_purpose() -> None:
    with socket.create_server(("127.0.0.3", 0)) as stranger, PortLease() as lease:
        port = stranger.getsockname()[1]
        with pytest.raises(NoFreePort, match=f"port {port} for the Web UI is in use"):
            lease.take_exactly(port, "the Web UI")
        assert lease.ports == frozenset()


def test_closing_gives_ports_back() -> None:
    with PortLease() as lease:
        port = lease.take()
    with PortLease() as later:
        assert later.take_exactly(port, "a test") == port
