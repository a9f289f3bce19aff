"""LTRIM, LREM, LPOS and the STORE commands of sets, beside Redis; PRESSURE.PURGE."""

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.programs import Client, Server, StartServer, Valkey, join
from tests.support.protocols import LISTEN, MEMCACHED, Wire
from tests.support.requirements import need
from tests.support.scripts import Block, call
from tests.support.series import Series, refusals, run_series
from tests.support.side_by_side import Pair, compare, split
from tests.support.waiters import Waiter

MESSAGES = ("a", "b", "c", "dd")

PURGING: Series = [
    ("PRESSURE.PURGE none", "NOQUEUE "),
    ("PRESSURE.CREATE q TYPE JOBS", b"OK"),
    ("LPUSH q a b c d e", 5),
    ("PRESSURE.PUT q later DELAY 100", 6),
    ("PRESSURE.RESERVE q", [b"q", 1, b"a", 1]),
    ("PRESSURE.RESERVE q", [b"q", 2, b"b", 1]),
    ("PRESSURE.BURY q 2", 1),
    ("PRESSURE.PURGE q DELAYED", 1),
    ("PRESSURE.PURGE q RESERVED", 1),
    ("PRESSURE.ACK q 1", 0),
    ("LLEN q", 3),
    ("PRESSURE.PURGE q", 4),
    ("PRESSURE.PURGE q READY DELAYED RESERVED BURIED", 0),
    ("LPUSH list a b c", 3),
    ("PRESSURE.RESERVE list", [b"list", 65, b"a", 1]),
    ("PRESSURE.PURGE list BURIED", 0),
    ("PRESSURE.PURGE list", 2),
    ("PRESSURE.PURGE list RESERVED", 1),
    ("PRESSURE.CREATE log TYPE LOG", b"OK"),
    ("LPUSH log a b c", 3),
    ("PRESSURE.GROUP CREATE log g", b"OK"),
    ("PRESSURE.PURGE log+g", 3),
    ("SPOP log+g", None),
    ("LLEN log", 0),
    ("LPUSH log d", 1),
    ("SPOP log+g", b"d"),
    ("MULTI", b"OK"),
    ("LPUSH log x y", b"QUEUED"),
    ("PRESSURE.PURGE log", b"QUEUED"),
    ("EXEC", [2, 2]),
    *refusals("ERR syntax error", "PURGE q", "KICKED", "READY READY"),
]
REFUSED: Series = [
    ("PRESSURE.CREATE log TYPE LOG", b"OK"),
    ("RPUSH log a b c d", 4),
    ("LREM log 0 b", "TYPE queue 'log' is a log: nothing leaves it from the middle"),
    ("LTRIM log 0 1", "TYPE "),
    ("LTRIM log 2 -1", b"OK"),
    ("PRESSURE.AT log 0 COUNT 4", [None, None, b"c", b"d"]),
    ("PRESSURE.CREATE jobs TYPE JOBS", b"OK"),
    ("RPUSH jobs a b a c", 4),
    ("LPOS jobs a", "TYPE queue 'jobs' is not a plain list: positions in it change by themselves"),
    ("LREM jobs -1 a", 1),
    ("LRANGE jobs 0 -1", [b"a", b"b", b"c"]),
    ("LTRIM jobs 1 1", b"OK"),
    ("LRANGE jobs 0 -1", [b"b"]),
    ("PRESSURE.CREATE full BOUND 1 OVERFLOW ERROR", b"OK"),
    ("SADD full old", 1),
    ("SADD two a b", 2),
    ("SUNIONSTORE full two", "FULL "),
    ("SMEMBERS full", [b"old"]),
    ("PRESSURE.CLOSE full", b"OK"),
    ("SINTERSTORE full two full", "CLOSED "),
    ("SMEMBERS full", [b"old"]),
    ("PRESSURE.CREATE delayed TYPE JOBS BOUND 3 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.PUT delayed later DELAY 1000", 65),
    ("PRESSURE.PUT delayed keep PRIORITY 1", 66),
    ("SUNIONSTORE delayed two", 2),
    ("SMEMBERS delayed", [b"a", b"b", b"later"]),
    ("SUNIONSTORE delayed two one", 2),
    ("SADD one c", 1),
    ("SUNIONSTORE delayed two one", "FULL "),
    ("SMEMBERS delayed", [b"a", b"b", b"later"]),
    ("PRESSURE.GROUP CREATE log g FROM HEAD", b"OK"),
    ("SUNIONSTORE log+g two", "TYPE queue 'log+g' belongs to a group"),
    ("LRANGE log+g 0 -1", [b"c", b"d"]),
]


