"""Kestrel's open reads: an open message goes back once if a client or a server dies, a closed one never."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.support.faults import kill, stopped
from tests.support.kestrel import Item, Kestrel, RefusedError
from tests.support.ledger import Ledger
from tests.support.peers import heartbeats, identity
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
from tests.support.waiters import about, wait_for_blocked, wait_for_waiting

LISTEN = ("--listen", "memcached://127.0.0.1:0")
TIMEOUT = 1.0
KEPT_BY = ("--appendonly", "yes", "--appendfsync", "always")
ITEMS = [Item(b"message %d" % number, number) for number in range(5)]


@pytest.fixture(scope="module")
def open_reads_server(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("memcached") / "log", "--backend", shared_backend.url, *LISTEN)
    yield started
    started.end_well()


@pytest.fixture
def server(backend: Valkey, open_reads_server: Server) -> Server:
    """Return a server with a memcached listener, on a backend without data."""
    return open_reads_server


@pytest.fixture
def connect() -> Iterator[Callable[[Server], Kestrel]]:
    """Return a function that connects to a server until the test ends."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Kestrel(server))


@pytest.fixture(params=["redis", "embedded"])
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the arguments of a server and of its successor, for either kind of backend."""
    if request.param == "embedded":
        return ["--data-dir", str(tmp_path / "data"), *LISTEN]
    valkey: Valkey = request.getfixturevalue("start_valkey")()
    return ["--backend", valkey.url, "--proxy-timeout", str(TIMEOUT), *LISTEN]


def fill(server: Server, *items: Item, queue: str = "q") -> None:
    with Kestrel(server) as kestrel:
        kestrel.put(queue, *items)


def left(server: Server, queue: str = "q") -> list[Item]:
    """Take all messages of a queue."""
    with Kestrel(server) as kestrel:
        return kestrel.drain(queue)


def length(client: Client, queue: str = "q") -> int:
    return int(client.scard(queue))


def wait_for_length(client: Client, count: int, queue: str = "q") -> None:
    wait_for(lambda: length(client, queue) == count, f"{count} messages in {queue}")


def messages(items: list[Item]) -> list[bytes]:
    return [message for message, _flags in items]


@pytest.mark.parametrize("leave", [Kestrel.close, Kestrel.reset, Kestrel.half_close])
def test_an_open_message_whose_client_leaves_is_the_next_one_delivered(
    leave: Callable[[Kestrel], None], server: Server, client: Client, direct: Client
) -> None:
    fill(server, *ITEMS)
    leaving = Kestrel(server)
    assert leaving.get("q/open") == ITEMS[0]
    assert length(client) == 4
    assert about(client, "q")[b"consumed_messages"] == 1
    leave(leaving)
    wait_for_length(client, 5)
    assert about(client, "q")[b"consumed_messages"] == 0
    assert left(server) == ITEMS
    wait_until_settled(direct)


def test_an_open_message_whose_client_leaves_goes_to_a_waiting_client(
    server: Server, client: Client, connect: Callable[[Server], Kestrel]
) -> None:
    fill(server, ITEMS[3])
    leaving, waiting, behind = Kestrel(server), connect(server), connect(server)
    assert leaving.get("q/open") == ITEMS[3]
    waiting.send("get q/open/t=60000")
    wait_for_waiting(client, "q", consumers=1)
    behind.send("get q/t=60000")
    wait_for_waiting(client, "q", consumers=2)
    leaving.close()
    assert waiting.item() == ITEMS[3]
    assert not behind.has_reply()
    waiting.close()
    assert behind.item() == ITEMS[3]
    assert length(client) == 0


def test_a_client_may_open_messages_of_several_queues(server: Server, client: Client, direct: Client) -> None:
    queues = [f"q{number}" for number in range(20)]
    leaving = Kestrel(server)
    for queue in queues:
        fill(server, *ITEMS[:3], queue=queue)
        assert leaving.get(f"{queue}/open") == ITEMS[0]
    assert leaving.get("q3/close") is None
    assert leaving.get("q4/abort") is None
    assert leaving.get("q5/close/open") == ITEMS[1]
    with Kestrel(server) as other:
        stats = other.stats()
        assert [stats[f"queue_q{number}_open_transactions"] for number in (0, 3, 4, 5)] == [
            "1",
            "0",
            "0",
            "1",
        ]
    leaving.close()
    for queue in queues:
        expected = ITEMS[1:3] if queue in ("q3", "q5") else ITEMS[:3]
        wait_for_length(client, len(expected), queue)
        assert left(server, queue) == expected
    wait_until_settled(direct)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_open_messages_of_clients_that_leave_at_once_keep_their_order(
    order: tuple[int, ...], server: Server, client: Client
) -> None:
    fill(server, *ITEMS)
    leaving = [Kestrel(server) for _ in range(3)]
    for kestrel, item in zip(leaving, ITEMS, strict=False):
        assert kestrel.get("q/open") == item
    with stopped(server.process):
        for number in order:
            leaving[number].close()
    wait_for_length(client, 5)
    assert left(server) == ITEMS


def test_the_message_of_a_client_that_leaves_later_goes_to_the_head(server: Server, client: Client) -> None:
    fill(server, *ITEMS[:3])
    first, second = Kestrel(server), Kestrel(server)
    assert (first.get("q/open"), second.get("q/open")) == (ITEMS[0], ITEMS[1])
    second.close()
    wait_for_length(client, 2)
    first.close()
    wait_for_length(client, 3)
    assert left(server) == ITEMS[:3]


def test_abort_puts_an_open_message_back_and_close_removes_it(
    server: Server, client: Client, connect: Callable[[Server], Kestrel]
) -> None:
    fill(server, *ITEMS[:2])
    kestrel, other = connect(server), connect(server)
    for option in ("close", "abort"):
        assert kestrel.get(f"q/{option}") is None
        assert other.get(f"nothing/{option}") is None
    assert length(client) == 2
    assert kestrel.get("q/open") == ITEMS[0]
    for refused in ("q/open", "q/open/t=100"):
        with pytest.raises(RefusedError, match="CLIENT_ERROR a message of this queue is open"):
            kestrel.get(refused)
    assert length(client) == 1
    # What is open is its client's own.
    assert other.get("q/abort") is other.get("q/close") is None
    assert length(client) == 1
    assert kestrel.get("q/abort") is None
    wait_for_length(client, 2)
    assert kestrel.get("q/peek") == ITEMS[0]
    assert kestrel.get("q/close/open") == ITEMS[0]
    assert kestrel.get("q/close/open") == ITEMS[1]
    assert kestrel.get("q/close/open") is None
    assert kestrel.get("q/close") is None
    kestrel.close()
    assert left(server) == []
    assert about(client, "q")[b"consumed_messages"] == 2


def test_messages_put_meanwhile_come_after_an_open_one_that_goes_back(
    server: Server, client: Client, direct: Client
) -> None:
    fill(server, *ITEMS[:2])
    leaving = Kestrel(server)
    assert leaving.get("q/open") == ITEMS[0]
    # Equal ones, with other flags and none.
    fill(server, Item(ITEMS[0].message, 99))
    client.rpush("q", ITEMS[0].message)
    leaving.close()
    wait_for_length(client, 4)
    assert left(server) == [ITEMS[0], ITEMS[1], Item(ITEMS[0].message, 99), Item(ITEMS[0].message)]


@pytest.mark.slow
def test_messages_opened_by_one_call_go_back_in_order(
    start_server: StartServer, arguments: list[str], connect: Callable[[Server], Kestrel]
) -> None:
    server = start_server(*arguments)
    many = [Item(b"%03d" % number, number) for number in range(40)]
    fill(server, *many)
    several = [connect(server) for _ in many]
    with stopped(server.process):
        for one in several:
            one.send("get q/open")
    # Whoever was first, each has another.
    assert sorted(one.item() or Item(b"") for one in several) == many
    kill(server)
    server = start_server(*arguments)
    with server.client() as client:
        wait_for_length(client, len(many))
    assert left(server) == many


def test_open_messages_go_back_after_a_kill_and_a_restart(
    start_server: StartServer, arguments: list[str], connect: Callable[[Server], Kestrel]
) -> None:
    server = start_server(*arguments)
    for queue in ("q", "r"):
        fill(server, *ITEMS, queue=queue)
    several = [connect(server) for _ in range(3)]
    assert [one.get("q/open") for one in several] == ITEMS[:3]
    assert [one.get("r/open") for one in several[::-1]] == ITEMS[:3]
    kill(server)
    server = start_server(*arguments)
    with server.client() as client:
        for queue in ("q", "r"):
            wait_for_length(client, 5, queue)
            assert about(client, queue)[b"consumed_messages"] == 0
    assert left(server, "q") == left(server, "r") == ITEMS
    assert server.stop() == 0


@pytest.mark.slow
def test_a_closed_message_does_not_come_again_after_a_kill(
    start_server: StartServer, arguments: list[str], connect: Callable[[Server], Kestrel]
) -> None:
    server = start_server(*arguments)
    for round_ in range(5):
        fill(server, *ITEMS[:3])
        kestrel, other = connect(server), connect(server)
        assert kestrel.get("q/open") == ITEMS[0]
        assert other.get("q/open") == ITEMS[1]
        assert kestrel.get("q/close/open") == ITEMS[2]
        assert kestrel.get("q/close") is None
        kill(server)
        server = start_server(*arguments)
        with server.client() as client:
            wait_for(partial(length, client), "what is open to be back")
            assert left(server) == ITEMS[1:2], f"in round {round_}"


def test_a_peer_puts_the_open_messages_of_a_dead_server_back(
    start_server: StartServer, backend: Valkey, direct: Client, connect: Callable[[Server], Kestrel]
) -> None:
    options = ("--backend", backend.url, "--proxy-timeout", str(TIMEOUT), *LISTEN)
    dying, living = start_server(*options), start_server(*options)
    fill(living, *ITEMS)
    theirs, ours, waiting = connect(dying), connect(living), connect(living)
    assert (theirs.get("q/open"), ours.get("q/open")) == (ITEMS[0], ITEMS[1])
    fill(living, Item(b"once", 9), queue="r")
    assert theirs.get("r/open") == Item(b"once", 9)
    waiting.send("get r/t=60000")
    with living.client() as client:
        wait_for_waiting(client, "r", consumers=1)
        began = time.monotonic()
        dying.process.kill()
        assert waiting.item() == Item(b"once", 9)
        took = time.monotonic() - began
        wait_for(lambda: identity(dying) not in heartbeats(direct), "its end to be noticed")
        assert length(client) == 4
    assert took < 2.5 * TIMEOUT
    print(f"delivered again after {took:.2f} seconds, with a timeout of {TIMEOUT:g}")
    # What is open with a server that lives stays so.
    assert ours.get("q/close") is None
    assert left(living) == [ITEMS[0], *ITEMS[2:]]


def test_sigterm_puts_open_messages_back_at_once(
    start_server: StartServer, backend: Valkey, direct: Client, connect: Callable[[Server], Kestrel]
) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    fill(server, *ITEMS)
    several = [connect(server) for _ in range(3)]
    assert [one.get("q/open") for one in several] == ITEMS[:3]
    began = time.monotonic()
    assert server.stop() == 0, server.log
    took = time.monotonic() - began
    assert direct.lrange("__pressure__:q", 0, -1) == messages(ITEMS)[::-1]
    assert not records(direct)
    assert took < 3
    print(f"stopped, with all back, after {took:.2f} seconds")
    assert left(start_server("--backend", backend.url, *LISTEN)) == ITEMS


@pytest.mark.parametrize("when", ["while it is away", "when it is back"])
@pytest.mark.parametrize("end", ["close", "abort", "leave"])
def test_an_open_message_survives_a_kill_of_the_backend(
    end: str, when: str, start_server: StartServer, start_valkey: StartValkey
) -> None:
    backend = start_valkey(*KEPT_BY)
    server = start_server("--backend", backend.url, *LISTEN)
    fill(server, *ITEMS)
    kestrel = Kestrel(server)
    assert kestrel.get("q/open") == ITEMS[0]
    backend.kill()
    if when == "when it is back":
        backend.start()
        with server.client() as client:
            wait_for_length(client, 4)
    if end != "leave":
        kestrel.send(f"get q/{end}")
    else:
        kestrel.close()
    if when == "while it is away":
        backend.start()
    if end != "leave":
        assert kestrel.item() is None
        kestrel.close()
    with server.client() as client, backend.client() as direct:
        wait_for_length(client, 4 if end == "close" else 5)
        wait_until_settled(direct)
        assert length(client) == (4 if end == "close" else 5)
    assert left(server) == (ITEMS[1:] if end == "close" else ITEMS)
    assert server.stop() == 0


@pytest.mark.parametrize("leave", [Kestrel.close, Kestrel.reset])
def test_a_message_opened_for_a_client_that_left_goes_back(
    leave: Callable[[Kestrel], None], server: Server, client: Client, direct: Client
) -> None:
    fill(server, *ITEMS)
    kestrel = Kestrel(server)
    connected = client.info("clients")["connected_clients"]
    with stopped(server.process):
        kestrel.send("get q/open")
        leave(kestrel)
    wait_for(lambda: client.info("clients")["connected_clients"] == connected - 1, "the client to be gone")
    # Asked behind whatever it has had done: the message is back, or has not been taken.
    wait_for_length(client, 5)
    wait_until_settled(direct)
    assert left(server) == ITEMS


def test_a_client_that_leaves_while_it_waits_opens_nothing(server: Server, client: Client) -> None:
    kestrel = Kestrel(server)
    kestrel.send("get q/open/t=60000")
    wait_for_blocked(client, 1)
    kestrel.close()
    wait_for_blocked(client, 0)
    fill(server, *ITEMS)
    assert left(server) == ITEMS


def test_an_open_message_of_a_deleted_queue_does_not_go_back(
    server: Server, client: Client, direct: Client
) -> None:
    for end in ("close", "abort", "leave"):
        fill(server, *ITEMS)
        with Kestrel(server) as kestrel:
            assert kestrel.get("q/open") == ITEMS[0]
            client.delete("q")
            if end != "leave":
                assert kestrel.get(f"q/{end}") is None
        wait_until_settled(direct)
        assert client.exists("q") == 0
        # Nor does one of that name that is made since.
        fill(server, ITEMS[4])
        assert left(server) == [ITEMS[4]]


def test_a_message_that_expires_while_it_is_open_does_not_go_back(
    server: Server, client: Client, direct: Client
) -> None:
    with Kestrel(server) as other:
        other.put("q", ITEMS[1], expires=1)
        other.put("q", ITEMS[2], expires=100)
        other.put("r", ITEMS[3], expires=1)
        leaving = Kestrel(server)
        assert leaving.get("q/open") == ITEMS[1]
        wait_for(lambda: other.get("r/peek") is None, "the other one to expire")
        leaving.close()
        wait_until_settled(direct)
        assert other.drain("q") == [ITEMS[2]]


def named(item: Item) -> bytes:
    """Return the item's name in the ledger: with other flags it is another message."""
    return b"%d %b" % (item.flags, item.message)


