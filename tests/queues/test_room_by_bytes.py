"""Puts that wait for room by bytes (`MAX-BYTES`) go on, whatever makes the room, at any server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.programs import Client, Server, Valkey
from tests.support.waiters import Waiter, Words, create, wait_for_waiting

SOON = 4.0
# Each fills the queue.
MESSAGE = "m" * 10
EVENTS: dict[str, list[Words]] = {
    "no limit": [("PRESSURE.ALTER", "q", "MAX-BYTES", 0)],
    "higher limit": [("PRESSURE.ALTER", "q", "MAX-BYTES", 100)],
    "take": [("LPOP", "q")],
    "move": [("LMOVE", "q", "elsewhere", "LEFT", "RIGHT")],
    "SREM": [("SREM", "q", MESSAGE)],
    "LTRIM": [("LTRIM", "q", 1, 0)],
    "purge": [("PRESSURE.PURGE", "q")],
    "reserve": [("PRESSURE.RESERVE", "q", "DETACHED", "t")],
    "bury": [("PRESSURE.RESERVE", "q", "DETACHED", "t"), ("PRESSURE.BURY", "q", 1, "TOKEN", "t")],
}
OF_GROUPS: dict[str, list[Words]] = {
    "ack": [("PRESSURE.READ", "q", "GROUP", "g", "ann"), ("PRESSURE.ACK", "q+g", "ID", "TOKEN", "ann")],
    "bury": [("PRESSURE.READ", "q", "GROUP", "g", "ann"), ("PRESSURE.BURY", "q+g", "ID", "TOKEN", "ann")],
    "take": [("BLPOP", "q+g", 1)],
    "seek": [("PRESSURE.GROUP", "SEEK", "q", "g", "FROM", "TAIL")],
    "purge": [("PRESSURE.PURGE", "q+g")],
    "delete": [("PRESSURE.GROUP", "DELETE", "q", "g")],
}


@pytest.fixture(scope="module")
def peer(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A second server on the backend, for all tests of this module."""
    started = Server(tmp_path_factory.mktemp("peer") / "log", "--backend", shared_backend.url)
    yield started
    started.end_well()


@pytest.fixture
def busy_at(server: Server, peer: Server) -> Callable[[str], Waiter]:
    """Return a function that connects to the server where a put waits, or to another one."""
    return lambda at: Waiter((server if at == "same server" else peer).port)


def goes_on(client: Client, waiter: Waiter, busy: Waiter, events: list[Words]) -> None:
    waiter.send("LPUSH", "q", MESSAGE)
    wait_for_waiting(client, "q", producers=1)
    read: Any = None
    for words in events:
        read = busy(*(read[0][0] if word == "ID" else word for word in words))
    assert isinstance(waiter.reply(SOON), int)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("at", ["same server", "other server"])
@pytest.mark.parametrize("of", ["fifo", "jobs", "lifo", "random"])
def test_a_put_goes_on(
    client: Client, waiter: Waiter, busy_at: Callable[[str], Waiter], of: str, at: str, event: list[Words]
) -> None:
    create(client, "q", "TYPE", of, "MAX-BYTES", 10)
    client.rpush("q", MESSAGE)
    with busy_at(at) as busy:
        goes_on(client, waiter, busy, event)


@pytest.mark.parametrize("event", OF_GROUPS.values(), ids=OF_GROUPS)
@pytest.mark.parametrize("at", ["same server", "other server"])
@pytest.mark.parametrize("limit", ["MAX-BYTES", "BOUND"])
def test_a_put_into_a_log_goes_on(
    client: Client, waiter: Waiter, busy_at: Callable[[str], Waiter], limit: str, at: str, event: list[Words]
) -> None:
    create(client, "q", "TYPE", "log", limit, 10 if limit == "MAX-BYTES" else 1)
    for group in ("g", "faster"):
        client.execute_command("PRESSURE.GROUP", "CREATE", "q", group)
    client.rpush("q", MESSAGE)
    with busy_at(at) as busy:
        assert busy("LPOP", "q+faster") == MESSAGE.encode()
        goes_on(client, waiter, busy, event)


@pytest.mark.parametrize("convert", [True, False])
def test_what_is_reserved_does_not_count(client: Client, waiter: Waiter, *, convert: bool) -> None:
    create(client, "q", *(() if convert else ("TYPE", "jobs")))
    client.rpush("q", MESSAGE, MESSAGE, MESSAGE)
    for _ in range(2):
        assert waiter("PRESSURE.RESERVE", "q")[2] == MESSAGE.encode()
    waiter("PRESSURE.BURY", "q", 1)
    client.execute_command("PRESSURE.ALTER", "q", "MAX-BYTES", 20, "OVERFLOW", "error")
    if convert:
        client.execute_command("PRESSURE.RELEASE", "q", 2, "PRIORITY", 1)
        client.execute_command("PRESSURE.PUT", "q", MESSAGE, "PRIORITY", 1)
    else:
        client.rpush("q", MESSAGE)
    assert isinstance(waiter("RPUSH", "q", MESSAGE), Exception)
    waiter("PRESSURE.ACK", "q", 2)
    assert isinstance(waiter("RPUSH", "q", MESSAGE), Exception)
    waiter("LPOP", "q")
    assert waiter("RPUSH", "q", MESSAGE) == 2
    client.execute_command("PRESSURE.KICK", "q", 1)
    assert waiter("LLEN", "q") == 3