@pytest.mark.parametrize("script", [PURGING, REFUSED], ids=["purging", "refused"])
def test_a_series_of_commands_has_the_documented_replies(waiter: Waiter, script: Series) -> None:
    run_series(waiter, script)


def random_line(chance: random.Random) -> str:
    message, position = chance.choice(MESSAGES), chance.randint(-9, 9)
    return chance.choice(
        [
            "RPUSH q " + " ".join(chance.choices(MESSAGES, k=chance.randint(1, 6))),
            f"LTRIM q {position} {chance.randint(-9, 9)}",
            f"LREM q {chance.randint(-3, 3)} {message}",
            f"LPOS q {message}",
            f"LPOS q {message} COUNT {chance.randint(0, 3)}",
            f"LPOS q {message} RANK {chance.choice([-2, -1, 1, 2])} COUNT 0",
            f"LPOS q {message} COUNT 0 MAXLEN {chance.randint(0, 5)}",
            f"SISMEMBER q2 {message}",
            *(
                "LPOS q a RANK 0",
                "LPOS q a COUNT -1",
                "LPOS q a MAXLEN x",
                "LPOS q a MAXLEN -1",
                "LREM q x a",
            ),
        ]
    )


@pytest.mark.parametrize("first", [1, 5, 700, 1000])
def test_a_group_is_trimmed_at_its_head(client: Client, first: int) -> None:
    client.execute_command("PRESSURE.CREATE", "log", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    client.rpush("log", *range(1000))
    assert client.ltrim("log+g", first, -1)
    assert client.llen("log+g") == 1000 - first
    left = [b"%d" % number for number in range(first, 1000)]
    assert client.lrange("log+g", 0, -1) == left
    for message in left[:2]:
        assert client.execute_command("PRESSURE.RESERVE", "log+g")[2] == message


@pytest.mark.parametrize(("first", "last"), [(-100, -1), (2300, -1), (0, 99), (1200, -1200), (5000, 6000)])
@pytest.mark.parametrize("is_transaction", [False, True])
def test_many_jobs_are_trimmed(client: Client, first: int, last: int, is_transaction: bool) -> None:
    client.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    for start in range(0, 2500, 500):
        client.rpush("jobs", *range(start, start + 500))
    with client.pipeline(transaction=is_transaction) as pipeline:
        assert pipeline.ltrim("jobs", first, last).execute() == [True]
    left = [b"%d" % number for number in range(2500)][first : last + 1 or None]
    assert client.lrange("jobs", 0, -1) == left


@pytest.mark.parametrize("seed", range(8))
def test_lists_are_trimmed_as_in_redis(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    lines = [line for _ in range(150) for line in (random_line(chance), "LRANGE q 0 -1", "LLEN q")]
    compare(pair, ["RPUSH q a", *lines], 2)


STORING = """
SADD a 1 2 3 4 | SADD b 3 4 5 | SINTERSTORE d a b | SMEMBERS d | SUNIONSTORE d a b none | SMEMBERS d
SDIFFSTORE d a b | SMEMBERS d | SINTERSTORE a a b | SMEMBERS a | SDIFFSTORE none2 b b | SMEMBERS none2
SINTERSTORE d | SINTERSTORE | SUNIONSTORE d none | SCARD d | SDIFFSTORE d none a | SCARD d
SUNIONSTORE e b b | SCARD e
"""


@pytest.mark.parametrize("protocol", [2, 3])
def test_results_of_set_algebra_are_stored_as_in_redis(pair: Pair, protocol: int) -> None:
    compare(pair, split(STORING), protocol, unordered=True)


def test_stored_results_are_those_of_one_moment_while_queues_change(client: Client, server: Server) -> None:
    client.sadd("a", "there")
    done = threading.Event()

    def change() -> None:
        with server.client() as other:
            for number in itertools.count():
                if done.is_set():
                    return
                other.sadd("a", number)
                other.srem("a", number)

    counts: list[int] = []
    refused: set[str] = set()
    changing = threading.Thread(target=change)
    changing.start()
    try:
        while len(counts) < 50:
            try:
                counts.append(client.sunionstore("d", ["a", "a"]))
            except redis.ResponseError as error:
                refused.add(str(error))
            found = client.smembers("d")
            assert not counts or len(found) == counts[-1]
    finally:
        done.set()
        join(changing)
    assert set(counts) <= {1, 2}
    assert all("change too often" in text for text in refused)


def test_marks_of_the_newest_messages_go_with_them(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, *LISTEN)
    client = server.client()
    with Wire(MEMCACHED, server) as wire:
        for flags in (1, 5, 2, 3):
            assert wire.ask(b"set q %d 0 1\r\nm" % flags) == [b"STORED"]
        assert client.ltrim("q", 0, 2)
        client.rpush("q", "m")
        assert wire.ask(b"get q", lines=3) == [b"VALUE q 1 1", b"m", b"END"]
        assert client.lrem("q", 1, "m") == 1
        assert wire.ask(b"get q", lines=3) == [b"VALUE q 2 1", b"m", b"END"]
        assert wire.ask(b"get q", lines=3) == [b"VALUE q 0 1", b"m", b"END"]
        assert wire.ask(b"set q 4 0 1\r\nm") == [b"STORED"]
        assert client.lrem("q", 0, "m") == 1


@pytest.fixture(params=["Valkey", "Redis"])
def engine_client(
    request: pytest.FixtureRequest, tmp_path: Path, start_server: StartServer
) -> Iterator[Client]:
    """redis-py, connected to a server on that engine. Redis 7.0 reads numbers of scripts in another way."""
    binary = need("redis-server", "redis-server") if request.param == "Redis" else None
    (tmp_path / "engine").mkdir()
    backend = Valkey(tmp_path / "engine", binary=binary)
    try:
        with start_server("--backend", backend.url).client() as connected:
            yield connected
    finally:
        backend.stop()


@pytest.mark.parametrize("kind", ["fifo", "jobs"])
def test_copies_are_removed_on_each_engine(engine_client: Client, kind: str) -> None:
    client = engine_client
    client.execute_command("PRESSURE.CREATE", "q", "TYPE", kind)
    for count in (0, 1, -1, 2, -2, 3, -3, 9):
        client.execute_command("PRESSURE.PURGE", "q")
        messages = ["a", "x", "b", "x", "c", "x", "d"]
        client.rpush("q", *messages)
        places = [place for place, message in enumerate(messages) if message == "x"]
        gone = places if count == 0 else places[:count] if count > 0 else places[count:]
        assert client.lrem("q", count, "x") == len(gone), count
        assert client.lrange("q", 0, -1) == [
            message.encode() for place, message in enumerate(messages) if place not in gone
        ]
        assert client.lrem("q", count, "no") == 0
    if kind == "fifo":
        assert client.execute_command("LPOS", "q", "b", "RANK", -1) == 1


@pytest.mark.parametrize(("wanted", "removed"), [("0", 4_100), ("-4050", 4_050)])
def test_thousands_of_copies_of_a_job_are_removed(direct: Client, wanted: str, removed: int) -> None:
    """In a transaction at once. Lua passes some 8 000 values to one command at most, and a job has two."""
    base = "__pressure__:q"
    call(direct, Block([base], [("create", "0", "", "", "type", "jobs")]))
    call(direct, Block([base], [("put", "", *["x"] * 4_100), ("put", "", "y")]))
    ((_, found),) = call(direct, Block([base], [("on", base), ("remove_copies", wanted, "x")]))
    assert found == [removed]
    ((_, length, last),) = call(direct, Block([base], [("length",), ("range", "-1", "-1")]))
    assert (length, last) == (4_101 - removed, [b"y"])


def test_empty_messages_go_back_on_each_engine(engine_client: Client) -> None:
    """The number of their bytes would be -0 for Redis 7.0."""
    client = engine_client
    client.rpush("q", "", "")
    job = client.execute_command("PRESSURE.RESERVE", "q", "DETACHED", "t")[1]
    assert client.execute_command("PRESSURE.RELEASE", "q", job, "TOKEN", "t") == 1
    assert client.lrange("q", 0, -1) == [b"", b""]
    assert client.execute_command("PRESSURE.INFO", "q")
