"""Puts with a transaction id: done once, however often they are sent, and their outcome can be asked for."""

import itertools

import pytest

from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.series import Series, refusals, run_series
from tests.support.waiters import Waiter, create, wait_for_blocked

PUTTING: Series = [
    ("PRESSURE.CREATE q BOUND 4 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.OUTCOME q t1", [b"unknown", None]),
    ("PRESSURE.PUT q a TXN t1", 1),
    ("PRESSURE.PUT q a TXN t1", 1),
    ("PRESSURE.PUT q other TXN t1", 1),
    ("PRESSURE.OUTCOME q t1", [b"done", None]),
    ("PRESSURE.PUT q a TXN t2 NX", 0),
    ("SPOP q", b"a"),
    ("PRESSURE.PUT q a TXN t2 NX", 0),
    ("PRESSURE.TXN t3", b"OK"),
    ("SADD q a b c", 3),
    ("PRESSURE.TXN t3", b"OK"),
    ("SADD q a b c", 3),
    ("SADD q a b c", 0),
    ("PRESSURE.TXN t4", b"OK"),
    ("LPUSH q d e", "FULL "),
    ("LLEN q", 3),
    ("PRESSURE.OUTCOME q t4", [b"unknown", None]),
    ("SPOP q", b"a"),
    ("PRESSURE.TXN t4", b"OK"),
    ("LPUSH q d e", 4),
    ("PRESSURE.TXN t4", b"OK"),
    ("LPUSH q d e", 4),
    ("LRANGE q 0 -1", [b"b", b"c", b"d", b"e"]),
    ("PRESSURE.PUT q f TXN t4 NX", "TXN this transaction id was used for another kind of put on queue 'q'"),
    ("PRESSURE.PUT q f TXN t5 OVERWRITE", 1),
    ("PRESSURE.PUT q f TXN t5 OVERWRITE", 1),
    ("LRANGE q 0 -1", [b"c", b"d", b"e", b"f"]),
    ("PRESSURE.CLOSE q", b"OK"),
    ("PRESSURE.PUT q f TXN t5 OVERWRITE", 1),
    ("PRESSURE.PUT q g TXN t6", "CLOSED "),
    ("PRESSURE.OUTCOME q t6", [b"unknown", None]),
]
OTHER_TYPES: Series = [
    ("PRESSURE.CREATE log TYPE LOG", b"OK"),
    ("PRESSURE.PUT log a TXN t1 OFFSET", 0),
    ("PRESSURE.PUT log b", 1),
    ("PRESSURE.PUT log a TXN t1 OFFSET", 0),
    ("PRESSURE.TXN t2", b"OK"),
    ("SADD log b c d", 2),
    ("PRESSURE.OUTCOME log t2", [b"done", 2]),
    ("PRESSURE.CREATE jobs TYPE JOBS", b"OK"),
    ("PRESSURE.PUT jobs a TXN t1 PRIORITY 5", 1),
    ("PRESSURE.PUT jobs a TXN t1 PRIORITY 5", 1),
    ("PRESSURE.PUT jobs b TXN t2 PRIORITY 5", 2),
    ("PRESSURE.OUTCOME jobs t2", [b"done", None]),
    ("LLEN jobs", 2),
    ("PRESSURE.TXN new", b"OK"),
    ("SADD new a", 1),
    ("PRESSURE.OUTCOME new new", [b"done", None]),
    ("MULTI", b"OK"),
    ("PRESSURE.TXN m", b"QUEUED"),
    ("LPUSH new b", b"QUEUED"),
    ("PRESSURE.TXN m", b"QUEUED"),
    ("LPUSH new b", b"QUEUED"),
    ("EXEC", [b"OK", 2, b"OK", 2]),
    ("LLEN new", 2),
    ("PRESSURE.TXN r", b"OK"),
    ("RESET", b"RESET"),
    ("LPUSH new c", 3),
    ("PRESSURE.OUTCOME new r", [b"unknown", None]),
]
REFUSED: Series = [
    *refusals("ERR a token must", "TXN", "''", "x" * 129, "\x00"),
    ("PRESSURE.CREATE q", b"OK"),
    *refusals("ERR a token must", "PUT q m TXN", "''", "x" * 129),
    *refusals("ERR a token must", "OUTCOME q", "''"),
    *refusals("ERR syntax error", "PUT q m TXN", "", "a TXN b"),
    ("PRESSURE.OUTCOME none t", "NOQUEUE "),
    ("LLEN q", 0),
]


