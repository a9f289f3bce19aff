"""TCP keepalive: the options of sockets, and which connections have them."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
import uvloop

from pressure_server.backend.address import Address, ClusterAddress, SentinelAddress, address_of
from pressure_server.keepalive import Keepalive
from pressure_server.net.listener import BoundSockets, ListenerUrl

# By the seconds of --tcp-keepalive: the first probe and the time between probes in seconds, the number of
# probes, and the time for an acknowledgement in milliseconds. Redis sets the first three like this.
OPTIONS = {300: (300, 100, 3, 600_000), 10: (10, 3, 3, 19_000), 1: (1, 1, 3, 4000), 0.1: (1, 1, 3, 4000)}


def options_of(connected: socket.socket) -> tuple[int, ...] | None:
    """Return the options of a TCP socket; None if it has no keepalive."""
    if not connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return None
    names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT
    return tuple(connected.getsockopt(socket.IPPROTO_TCP, name) for name in names)


@pytest.fixture
def backend() -> Iterator[socket.socket]:
    """A socket that listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.mark.parametrize("seconds", OPTIONS)
def test_accepted_connections_inherit_the_options(seconds: float) -> None:
    bound = uvloop.run(BoundSockets.bind(ListenerUrl.parse("resp://127.0.0.1:0"), Keepalive(seconds)))
    with (
        closing(bound),
        socket.create_connection(("127.0.0.1", bound.listen.port)),
        bound.sockets[0].accept()[0] as accepted,
    ):
        assert options_of(accepted) == OPTIONS[seconds]


def test_0_seconds_are_no_keepalive_and_a_unix_socket_has_none() -> None:
    with socket.socket() as connected:
        Keepalive(0).set_on(connected)
        assert options_of(connected) is None
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
    with socket.socket(socket.AF_UNIX) as connected:
        Keepalive().set_on(connected)


@pytest.mark.parametrize("seconds", OPTIONS)
def test_connections_to_the_backend_have_the_options(seconds: float, backend: socket.socket) -> None:
    address = Address(f"redis://127.0.0.1:{backend.getsockname()[1]}", Keepalive(seconds)).at(
        "127.0.0.1", backend.getsockname()[1]
    )

    async def connected() -> tuple[int, ...] | None:
        transport = await address.open(asyncio.Protocol())
        try:
            return options_of(transport.get_extra_info("socket"))
        finally:
            transport.abort()

    assert uvloop.run(connected()) == OPTIONS[seconds]


def test_redis_py_s_connections_to_the_backend_have_the_options() -> None:
    settings = Address("redis://localhost", Keepalive(10)).client(0).connection_pool.connection_kwargs
    assert settings["socket_keepalive"] is True
    assert tuple(settings["socket_keepalive_options"].values()) == OPTIONS[10]
    assert "socket_keepalive" not in Address("unix:///a").client(0).connection_pool.connection_kwargs


def test_every_node_has_the_keepalive_of_its_backend() -> None:
    cluster = address_of("redis+cluster://one:1,two:2", Keepalive(10))
    assert isinstance(cluster, ClusterAddress)
    sentinel = address_of("redis+sentinel://one,two/mymaster", Keepalive(10))
    assert isinstance(sentinel, SentinelAddress)
    for node in (*cluster.nodes, *sentinel.sentinels, sentinel.unknown, sentinel.unknown.at("three", 3)):
        options = node.client(0).connection_pool.connection_kwargs["socket_keepalive_options"]
        assert tuple(options.values()) == OPTIONS[10]
