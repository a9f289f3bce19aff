"""The server's clients get turns with a role while native clients wait for the same room or messages."""

import pytest

from tests.support.module_servers import module_server
from tests.support.native import VERSIONS, NativeClient
from tests.support.native_process import NativeProcess
from tests.support.programs import Client, Server, Valkey, wait_for
from tests.support.protocols import LISTEN, MEMCACHED, RESP, Protocol, Wire, each_protocol
from tests.support.waiters import packed, wait_for_waiting

BASE = "__pressure__:q"
# The most messages until the server has had its turn. Only one native client competes with the server.
MOST_MESSAGES = 8


shared_server = module_server(*LISTEN)


def whose_turn(direct: Client, role: str) -> str:
    """Return "server" or "native" for the client that holds the role and waits; "" between turns.

    One transaction reads everything, and only native clients wait by BRPOP. Otherwise a native client that is
    about to pass the role on would look like one that waits.
    """
    pipeline = direct.pipeline(transaction=True)
    pipeline.exists(f"{BASE}:{role}_free")
    pipeline.exists(f"{BASE}:ext:{role}_turn")
    pipeline.get(f"{BASE}:{role}")
    pipeline.client_list()
    token, turn, holder, clients = pipeline.execute()
    if turn:
        return "server"
    waits = any("b" in c["flags"] and c["cmd"] == "brpop" for c in clients)
    return "native" if waits and not token and holder == b"native" else ""


def wait_for_native(direct: Client, role: str) -> None:
    """Return when the native client holds the role and waits."""
    wait_for(lambda: whose_turn(direct, role) == "native", f"the native {role} to wait")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_put_on_a_full_queue_has_its_turn_beside_a_native_producer(
    server: Server, client: Client, direct: Client, backend: Valkey, version: str
) -> None:
    # Each message is taken while a client holds the role and waits for room.
    consumer = NativeClient(direct, "q")
    consumer.create(1)
    with (
        NativeProcess(backend.socket, "q", "native", "produce", "native", "0", "1000", version=version),
        Wire(RESP, server) as waiter,
    ):
        wait_for_native(direct, "producer")
        waiter.send(RESP.put(b"q", b"m"))
        wait_for_waiting(client, "q", producers=1)
        taken: list[bytes] = []
        while b"m" not in taken and len(taken) < MOST_MESSAGES:
            wait_for(lambda: direct.llen(BASE) and whose_turn(direct, "producer"), "a producer to wait")
            taken.append(consumer.get())
        assert b"m" in taken
        assert waiter.reply() == RESP.stored(1)
        wait_for_native(direct, "producer")


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
    # Each message is put while a client holds the role and waits for a message.
    producer = NativeClient(direct, "q")
    producer.create()
    with (
        NativeProcess(backend.socket, "q", "native", "consume", version=version),
        Wire(protocol, server) as waiter,
    ):
        wait_for_native(direct, "consumer")
        waiter.send(request_)
        wait_for_waiting(client, "q", consumers=1)
        for number in range(MOST_MESSAGES):
            wait_for(lambda: whose_turn(direct, "consumer"), "a consumer to wait")
            producer.put(b"%d" % number)
            wait_for(lambda: not direct.llen(BASE), "the message to be taken")
            if waiter.has_reply():
                break
        # Another message may have been put while the reply was on its way.
        assert int(waiter.message() or -1) in range(number + 1)
        wait_for_native(direct, "consumer")


@each_protocol
def test_a_client_that_leaves_during_its_turn_gives_the_turn_back(
    server: Server, client: Client, direct: Client, backend: Valkey, protocol: Protocol
) -> None:
    producer = NativeClient(direct, "q")
    producer.create()
    with NativeProcess(backend.socket, "q", "native", "consume") as native:
        wait_for_native(direct, "consumer")
        with Wire(protocol, server) as waiter:
            waiter.send(protocol.get_waiting(b"q"))
            wait_for_waiting(client, "q", consumers=1)
            for _ in range(MOST_MESSAGES):
                if wait_for(lambda: whose_turn(direct, "consumer"), "a consumer to wait") == "server":
                    break
                producer.put(b"x")
            else:
                raise AssertionError("the server has had no turn")
        wait_for_native(direct, "consumer")
        wait_for(lambda: not direct.exists("__pressure__!turns"), "the turn's entry to be removed")
        native.kill()
