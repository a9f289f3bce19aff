"""Jobs are found by their ids, however many of them one call has made (job_ids.lua)."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.support.faults import stopped
from tests.support.module_servers import module_server
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, Valkey, wait_for, wait_until_settled
from tests.support.protocols import BEANSTALK, RESP, Wire
from tests.support.waiters import Waiter, create, packed

OF_BLOCK = 64


shared_server = module_server("--listen", "beanstalk://127.0.0.1:0")


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(BEANSTALK, server) as connected:
        yield connected


def messages_of(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def ids_in(direct: Client, queue: str) -> list[int]:
    """Return the ids of all jobs of a queue."""
    keys = direct.hkeys(f"__pressure__:{queue}:ext:jobs")
    return sorted(int(key, 16) for key in keys if re.fullmatch(rb"[0-9a-f]{13}", key))


def ask_all(wire: Wire, request: bytes, ids: list[int]) -> set[bytes]:
    """Send a request for each job, some at a time. Return the first words of the replies."""
    found: set[bytes] = set()
    for first in range(0, len(ids), 200):
        some = ids[first : first + 200]
        wire.send(b"".join(request % job for job in some))
        found |= {reply.split(b" ")[0] for reply in wire.replies(len(some))}
    return found


Make = Callable[[Client, Wire, Client, int], None]


def jobs_by_one_put(client: Client, wire: Wire, direct: Client, count: int) -> None:
    create(client, "q", "TYPE", "jobs")
    client.sadd("q", *messages_of(count))


def jobs_by_a_pipeline(client: Client, wire: Wire, direct: Client, count: int) -> None:
    wire(b"use q\r\n")
    wire.send(b"".join(b"put 0 0 60 5\r\n%b\r\n" % message for message in messages_of(count)))
    assert {reply.split(b" ")[0] for reply in wire.replies(count)} == {b"INSERTED"}


def jobs_of_messages(client: Client, wire: Wire, direct: Client, count: int, *, options: str) -> None:
    create(client, "q", *options.split())
    client.sadd("q", *messages_of(count))
    client.execute_command("PRESSURE.PAUSE", "q", 0)
    wait_for(lambda: client.llen("q") == len(ids_in(direct, "q")), "all messages to be jobs")


def jobs_of_a_native_client(client: Client, wire: Wire, direct: Client, count: int) -> None:
    create(client, "q", "TYPE", "jobs")
    native = NativeClient(direct, "q")
    for message in messages_of(count):
        native.put(message)
    wait_for(lambda: client.llen("q") == len(ids_in(direct, "q")), "all messages to be jobs")


def jobs_after_others(client: Client, wire: Wire, direct: Client, count: int) -> None:
    """The present block has no jobs, but ids that have not been given."""
    create(client, "q", "TYPE", "jobs")
    client.sadd("q", *messages_of(10))
    assert client.spop("q", 10) == messages_of(10)
    client.sadd("q", *messages_of(count))


WAYS: dict[str, tuple[Make, int]] = {
    "one put": (jobs_by_one_put, OF_BLOCK + 1),
    "one large put": (jobs_by_one_put, 2501),
    "a pipeline": (jobs_by_a_pipeline, 1000),
    "a list": (partial(jobs_of_messages, options=""), 2501),
    "a lifo": (partial(jobs_of_messages, options="TYPE LIFO"), 2501),
    "a native client": (jobs_of_a_native_client, 200),
    "after others": (jobs_after_others, 200),
}


@pytest.fixture(params=WAYS)
def ids(request: pytest.FixtureRequest, client: Client, wire: Wire, direct: Client) -> list[int]:
    """The ids of many jobs of the queue `q`, made in one call or a few."""
    make, count = WAYS[request.param]
    make(client, wire, direct, count)
    found = ids_in(direct, "q")
    assert len(found) == count
    return found


def test_each_job_is_found_by_its_id(wire: Wire, ids: list[int]) -> None:
    assert ask_all(wire, b"peek %d\r\n", ids) == {b"FOUND"}
    some = sorted({*ids[: OF_BLOCK + 2], *ids[-OF_BLOCK - 2 :], *ids[::20]})
    assert ask_all(wire, b"stats-job %d\r\n", some) == {b"OK"}
    assert ask_all(wire, b"reserve-job %d\r\n", some) == {b"RESERVED"}
    assert ask_all(wire, b"bury %d 0\r\n", some) == {b"BURIED"}
    assert ask_all(wire, b"kick-job %d\r\n", some) == {b"KICKED"}
    assert ask_all(wire, b"delete %d\r\n", some) == {b"DELETED"}


def test_blocks_without_jobs_are_given_up(client: Client, direct: Client) -> None:
    create(client, "q", "TYPE", "jobs")
    for _ in range(5):
        client.sadd("q", *messages_of(1000))
        assert len(client.spop("q", 1000)) == 1000
    client.sadd("q", "last")
    blocks = direct.hkeys("__pressure__!blocks")
    assert len(blocks) <= 2 * 1000 / OF_BLOCK
    assert sorted(blocks) == sorted(direct.lrange("__pressure__:q:ext:blocks", 0, -1))


def test_messages_that_a_group_or_a_client_of_a_list_has_are_found_by_their_ids(
    client: Client, wire: Wire
) -> None:
    create(client, "log", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    for queue, source in (("log", "log+g"), ("list", "list")):
        client.rpush(queue, *messages_of(200))
        read = client.execute_command("PRESSURE.RESERVE", source, "COUNT", 200, "DETACHED", "me")
        assert [job[2] for job in read] == messages_of(200)
        for request, word in ((b"stats-job %d\r\n", b"OK"), (b"peek %d\r\n", b"FOUND")):
            assert ask_all(wire, request, [job[1] for job in read]) == {word}


def test_a_job_that_goes_back_is_found_by_its_id(
    server: Server, client: Client, direct: Client, wire: Wire
) -> None:
    """Its block has been given up while it was on its way to a client."""
    large = b"x" * 8_000_000
    create(client, "q", "TYPE", "jobs")
    client.sadd("q", large)
    with Wire(RESP, server, small_buffers=True) as leaving:
        leaving.send(packed("LPOP", "q", 1))
        wait_for(lambda: client.llen("q") == 0, "the message to be taken")
        for _ in range(4):
            client.sadd("q", *messages_of(OF_BLOCK))
            assert len(client.spop("q", OF_BLOCK)) == OF_BLOCK
        assert ids_in(direct, "q") == []
        leaving.reset()
    wait_until_settled(direct)
    (job,) = ids_in(direct, "q")
    assert wire(b"stats-job %d\r\n" % job).startswith(b"OK ")
    assert wire(b"delete %d\r\n" % job) == b"DELETED"


def test_jobs_of_commands_that_share_a_call_are_found_by_their_ids(
    server: Server, client: Client, direct: Client, wire: Wire, backend: Valkey
) -> None:
    create(client, "q", "TYPE", "jobs")
    with Waiter(server.port) as one, Waiter(server.port) as other:
        with stopped(backend.process):
            for number, waiter in enumerate((one, other)):
                waiter.send("SADD", "q", *(b"%d %b" % (number, message) for message in messages_of(100)))
                client.ping()
        assert [one.reply(), other.reply()] == [100, 100]
    ids = ids_in(direct, "q")
    assert len(ids) == 200
    assert ask_all(wire, b"delete %d\r\n", ids) == {b"DELETED"}
