"""A client of the server gets its turn beside native clients that wait for the same room or messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.native import NativeClient
from tests.support.native_process import VERSIONS, NativeProcess
from tests.support.programs import Client, Server, Valkey, wait_for
from tests.support.protocols import LISTEN, MEMCACHED, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import packed, wait_for_waiting

BASE = "__pressure__:q"
# With one native client there are two in line.
ENOUGH = 8


@pytest.fixture(scope="module")
def shared_listening(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("listening") / "log"
    server = Server(log, "--backend", shared_backend.url, *LISTEN)
    yield server
    server.end_well()


@pytest.fixture
def server(backend: Valkey, shared_listening: Server) -> Server:
    """A server that listens for all protocols, on a backend without data."""
    return shared_listening


def whose_turn(direct: Client, role: str) -> str:
    """Return "ours" or "native" for the client that holds the role and waits in it; "" between turns.

    The backend answers all the questions at one moment, and only native clients wait with BRPOP. Otherwise
    a native client that is about to give the role back to us looks like one that waits.
    """
    pipeline = direct.pipeline(transaction=True)
    pipeline.exists(f"{BASE}:{role}_free")
    pipeline.exists(f"{BASE}:ext:{role}_turn")
    pipeline.get(f"{BASE}:{role}")
    pipeline.client_list()
    token, turn, holder, clients = pipeline.execute()
    if turn:
        return "ours"
    waits = any("b" in c["flags"] and c["cmd"] == "brpop" for c in clients)
    return "native" if waits and not token and holder == b"native" else ""


def is_native(direct: Client, role: str) -> bool:
    """Whether the native client holds the role and waits in it."""
    return whose_turn(direct, role) == "native"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_put_on_a_full_queue_has_its_turn_beside_a_native_producer(
    server: Server, client: Client, direct: Client, backend: Valkey, version: str
) -> None:
    """OnFull always comes while the native producer holds the role, and waits for it."""
    consumer = NativeClient(direct, "q")
    consumer.create(1)
    with (
        NativeProcess(backend.socket, "q", "native", "produce", "native", "0", "1000", version=version),
        Wire(RESP, server) as waiter,
    ):
        wait_for(lambda: is_native(direct, "producer"), "the native producer to wait for room")
        waiter.send(RESP.put(b"q", b"ours"))
        wait_for_waiting(client, "q", producers=1)
        taken: list[bytes] = []
        while b"ours" not in taken and len(taken) < ENOUGH:
            wait_for(
                lambda: direct.llen(BASE) and whose_turn(direct, "producer"),
                "somebody to wait for room",
            )
            taken.append(consumer.get())
        assert b"ours" in taken
        assert waiter.reply() == RESP.stored(1)
        wait_for(lambda: is_native(direct, "producer"), "the native producer to go on")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("protocol", "request_"),
    [
        (RESP, RESP.get_waiting(b"q")),
        (RESP, packed("PRESSURE.GET", "q")),
        (RESP, packed("BLPOP", "none", "q", "0")),
        (MEMCACHED, MEMCACHED.get_waiting(b"q")),
    ],
    ids=["BLPOP", "PRESSURE.GET", "BLPOP of two queues", "get"],
)
def test_a_get_on_an_empty_queue_has_its_turn_beside_a_native_consumer(
    server: Server,
    client: Client,
    direct: Client,
    backend: Valkey,
    version: str,
    protocol: Protocol,
    request_: bytes,
) -> None:
    """A message always comes while the native consumer holds the role, and waits for it."""
    producer = NativeClient(direct, "q")
    producer.create()
    with (
        NativeProcess(backend.socket, "q", "native", "consume", version=version),
        Wire(protocol, server) as waiter,
    ):
        wait_for(lambda: is_native(direct, "consumer"), "the native consumer to wait")
        waiter.send(request_)
        wait_for_waiting(client, "q", consumers=1)
        for number in range(ENOUGH):
            wait_for(lambda: whose_turn(direct, "consumer"), "somebody to wait for a message")
            producer.put(b"%d" % number)
            wait_for(lambda: not direct.llen(BASE), "the message to be taken")
            if waiter.has_reply():
                break
        # The reply may still be on its way when the queue is empty, and the next message be put meanwhile.
        assert int(waiter.message() or -1) in range(number + 1)
        wait_for(lambda: is_native(direct, "consumer"), "the native consumer to go on")


@each_protocol
def test_a_client_that_leaves_during_its_turn_gives_the_turn_back(
    server: Server, client: Client, direct: Client, backend: Valkey, protocol: Protocol
) -> None:
    producer = NativeClient(direct, "q")
    producer.create()
    with NativeProcess(backend.socket, "q", "native", "consume") as native:
        wait_for(lambda: is_native(direct, "consumer"), "the native consumer to wait")
        with Wire(protocol, server) as waiter:
            waiter.send(protocol.get_waiting(b"q"))
            wait_for_waiting(client, "q", consumers=1)
            for _ in range(ENOUGH):
                if wait_for(lambda: whose_turn(direct, "consumer"), "somebody to wait") == "ours":
                    break
                producer.put(b"x")
            else:
                raise AssertionError("the server has had no turn")
        wait_for(lambda: is_native(direct, "consumer"), "the native consumer to go on")
        wait_for(lambda: not direct.exists("__pressure__!turns"), "the note to be forgotten")
        native.kill()
