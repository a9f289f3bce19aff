"""The address of a cluster, and the route to a slot: which URLs are good, and which nodes are kept."""

import pytest

from pressure_server.backend.address import Address, ClusterAddress, address_of
from pressure_server.backend.route import MovedError, Route, route_to
from tests.unit.backend.test_route import KEY, slots

WRITE = r"write redis\+cluster://host:7000,host:7000"


def route(url: str) -> Route:
    return route_to(address_of(url))


def tried(found: Route) -> set[str]:
    """Return the nodes that are tried, if none serves."""
    nodes = set()
    for _ in range(len(found.nodes)):
        found.failed()
        nodes.add(str(found.address))
    return nodes


@pytest.mark.parametrize(
    ("url", "nodes", "text"),
    [
        (
            "redis+cluster://user:p%40ss@one:7000,two,[::1]:7001",
            ["redis://one:7000", "redis://two:6379", "redis://[::1]:7001"],
            "redis+cluster://one:7000,two,[::1]:7001",
        ),
        (
            "rediss+cluster://user:p%40ss@one,two/0?ssl_cert_reqs=none",
            ["rediss://one:6379", "rediss://two:6379"],
            "rediss+cluster://one,two",
        ),
    ],
)
def test_the_url_names_nodes_with_one_user_and_password(url: str, nodes: list[str], text: str) -> None:
    address = address_of(url)
    assert isinstance(address, ClusterAddress)
    assert list(map(str, address.nodes)) == nodes
    assert {(node.username, node.password) for node in address.nodes} == {("user", "p@ss")}
    assert (address.password, address.database) == ("p@ss", 0)
    assert str(address) == text


@pytest.mark.parametrize("url", ["redis+cluster://one", "redis+cluster://one/", "redis+cluster://one/0"])
def test_a_cluster_has_database_0(url: str) -> None:
    assert address_of(url).database == 0


ONLY_0 = f"a cluster has only database 0: {WRITE}"
MISSING = f"a node of the cluster is missing: {WRITE}"


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        *[(f"s3cr3t@one:7000/{path}", ONLY_0) for path in ("1", "mymaster", "00", "0/0")],
        *[(f"s3cr3t@one:7000?{query}", ONLY_0) for query in ("db=3", "health_check_interval=1&db=1")],
        *[(f"s3cr3t@{hosts}", MISSING) for hosts in ("", "/", ",", "one,", ",one", "one,,two")],
        ("s3cr3t@one:port", "invalid host or port"),
        ("s3cr3t@one:7000,two:99999", "invalid host or port"),
        ("s3cr3t@[one", r"\w"),
        ("s3cr3t\N{ACCOUNT OF}@one", r"\w"),
    ],
)
def test_another_url_is_refused_without_its_password(rest: str, error: str) -> None:
    with pytest.raises(ValueError, match=error) as refused:
        address_of(f"redis+cluster://user:{rest}")
    assert "s3cr3t" not in str(refused.value)


def test_the_nodes_that_were_given_are_tried_one_after_the_other() -> None:
    found = route("redis+cluster://one:7000,two:7000,three:7000")
    assert (str(found), found.fails_over, found.is_cluster) == ("redis://one:7000", True, True)
    assert tried(found) == {"redis://one:7000", "redis://two:7000", "redis://three:7000"}


def test_the_nodes_that_were_given_stay_beside_those_of_the_map() -> None:
    found = route("redis+cluster://one:7000,two:7000")
    for owner, other in ((b"three", b"four"), (b"two", b"five")):
        found.note_cluster(Address(f"redis://{owner.decode()}:7000/0"), slots(owner, other), KEY)
        assert tried(found) == {
            f"redis://{host}:7000" for host in ("one", "two", owner.decode(), other.decode())
        }
    assert len(found.nodes) == 3


def test_the_nodes_that_were_given_stay_if_the_map_redirects() -> None:
    found = route("redis+cluster://user:secret@one:7000,two:7000")
    with pytest.raises(MovedError) as moved:
        found.note_cluster(found.address, slots(b"three", b"one"), KEY)
    assert found.redirected(moved.value)
    assert str(found) == "redis://three:7000"
    assert found.address.password == "secret"
    assert tried(found) >= {"redis://one:7000", "redis://two:7000", "redis://three:7000"}
