"""Durability levels: replies wait for confirmations, and a backend that cannot confirm is refused."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from pressure_server.backend.durability import Level
from pressure_server.errors import BackendRefusedError
from tests.support.backend_relay import BackendRelay
from tests.support.crowd import Crowd
from tests.support.faults import stopped
from tests.support.programs import (
    Client,
    Replicated,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    embedded_client,
    refused_start,
    start_replicated,
    wait_for,
    wait_until_settled,
)
from tests.support.requirements import need
from tests.support.waiters import (
    Waiter,
    Words,
    create,
    is_refused,
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
SYNCS_ALWAYS = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}
BASE = "__pressure__:q"


_REPLICA, _FSYNC = Level(replicas=1), Level(fsync=True)
_LEVELS = {
    "none": Level(), "fsync": _FSYNC, "replica": _REPLICA, "replica:1": _REPLICA,
    "replica:100": Level(replicas=100),
}  # fmt: skip
_NO_LEVELS = ",None,replica:,replica:0,replica:101,replica:-1,replica:²,fsync:1,none:1"


@pytest.mark.parametrize(("text", "level"), _LEVELS.items())
def test_a_level_is_parsed(text: str, level: Level) -> None:
    assert Level.parse(text) == level
    assert Level.parse(str(level)) == level


@pytest.mark.parametrize("text", _NO_LEVELS.split(","))
def test_an_unknown_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be none, replica"):
        Level.parse(text)


def test_the_level_decides_the_confirming_command() -> None:
    assert Level().wait_for({}, replicas=2) is None
    assert Level(replicas=2).wait_for({}, replicas=2) == (b"WAIT", b"2")
    assert _FSYNC.wait_for(SYNCS_ALWAYS, replicas=2) is None


@pytest.mark.parametrize(
    ("level", "config", "why"),
    [
        (Level(replicas=3), {}, "needs 3 connected replicas; the backend has 2"),
        (_FSYNC, {b"appendonly": b"no"}, "`appendonly yes` in the backend, which has `no`"),
        (_FSYNC, {b"appendfsync": b"no"}, "`appendfsync always` in the backend, which has `no`"),
        (_FSYNC, {b"appendfsync": b"everysec"}, "which has `everysec`"),
        (_FSYNC, {b"no-appendfsync-on-rewrite": b"yes"}, "`no-appendfsync-on-rewrite no` .* has `yes`"),
        (_FSYNC, {}, "which refuses CONFIG GET, so its settings are unknown"),
    ],
)
def test_a_backend_that_cannot_confirm_is_refused_with_the_reason(
    level: Level, config: dict[bytes, bytes], why: str
) -> None:
    with pytest.raises(BackendRefusedError, match=why):
        level.wait_for({**SYNCS_ALWAYS, **config} if config else {}, replicas=2)


def durable(start_server: StartServer, url: str, level: str, *options: str) -> Server:
    return start_server("--backend", url, "--durability", level, *options)


def calls_of(direct: Client, command: str) -> int:
    """Return how often the backend has received that command."""
    return int(direct.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize("command", ["-eval", "-wait"])
def test_a_server_does_not_start_if_it_may_not_ask_for_a_confirmation(
    start_valkey: StartValkey, command: str
) -> None:
    backend = start_replicated(start_valkey).main
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", command)
    refused = refused_start("--backend", backend.url, "--durability", "replica")
    assert "durability replica:1 is not available: the backend answered" in refused


@pytest.mark.clients
@pytest.mark.parametrize("is_redis", [False, True], ids=["Valkey", "Redis 7.0"])
def test_fsync_needs_a_backend_that_syncs_every_write(
    tmp_path: Path, start_server: StartServer, is_redis: bool
) -> None:
    binary = need("redis-server", "redis-server") if is_redis else None
    backend = Valkey(tmp_path, "--appendonly", "yes", "--appendfsync", "everysec", binary=binary)
    why = "needs `appendfsync always` in the backend, which has `everysec`"
    try:
        assert why in refused_start("--backend", backend.url, "--durability", "fsync")
        with backend.client() as direct:
            direct.config_set("appendfsync", "always")
        with durable(start_server, backend.url, "fsync").client() as client:
            assert client.sadd("q", "a") == 1
    finally:
        backend.stop()


@pytest.mark.parametrize(("level", "policy"), [("fsync", "always"), ("none", "everysec")])
def test_the_embedded_backend_syncs_every_write_with_durability_fsync(
    start_server: StartServer, tmp_path: Path, level: str, policy: str
) -> None:
    server = start_server("--data-dir", str(tmp_path / "data"), "--durability", level)
    with server.client() as client, embedded_client(tmp_path / "data") as direct:
        assert client.sadd("q", "a") == 1
        assert direct.config_get("appendfsync") == {"appendfsync": policy}


@pytest.mark.parametrize(
    "grace", ["60", pytest.param("0.2", marks=pytest.mark.slow)], ids=["held", "failed after the grace"]
)
def test_a_put_that_the_backend_does_not_sync_is_held_for_the_grace(
    start_valkey: StartValkey, start_server: StartServer, grace: str
) -> None:
    backend = start_valkey(*ALWAYS)
    server = durable(start_server, backend.url, "fsync", "--backend-grace", grace)
    why = "needs `appendfsync always` in the backend, which has `everysec`"
    again = "the backend confirms durability fsync again"
    with Waiter(server.port) as waiting, backend.client() as direct:
        assert waiting("LPUSH", "q", "a") == 1
        direct.config_set("appendfsync", "everysec")
        wait_for(lambda: why in server.log, "the change to be noticed")
        waiting.send("LPUSH", "q", "unsafe")
        wait_for(lambda: direct.llen(BASE) == 2, "the put")
        if grace == "60":
            assert not waiting.has_reply()
        else:
            assert "not known to be safe" in str(waiting.reply())
        direct.config_set("appendfsync", "always")
        if grace == "60":
            assert waiting.reply() == 2
        wait_for(lambda: again in server.log, "the return")
        assert waiting("LPUSH", "q", "safe") == 3
    assert server.log.count(why) == server.log.count(again) == 1


def test_without_durability_no_confirmation_is_asked_for(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey()
    with start_server("--backend", backend.url).client() as client, backend.client() as direct:
        wait_for(lambda: any("t" in about["flags"] for about in direct.client_list()), "the watch")
        assert client.sadd("q", "a") == 1
        assert client.spop("q") == b"a"
        assert calls_of(direct, "wait") == 0
        assert not direct.exists("__pressure__!durability")
        # The two connections of a database: one for calls, and the watch.
        assert sum("pressure" in about["name"] for about in direct.client_list()) == 2


def test_a_put_is_not_safe_if_the_backend_has_lost_its_first_part(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_replicated(start_valkey).main
    server = durable(start_server, backend.url, "replica")
    with server.client() as client, Waiter(server.port) as waiter, backend.client() as direct:
        create(client, "q", "BOUND", 1)
        direct.save()
        waiter.send("RPUSH", "q", "lost", "kept")
        wait_for_waiting(client, "q", producers=1)
        backend.kill()
        backend.start()
        assert "the backend has restarted since" in str(waiter.reply())
        assert client.lrange("q", 0, -1) == [b"kept"]


def is_confirmation(data: bytes) -> bool:
    """Return whether bytes from the backend are a reply to WAIT, maybe after the one to the write."""
    return re.fullmatch(rb"(\$-1\r\n|_\r\n)?:1\r\n", data) is not None


PREPARED: list[Words] = [("SADD", "q", "old"), ("SADD", "other", "x"), ("PRESSURE.CREATE", "empty")]
CHANGES: dict[str, tuple[list[Words], list[object]]] = {
    "a put": ([("SADD", "q", "m")], [1]),
    "a plain put": ([("LPUSH", "q", "m")], [2]),
    "a get": ([("SPOP", "q")], [b"old"]),
    "a removal": ([("SREM", "q", "old")], [1]),
    "a move of a message": ([("SMOVE", "q", "other", "old")], [1]),
    "a move": ([("LMOVE", "q", "other", "RIGHT", "LEFT")], [b"old"]),
    "a creation": ([("PRESSURE.CREATE", "new")], [b"OK"]),
    "a deletion": ([("DEL", "q")], [1]),
    "a transaction": (
        [("MULTI",), ("SADD", "q", "m"), ("SPOP", "other"), ("EXEC",)],
        [b"OK", b"QUEUED", b"QUEUED", [1, b"x"]],
    ),
}


class Held(NamedTuple):
    """A server whose backend confirms a change only while its replica runs."""

    backend: Valkey
    replica: Valkey
    relay: BackendRelay
    server: Server


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """Start a backend with a replica, a relay before it, and a server."""
    main, replica = start_replicated(lambda *options: Valkey(tmp_path_factory.mktemp("held"), *options))
    with BackendRelay(main.socket) as relay:
        server = Server(main.folder / "log", "--backend", relay.url, "--durability", "replica")
        yield Held(main, replica, relay, server)
        server.end_well()
    for backend in (replica, main):
        backend.stop()


@pytest.mark.parametrize("change", CHANGES)
def test_no_reply_comes_before_the_backend_has_confirmed_the_change(held: Held, change: str) -> None:
    words, replies = CHANGES[change]
    server = held.server
    with server.client() as client, Waiter(server.port) as waiting, held.backend.client() as direct:
        client.flushall()
        for prepared in PREPARED:
            client.execute_command(*prepared)
        before = state(direct)
        with stopped(held.replica.process):
            for command in words:
                waiting.send(*command)
            wait_for(lambda: state(direct) != before, "the backend to make the change")
            assert client.scard("other") in (0, 1, 2)  # questions need no confirmation
            assert [waiting.reply() for _ in words[:-1]] == replies[:-1]
            assert not waiting.has_reply()
        assert waiting.reply() == replies[-1]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (("PRESSURE.OUTCOME", "log", "t1"), [b"done", 0]),
        (("PRESSURE.AT", "log", 0), b"m"),
        (("PRESSURE.AT", "log", 0, "COUNT", 5), [b"m"]),
    ],
)
def test_what_clients_act_on_for_good_is_told_when_it_is_confirmed(
    held: Held, question: Words, answer: object
) -> None:
    """A failover that loses the put must find a producer that puts again, and a reader that reads again."""
    server = held.server
    with (
        server.client() as client,
        waiters(server, 3) as (putting, asking, executing),
        held.backend.client() as direct,
    ):
        client.flushall()
        create(client, "log", "TYPE", "LOG")
        before = state(direct)
        with stopped(held.replica.process):
            putting.send("PRESSURE.PUT", "log", "m", "TXN", "t1")
            # Not a question to the server: it might share the call of the put, which is not confirmed.
            wait_for(lambda: state(direct) != before, "the backend to make the change")
            before_asking = calls(direct)
            asking.send(*question)
            assert [executing("MULTI"), executing(*question)] == [b"OK", b"QUEUED"]
            executing.send("EXEC")
            wait_for(lambda: calls(direct) >= before_asking + 2, "the backend to answer")
            assert client.ping()  # the server has received the answers
            assert not any(waiting.has_reply() for waiting in (putting, asking, executing))
        assert [putting.reply(), asking.reply(), executing.reply()] == [1, answer, [answer]]


def calls(direct: Client) -> int:
    """Return how many calls the backend has done."""
    return sum(one["calls"] for name, one in direct.info("commandstats").items() if "fcall" in name)


def state(direct: Client) -> dict[bytes, object]:
    """Return the keys of all queues with their values."""
    keys = sorted(key for key in direct.keys("__pressure__:*") if b":ext:" not in key)
    return {
        key: direct.lrange(key, 0, -1) if direct.type(key) == b"list" else direct.get(key) for key in keys
    }


def test_a_waiting_client_gets_its_message_after_the_confirmation(held: Held) -> None:
    server = held.server
    with (
        server.client() as client,
        Waiter(server.port) as waiting,
        Waiter(server.port) as putting,
        held.backend.client() as direct,
    ):
        client.flushall()
        create(client, "q")
        waiting.send("BLPOP", "q", 0)
        wait_for_blocked(client, 1)
        with stopped(held.replica.process):
            putting.send("SADD", "q", "m")
            consumed = f"{BASE}:stats:consumed_messages"
            wait_for(lambda: direct.get(consumed) == b"1", "the message to be taken")
            assert client.scard("q") == 0
            assert not waiting.has_reply()
            assert not putting.has_reply()
        assert waiting.reply() == [b"q", b"m"]
        assert putting.reply() == 1


def test_a_lost_confirmation_is_asked_for_again(held: Held) -> None:
    relay = held.relay
    with held.server.client() as client:
        client.flushall()
        relay.cuts = lambda data: is_confirmation(data) and relay.made < 3
        assert client.sadd("q", "m") == 1
        assert relay.made == 3


@pytest.fixture
def replicated(start_valkey: StartValkey) -> Replicated:
    return start_replicated(start_valkey)


@pytest.mark.slow
def test_a_change_that_no_replica_confirms_in_time_is_an_error_and_its_messages_go_back(
    replicated: Replicated, start_server: StartServer
) -> None:
    server = durable(start_server, replicated.main.url, "replica", "--backend-timeout", "1")
    late = "no confirmation within 0.8 seconds"
    why = f"this has been done, but is not known to be safe (durability replica:1): {late}"
    with server.client() as client, Waiter(server.port) as waiting, replicated.main.client() as direct:
        assert client.sadd("q", "a", "b") == 2
        with stopped(replicated.replica.process):
            for words in (("SPOP", "q"), ("LPUSH", "q", "c"), ("SPOP", "q")):
                assert str(waiting(*words)) == f"BACKEND {why}"
            assert [waiting("MULTI"), waiting("SPOP", "q")] == [b"OK", b"QUEUED"]
            assert why in str(waiting("EXEC"))
            assert is_refused(waiting("PRESSURE.OUTCOME", "q", "t1"), "BACKEND")
            assert [waiting("MULTI"), waiting("PRESSURE.OUTCOME", "q", "t1")] == [b"OK", b"QUEUED"]
            assert str(waiting("EXEC")).endswith("did not confirm its answer: ask again")
            # What goes back need not be confirmed.
            wait_for(lambda: client.scard("q") == 3, "the messages to be back")
            wait_until_settled(direct)
        assert client.spop("q", 3) == [b"a", b"b", b"c"]
    assert server.log.count(f"the backend does not confirm durability replica:1: {late}") == 1
    assert server.log.count("the backend confirms durability replica:1 again") == 1
    assert server.log.count("WARNING") == 1
    assert "ERROR" not in server.log


@pytest.mark.slow
def test_a_lost_replica_is_logged_once_and_so_is_its_return(
    replicated: Replicated, start_server: StartServer
) -> None:
    server = durable(
        start_server, replicated.main.url, "replica", "--backend-timeout", "1", "--backend-grace", "0.5"
    )
    with Waiter(server.port) as waiting, replicated.main.client() as direct:
        assert waiting("SADD", "q", "a") == 1
        replicated.replica.kill()
        for number in range(5):
            assert is_refused(waiting("SADD", "q", number), "BACKEND")
        # The server connects again, and looks at the replicas again.
        for connection in [about["id"] for about in direct.client_list() if about["cmd"] == "wait"]:
            direct.execute_command("CLIENT", "KILL", "ID", connection)
        for number in range(5):
            assert is_refused(waiting("SADD", "q", number), "BACKEND")
        replicated.replica.start()
        wait_for(lambda: not is_refused(waiting("LPUSH", "q", "z"), "BACKEND"), "the replica")
    # On a busy machine a new replica may be late once more.
    again = server.log.count("the backend confirms durability")
    assert again in (1, 2)
    assert server.log.count("no confirmation within") == again
    assert server.log.count("WARNING") <= 1 + again


def test_one_wait_confirms_the_changes_of_many_clients(
    replicated: Replicated, start_server: StartServer
) -> None:
    """All clients put while the replica is stopped: one WAIT is in flight, and the next is for the rest."""
    server = durable(start_server, replicated.main.url, "replica")
    clients, each = 50, 20
    with waiters(server, clients) as waiting, replicated.main.client() as direct:
        before = calls_of(direct, "wait")
        for message in range(1, each + 1):
            with stopped(replicated.replica.process):
                for number, waiter in enumerate(waiting):
                    waiter.send("SADD", "q", f"{number}-{message}")
                wait_for(partial(has_length, direct, message * clients), "the puts")
                assert not any(waiter.has_reply() for waiter in waiting)
            assert [waiter.reply() for waiter in waiting] == [1] * clients
        waits, scripts = calls_of(direct, "wait") - before, calls_of(direct, "fcall")
    print(f"{clients * each} puts by {clients} clients: {scripts} calls, {waits} waits")
    assert 0 < waits <= clients * each / 5


def has_length(direct: Client, length: int) -> bool:
    return bool(direct.llen(BASE) == length)


@pytest.mark.slow
def test_an_acknowledged_message_survives_a_kill_of_the_backend(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*ALWAYS)
    server = durable(start_server, backend.url, "fsync")
    with Crowd(server, clients=20, takes=False) as writers:
        for _ in range(5):
            writers.wait_for_success()
            backend.kill()
            backend.start()
    writers.assert_nothing_lost()
    assert writers.errors_of("not known to be safe") == writers.errors.total(), writers.errors


def test_messages_can_be_taken_when_the_backend_is_out_of_memory(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*ALWAYS)
    server = durable(start_server, backend.url, "fsync")
    with server.client() as client, backend.client() as direct:
        assert client.sadd("q", "a", "b", "c") == 3
        direct.config_set("maxmemory", 1)
        assert client.spop("q") == b"a"
        # Confirmations need no key, and no open connection.
        direct.delete("__pressure__!durability")
        assert client.spop("q") == b"b"
        direct.client_kill_filter(_type="normal", skipme=True)
        direct.delete("__pressure__!durability")
        assert client.spop("q") == b"c"
        with pytest.raises(redis.ResponseError, match=r"^BACKEND .*OOM"):
            client.sadd("q", "d")
        direct.config_set("maxmemory", 0)
        assert client.sadd("q", "d") == 1
    assert "durability" not in server.log
