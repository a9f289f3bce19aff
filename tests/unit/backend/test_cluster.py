"""The address of a cluster, and the route to a slot: which URLs are good, and which nodes are kept."""

from typing import Any

import pytest
from redis.crc import key_slot

from pressure_server.backend.address import Address, ClusterAddress, address_of
from pressure_server.backend.route import MovedError, Route, route_to

KEY = b"{p}!guard"
SLOT = key_slot(KEY)
WRITE = r"write redis\+cluster://host:7000,host:7000"


def slots(owner: bytes, *others: bytes) -> list[Any]:
    """Return the reply to CLUSTER SLOTS of a cluster where `owner` has the slot of KEY."""
    ranges = [[SLOT, SLOT, [owner, 7000, b"id", []]]]
    return ranges + [[number, number, [other, 7000, b"id", []]] for number, other in enumerate(others)]


def route(url: str) -> Route:
    return route_to(address_of(url))


def tried(found: Route) -> set[str]:
    """Return the nodes that are tried, if none serves."""
    nodes = set()
    for _ in range(len(found.nodes)):
        found.failed()
        nodes.add(str(found.address))
    return nodes


def test_the_url_names_nodes_with_one_user_and_password() -> None:
    address = address_of("redis+cluster://user:p%40ss@one:7000,two,[::1]:7001")
    assert isinstance(address, ClusterAddress)
    assert list(map(str, address.nodes)) == ["redis://one:7000", "redis://two:6379", "redis://[::1]:7001"]
    assert {(node.username, node.password) for node in address.nodes} == {("user", "p@ss")}
    assert (address.password, address.database) == ("p@ss", 0)
    assert str(address) == "redis+cluster://one:7000,two,[::1]:7001"


def test_options_and_tls_are_for_all_nodes() -> None:
    address = address_of("rediss+cluster://one,two/0?ssl_cert_reqs=none")
    assert isinstance(address, ClusterAddress)
    assert list(map(str, address.nodes)) == ["rediss://one:6379", "rediss://two:6379"]
    assert str(address) == "rediss+cluster://one,two"


@pytest.mark.parametrize("url", ["redis+cluster://one", "redis+cluster://one/", "redis+cluster://one/0"])
def test_a_cluster_has_database_0(url: str) -> None:
    assert address_of(url).database == 0


@pytest.mark.parametrize("path", ["1", "mymaster", "00", "0/0"])
def test_a_cluster_has_no_other_database(path: str) -> None:
    with pytest.raises(ValueError, match=f"a cluster has only database 0: {WRITE}"):
        address_of(f"redis+cluster://one:7000/{path}")


@pytest.mark.parametrize("query", ["db=3", "health_check_interval=1&db=1"])
def test_an_option_does_not_name_another_database(query: str) -> None:
    with pytest.raises(ValueError, match=f"a cluster has only database 0: {WRITE}"):
        address_of(f"redis+cluster://one:7000?{query}")


@pytest.mark.parametrize("hosts", ["", ",", "one,", ",one", "one,,two", "user:secret@"])
def test_a_node_must_not_be_missing(hosts: str) -> None:
    with pytest.raises(ValueError, match=f"a node of the cluster is missing: {WRITE}"):
        address_of(f"redis+cluster://{hosts}")


@pytest.mark.parametrize("url", ["redis+cluster://one:port", "redis+cluster://one:7000,two:99999"])
def test_a_port_must_be_a_number(url: str) -> None:
    with pytest.raises(ValueError, match="invalid host or port"):
        address_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://user:s3cr3t@[one",
        "redis+cluster://user:s3cr3t@one:x",
        "redis+cluster://:s3cr3t@/",
        "redis+cluster://user:s3cr3t\N{ACCOUNT OF}@one",
        "redis+sentinel://user:s3cr3t\N{ACCOUNT OF}@one/mymaster",
    ],
)
def test_no_error_quotes_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        address_of(url)
    assert "s3cr3t" not in str(refused.value)


def test_the_nodes_that_were_given_are_tried_one_after_the_other() -> None:
    found = route("redis+cluster://one:7000,two:7000,three:7000")
    assert (str(found), found.fails_over, found.is_cluster) == ("redis://one:7000", True, True)
    assert tried(found) == {"redis://one:7000", "redis://two:7000", "redis://three:7000"}


def test_the_nodes_that_were_given_stay_beside_those_of_the_map() -> None:
    found = route("redis+cluster://one:7000,two:7000")
    found.note_cluster(Address("redis://three:7000/0"), slots(b"three", b"four"), KEY)
    assert tried(found) == {f"redis://{host}:7000" for host in ("one", "two", "three", "four")}


def test_a_map_of_other_nodes_does_not_drop_those_that_were_given() -> None:
    found = route("redis+cluster://one:7000,two:7000")
    for owner, other in ((b"three", b"four"), (b"five", b"six")):
        found.note_cluster(Address(f"redis://{owner.decode()}:7000/0"), slots(owner, other), KEY)
    assert tried(found) == {f"redis://{host}:7000" for host in ("one", "two", "five", "six")}


def test_the_nodes_that_were_given_stay_if_the_map_redirects() -> None:
    found = route("redis+cluster://user:secret@one:7000,two:7000")
    with pytest.raises(MovedError) as moved:
        found.note_cluster(found.address, slots(b"three", b"one"), KEY)
    assert found.redirected(moved.value)
    assert str(found) == "redis://three:7000"
    assert found.address.password == "secret"
    assert tried(found) >= {"redis://one:7000", "redis://two:7000", "redis://three:7000"}


def test_a_node_that_was_given_and_is_in_the_map_is_tried_once() -> None:
    found = route("redis+cluster://one:7000,two:7000")
    found.note_cluster(found.address, slots(b"one", b"two"), KEY)
    assert len(found.nodes) == 2
