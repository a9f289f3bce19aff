"""Routes: what redirections, failures and the map of a cluster make of the node that is used."""

import asyncio
import gc
import weakref
from typing import Any, cast

import hiredis
import pytest
from redis.crc import key_slot

from pressure_server.backend.address import Address, SentinelAddress, address_of
from pressure_server.backend.resp import BackendConnection, is_moving, redirection
from pressure_server.backend.route import MovedError, Route
from pressure_server.errors import BackendReplyError

A, B, C = (Address(f"redis://user:secret@{host}:7000/0") for host in ("a", "b", "c"))
KEY = b"{p}!guard"
SLOT = key_slot(KEY)


def slots(owner: bytes, *others: bytes) -> list[Any]:
    """Return the reply to CLUSTER SLOTS of a cluster where `owner` has the slot of KEY."""
    ranges = [[SLOT, SLOT, [owner, 7000, b"id", []]]]
    return ranges + [[number, number, [other, 7000, b"id", []]] for number, other in enumerate(others)]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("MOVED 3999 127.0.0.1:6381", ("127.0.0.1", 6381)),
        ("MOVED 3999 [::1]:6381", ("::1", 6381)),
        ("MOVED 3999 :6381", ("", 6381)),
        ("MOVED 3999 some.host:1", ("some.host", 1)),
        ("ASK 3999 127.0.0.1:6381", None),
        ("MOVED 3999 127.0.0.1", None),
        ("ERR MOVED 3999 127.0.0.1:6381", None),
    ],
)
def test_a_redirection_names_a_node(text: str, target: tuple[str, int] | None) -> None:
    reply = hiredis.ReplyError(text)
    raised = BackendReplyError(f"the backend answered EVALSHA with: {text}")
    raised.__cause__ = reply
    assert redirection(reply) == redirection(raised) == target


@pytest.mark.parametrize("text", ["TRYAGAIN Multiple keys request during rehashing of slot", "ASK 1 h:2"])
def test_keys_that_are_being_moved_are_waited_for(text: str) -> None:
    assert is_moving(hiredis.ReplyError(text))


def test_a_redirection_keeps_user_and_password_and_is_told_to_all() -> None:
    route, told = Route(A), list[str]()
    route.follow(lambda: told.append(str(route)))
    assert route.redirected(hiredis.ReplyError("MOVED 1 b:7000"))
    assert (route.address, told) == (B, ["redis://b:7000"])
    assert (route.address.username, route.address.password) == ("user", "secret")
    assert not route.redirected(hiredis.ReplyError("LOADING"))
    assert route.redirected(hiredis.ReplyError("MOVED 1 :7001"))  # on the same host
    assert str(route) == "redis://b:7001"


def test_the_map_of_a_cluster_redirects_to_the_master_of_the_slot() -> None:
    route = Route(A)
    with pytest.raises(MovedError) as moved:
        route.note_cluster(A, slots(b"b", b"a", b"c"), KEY)
    assert route.redirected(moved.value)
    assert route.address == B
    assert route.fails_over


@pytest.mark.parametrize("owner", [b"a", b""])
def test_a_node_that_has_the_slot_is_used_and_after_failures_each_node_whatever_the_map_says(
    owner: bytes,
) -> None:
    route, tried = Route(A), set[Address]()
    route.note_cluster(A, slots(owner, b"b", b"c"), KEY)
    assert route.address == A
    for _ in range(len(route.nodes)):
        route.failed()
        tried.add(route.address)
        route.redirected(MovedError(A))
    assert tried == {A, B, C}


def test_a_backend_of_one_node_is_tried_again() -> None:
    route = Route(A)
    route.failed()
    assert (route.address, route.fails_over) == (A, False)


class FakeConnection:
    """A connection that notes why it was aborted."""

    def __init__(self) -> None:
        self.why: list[str] = []
        self.ended = asyncio.Event()

    def abort(self, why: Exception) -> None:
        self.why.append(str(why))


def test_connections_follow_when_a_link_uses_another_node() -> None:
    route, told = Route(A), list[Address]()
    route.follow(lambda: told.append(route.address))
    before, after, early, late = (FakeConnection() for _ in range(4))
    route.abort_if_moved(cast(BackendConnection, early), B)
    assert early.why == ["the queues are on redis://a:7000 now"]
    route.abort_if_moved(cast(BackendConnection, late), A)
    route.serves(cast(BackendConnection, before), A)
    assert not told
    route.serves(cast(BackendConnection, after), B)
    assert told == [B]
    assert before.why == late.why == ["the queues are on redis://b:7000 now"]
    assert after.why == []


def test_a_route_does_not_keep_connections_that_have_ended() -> None:
    route, connection = Route(A), FakeConnection()
    left = weakref.ref(connection)
    route.serves(cast(BackendConnection, connection), A)
    connection.ended.set()
    del connection
    route.serves(cast(BackendConnection, FakeConnection()), A)
    gc.collect()
    assert left() is None


def test_the_url_of_sentinels_has_users_and_tls_for_redis_and_for_sentinels_apart() -> None:
    address = address_of(
        "rediss+sentinel://user:secret@one:1,two,[::1]:3/mymaster/2?ssl_cert_reqs=none"
        "&sentinel_username=watcher&sentinel_password=other&sentinel_tls=no"
    )
    assert isinstance(address, SentinelAddress)
    assert (address.name, address.database, address.password) == ("mymaster", 2, "secret")
    assert str(address) == "rediss+sentinel://one:1,two,[::1]:3/mymaster"
    assert list(map(str, address.sentinels)) == ["redis://one:1", "redis://two:26379", "redis://[::1]:3"]
    assert {(one.username, one.password) for one in address.sentinels} == {("watcher", "other")}
    assert str(address.unknown.at("h", 5)) == "rediss://h:5"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://", "redis+sentinel://h:1", "redis+sentinel:///mymaster",
        "redis+sentinel://user:s3cr3t\N{ACCOUNT OF}@one/mymaster",
    ],
)  # fmt: skip
def test_the_url_of_sentinels_needs_hosts_and_a_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        address_of(url)
    assert "s3cr3t" not in str(refused.value)
    assert "s3cr3t" in url or "redis+sentinel://host:26379,host:26379/mymaster/0" in str(refused.value)
