"""Logs: offsets, reading by offset, rings, and messages that come back."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.support.large import fill, number_of
from tests.support.native import NativeClient
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import Waiter, about, create

OFFSETS: Series = [
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("PRESSURE.AT q 0", "AHEAD queue 'q' has no message there yet: the next one gets the offset 0"),
    ("PRESSURE.PUT q a OFFSET", 0),
    ("PRESSURE.PUT q b", 1),
    ("SADD q c d", 2),
    ("PRESSURE.PUT q e OFFSET NOWAIT", 4),
    ("PRESSURE.AT q 0", b"a"),
    ("PRESSURE.AT q 4", b"e"),
    ("PRESSURE.AT q 5", "AHEAD "),
    ("PRESSURE.AT q 1 COUNT 2", [b"b", b"c"]),
    ("PRESSURE.AT q 3 COUNT 9", [b"d", b"e"]),
    ("SPOP q 2", [b"a", b"b"]),
    ("PRESSURE.AT q 0", None),
    ("PRESSURE.AT q 0 COUNT 4", [None, None, b"c", b"d"]),
    ("SCARD q", 3),
    ("LRANGE q 0 -1", [b"c", b"d", b"e"]),
    ("SISMEMBER q d", 1),
    ("SADD q d", 0),
    ("SPOP q 9", [b"c", b"d", b"e"]),
    ("PRESSURE.PUT q f OFFSET", 5),
    ("RPOPLPUSH q q", b"f"),
    ("PRESSURE.AT q 5 COUNT 2", [None, b"f"]),
    ("PRESSURE.PUT q g OFFSET", 7),
    ("PRESSURE.CLOSE q", b"OK"),
    ("PRESSURE.AT q 7", b"g"),
    ("PRESSURE.AT q 8", "AHEAD "),
    ("MULTI", b"OK"),
    ("PRESSURE.AT q 0 COUNT 2", b"QUEUED"),
    ("PRESSURE.AT q 7", b"QUEUED"),
    ("LLEN q", b"QUEUED"),
    ("EXEC", [[None, None], b"g", 2]),
]
RING: Series = [
    ("PRESSURE.CREATE q TYPE LOG BOUND 3 OVERFLOW OVERWRITE", b"OK"),
    ("LPUSH q a b c d", 3),
    ("PRESSURE.PUT q e OFFSET", 4),
    ("PRESSURE.AT q 0 COUNT 9", [None, None, b"c", b"d", b"e"]),
    ("PRESSURE.CREATE full TYPE LOG BOUND 1 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.PUT full a OFFSET", 0),
    ("PRESSURE.PUT full b OFFSET", "FULL "),
    ("PRESSURE.PUT full b OFFSET TIMEOUT 0.02", "FULL "),
    ("PRESSURE.PUT full b OFFSET OVERWRITE", 1),
    ("PRESSURE.PUT full c OVERWRITE", 1),
    ("PRESSURE.AT full 2", b"c"),
]
REFUSED: Series = [
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("PRESSURE.CREATE fifo", b"OK"),
    ("LPUSH q a", 1),
    *[
        (f"PRESSURE.{words}", "TYPE queue 'fifo' has no offsets")
        for words in ("PUT fifo m OFFSET", "AT fifo 0")
    ],
    ("SREM q a", "TYPE queue 'q' is a log: nothing leaves it from the middle"),
    ("SMOVE q other a", "TYPE "),
    ("PRESSURE.RESERVE q", "TYPE queue 'q' is a log, which has no reservations"),
    ("PRESSURE.PUT q m PRIORITY 1", "TYPE queue 'q' was created as a log"),
    ("PRESSURE.PAUSE q 1", "TYPE "),
    ("PRESSURE.ALTER q MAX-DELIVERIES 1", "TYPE "),
    *refusals("ERR offset is not an integer or out of range", "AT q", "x", "-1", "1.5", "9007199254740993"),
    *refusals("ERR syntax error", "AT q 0", "COUNT", "5", "COUNT 1 COUNT 1"),
    *refusals("ERR OFFSET cannot be combined", "PUT q m OFFSET", "NX", "PRIORITY 1", "UNIQUE"),
    *refusals("ERR UNIQUE needs TYPE JOBS", "CREATE new TYPE LOG", "UNIQUE QUEUED"),
    ("PRESSURE.AT none 0", "NOQUEUE "),
    ("LRANGE q 0 -1", [b"a"]),
]


@pytest.mark.parametrize("script", [OFFSETS, RING, REFUSED], ids=["offsets", "ring", "refused"])
def test_a_series_of_commands_has_the_documented_replies(worker: Waiter, script: Series) -> None:
    run_series(worker, script)


def test_offsets_go_on_beside_a_native_producer_and_after_a_restart(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    native = NativeClient(direct, "q")
    first = start_server("--backend", backend.url).client()
    create(first, "q", "TYPE", "LOG")
    native.put(b"native")
    assert first.execute_command("PRESSURE.PUT", "q", "a", "OFFSET") == 1
    assert first.spop("q", 2) == [b"native", b"a"]
    second = start_server("--backend", backend.url).client()
    native.put(b"native")
    assert second.execute_command("PRESSURE.PUT", "q", "b", "OFFSET") == 3
    assert second.execute_command("PRESSURE.AT", "q", 0, "COUNT", 9) == [None, None, b"native", b"b"]


@contextmanager
def taken_by_a_server(
    backend: Valkey, start_server: StartServer, taken: int
) -> Iterator[tuple[Server, Client]]:
    """Let a server take messages of a log, of which 20 are left, for a client that does not read.

    Yield that server, and a client of another one. Messages have 100 kB, so 60 are more than the kernel
    accepts.
    """
    options = ("--backend", backend.url, "--proxy-timeout", "1", "--role-timeout", "0.1")
    dying, living = (start_server(*options) for _ in range(2))
    client = living.client()
    create(client, "q", "TYPE", "LOG")
    fill(client, taken + 20)
    with Waiter(dying.port) as waiter:
        waiter.send("LPOP", "q", taken)
        wait_for(waiter.has_reply, "the reply to begin")
        yield dying, client


def test_messages_of_a_dead_server_come_back_with_their_offsets(
    backend: Valkey, start_server: StartServer
) -> None:
    taken = 60
    with taken_by_a_server(backend, start_server, taken) as (dying, client):
        assert number_of(client.lpop("q")) == taken
        dying.process.kill()
        wait_for(lambda: client.llen("q") == taken + 19, "the messages to come back")
    assert [number_of(one) for one in client.lrange("q", 57, 61)] == [57, 58, 59, 61, 62]
    found = client.execute_command("PRESSURE.AT", "q", 57, "COUNT", 5)
    assert [one and number_of(one) for one in found] == [57, 58, 59, None, 61]
    assert client.sismember("q", found[1]) == 1
    assert about(client, "q")[b"head_offset"] == taken + 1
    assert [number_of(one) for one in client.lpop("q", taken + 1)] == [*range(taken), taken + 1]
    assert client.execute_command("PRESSURE.AT", "q", 0) is None
    assert number_of(client.execute_command("PRESSURE.AT", "q", taken + 2)) == taken + 2


def test_messages_that_have_come_back_are_the_oldest_ones_of_the_log(
    backend: Valkey, start_server: StartServer, direct: Client
) -> None:
    with taken_by_a_server(backend, start_server, 60) as (dying, client):
        dying.process.kill()
        wait_for(lambda: client.llen("q") == 80, "the messages to come back")
    assert about(client, "q")[b"length"] == len(client.srandmember("q", 100)) == 80
    assert len(set(client.srandmember("q", 79))) == 79
    with pytest.raises(redis.ResponseError, match="not a plain list"):
        client.lpos("q", "x")
    for first, left in ((2, range(2, 80)), (-25, range(55, 80))):
        assert client.ltrim("q", first, -1)
        assert [number_of(one) for one in client.lrange("q", 0, -1)] == [*left]
    direct.rpop("__pressure__:q:consumer_free")
    direct.set("__pressure__:q:consumer", "native")
    with pytest.raises(redis.ResponseError, match=r"^INUSE"):
        client.execute_command("PRESSURE.PURGE", "q")
    assert client.llen("q") == 25
    direct.lpush("__pressure__:q:consumer_free", 0)
    assert client.ltrim("q", 20, -1)
    assert client.execute_command("PRESSURE.PURGE", "q") == 5


def test_messages_of_a_dead_server_reach_the_groups_that_were_made_since(
    backend: Valkey, start_server: StartServer
) -> None:
    taken = 60
    with taken_by_a_server(backend, start_server, taken) as (dying, client):
        for group, place in (("old", "HEAD"), ("new", "TAIL")):
            client.execute_command("PRESSURE.GROUP", "CREATE", "q", group, "FROM", place)
        dying.process.kill()
        wait_for(lambda: client.llen("q+new") == taken, "the messages to come back")
    for group, offsets in (("old", {*range(taken + 20)}), ("new", {*range(taken)})):
        jobs = client.execute_command("PRESSURE.READ", "q", "GROUP", group, "ann", "COUNT", 2 * taken)
        assert {offset: number_of(message) for _, message, _, offset in jobs} == {n: n for n in offsets}
        ids = [job[0] for job in jobs]
        assert client.execute_command("PRESSURE.ACK", f"q+{group}", *ids, "TOKEN", "ann") == len(offsets)
        assert client.llen(f"q+{group}") == 0
    assert client.execute_command("PRESSURE.PUT", "q", "next", "OFFSET") == taken + 20
    assert client.llen("q") == 1  # all groups have passed the others


def test_pipelined_reads_of_large_messages_are_all_answered(client: Client) -> None:
    """They are one run, of which a call does as much as fits into its answer."""
    messages = [bytes([number]) * 400_000 for number in range(12)]
    create(client, "q", "TYPE", "log")
    for message in messages:
        client.execute_command("RPUSH", "q", message)
    reads = client.pipeline(transaction=False)
    wanted = [7, 0, 11, 12, 3, *range(12), 99, 5]
    for offset in [*wanted, "no offset", 1]:
        reads.execute_command("PRESSURE.AT", "q", offset)
    found = [str(one) if isinstance(one, Exception) else one for one in reads.execute(raise_on_error=False)]
    expected = [messages[offset] if offset < 12 else "AHEAD" for offset in wanted]
    assert [one[:5] if isinstance(one, str) else one for one in found[:-2]] == expected
    assert "offset" in found[-2]
    assert found[-1] == messages[1]