@pytest.mark.parametrize("script", [PUTTING, OTHER_TYPES, REFUSED], ids=["putting", "types", "refused"])
def test_a_series_of_commands_has_the_documented_replies(worker: Waiter, script: Series) -> None:
    run_series(worker, script)


def test_a_put_that_waits_is_done_once_and_whole(client: Client, server: Server) -> None:
    create(client, "q", "BOUND", 3, "OVERFLOW", "BLOCK")
    client.lpush("q", "a", "b")
    with Waiter(server.port) as first, Waiter(server.port) as second:
        for waiter in (first, second):
            assert waiter("PRESSURE.TXN", "t") == b"OK"
            waiter.send("LPUSH", "q", "c", "d")
        wait_for_blocked(client, 2)
        assert client.llen("q") == 2
        assert client.spop("q") == b"a"
        assert [waiter.reply() for waiter in (first, second)] == [3, 3]
    assert client.lrange("q", 0, -1) == [b"b", b"c", b"d"]
    with Waiter(server.port) as third:
        third("PRESSURE.TXN", "large")
        assert str(third("LPUSH", "q", *"efgh")).startswith("FULL ")


@pytest.mark.parametrize("option", ["", "TIMEOUT 0"])
def test_a_put_that_was_done_is_answered_at_once_although_others_wait_for_room(
    client: Client, server: Server, option: str
) -> None:
    create(client, "q", "BOUND", 1, "OVERFLOW", "BLOCK")
    done = ("PRESSURE.PUT", "q", "a", "TXN", "t", *option.split())
    with Waiter(server.port) as first, Waiter(server.port) as second:
        assert first(*done) == 1
        first.send("PRESSURE.PUT", "q", "b", *option.split())
        wait_for_blocked(client, 1)
        assert second(*done) == 1
        # A new one waits after the first, as does a later command of the first client.
        second.send("PRESSURE.PUT", "q", "c", "TXN", "new", *option.split())
        wait_for_blocked(client, 2)
        first.send(*done)
        assert [client.blpop("q", 60)[1] for _ in range(3)] == [b"a", b"b", b"c"]
        assert [first.reply(), first.reply(), second.reply()] == [1, 1, 1]
    assert client.llen("q") == 0


def test_a_put_behind_another_kind_of_put_keeps_its_id(client: Client, server: Server) -> None:
    create(client, "q", "BOUND", 2, "OVERFLOW", "BLOCK")
    lines = "PRESSURE.TXN a|LPUSH q 1|PRESSURE.TXN b|SADD q 2|PRESSURE.TXN c|LPUSH q 3"
    with Waiter(server.port) as waiter:
        for line in lines.split("|"):
            waiter.send(*line.split())
        wait_for_blocked(client, 1)
        assert client.spop("q") == b"1"
        assert [waiter.reply() for _ in range(6)] == [b"OK", 1, b"OK", 1, b"OK", 2]
        assert [waiter("PRESSURE.OUTCOME", "q", one)[0] for one in "abc"] == [b"done"] * 3


def test_old_outcomes_are_forgotten(backend: Valkey, start_server: StartServer) -> None:
    client = start_server("--backend", backend.url, "--max-outcomes", "10", "--outcome-ttl", "1").client()
    create(client, "q")

    def outcome(number: int) -> list[object]:
        found: list[object] = client.execute_command("PRESSURE.OUTCOME", "q", f"t{number}")
        return found

    for number in range(25):
        client.execute_command("PRESSURE.PUT", "q", "m", "TXN", f"t{number}")
    assert [outcome(number)[0] for number in (14, 15, 24)] == [b"forgotten", b"done", b"done"]
    assert outcome(99) == [b"forgotten", 0]

    numbers = itertools.count()

    def forgets_by_time() -> bool:
        client.execute_command("PRESSURE.PUT", "r", "m", "TXN", f"t{next(numbers)}")
        return bool(client.execute_command("PRESSURE.OUTCOME", "r", "t0")[0] == b"forgotten")

    client = start_server("--backend", backend.url, "--outcome-ttl", "1").client()
    create(client, "r")
    wait_for(forgets_by_time, "the outcomes to be a second old")
    length = client.llen("r")
    assert client.execute_command("PRESSURE.PUT", "r", "m", "TXN", "t0") == 1
    assert client.llen("r") == length + 1
