"""Durability levels: replies wait for confirmations, and a backend that cannot confirm is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

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
)
from tests.support.requirements import need
from tests.support.waiters import Waiter, Words, create, is_refused, wait_for_blocked, waiters

EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec")
ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
SETTINGS = {b"appendonly": b"yes", b"appendfsync": b"everysec", b"no-appendfsync-on-rewrite": b"no"}
SYNCS_ALWAYS = {**SETTINGS, b"appendfsync": b"always"}
WAITAOF = (b"WAITAOF", b"1", b"0")
BASE = "__pressure__:q"


# ---------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("none", Level()),
        ("fsync", Level(fsync=True)),
        ("replica", Level(replicas=1)),
        ("replica:1", Level(replicas=1)),
        ("replica:100", Level(replicas=100)),
    ],
)
def test_a_level_is_parsed(text: str, level: Level) -> None:
    assert Level.parse(text) == level
    assert Level.parse(str(level)) == level


@pytest.mark.parametrize(
    "text",
    ["", "None", "replica:", "replica:0", "replica:101", "replica:-1", "replica:²", "fsync:1", "none:1"],
)
def test_an_unknown_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be none, replica"):
        Level.parse(text)


@pytest.mark.parametrize(
    ("level", "config", "has_waitaof", "command"),
    [
        (Level(), {**SETTINGS, b"appendonly": b"no"}, False, None),
        (Level(replicas=2), {**SETTINGS, b"appendonly": b"no"}, False, (b"WAIT", b"2")),
        (Level(fsync=True), SETTINGS, True, WAITAOF),
        (Level(fsync=True), SYNCS_ALWAYS, True, None),
        (Level(fsync=True), SYNCS_ALWAYS, False, None),
        (Level(fsync=True), {**SYNCS_ALWAYS, b"no-appendfsync-on-rewrite": b"yes"}, True, WAITAOF),
        (Level(fsync=True), {}, True, WAITAOF),
    ],
)
def test_the_level_and_the_backend_s_settings_decide_the_confirming_command(
    level: Level, config: Mapping[bytes, bytes], has_waitaof: bool, command: tuple[bytes, ...] | None
) -> None:
    assert level.wait_for(config, has_waitaof=has_waitaof, replicas=2) == command


@pytest.mark.parametrize(
    ("level", "config", "why"),
    [
        (Level(replicas=3), SETTINGS, "needs 3 connected replicas; the backend has 2"),
        (Level(fsync=True), {**SETTINGS, b"appendonly": b"no"}, "set `appendonly yes`"),
        (Level(fsync=True), {**SETTINGS, b"appendfsync": b"no"}, "which has `no`"),
        (Level(fsync=True), SETTINGS, "or Redis 7.2 or Valkey, which have WAITAOF$"),
        (Level(fsync=True), {}, "the backend refuses CONFIG GET, so its settings are unknown"),
    ],
)
def test_a_backend_that_cannot_confirm_is_refused_with_the_reason(
    level: Level, config: Mapping[bytes, bytes], why: str
) -> None:
    with pytest.raises(BackendRefusedError, match=why):
        level.wait_for(config, has_waitaof=False, replicas=2)


# ---------------------------------------------------------------- the start


def durable(start_server: StartServer, url: str, level: str, *options: str) -> Server:
    return start_server("--backend", url, "--durability", level, *options)


def assert_refused(backend: Valkey, level: str, why: str) -> None:
    assert why in refused_start("--backend", backend.url, "--durability", level)


def calls_of(direct: Client, command: str) -> int:
    """Return how often the backend has received that command."""
    return int(direct.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize(
    ("level", "why"),
    [
        ("fsync", "durability fsync needs an append-only file: set `appendonly yes` in the backend"),
        ("replica", "durability replica:1 needs 1 connected replicas; the backend has 0"),
    ],
)
def test_a_server_does_not_start_on_a_backend_that_cannot_confirm(
    backend: Valkey, level: str, why: str
) -> None:
    assert_refused(backend, level, why)


def test_a_backend_with_unknown_settings_is_tried_out(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    cannot, can = start_valkey(), start_valkey(*EVERYSEC)
    for backend in (cannot, can):
        with backend.client() as direct:
            direct.execute_command("ACL", "SETUSER", "default", "-config", "-command")
    assert_refused(cannot, "fsync", "WAITAOF cannot be used when numlocal is set but appendonly is disabled")
    with durable(start_server, can.url, "fsync").client() as client:
        assert client.sadd("q", "a") == 1
    with can.client() as direct:
        assert calls_of(direct, "waitaof") > 1


@pytest.mark.parametrize("command", ["-eval", "-waitaof"])
def test_a_server_does_not_start_if_it_may_not_ask_for_a_confirmation(
    start_valkey: StartValkey, command: str
) -> None:
    backend = start_valkey(*EVERYSEC)
    with backend.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", command)
    assert_refused(backend, "fsync", "durability fsync is not available: the backend answered")


@pytest.mark.clients
@pytest.mark.parametrize("options", [EVERYSEC, ALWAYS], ids=lambda options: options[-1])
def test_redis_7_0_is_refused_unless_it_syncs_every_write(
    tmp_path: Path, start_server: StartServer, options: tuple[str, ...]
) -> None:
    backend = Valkey(tmp_path, *options, binary=need("redis-server", "redis-server"))
    try:
        if options == EVERYSEC:
            assert_refused(backend, "fsync", "or Redis 7.2 or Valkey, which have WAITAOF")
        else:
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
        assert calls_of(direct, "waitaof") == 0


def test_a_change_of_the_backend_s_settings_is_noticed(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    """The server reads the settings again, and waits for a confirmation only if it needs one."""
    backend = start_valkey(*EVERYSEC)
    server = durable(start_server, backend.url, "fsync", "--backend-grace", "0.2")
    with server.client() as client, Waiter(server.port) as waiting, backend.client() as direct:
        number = 0

        def needs_waitaof() -> bool:
            nonlocal number
            number += 1
            before = calls_of(direct, "waitaof")
            assert client.sadd("q", number) == 1
            return calls_of(direct, "waitaof") > before

        assert needs_waitaof()
        direct.config_set("appendfsync", "always")
        wait_for(lambda: not needs_waitaof(), "the change to be noticed")
        direct.config_set("appendfsync", "no")
        why = "which has `no`"
        wait_for(lambda: why in str(waiting("LPUSH", "q", "unsafe")), "a put to be refused")
        assert server.log.count(why) == 1


def test_without_durability_no_confirmation_is_asked_for(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*EVERYSEC)
    with start_server("--backend", backend.url).client() as client, backend.client() as direct:
        wait_for(lambda: any("t" in about["flags"] for about in direct.client_list()), "the watch")
        assert client.sadd("q", "a") == 1
        assert client.spop("q") == b"a"
        assert (calls_of(direct, "wait"), calls_of(direct, "waitaof")) == (0, 0)
        assert not direct.exists("__pressure__!durability")
        # The two connections of a database: one for calls, and the watch.
        assert sum("pressure" in about["name"] for about in direct.client_list()) == 2


# ---------------------------------------------------------------- replies


def is_confirmation(data: bytes) -> bool:
    """Return whether bytes from the backend contain a reply to WAITAOF."""
    return b"*2\r\n:1\r\n:0\r\n" in data


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


Held = tuple[Valkey, BackendRelay, Server]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """Start a backend, a relay that can hold its confirmations, and a server."""
    folder = tmp_path_factory.mktemp("held")
    # The backend syncs every second, so each WAITAOF takes some time.
    backend = Valkey(folder, *EVERYSEC)
    with BackendRelay(backend.socket) as relay:
        server = Server(folder / "log", "--backend", relay.url, "--durability", "fsync")
        yield backend, relay, server
        server.end_well()
    backend.stop()


@pytest.mark.parametrize("change", CHANGES)
def test_no_reply_comes_before_the_backend_has_confirmed_the_change(held: Held, change: str) -> None:
    backend, relay, server = held
    words, replies = CHANGES[change]
    with server.client() as client, Waiter(server.port) as waiting, backend.client() as direct:
        client.flushall()
        for prepared in PREPARED:
            client.execute_command(*prepared)
        before, held_before = state(direct), relay.held
        relay.hold(is_confirmation)
        for command in words:
            waiting.send(*command)
        wait_for(lambda: state(direct) != before, "the backend to make the change")
        wait_for(lambda: relay.held > held_before, "the backend to confirm the change")
        assert client.scard("other") in (0, 1, 2)  # questions need no confirmation
        assert [waiting.reply() for _ in words[:-1]] == replies[:-1]
        assert not waiting.has_reply()
        relay.release()
        assert waiting.reply() == replies[-1]


def state(direct: Client) -> dict[bytes, object]:
    """Return the keys of all queues with their values."""
    keys = sorted(key for key in direct.keys("__pressure__:*") if b":ext:" not in key)
    return {
        key: direct.lrange(key, 0, -1) if direct.type(key) == b"list" else direct.get(key) for key in keys
    }


def test_a_waiting_client_gets_its_message_after_the_confirmation(held: Held) -> None:
    backend, relay, server = held
    with (
        server.client() as client,
        Waiter(server.port) as waiting,
        Waiter(server.port) as putting,
        backend.client() as direct,
    ):
        client.flushall()
        create(client, "q")
        waiting.send("BLPOP", "q", 0)
        wait_for_blocked(client, 1)
        held_before = relay.held
        relay.hold(is_confirmation)
        putting.send("SADD", "q", "m")
        wait_for(lambda: relay.held > held_before, "the backend to confirm the change")
        assert direct.get(f"{BASE}:stats:consumed_messages") == b"1"
        assert client.scard("q") == 0
        assert not waiting.has_reply()
        assert not putting.has_reply()
        relay.release()
        assert waiting.reply() == [b"q", b"m"]
        assert putting.reply() == 1


def test_a_lost_confirmation_is_asked_for_again(held: Held) -> None:
    _, relay, server = held
    with server.client() as client:
        client.flushall()
        relay.cuts = lambda data: is_confirmation(data) and relay.made < 3
        assert client.sadd("q", "m") == 1
        assert relay.made == 3


def test_a_confirmation_whose_connection_is_killed_is_asked_for_again(held: Held) -> None:
    backend, _, server = held
    with server.client() as client, Waiter(server.port) as waiting, backend.client() as direct:
        client.flushall()

        def waits() -> list[str]:
            return [about["id"] for about in direct.client_list() if about["cmd"] == "waitaof"]

        for number in range(3):
            waiting.send("LPUSH", "q", number)
            (waits_for_it,) = wait_for(waits, "the backend to be asked")
            direct.execute_command("CLIENT", "KILL", "ID", waits_for_it)
            assert waiting.reply() == number + 1


# ---------------------------------------------------------------- replicas


@pytest.fixture
def replicated(start_valkey: StartValkey) -> Replicated:
    return start_replicated(start_valkey)


def test_replies_wait_for_a_replica_that_is_stopped(
    replicated: Replicated, start_server: StartServer
) -> None:
    server = durable(start_server, replicated.main.url, "replica:1")
    with server.client() as client, Waiter(server.port) as waiting, replicated.main.client() as direct:
        assert client.sadd("q", "a", "b") == 2
        with stopped(replicated.replica.process):
            waiting.send("SPOP", "q")
            wait_for(lambda: direct.llen(BASE) == 1, "the backend to make the change")
            assert client.scard("q") == 1
            assert not waiting.has_reply()
        assert waiting.reply() == b"a"
        with replicated.replica.client() as other:
            assert other.lrange(BASE, 0, -1) == [b"b"]
    server.end_well()


@pytest.mark.slow
def test_a_change_that_no_replica_confirms_in_time_is_an_error_and_its_messages_go_back(
    replicated: Replicated, start_server: StartServer
) -> None:
    server = durable(start_server, replicated.main.url, "replica", "--backend-timeout", "1")
    late = "no confirmation within 0.8 seconds"
    why = f"this has been done, but is not known to be safe (durability replica:1): {late}"
    with server.client() as client, Waiter(server.port) as waiting:
        assert client.sadd("q", "a", "b") == 2
        with stopped(replicated.replica.process):
            for words in (("SPOP", "q"), ("LPUSH", "q", "c"), ("SPOP", "q")):
                assert str(waiting(*words)) == f"BACKEND {why}"
            assert [waiting("MULTI"), waiting("SPOP", "q")] == [b"OK", b"QUEUED"]
            assert why in str(waiting("EXEC"))
        wait_for(lambda: client.scard("q") == 3, "the messages to be back")
        assert client.spop("q", 3) == [b"a", b"b", b"c"]
    assert server.log.count(f"the backend does not confirm durability replica:1: {late}") == 1
    assert server.log.count("the backend confirms durability replica:1 again") == 1
    assert server.log.count("WARNING") == 1


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


# ---------------------------------------------------------------- faults


@pytest.mark.slow
def test_an_acknowledged_message_survives_a_kill_of_the_backend(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    backend = start_valkey(*EVERYSEC)
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
    backend = start_valkey(*EVERYSEC)
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
