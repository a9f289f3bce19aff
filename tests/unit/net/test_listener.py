"""URLs of listeners, and sockets for each address of a listener's host."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import uvloop

from pressure_server.keepalive import Keepalive
from pressure_server.net import listener
from pressure_server.net.handler import find_handler
from pressure_server.net.listener import BoundSockets, ListenerUrl, SettingsError
from tests.support.programs import run_here

INVALID_URLS = [
    ("memcached://127.0.0.1:0?mode=x", "mode must be one of queue, kv"),
    ("memcached://127.0.0.1:0?mode=", "mode must be one of queue, kv"),
    ("memcached://127.0.0.1:0?mode=QUEUE", "mode must be one of queue, kv"),
    ("memcached://127.0.0.1:0?nope=1", "unknown option 'nope': the options are flush_all, mode"),
    ("memcached+unix:///tmp/x.sock?nope=1", "unknown option 'nope'"),
    ("memcached://127.0.0.1:0?flush_all=1", "flush_all must be yes or no"),
    ("memcached://127.0.0.1:0?mode", "invalid listener URL"),
    ("memcached://127.0.0.1:0?mode=queue&mode=kv", "is given twice"),
    ("memcached://127.0.0.1", "invalid listener URL"),
    ("memcached://127.0.0.1:0#mode=kv", "invalid listener URL"),
    ("redis://:secret@127.0.0.1:0", "a listener's URL has no user or password"),
    ("memcache://127.0.0.1:0", "there is no handler 'memcache': choose from beanstalk, memcached, resp"),
    ("gophers://127.0.0.1:70", "there is no handler 'gopher'"),
    ("resp://127.0.0.1:0?mode=kv", "a RESP listener has no options"),
    ("resp+unix:///tmp/x.sock?x=", "a RESP listener has no options"),
]


def check(url: str) -> None:
    listen = ListenerUrl.parse(url)
    find_handler(listen.handler).check(listen)


@pytest.mark.parametrize(("url", "error"), INVALID_URLS, ids=[url for url, _ in INVALID_URLS])
def test_an_invalid_listener_is_refused_in_one_line(url: str, error: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check(url)
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("command", [[], ["ping"]], ids=["serve", "ping"])
@pytest.mark.parametrize(("url", "error"), [INVALID_URLS[number] for number in (0, 6, 11, 13)])
def test_an_invalid_listener_ends_the_command_with_status_2(command: list[str], url: str, error: str) -> None:
    refused = run_here(*command, "--listen", url, environment={"PRESSURE_BACKEND": "redis://127.0.0.1:1"})
    assert refused.returncode == 2
    assert error in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("url", "listen"),
    [
        ("resp://127.0.0.1:1", ListenerUrl("resp", "127.0.0.1", 1)),
        ("redis://127.0.0.1:1", ListenerUrl("resp", "127.0.0.1", 1)),
        ("rediss://localhost:1", ListenerUrl("resp", "localhost", 1, tls=True)),
        ("memcacheds://[::1]:0", ListenerUrl("memcached", "::1", 0, tls=True)),
        (
            "memcached+unix:///a/b.sock?mode=kv",
            ListenerUrl("memcached", path="/a/b.sock", options=(("mode", "kv"),)),
        ),
    ],
)
def test_a_listener_url_is_parsed_and_printed(url: str, listen: ListenerUrl) -> None:
    assert ListenerUrl.parse(url) == listen
    assert ListenerUrl.parse(str(listen)) == listen


def test_a_beanstalk_listener_has_a_default_port() -> None:
    assert ListenerUrl.parse("beanstalk://127.0.0.1").port == 11300
    assert ListenerUrl.parse("beanstalks://127.0.0.1:5").port == 5


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
    monkeypatch.setitem(listener._MORE_HOSTS, "127.0.0.1", ("192.0.2.1",))
    assert hosts_of(bind(opened, "resp://127.0.0.1:0")) == {"127.0.0.1"}
    with pytest.raises(OSError, match="assign"):
        bind(opened, "resp://192.0.2.1:0")
