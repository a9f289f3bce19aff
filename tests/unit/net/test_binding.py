"""Sockets for each address of a listener's host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import uvloop

from pressure_server.keepalive import Keepalive
from pressure_server.net import binding
from pressure_server.net.listener import BoundSockets, ListenerUrl

LOCALHOST = {"127.0.0.1", "::1"}


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bind(opened: ExitStack, url: str, *leave: str, keepalive: Keepalive | None = None) -> BoundSockets:
    bound = uvloop.run(BoundSockets.bind(ListenerUrl.parse(url), keepalive or Keepalive(), leave=leave))
    return opened.enter_context(closing(bound))


def hosts_of(bound: BoundSockets) -> set[str]:
    return {one.getsockname()[0] for one in bound.sockets}


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("[::1]", {"::1"}),
        ("localhost", LOCALHOST),
        ("0.0.0.0", {"0.0.0.0"}),
        ("[::]", {"::", "0.0.0.0"}),
    ],
)
def test_each_address_of_a_host_is_bound_to_the_same_port(
    opened: ExitStack, host: str, addresses: set[str]
) -> None:
    bound = bind(opened, f"resp://{host}:0")
    assert hosts_of(bound) == addresses
    assert {one.getsockname()[1] for one in bound.sockets} == {bound.listen.port}


def test_addresses_of_another_listener_are_left(opened: ExitStack) -> None:
    other = bind(opened, "resp://0.0.0.0:0")
    assert hosts_of(bind(opened, f"resp://[::]:{other.listen.port}", "0.0.0.0")) == {"::"}
    with pytest.raises(OSError, match="in use"):
        bind(opened, f"resp://[::]:{other.listen.port}")


def test_a_port_in_use_at_any_address_fails(opened: ExitStack) -> None:
    other = opened.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
    with pytest.raises(OSError, match="in use"):
        bind(opened, f"resp://localhost:{other.getsockname()[1]}")


def test_an_address_that_the_system_does_not_have_fails_only_alone(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(binding._MORE_HOSTS, "127.0.0.1", ("192.0.2.1",))
    assert hosts_of(bind(opened, "resp://127.0.0.1:0")) == {"127.0.0.1"}
    with pytest.raises(OSError, match="assign"):
        bind(opened, "resp://192.0.2.1:0")
