"""Kestrel's open reads: an open message goes back if its client or server dies, a closed one never does."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from tests.support.faults import stopped
from tests.support.hostile import leavings
from tests.support.memcached_wire import Item, Kestrel, RefusedError
from tests.support.module_servers import module_server
from tests.support.programs import (
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    records,
    wait_for,
    wait_until_settled,
)
from tests.support.protocols import Wire
from tests.support.waiters import about, wait_for_waiting

LISTEN = ("--listen", "memcached://127.0.0.1:0")
SYNCED = ("--appendonly", "yes", "--appendfsync", "always")
# Connects to a server until the test ends.
Connect = Callable[[Server], Kestrel]
ITEMS = [Item(b"message %d" % number, number) for number in range(5)]


shared_server = module_server(*LISTEN)


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Kestrel(server))


@pytest.fixture(params=["redis", "embedded"])
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return arguments for servers that use the same data, on either kind of backend."""
    if request.param == "embedded":
        return ["--data-dir", str(tmp_path / "data"), *LISTEN]
    valkey: Valkey = request.getfixturevalue("start_valkey")()
    return ["--backend", valkey.url, "--proxy-timeout", "1", *LISTEN]


def fill(server: Server, *items: Item, queue: str = "q") -> None:
    with Kestrel(server) as kestrel:
        kestrel.put_items(queue, *items)


def drain(server: Server, queue: str = "q") -> list[Item]:
    """Take all messages of a queue over a connection of its own."""
    with Kestrel(server) as kestrel:
        return kestrel.drain(queue)


def length(client: Client, queue: str = "q") -> int:
    return int(client.scard(queue))


def wait_for_length(client: Client, count: int, queue: str = "q") -> None:
    wait_for(lambda: length(client, queue) == count, f"{count} messages in {queue}")


@leavings
def test_open_messages_of_a_client_that_leaves_are_delivered_next(
    leave: Callable[[Wire], object], server: Server, client: Client, direct: Client
) -> None:
    # By queue: what follows the open, and how many messages are then consumed and open.
    queues = {
        "opened": ("", 0, 1),
        "closed": ("close", 1, 0),
        "aborted": ("abort", 0, 0),
        "next": ("close/open", 1, 1),
    }
    leaving = Kestrel(server)
    for queue, (option, _, opened) in queues.items():
        fill(server, *ITEMS[:3], queue=queue)
        assert leaving.get_item(f"{queue}/open") == ITEMS[0]
        if option:
            assert leaving.get_item(f"{queue}/{option}") == (ITEMS[1] if opened else None)
    with Kestrel(server) as other:
        stats = other.stats()
    for queue, (_, consumed, opened) in queues.items():
        assert stats[f"queue_{queue}_open_transactions"] == str(opened)
        assert length(client, queue) == 3 - consumed - opened
        assert about(client, queue)[b"consumed_messages"] == consumed + opened
    assert not leave(leaving)
    for queue, (_, consumed, _) in queues.items():
        wait_for_length(client, 3 - consumed, queue)
        assert about(client, queue)[b"consumed_messages"] == consumed
        assert drain(server, queue) == ITEMS[consumed:3]
    wait_until_settled(direct)


def test_an_open_message_whose_client_leaves_goes_to_a_waiting_client(
    server: Server, client: Client, connect: Connect
) -> None:
    fill(server, ITEMS[3])
    leaving, waiting, last = Kestrel(server), connect(server), connect(server)
    assert leaving.get_item("q/open") == ITEMS[3]
    waiting.send_line("get q/open/t=60000")
    wait_for_waiting(client, "q", consumers=1)
    last.send_line("get q/t=60000")
    wait_for_waiting(client, "q", consumers=2)
    leaving.close()
    assert waiting.item() == ITEMS[3]
    assert not last.has_reply()
    waiting.close()
    assert last.item() == ITEMS[3]
    assert length(client) == 0


@pytest.mark.parametrize(
    ("order", "together"),
    [((0, 1, 2), True), ((2, 1, 0), True), ((1, 0, 2), True), ((2, 1, 0), False)],
)
def test_open_messages_keep_their_order_when_their_clients_leave(
    order: tuple[int, ...], together: bool, server: Server, client: Client
) -> None:
    """The message that goes back last is the oldest again."""
    fill(server, *ITEMS)
    leaving = [Kestrel(server) for _ in order]
    assert [kestrel.get_item("q/open") for kestrel in leaving] == ITEMS[:3]
    with stopped(server.process) if together else nullcontext():
        for back, number in enumerate(order, 3):
            leaving[number].close()
            if not together:
                wait_for_length(client, back)
    wait_for_length(client, 5)
    assert drain(server) == ITEMS


def test_abort_puts_an_open_message_back_and_close_removes_it(
    server: Server, client: Client, connect: Connect
) -> None:
    fill(server, *ITEMS[:2])
    kestrel, other = connect(server), connect(server)
    for option in ("close", "abort"):
        assert kestrel.get_item(f"q/{option}") is None
        assert other.get_item(f"nothing/{option}") is None
    assert length(client) == 2
    assert kestrel.get_item("q/open") == ITEMS[0]
    for refused in ("q/open", "q/open/t=100"):
        with pytest.raises(RefusedError, match="CLIENT_ERROR a message of this queue is open"):
            kestrel.get_item(refused)
    assert length(client) == 1
    # Only the client that opened a message can end its read.
    assert other.get_item("q/abort") is other.get_item("q/close") is None
    assert length(client) == 1
    assert kestrel.get_item("q/abort") is None
    wait_for_length(client, 2)
    assert kestrel.get_item("q/peek") == ITEMS[0]
    assert [kestrel.get_item("q/close/open") for _ in range(3)] == [*ITEMS[:2], None]


