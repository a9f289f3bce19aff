"""Groups of consumers that read a log: each sees every message once, in order, over any protocol."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.module_servers import module_server
from tests.support.native import NativeClient, QueueClosedError
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, run_command, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, Wire
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import Waiter, about, create, wait_for_blocked

shared_server = module_server(*LISTEN)

READING: Series = [
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("LPUSH q a b c", 3),
    ("PRESSURE.GROUP CREATE q one", b"OK"),
    ("PRESSURE.GROUP CREATE q two FROM TAIL", b"OK"),
    ("PRESSURE.GROUP CREATE q three FROM 1", b"OK"),
    ("PRESSURE.READ q GROUP one ann", [[1, b"a", 1, 0]]),
    ("PRESSURE.READ q GROUP one bob COUNT 9", [[2, b"b", 1, 1], [3, b"c", 1, 2]]),
    ("PRESSURE.READ q GROUP one bob", None),
    ("PRESSURE.READ q GROUP two ann", None),
    ("SPOP q+three", b"b"),
    ("LLEN q+three", 1),
    ("LRANGE q+three 0 -1", [b"c"]),
    ("PRESSURE.ACK q+one 1 TOKEN bob", 0),
    ("PRESSURE.ACK q+one 1 TOKEN ann", 1),
    ("PRESSURE.RELEASE q+one 2 TOKEN bob", 1),
    ("PRESSURE.READ q GROUP one ann", [[2, b"b", 2, 1]]),
    ("LPUSH q d", 3),
    ("PRESSURE.READ q GROUP two ann TIMEOUT 1", [[129, b"d", 1, 3]]),
    ("SPOP q+three 5", [b"c", b"d"]),
    # Nobody has finished b.
    ("LLEN q", 3),
    ("PRESSURE.READ q GROUP one ann", [[4, b"d", 1, 3]]),
    ("PRESSURE.ACK q+one 2 TOKEN ann", 1),
    ("PRESSURE.AT q 1 COUNT 9", [None, b"c", b"d"]),
    ("PRESSURE.ACK q+one 3 TOKEN bob", 1),
    ("PRESSURE.AT q 1 COUNT 9", [None, None, b"d"]),
    ("PRESSURE.GROUP DELETE q one", b"OK"),
    ("PRESSURE.EXISTS q+one", 0),
    # The last group has finished d, and a message that it has not finished stays without any group.
    ("PRESSURE.DELETE q+two", b"OK"),
    ("LLEN q", 0),
    ("LPUSH q e", 1),
    ("PRESSURE.DELETE q+three", b"OK"),
    ("PRESSURE.GROUP LIST q", []),
    ("LPUSH q f", 2),
    ("SPOP q 2", [b"e", b"f"]),
]
REFUSED: Series = [
    ("PRESSURE.CREATE fifo", b"OK"),
    ("PRESSURE.GROUP CREATE fifo g", "TYPE queue 'fifo' has no groups: they need a queue of the type log"),
    ("PRESSURE.GROUP CREATE none g", "NOQUEUE "),
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("LPUSH q a b c", 3),
    ("SPOP q", b"a"),
    *refusals("GONE queue 'q' no longer has", "GROUP CREATE q g FROM", "0"),
    *refusals("AHEAD ", "GROUP CREATE q g FROM", "4"),
    *refusals("ERR offset is not", "GROUP CREATE q g FROM", "x", "-1"),
    *refusals("ERR syntax error", "GROUP CREATE q g", "FROM", "TO 1"),
    *refusals("NOGROUP queue 'q' has no such group", "READ q GROUP g", "ann", "ann TIMEOUT 1"),
    *refusals("NOGROUP ", "GROUP DELETE q", "g"),
    *refusals("NOGROUP ", "GROUP SEEK q g FROM", "head"),
    ("PRESSURE.CREATE q+taken", b"OK"),
    *refusals("EXISTS queue 'q+taken'", "GROUP CREATE q", "taken"),
    ("PRESSURE.GROUP CREATE q g", b"OK"),
    *refusals("EXISTS queue 'q+g'", "GROUP CREATE q", "g", "g FROM tail"),
    *[(f"{line}", "TYPE queue 'q' is read by groups") for line in ("SPOP q", "LMOVE q other LEFT LEFT")],
    ("PRESSURE.RESERVE q", "TYPE queue 'q' is read by groups"),
    *[(f"{line}", "TYPE queue 'q+g' belongs to a group") for line in ("SADD q+g x", "LPUSH q+g x")],
    *[(f"{line}", "TYPE queue 'q+g' belongs to a group") for line in ("SISMEMBER q+g b", "SREM q+g b")],
    *refusals("ERR a token must", "READ q GROUP g", "''"),
    *refusals("ERR too many messages", "READ q GROUP g ann COUNT", "1001"),
    *refusals("ERR syntax error", "READ q GRUPPE g ann", "", "COUNT 1"),
    ("LRANGE q+g 0 -1", [b"b", b"c"]),
]
SEEKING: Series = [
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("LPUSH q a b c d", 4),
    ("PRESSURE.GROUP CREATE q slow", b"OK"),
    ("PRESSURE.GROUP CREATE q g", b"OK"),
    ("SPOP q+g 4", [b"a", b"b", b"c", b"d"]),
    ("PRESSURE.GROUP SEEK q g FROM 1", b"OK"),
    ("SPOP q+g", b"b"),
    ("PRESSURE.GROUP SEEK q g FROM head", b"OK"),
    ("SPOP q+g 2", [b"a", b"b"]),
    ("SPOP q+slow", b"a"),
    ("PRESSURE.GROUP SEEK q g FROM 0", "GONE "),
    ("PRESSURE.GROUP SEEK q g FROM tail", b"OK"),
    ("SPOP q+g", None),
    ("LPUSH q e", 4),
    ("SPOP q+g 2", [b"e"]),
    ("LLEN q", 4),
    ("PRESSURE.GROUP SEEK q slow FROM 4", b"OK"),
    ("SPOP q+slow 9", [b"e"]),
    ("LLEN q", 0),
]
# A message that was buried and kicked keeps its offset.
KICKED: Series = [
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("PRESSURE.GROUP CREATE q g", b"OK"),
    ("LPUSH q a b", 2),
    ("PRESSURE.READ q GROUP g ann COUNT 2", [[1, b"a", 1, 0], [2, b"b", 1, 1]]),
    ("PRESSURE.BURY q+g 2 TOKEN ann", 1),
    ("PRESSURE.KICK q+g", 1),
    ("PRESSURE.READ q GROUP g ann", [[2, b"b", 2, 1]]),
    ("PRESSURE.BURY q+g 2 TOKEN ann", 1),
    ("PRESSURE.KICK q+g", 1),
    ("PRESSURE.READ q GROUP g ann", [[2, b"b", 3, 1]]),
    ("PRESSURE.ACK q+g 1 2 TOKEN ann", 2),
    ("LLEN q", 0),
]
# Readers of a closed log get the rest, and then an error.
CLOSED: Series = [
    ("PRESSURE.CREATE q TYPE LOG", b"OK"),
    ("PRESSURE.GROUP CREATE q g", b"OK"),
    ("LPUSH q a", 1),
    ("PRESSURE.CLOSE q", b"OK"),
    ("PRESSURE.READ q GROUP g ann COUNT 9 TIMEOUT 1", [[1, b"a", 1, 0]]),
    ("PRESSURE.ACK q+g 1 TOKEN ann", 1),
    ("PRESSURE.READ q GROUP g ann TIMEOUT 1", "CLOSED "),
    ("PRESSURE.GROUP CREATE q late", b"OK"),
    ("PRESSURE.READ q GROUP late ann TIMEOUT 1", "CLOSED "),
]
SCRIPTS = {
    "reading": READING, "refused": REFUSED, "seeking": SEEKING, "reading, kicked": KICKED,
    "reading, closed": CLOSED,
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_series_of_commands_has_the_documented_replies(worker: Waiter, script: Series) -> None:
    run_series(worker, script)


def log_with_groups(client: Client, *groups: str, options: tuple[str | int, ...] = ()) -> None:
    create(client, "q", "TYPE", "LOG", *options)
    for group in groups:
        client.execute_command("PRESSURE.GROUP", "CREATE", "q", group)


def described(client: Client) -> dict[bytes, Any]:
    """Return what PRESSURE.GROUP LIST says about the only group of q."""
    (only,) = client.execute_command("PRESSURE.GROUP", "LIST", "q")
    return dict(only)


def test_a_put_wakes_every_group_once(client: Client, server: Server) -> None:
    log_with_groups(client, "one", "two")
    with Waiter(server.port) as first, Waiter(server.port) as second, Waiter(server.port) as third:
        first.send("PRESSURE.READ", "q", "GROUP", "one", "ann", "TIMEOUT", 0)
        second.send("PRESSURE.READ", "q", "GROUP", "one", "bob", "TIMEOUT", 0)
        third.send("BLPOP", "q+two", 0)
        wait_for_blocked(client, 3)
        client.lpush("q", "a")
        assert third.reply() == [b"q+two", b"a"]
        assert first.reply() == [[1, b"a", 1, 0]]
        client.lpush("q", "b", "c")
        assert second.reply() == [[2, b"b", 1, 1]]
        assert client.spop("q+two", 5) == [b"b", b"c"]


def test_native_producers_and_other_servers_wake_a_group(
    backend: Valkey, start_server: StartServer, client: Client, server: Server, direct: Client
) -> None:
    other = start_server("--backend", backend.url).client()
    log_with_groups(client, "g")
    puts = (other.lpush, client.lpush, lambda _, message: NativeClient(direct, "q").put(message))
    with Waiter(server.port) as reader:
        for number, put in enumerate(puts):
            reader.send("PRESSURE.READ", "q", "GROUP", "g", "ann", "TIMEOUT", 0)
            wait_for_blocked(client, 1)
            put("q", b"message")
            assert reader.reply() == [[number + 1, b"message", 1, number]]


def test_a_group_of_a_log_that_was_closed_before_is_closed_for_native_clients(
    client: Client, direct: Client
) -> None:
    log_with_groups(client)
    client.execute_command("PRESSURE.CLOSE", "q")
    client.execute_command("PRESSURE.GROUP", "CREATE", "q", "late")
    with pytest.raises(QueueClosedError):
        NativeClient(direct, "q+late").get()


def test_a_ring_tells_a_group_what_it_missed(client: Client) -> None:
    log_with_groups(client, "g", options=("BOUND", 3, "OVERFLOW", "OVERWRITE"))
    for message in "abcdefg":
        client.lpush("q", message)
    assert described(client) == {
        b"name": b"g", b"offset": 0, b"lag": 3, b"pending": 0, b"buried": 0, b"missed": 4,
    }  # fmt: skip
    assert client.spop("q+g", 9) == [b"e", b"f", b"g"]
    assert described(client)[b"missed"] == 4


def test_a_group_into_which_nobody_can_put_is_never_full(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--default-max-bytes", "1")
    with server.client() as client:
        create(client, "q", "TYPE", "LOG", "MAX-BYTES", 0)
        client.rpush("q", "a", "b")
        client.execute_command("PRESSURE.GROUP", "CREATE", "q", "g")
        assert len(client.execute_command("PRESSURE.READ", "q", "GROUP", "g", "ann", "COUNT", 2)) == 2
        shown = about(client, "q+g")
        assert (shown[b"max_bytes"], shown[b"produced_bytes"]) == (0, 2)
    listed = run_command("queues", "q+g", "--json", "--backend", backend.url)
    assert json.loads(listed.stdout)["state"] == ""


def test_deleting_a_log_deletes_its_groups(client: Client, server: Server, direct: Client) -> None:
    log_with_groups(client, "one", "two")
    client.sadd("q", "a", "b", "c")
    client.spop("q+one", 2)
    with Waiter(server.port) as reader:
        reader.send("PRESSURE.READ", "q", "GROUP", "two", "ann", "COUNT", 9)
        assert len(reader.reply()) == 3
        reader.send("PRESSURE.READ", "q", "GROUP", "two", "ann", "TIMEOUT", 0)
        wait_for_blocked(client, 1)
        client.execute_command("PRESSURE.DELETE", "q")
        assert str(reader.reply()).startswith("NOGROUP ")
    wait_for(lambda: direct.keys("*:q*") == [], "the keys to be deleted")


def test_flags_and_expiry_of_messages_reach_the_groups(server: Server, client: Client) -> None:
    log_with_groups(client, "g")
    with Wire(MEMCACHED, server) as wire:
        for flags, expires, message in ((5, 0, b"a"), (6, -1, b"b"), (7, 0, b"c")):
            assert wire.ask(b"set q %d %d 1\r\n%b" % (flags, expires, message)) == [b"STORED"]
        expected = [b"VALUE q+g 5 1", b"a", b"END", b"VALUE q+g 7 1", b"c", b"END", b"END"]
        assert wire.ask(b"get q+g\r\n" * 2 + b"get q+g", lines=7) == expected


def test_each_of_many_equal_messages_of_a_log_has_its_own_flags(server: Server, client: Client) -> None:
    chosen = random.Random(7)
    sent = [(chosen.randrange(3), chosen.choice([-1, 0, 1000])) for _ in range(300)]
    log_with_groups(client, "g", "h")
    with Wire(MEMCACHED, server) as wire:
        requests = [b"set q %d %d 1\r\nm\r\n" % one for one in sent]
        wire.send(b"".join(requests))
        assert wire.replies(len(sent)) == [b"STORED"] * len(sent)
        left = [flags for flags, expires in sent if expires != -1]
        for group in (b"g", b"h"):
            wire.send(b"get q+%b\r\n" % group * len(left))
            expected = [b"VALUE q+%b %d 1\r\nm\r\nEND" % (group, flags) for flags in left]
            assert wire.replies(len(left)) == expected


def test_beanstalk_workers_read_a_group_as_a_tube(server: Server, client: Client) -> None:
    log_with_groups(client, "g")
    with Wire(BEANSTALK, server) as wire:
        assert wire.ask(b"watch q+g\r\nreserve") == [b"WATCHING 2"]
        client.lpush("q", "hello", "world")
        assert [wire.line(), wire.line()] == [b"RESERVED 1 5\r\n", b"hello\r\n"]
        assert wire.ask(b"release 1 0 0\r\nreserve\r\ndelete 1\r\nreserve", lines=6) == [
            b"RELEASED", b"RESERVED 1 5", b"hello", b"DELETED", b"RESERVED 2 5", b"world",
        ]  # fmt: skip


def test_consumers_of_a_group_share_its_messages(client: Client, server: Server) -> None:
    log_with_groups(client, "one", "two")

    def consume(group: str, consumer: str) -> list[bytes]:
        seen: list[bytes] = []
        with Waiter(server.port) as waiter:
            while found := waiter("PRESSURE.READ", "q", "GROUP", group, consumer, "COUNT", 7, "TIMEOUT", 1):
                seen += [message for _, message, _, _ in found]
                ids = [number for number, _, _, _ in found]
                assert waiter("PRESSURE.ACK", f"q+{group}", *ids, "TOKEN", consumer) == len(ids)
        return seen

    sent = [b"%d" % number for number in range(500)]
    with ThreadPoolExecutor(4) as threads:
        consuming = [threads.submit(consume, group, by) for group in ("one", "two") for by in ("ann", "bob")]
        for first in range(0, 500, 5):
            client.lpush("q", *sent[first : first + 5])
        ann, bob, *of_two = [one.result(TIMEOUT) for one in consuming]
    assert sorted(ann + bob, key=int) == sorted(of_two[0] + of_two[1], key=int) == sent
    assert client.llen("q") == 0
