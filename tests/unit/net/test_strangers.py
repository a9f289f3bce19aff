"""Clients that have not logged in: for how long they stay, and what they may buffer, in memory."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from pressure_server.auth.peer_address import Addresses
from pressure_server.auth.users import User
from pressure_server.errors import PressureError
from pressure_server.net import strangers as module
from pressure_server.net.connection import Connection
from pressure_server.net.strangers import LOGIN_TIMEOUT, Strangers
from tests.support.waiters import packed
from tests.unit.conftest import InLoop
from tests.unit.net.fake_server import Server

MB = 1 << 20


class _Connection(Connection):
    """A connection of which the strangers see what the test sets."""

    def __init__(self, since: float) -> None:
        self.addresses = Addresses("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1")
        self.since = since
        self.end = ""

    def throttle(self) -> None:
        raise AssertionError("a stranger is throttled")

    def resume(self) -> None:
        raise AssertionError("a stranger is resumed")

    def evict(self, why: PressureError) -> None:
        self.end = str(why)

    def break_off(self, reason: str = "") -> None:
        self.end = reason


def connected(strangers: Strangers, *times: float) -> list[_Connection]:
    """Return connections of strangers that connected at these times."""
    made = [_Connection(since) for since in times]
    for connection in made:
        strangers.add(connection)
    return made


def ended(connections: list[_Connection]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.end]


@pytest.fixture
def strangers(in_loop: InLoop) -> Strangers:
    """Strangers whose budget is 1 MiB."""
    made: Strangers = in_loop(lambda: Strangers(16 * MB))
    return made


@pytest.fixture
def locked(in_loop: InLoop) -> Iterator[Server]:
    """A server with a password."""
    started: Server = in_loop(lambda: Server(password=b"secret"))
    yield started
    started.close()


async def test_above_the_budget_those_that_came_first_are_evicted(strangers: Strangers) -> None:
    clients = connected(strangers, *range(8))
    for client in clients:
        strangers.update(client, MB // 4)
    assert ended(clients) == [0, 1, 2, 3]
    assert clients[0].end.endswith(f"the limit of {MB} bytes buffered for all such clients is reached")
    strangers.update(clients[7], MB // 2)
    assert ended(clients) == [0, 1, 2, 3, 4]
    assert (strangers.held, strangers.evicted) == (MB, 5)


async def test_the_only_one_in_the_budget_may_exceed_it(strangers: Strangers) -> None:
    clients = connected(strangers, 0, 1)
    strangers.update(clients[0], 2 * MB)
    assert ended(clients) == []
    strangers.update(clients[1], 1)
    assert ended(clients) == [0]
    assert strangers.held == 1


async def test_one_that_logs_in_takes_its_bytes_along(strangers: Strangers) -> None:
    (client,) = connected(strangers, 0)
    strangers.update(client, MB)
    assert strangers.remove(client)
    assert strangers.held == 0
    assert not strangers.remove(client)
    strangers.disconnect_late(LOGIN_TIMEOUT)
    assert client.end == ""


async def test_a_client_has_a_minute_to_log_in(strangers: Strangers) -> None:
    clients = connected(strangers, 0, 0, 1)
    strangers.disconnect_late(59)
    assert ended(clients) == []
    strangers.disconnect_late(60)
    assert ended(clients) == [0, 1]
    assert clients[0].end == "it had not logged in after 60 seconds"
    assert clients[2] in strangers


async def test_room_for_a_new_client_is_made_by_the_oldest_but_not_by_new_ones(strangers: Strangers) -> None:
    clients = connected(strangers, 0, 0, 1)
    assert strangers.make_room(2)
    assert strangers.make_room(2)
    assert not strangers.make_room(2)
    assert ended(clients) == [0, 1]


@pytest.mark.interpreted
async def test_the_server_disconnects_those_that_do_not_log_in_in_time(
    locked: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGIN_TIMEOUT", 0.5)
    (stranger, to_stranger), (client, to_client) = locked.connect(), locked.connect()
    client.data_received(packed("AUTH", "secret"))
    await until(lambda: to_stranger.is_aborted)
    assert to_client.written == [b"+OK\r\n"]
    assert not to_client.is_aborted
    assert stranger.close_reason == "it had not logged in after 0 seconds"


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds. Raise TimeoutError after 5 seconds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 -- the loop sends no event
            await asyncio.sleep(0.01)


async def test_the_bytes_of_a_client_move_to_the_account_of_all_with_its_login(locked: Server) -> None:
    clients = locked.clients
    client, to_client = locked.connect()
    client.data_received(packed("PING") * 20 + packed("AUTH", "secret") + packed("ECHO", "x" * 9000)[:-9])
    assert clients.strangers.held > 9000
    assert clients.memory.held == 0
    await until(lambda: b"+OK\r\n" in to_client.written)
    assert clients.strangers.held == 0
    assert clients.memory.held > 8000


async def test_a_reload_that_needs_no_login_any_longer_leaves_no_strangers(locked: Server) -> None:
    clients = locked.clients
    client, _ = locked.connect()
    client.data_received(packed("ECHO", "x" * 9000)[:-9])
    assert clients.strangers.held > 8000
    client.session.user = User("default", needs_no_password=True)
    clients.users_changed()
    assert (client in clients.strangers, clients.strangers.held) == (False, 0)
    assert clients.memory.held > 8000