class Consumers:
    """Clients that open messages and close them, abort, or leave, even if their server dies."""

    def __init__(self, server: Server, items: list[Item], count: int) -> None:
        self.server = server
        self.ledger = Ledger()
        self.ledger.put(map(named, items))
        # Messages that were open once more after they had been closed.
        self.came_again: list[Item] = []
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._consume, args=(number,), daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def have_closed(self, count: int) -> bool:
        with self._lock:
            return self.ledger.settled >= count

    def end(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(TIMEOUT * 20)

    def _consume(self, seed: int) -> None:
        random = Random(seed)
        while not self.is_over.is_set():
            with suppress(OSError), Kestrel(self.server) as kestrel:
                while not self.is_over.is_set():
                    self._read(kestrel, random)

    def _read(self, kestrel: Kestrel, random: Random) -> None:
        item = kestrel.get("q/open/t=100")
        if item is None:
            return
        with self._lock:
            if named(item) in self.ledger.receipts:
                self.came_again.append(item)
        end = random.choice(["close", "close", "close", "abort", "leave"])
        if end == "leave":
            raise ConnectionAbortedError
        try:
            assert kestrel.get(f"q/{end}") is None
        except OSError:
            with self._lock:
                self.ledger.doubt([named(item)])
            raise
        if end == "close":
            with self._lock:
                self.ledger.receive([named(item)])


@pytest.mark.slow
def test_no_message_is_lost_or_doubled_when_servers_and_clients_die(
    start_server: StartServer, arguments: list[str]
) -> None:
    items = [Item(b"%04d" % number, number) for number in range(200)]
    server = start_server(*arguments)
    fill(server, *items)
    consumers = Consumers(server, items, 6)
    try:
        for death in (1, 2):
            wait_for(partial(consumers.have_closed, death * 60), "some to be closed")
            kill(server)
            consumers.server = server = start_server(*arguments)
        wait_for(partial(consumers.have_closed, len(items)), "all to be closed", 40)
    finally:
        consumers.end()
    assert not consumers.came_again
    consumers.ledger.receive(map(named, left(server)))
    consumers.ledger.check()
    assert server.stop() == 0