def test_an_open_message_goes_back_before_messages_put_later(server: Server, client: Client) -> None:
    fill(server, *ITEMS[:2])
    leaving = Kestrel(server)
    assert leaving.get_item("q/open") == ITEMS[0]
    # Equal to the open message, with other flags and without.
    fill(server, Item(ITEMS[0].message, 99))
    client.rpush("q", ITEMS[0].message)
    leaving.close()
    wait_for_length(client, 4)
    assert drain(server) == [ITEMS[0], ITEMS[1], Item(ITEMS[0].message, 99), Item(ITEMS[0].message)]


def test_after_a_kill_open_messages_go_back_and_closed_ones_do_not(
    start_server: StartServer, arguments: list[str], connect: Connect
) -> None:
    server = start_server(*arguments)
    for queue in ("q", "r"):
        fill(server, *ITEMS, queue=queue)
    readers = [connect(server) for _ in range(3)]
    assert [reader.get_item("q/open") for reader in readers] == ITEMS[:3]
    assert [reader.get_item("r/open") for reader in readers[::-1]] == ITEMS[:3]
    assert readers[0].get_item("r/close/open") == ITEMS[3]
    assert readers[0].get_item("r/close") is None
    server.kill()
    server = start_server(*arguments)
    with server.client() as client:
        for queue, consumed in (("q", 0), ("r", 2)):
            wait_for_length(client, 5 - consumed, queue)
            assert about(client, queue)[b"consumed_messages"] == consumed
    assert drain(server, "q") == ITEMS
    assert drain(server, "r") == [*ITEMS[:2], ITEMS[4]]
    assert server.stop() == 0


def test_sigterm_puts_open_messages_back_at_once(
    start_server: StartServer, backend: Valkey, direct: Client, connect: Connect
) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    fill(server, *ITEMS)
    readers = [connect(server) for _ in range(3)]
    assert [reader.get_item("q/open") for reader in readers] == ITEMS[:3]
    began = time.monotonic()
    assert server.stop() == 0, server.log
    assert time.monotonic() - began < 3
    assert direct.lrange("__pressure__:q", 0, -1) == [item.message for item in reversed(ITEMS)]
    assert not records(direct)
    assert drain(start_server("--backend", backend.url, *LISTEN)) == ITEMS


@pytest.mark.parametrize("when", ["during the outage", "after the restart"])
@pytest.mark.parametrize("end", ["close", "abort", "leave"])
def test_an_open_message_survives_a_kill_of_the_backend(
    end: str, when: str, start_server: StartServer, start_valkey: StartValkey
) -> None:
    backend = start_valkey(*SYNCED)
    server = start_server("--backend", backend.url, *LISTEN)
    fill(server, *ITEMS)
    kestrel = Kestrel(server)
    assert kestrel.get_item("q/open") == ITEMS[0]
    expected = ITEMS[1:] if end == "close" else ITEMS
    backend.kill()
    if when == "after the restart":
        backend.start()
        with server.client() as client:
            wait_for_length(client, 4)
    if end != "leave":
        kestrel.send_line(f"get q/{end}")
    else:
        kestrel.close()
    if when == "during the outage":
        backend.start()
    if end != "leave":
        assert kestrel.item() is None
        kestrel.close()
    with server.client() as client, backend.client() as direct:
        wait_for_length(client, len(expected))
        wait_until_settled(direct)
        assert length(client) == len(expected)
    assert drain(server) == expected
    assert server.stop() == 0


@pytest.mark.parametrize("leave", [Kestrel.close, Kestrel.reset])
def test_a_message_opened_for_a_client_that_left_goes_back(
    leave: Callable[[Kestrel], None], server: Server, client: Client, direct: Client
) -> None:
    fill(server, *ITEMS)
    kestrel = Kestrel(server)
    connected = client.info("clients")["connected_clients"]
    with stopped(server.process):
        kestrel.send_line("get q/open")
        leave(kestrel)
    wait_for(lambda: client.info("clients")["connected_clients"] == connected - 1, "the client to be gone")
    wait_until_settled(direct)
    assert drain(server) == ITEMS


def test_an_open_message_of_a_deleted_queue_does_not_go_back(
    server: Server, client: Client, direct: Client
) -> None:
    for end in ("close", "abort", "leave"):
        fill(server, *ITEMS)
        with Kestrel(server) as kestrel:
            assert kestrel.get_item("q/open") == ITEMS[0]
            client.delete("q")
            if end != "leave":
                assert kestrel.get_item(f"q/{end}") is None
        wait_until_settled(direct)
        assert client.exists("q") == 0
        # Nor does it go to a new queue of the same name.
        fill(server, ITEMS[4])
        assert drain(server) == [ITEMS[4]]


def test_a_message_that_expires_while_it_is_open_does_not_go_back(
    server: Server, client: Client, direct: Client
) -> None:
    with Kestrel(server) as other:
        other.put_items("q", ITEMS[1], expires=1)
        other.put_items("q", ITEMS[2], expires=100)
        other.put_items("r", ITEMS[3], expires=1)
        leaving = Kestrel(server)
        assert leaving.get_item("q/open") == ITEMS[1]
        wait_for(lambda: other.get_item("r/peek") is None, "the other message to expire")
        leaving.close()
        wait_until_settled(direct)
        assert other.drain("q") == [ITEMS[2]]
