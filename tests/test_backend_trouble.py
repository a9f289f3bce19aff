"""The backend in trouble: what 50 clients see meanwhile, that nothing is lost, and what the log says, once.

Each row of the table in docs/reliability.md names one of these; the first tests look that they agree.
"""

from __future__ import annotations

import ast
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.backend_relay import BackendRelay
from tests.support.crowd import Crowd
from tests.support.full_disk import Disk, LimitedFiles, small_disk
from tests.support.measures import connections
from tests.support.native import NativeClient
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    join,
    run_command,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import Waiter, create, is_refused, packed, wait_for_blocked, waiters

ROOT = Path(__file__).parent.parent
BASE = "__pressure__:q"
ON_DISK = ("--appendonly", "yes", "--appendfsync", "always")
# Seconds: enough for a busy machine, little for a test.
IMPATIENT = ("--backend-timeout", "2", "--backend-grace", "1")
NAMED_TEST = re.compile(r"`(test_\w+)`")


def table() -> list[list[str]]:
    """Its rows: the trouble, what clients see, what recovers, what the log says, the test."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    section = text.partition("## When the backend is in trouble")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "trouble"]


def test_each_trouble_in_the_document_is_shown_by_a_test_here_and_each_test_is_named() -> None:
    functions = {
        node.name
        for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    named = set()
    for row in table():
        assert len(row) == 5, row
        found = NAMED_TEST.findall(row[-1])
        assert found, row
        assert not NAMED_TEST.sub("", row[-1]).strip(" ,"), row
        named.update(found)
    this = "test_each_trouble_in_the_document_is_shown_by_a_test_here_and_each_test_is_named"
    assert named == functions - {this}


# What all of them use.


# A backend that starts says so for a moment, or closes what is just open: whether a try meets that is chance.
STARTING = r"(with: LOADING .*|was lost \(.*\)); trying again$"


def said(server: Server) -> list[str]:
    """What the server has logged since it was ready, without times and levels."""
    lines = server.log.partition(" ready: ")[2].splitlines()[1:]
    return [line.split(None, 3)[3] for line in lines]


def assert_said(server: Server, *patterns: str, but: str = "never said") -> None:
    """It has logged this and nothing else, `but` maybe that."""
    lines = [line for line in said(server) if not re.search(but, line)]
    assert len(lines) == len(patterns), lines
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.search(pattern, line), lines


def assert_works(server: Server) -> None:
    """Puts, gets and waiting work, each at the first attempt."""
    with server.client() as client, Waiter(server.port) as waiting:
        assert client.sadd("works", "a", "b") == 2
        assert client.spop("works", 2) == [b"a", b"b"]
        waiting.send("BLPOP", "works", 0)
        wait_for_blocked(client, 1)
        assert client.lpush("works", "c") >= 0
        assert waiting.reply() == [b"works", b"c"]
        client.delete("works")


@pytest.fixture
def valkey(start_valkey: StartValkey) -> Valkey:
    return start_valkey(*ON_DISK, "--enable-debug-command", "yes")


@pytest.fixture
def impatient(start_server: StartServer, valkey: Valkey) -> Server:
    return start_server("--backend", valkey.url, *IMPATIENT)


@pytest.fixture
def relay(valkey: Valkey) -> Iterator[BackendRelay]:
    with BackendRelay(valkey.socket) as opened:
        yield opened


LOST = r"^backend database 0: the connection to \S+ was lost \("
BACK = r"^backend database 0 is back after [\d.]+ seconds"


# It is not there.


def test_refused_at_the_start(start_server: StartServer, valkey: Valkey) -> None:
    valkey.kill()
    server = start_server("--backend", valkey.url, "--backend-grace", "0.3")
    assert " ready: " not in server.log
    assert "waiting for the backend: commands wait for it for 0.3 seconds, then fail" in server.log
    with Waiter(server.port) as waiting:
        assert is_refused(waiting("SADD", "q", "a"), "BACKEND")
        valkey.start()
        wait_for(lambda: waiting("SADD", "q", "a") in (0, 1), "the backend")
    assert_works(server)
    assert re.search(r"no connection to \S+: Connection refused; trying again", server.log)
    assert server.log.count("WARNING") == 1
    assert server.log.count("is back after") == 1
    assert server.log.count(" ready: ") == 1


def test_away_for_longer_than_the_grace(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd:
        valkey.kill()
        crowd.wait_for_errors("BACKEND the backend is away: no connection to .*: Connection refused")
        valkey.start()
        crowd.wait_for_success()
    assert crowd.errors_of("^BACKEND") == crowd.errors.total()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    assert_said(impatient, LOST, "Connection refused; trying again", BACK, but=STARTING)


def test_away_for_less_than_the_grace(start_server: StartServer, valkey: Valkey) -> None:
    server = start_server("--backend", valkey.url, "--backend-grace", "20")
    with Crowd(server) as crowd:
        for _ in range(3):
            valkey.kill()
            valkey.start()
            crowd.wait_for_success()
    assert crowd.errors == {}
    crowd.assert_nothing_lost()
    assert_works(server)
    lines = [line for line in said(server) if not re.search(STARTING, line)]
    assert [len([line for line in lines if re.search(one, line)]) for one in (LOST, BACK)] == [3, 3]
    assert len(lines) <= 3 * 4


@pytest.mark.slow
def test_a_reset_in_the_middle_of_a_reply(start_server: StartServer, relay: BackendRelay) -> None:
    server = start_server("--backend", relay.url)
    replies = cut = 0

    def cuts(data: bytes) -> bool:
        nonlocal replies, cut
        replies += 1
        if replies % 50 or cut == 20:
            return False
        cut += 1
        return True

    with Crowd(server) as crowd:
        relay.cuts = cuts
        wait_for(lambda: cut == 20, "resets")
        crowd.wait_for_success()
    assert crowd.errors == {}
    crowd.assert_nothing_lost()
    assert_works(server)
    assert len(said(server)) <= 3 * 20


def test_it_hangs(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd:
        valkey.process.send_signal(signal.SIGSTOP)
        crowd.wait_for_errors("BACKEND")
        valkey.process.send_signal(signal.SIGCONT)
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    assert_said(impatient, LOST + "it has not answered for 2 seconds", BACK)


def test_a_question_without_an_answer_has_changed_nothing(impatient: Server, valkey: Valkey) -> None:
    asked = [
        (packed("SADD", "q", "b"), "may or may not have been done"),
        # Which of these it is depends on whether the question had been sent.
        (packed("SCARD", "q"), "ask again|the backend is away"),
        (packed("LRANGE", "q", 0, -1), "the backend is away"),
        (packed("MULTI") + packed("SCARD", "q") + packed("EXEC"), "ask again|the backend is away"),
    ]
    with ExitStack() as stack:
        clients = [stack.enter_context(Waiter(impatient.port)) for _ in asked]
        clients[0]("SADD", "q", "a")
        valkey.process.send_signal(signal.SIGSTOP)
        for client, (request, _) in zip(clients, asked, strict=True):
            client.socket.sendall(request)
        assert [clients[3].reply() for _ in range(2)] == [b"OK", b"QUEUED"]
        said = [str(client.reply()) for client in clients]
        valkey.process.send_signal(signal.SIGCONT)
    wait_for(lambda: "is back" in impatient.log, "the backend")
    for reply, (request, text) in zip(said, asked, strict=True):
        assert reply.startswith("BACKEND "), request
        assert re.search(text, reply), request
    assert_works(impatient)


def test_it_sleeps_for_less_than_the_timeout(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd, valkey.client() as direct:
        direct.execute_command("DEBUG", "SLEEP", "0.6")
        crowd.wait_for_success()
    assert crowd.errors == {}
    crowd.assert_nothing_lost()
    assert_said(impatient)


@pytest.mark.slow
def test_clients_are_paused(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd, valkey.client() as direct:
        for kind in ("ALL", "WRITE"):
            direct.execute_command("CLIENT", "PAUSE", 4000, kind)
            crowd.wait_for_errors("BACKEND")
            direct.execute_command("CLIENT", "UNPAUSE")
            crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    lines = said(impatient)
    assert len([line for line in lines if re.search(BACK, line)]) == 2, lines
    assert len(lines) <= 6, lines


def test_it_closes_all_connections(start_server: StartServer, valkey: Valkey) -> None:
    server = start_server("--backend", valkey.url)
    with Crowd(server) as crowd, valkey.client() as direct:
        for _ in range(10):
            assert direct.client_kill_filter(_type="normal", skipme=True)
            crowd.wait_for_success()
    assert crowd.errors == {}
    crowd.assert_nothing_lost()
    assert_works(server)
    assert [bool(re.search(BACK, line)) for line in said(server)] == [False, True] * 10


def test_it_has_too_many_clients(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd, valkey.client() as direct:
        direct.config_set("maxclients", 1)
        direct.client_kill_filter(_type="normal", skipme=True)
        crowd.wait_for_errors("BACKEND the backend is away: .*max number of clients")
        direct.config_set("maxclients", 10_000)
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    lines = said(impatient)
    assert re.search(LOST, lines[0])
    assert re.search(BACK, lines[-1])
    # Its error may be overtaken by the end of the connection.
    assert len(lines) == len(set(lines)), lines


@pytest.mark.slow
def test_a_slow_network(start_server: StartServer, valkey: Valkey) -> None:
    """A large message takes longer than a backend may take to answer; the answer does, too."""
    with BackendRelay(valkey.socket, delay=0.2, rate=50_000) as slow:
        server = start_server("--backend", slow.url, "--backend-timeout", "3", "--backend-grace", "1")
        with Waiter(server.port) as client:
            large = b"x" * 400_000
            for words, reply in ((("LPUSH", "q", large), 1), (("SPOP", "q"), large), (("SADD", "q", "a"), 1)):
                client.send(*words)
                assert client.reply(timeout=60) == reply
        assert_said(server)


@pytest.mark.alone
def test_a_huge_reply(impatient: Server, valkey: Valkey) -> None:
    with impatient.client() as client, valkey.client() as direct:
        create(client, "q")
        message = b"x" * (1 << 20)
        for number in range(100):
            direct.lpush(BASE, b"%d" % number + message)
        assert sum(map(len, client.lrange("q", 0, -1))) > 100 << 20
        assert client.spop("q").startswith(b"0x")
    assert_works(impatient)
    assert_said(impatient)


# It is there, but not now.


@pytest.mark.slow
def test_it_loads_its_data(start_valkey: StartValkey, start_server: StartServer) -> None:
    valkey = start_valkey(*ON_DISK)
    server = start_server("--backend", valkey.url, *IMPATIENT)
    with Crowd(server) as crowd, valkey.client() as direct:
        for number in range(400):
            direct.set(f"somebody's {number}", "x" * 100)
        direct.bgrewriteaof()
        wait_for(lambda: not direct.info("persistence")["aof_rewrite_in_progress"], "the rewriting")
        valkey.kill()
        loading = "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(valkey, "_command", [*valkey._command, *loading])
            starting = threading.Thread(target=valkey.start, daemon=True)
            starting.start()
            crowd.wait_for_errors("BACKEND the backend is away: .*LOADING")
            join(starting)
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(server)
    lines = said(server)
    assert sum("LOADING" in line for line in lines) == 1, lines
    assert re.search(LOST, lines[0])
    assert re.search(BACK, lines[-1])
    assert len(lines) == len(set(lines)), lines


def test_a_script_that_does_not_end(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd, valkey.client() as direct, valkey.client() as foreign:
        direct.config_set("busy-reply-threshold", 100)
        endless = threading.Thread(target=run_until_killed, args=(foreign,), daemon=True)
        endless.start()
        crowd.wait_for_errors("BACKEND the backend is away: .*BUSY")
        direct.script_kill()
        join(endless)
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    lines = said(impatient)
    assert sum("BUSY" in line for line in lines) in (1, 2), lines
    assert re.search(LOST, lines[0])
    assert re.search(BACK, lines[-1])
    assert len(lines) <= 4, lines


def run_until_killed(foreign: Client) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        foreign.eval("while true do end", 0)


@pytest.mark.slow
def test_it_has_become_a_replica(start_valkey: StartValkey, start_server: StartServer) -> None:
    """And the address leads to the one that was promoted, a little later."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as another:
        ports = [str(listener.getsockname()[1]) for listener in (one, another)]
    follows = ("--replicaof", f"127.0.0.1 {ports[0]}", "--repl-diskless-sync-delay", "0")
    main = start_valkey(*ON_DISK, "--port", ports[0])
    other = start_valkey(*ON_DISK, "--port", ports[1], *follows)
    with main.client() as direct, other.client() as promoted, BackendRelay(main.socket) as relay:
        wait_for(lambda: direct.execute_command("WAIT", 1, 100) == 1, "the replica to be there")
        server = start_server("--backend", relay.url, *IMPATIENT)
        with Crowd(server) as crowd:
            # As a failover does it: nothing is written any longer when the other takes over.
            direct.execute_command("FAILOVER")
            wait_for(lambda: promoted.info("replication")["role"] == "master", "the failover")
            crowd.wait_for_errors("BACKEND the backend is away: .*READONLY")
            relay.backend = other.socket
            crowd.wait_for_success()
        crowd.assert_nothing_lost()
        assert_works(server)
        lines = said(server)
    assert sum("READONLY" in line for line in lines) in (1, 2), lines
    assert re.search(BACK, lines[-1]), lines
    assert len(lines) == len(set(lines)), lines


# It refuses.

REFUSES = r"^backend database 0 refuses: %s"
REFUSES_NO_MORE = r"^backend database 0 has not refused anything with %s of late"
# Said where the trouble lasts until the server says again that it lives.
SIGNING = r"^backend database 0 (no longer )?refuses this server's heartbeat"


@pytest.mark.slow
def test_it_is_out_of_memory(impatient: Server, valkey: Valkey) -> None:
    with impatient.client() as client, valkey.client() as direct, Crowd(impatient) as crowd:
        client.sadd("full", *range(100))
        direct.config_set("maxmemory", 1)
        crowd.wait_for_errors("BACKEND the backend answered for queue 'q': OOM ")
        for number in range(100):
            assert client.spop("full") == b"%d" % number
        direct.config_set("maxmemory", 0)
        crowd.wait_for_success()
    assert crowd.errors_of("OOM") == crowd.errors.total()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    wait_for(lambda: "of late" in impatient.log, "the log to say that it is over")
    assert_said(impatient, REFUSES % "OOM command not allowed", REFUSES_NO_MORE % "OOM")


@pytest.mark.parametrize("asked_before", [False, True], ids=["without a mirror", "with a mirror"])
def test_out_of_memory_a_queue_can_be_emptied(impatient: Server, valkey: Valkey, asked_before: bool) -> None:
    """By whatever takes, whoever has put; and what goes wrong on the way goes back."""
    with impatient.client() as client, valkey.client() as direct, waiters(impatient, 3) as waiting:
        create(client, "q")
        native = NativeClient(direct, "q")
        if asked_before:
            client.sadd("q", "0")
        else:
            client.lpush("q", "0")
        for number in range(1, 12):
            native.put(b"%d" % number)
        direct.config_set("maxmemory", 1)
        assert client.scard("q") == 12
        assert client.sismember("q", "5") == 1
        assert client.lrange("q", 0, 1) == [b"0", b"1"]
        assert client.spop("q") == b"0"
        assert client.rpop("q", 2) == [b"1", b"2"]
        assert client.blpop("q", 1) == (b"q", b"3")
        assert client.srem("q", "4", "5") == 2
        assert client.blmpop(1, 1, "q", direction="LEFT", count=2)[1] == [b"6", b"7"]
        assert client.execute_command("PRESSURE.GET", "q") == b"8"
        pipeline = client.pipeline()
        pipeline.spop("q")
        assert pipeline.execute() == [b"9"]
        for words in (("SADD", "q", "m"), ("LPUSH", "q", "m"), ("PRESSURE.PUT", "q", "m")):
            assert re.match(r"BACKEND .*: OOM ", str(waiting[0](*words)))
        assert client.spop("q", 10) == [b"10", b"11"]
        # Who waits for a message goes on waiting while puts are refused.
        waiting[0].send("BLPOP", "q", 0)
        waiting[1].send("BLPOP", "other", "q", 0)
        wait_for_blocked(client, 2)
        # What goes to one of them from hand to hand may need no memory.
        replies = [waiting[2]("SADD", "q", number) for number in range(5)]
        handed_over = replies.count(1)
        assert all(is_refused(reply, "BACKEND") for reply in replies if reply != 1)
        wait_for_blocked(client, 2 - handed_over)
        direct.config_set("maxmemory", 0)
        assert client.lpush("q", "m", "n") >= 0
        assert all(waiter.reply()[0] == b"q" for waiter in waiting[:2])
        assert client.scard("q") == handed_over
        client.spop("q", 2)
        stats = direct.mget(*[f"{BASE}:stats:{verb}_messages" for verb in ("produced", "consumed")])
        assert stats[0] == stats[1]


def test_out_of_memory_what_nobody_took_goes_back(start_server: StartServer, valkey: Valkey) -> None:
    """A server that is killed had taken it; and one whose client has gone."""
    with valkey.client() as direct:
        first = start_server("--backend", valkey.url, "--proxy-timeout", "1")
        with first.client() as client:
            client.lpush("q", *range(100))
        direct.config_set("maxmemory", 1)
        with Waiter(first.port) as leaving:
            valkey.process.send_signal(signal.SIGSTOP)
            leaving.send("SPOP", "q", 50)
            leaving.send("PING")
            with Waiter(first.port) as after:
                assert after("PING") == b"PONG"  # the server has read what came before
            leaving.reset()
            valkey.process.send_signal(signal.SIGCONT)
        wait_for(lambda: direct.llen(BASE) == 100, "what was taken to be back")
        with Waiter(first.port) as dying:
            valkey.process.send_signal(signal.SIGSTOP)
            dying.send("SPOP", "q", 50)
            with Waiter(first.port) as after:
                assert after("PING") == b"PONG"
            first.process.kill()
            first.process.wait(TIMEOUT)
            valkey.process.send_signal(signal.SIGCONT)
        second = start_server("--backend", valkey.url, "--proxy-timeout", "1")
        wait_for(lambda: "has died" in second.log, "the death to be noticed")
        with second.client() as client:
            assert client.spop("q", 100) == [b"%d" % number for number in range(100)]


@pytest.mark.slow
def test_its_disk_is_full(start_valkey: StartValkey, start_server: StartServer) -> None:
    valkey = start_valkey("--save", "3600 1", "--enable-protected-configs", "yes")
    server = start_server("--backend", valkey.url, *IMPATIENT)
    saved_in = valkey.folder / "saved"
    saved_in.mkdir()
    with Crowd(server) as crowd, valkey.client() as direct:
        direct.config_set("dir", str(saved_in))
        saved_in.rmdir()
        direct.bgsave()
        crowd.wait_for_errors("BACKEND the backend answered for queue 'q': MISCONF")
        direct.config_set("dir", str(valkey.folder))
        direct.bgsave()
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(server)
    wait_for(lambda: "of late" in server.log, "the log to say that it is over")
    assert_said(server, REFUSES % "MISCONF", REFUSES_NO_MORE % "MISCONF", but=SIGNING)


@pytest.fixture(params=["full", "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "limited":
        yield LimitedFiles(tmp_path)
    else:
        with small_disk(tmp_path / "disk") as mounted:
            yield mounted


@pytest.mark.slow
def test_the_disk_of_the_embedded_backend_is_full(start_server: StartServer, disk: Disk) -> None:
    options = ("--data-dir", str(disk.data_dir), "--durability", "fsync", "--proxy-timeout", "1")
    server = start_server(*options, environment=disk.environment)
    with server.client() as client, Waiter(server.port) as waiting, Waiter(server.port) as putting:
        assert client.sadd("q", "a", "b") == 2
        queued = 2
        disk.fill(server)
        began = time.monotonic()
        while (reply := putting("SADD", "q", f"{queued}" + 1000 * "x")) == 1:
            queued += 1
        assert re.match("BACKEND (this has been done, but is not known to be safe|.*MISCONF)", str(reply)), (
            reply
        )
        # Five seconds are the grace for a backend that cannot confirm.
        assert time.monotonic() - began < 5 + 2
        wait_for(lambda: "MISCONF" in str(waiting("PRESSURE.READY")), "it to be not ready")
        for _ in range(50):
            assert is_refused(putting("SADD", "q", "refused"), "BACKEND")
            assert is_refused(putting("SPOP", "q"), "BACKEND")
            assert queued <= client.scard("q") <= queued + 1
            assert client.sismember("q", "b") == 1
            assert client.info("queues")
        assert server.log.count("Valkey ended with status") == 1
        assert len(said(server)) <= 10, said(server)
        disk.free(server)
        wait_for(lambda: putting("SADD", "q", "after") == 1, "puts to work again")
        wait_for(lambda: waiting("PRESSURE.READY") == b"OK", "it to be ready again")
        got = client.spop("q", 1000)
        assert got[:2] == [b"a", b"b"]
        assert got[-1] == b"after"
        assert queued <= len(got) - 1 <= queued + 1
        assert len(set(got)) == len(got)
        wait_for(lambda: "Valkey syncs each write again" in server.log, "each write to be synced again")
        assert_works(server)
    assert server.log.count("Valkey ended") == 1
    assert server.stop() == 0


# It dies.


@contextmanager
def started_again(valkey: Valkey) -> Iterator[list[float]]:
    """Start it again whenever it dies. Yields when that was."""
    deaths: list[float] = []
    goes_on = True

    def supervise() -> None:
        while True:
            valkey.process.wait()
            if not goes_on:
                return
            deaths.append(time.monotonic())
            valkey.launch()

    supervising = threading.Thread(target=supervise)
    supervising.start()
    try:
        yield deaths
    finally:
        goes_on = False
        valkey.process.kill()
        supervising.join()


def test_it_dies_of_a_call(start_server: StartServer, valkey: Valkey, relay: BackendRelay) -> None:
    server = start_server("--backend", relay.url, "--backend-grace", "20")

    def dies(request: bytes) -> bool:
        if b"deadly" in request:
            valkey.process.kill()
        return b"deadly" in request

    with started_again(valkey) as deaths, server.client() as client, Waiter(server.port) as waiting:
        assert client.sadd("q", "a") == 1
        relay.drops = dies
        waiting.send("SADD", "q", "deadly")
        reply = str(waiting.reply())
        assert reply.startswith("BACKEND the backend died 3 times while it was doing this"), reply
        assert len(deaths) == 3
        assert client.sadd("q", "b") == 1
        assert client.spop("q", 5) == [b"a", b"b"]
        assert_works(server)
        assert len(deaths) == 3
    # Each time the server may have been about to sign, too.
    assert len(re.findall(r"died 3 times with the same calls under way: \d get an error", server.log)) == 1
    assert server.stop() == 0


@pytest.mark.slow
def test_it_dies_of_what_is_to_go_back(
    start_server: StartServer, valkey: Valkey, relay: BackendRelay
) -> None:
    """It is left alone for longer and longer, and in the end the message is back."""
    server = start_server("--backend", relay.url, "--backend-grace", "20")

    def dies(request: bytes) -> bool:
        # As a word of a call: the text of the script has it, too.
        if b"\r\nrecover\r\n" in request:
            valkey.process.kill()
        return b"\r\nrecover\r\n" in request

    def dies_after(reply: bytes) -> bool:
        if b"taken" in reply:
            valkey.process.kill()
        return b"taken" in reply

    with started_again(valkey) as deaths, server.client() as client, Waiter(server.port) as waiting:
        assert client.sadd("q", "taken", "b") == 2
        relay.drops, relay.cuts = dies, dies_after
        waiting.send("SPOP", "q")
        assert "died 3 times" in str(waiting.reply())
        wait_for(lambda: len(deaths) == 5, "it to be asked twice to take it back")
        first, second = deaths[3] - deaths[2], deaths[4] - deaths[3]
        assert first > 0.9
        assert second > 1.9
        assert client.sadd("other", "c") == 1
        relay.drops = relay.cuts = never
        wait_for(lambda: client.scard("q") == 2, "what was taken to be back")
        assert client.spop("q", 2) == [b"taken", b"b"]
        with valkey.client() as direct:
            wait_until_settled(direct)
        assert len(deaths) == 5
    assert server.log.count("with the same calls under way") == 1


def never(_data: bytes) -> bool:
    return False


def test_questions_are_answered_beside_refused_changes(impatient: Server, valkey: Valkey) -> None:
    """Also where they go in one call: sent while another is under way."""
    with impatient.client() as client, Waiter(impatient.port) as waiting, valkey.client() as direct:
        assert client.sadd("q", "a") == 1
        direct.config_set("min-replicas-to-write", 1)
        for _ in range(100):
            for words in (("SADD", "q", "b"), ("SCARD", "q")):
                waiting.send(*words)
        for _ in range(100):
            assert is_refused(waiting.reply(), "BACKEND")
            assert waiting.reply() == 1
        direct.config_set("min-replicas-to-write", 0)
    assert_works(impatient)


@pytest.mark.slow
def test_it_has_too_few_replicas_of_its_own(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd, valkey.client() as direct:
        direct.config_set("min-replicas-to-write", 1)
        crowd.wait_for_errors("BACKEND the backend answered for queue 'q': NOREPLICAS")
        direct.config_set("min-replicas-to-write", 0)
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    wait_for(lambda: "of late" in impatient.log, "the log to say that it is over")
    assert_said(impatient, REFUSES % "NOREPLICAS", REFUSES_NO_MORE % "NOREPLICAS", but=SIGNING)


@pytest.mark.slow
def test_we_are_not_permitted_any_longer(impatient: Server, valkey: Valkey) -> None:
    with Crowd(impatient) as crowd, valkey.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", "-evalsha")
        crowd.wait_for_errors("BACKEND the backend answered for queue 'q': NOPERM")
        direct.execute_command("ACL", "SETUSER", "default", "+evalsha")
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(impatient)
    wait_for(lambda: "of late" in impatient.log, "the log to say that it is over")
    assert_said(impatient, REFUSES % "NOPERM", REFUSES_NO_MORE % "NOPERM", but=SIGNING)


@pytest.mark.parametrize(
    ("refuses", "permits"),
    [(["-evalsha"], ["+evalsha"]), (["resetkeys", "~__pressure__:*"], ["allkeys"])],
    ids=["no calls", "not that key"],
)
def test_it_does_not_let_us_sign(
    start_valkey: StartValkey, start_server: StartServer, refuses: list[str], permits: list[str]
) -> None:
    valkey = start_valkey()
    with valkey.client() as direct:
        direct.execute_command("ACL", "SETUSER", "default", *refuses)
        server = start_server("--backend", valkey.url, "--proxy-timeout", "1")
        refused = run_command("ping", "--ready", "--listen", f"resp://127.0.0.1:{server.port}")
        assert refused.returncode == 1
        assert " is refused: the backend answered " in refused.stderr
        with Waiter(server.port) as client:
            for _ in range(2):
                wait_for(lambda: "NOPERM" in str(client("PRESSURE.READY")), "it to be not ready")
                direct.execute_command("ACL", "SETUSER", "default", *permits)
                wait_for(lambda: client("PRESSURE.READY") == b"OK", "it to be ready again")
                direct.execute_command("ACL", "SETUSER", "default", *refuses)
        # It signs, and looks for servers that have died: one of them may be refused, or both.
        refused_times = server.log.count("so PRESSURE.READY fails")
        assert 2 <= refused_times <= 6
        assert refused_times - server.log.count("no longer refuses") in (0, 1, 2)


def test_it_has_no_evalsha(start_valkey: StartValkey, start_server: StartServer) -> None:
    server = start_server("--backend", start_valkey("--rename-command", "EVALSHA", "elsewhere").url)
    with Waiter(server.port) as client:
        assert "unknown command" in str(client("PRESSURE.READY"))
        assert is_refused(client("SADD", "q", "a"), "BACKEND")
    assert_said(server)
    assert server.log.count("refuses this server's heartbeat") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "code"),
    [("", "another", "NOAUTH"), ("secret", "another", "WRONGPASS")],
    ids=["where there was none", "to another"],
)
def test_the_password_is_changed(
    start_valkey: StartValkey, start_server: StartServer, before: str, after: str, code: str
) -> None:
    valkey = start_valkey(*ON_DISK, *(("--requirepass", before) if before else ()))
    url = valkey.url.replace("unix://", f"unix://:{before}@") if before else valkey.url
    server = start_server("--backend", url, *IMPATIENT)
    with Crowd(server) as crowd, valkey.client(password=before or None) as direct:
        direct.config_set("requirepass", after)
        crowd.wait_for_success()  # who is in stays in
        direct.client_kill_filter(_type="normal", skipme=True)
        crowd.wait_for_errors(f"BACKEND the backend is away: .*{code}")
        with Waiter(server.port) as asking:
            assert is_refused(asking("SELECT", 3), "BACKEND")
        direct.config_set("requirepass", before)
        crowd.wait_for_success()
        # A database is not taken for missing, nor the watch for refused.
        wait_for(lambda: connections(direct, tracking=True), "the watch", timeout=15)
    with server.client(db=3) as client:
        assert client.sadd("q", "a") == 1
    crowd.assert_nothing_lost()
    assert_works(server)
    lines = [line for line in said(server) if "changes" not in line]
    assert len(lines) == 3, lines
    assert code in lines[1]
    assert "secret" not in server.log
    assert "another" not in server.log


@pytest.mark.slow
@pytest.mark.parametrize(
    "suffix",
    [
        "",
        ":bound",
        ":producer",
        ":closed",
        ":not_full",
        ":ext:made",
        ":ext:index",
        ":ext:members",
        ":ext:copies",
        ":ext:marks",
    ],
)
def test_a_key_of_a_queue_has_the_wrong_type(impatient: Server, valkey: Valkey, suffix: str) -> None:
    """Whatever that queue answers, its messages stay, and other queues do not notice."""
    with impatient.client() as client, Waiter(impatient.port) as waiting, valkey.client() as direct:
        client.lpush("q", "a", "b")
        key = f"{BASE}{suffix}"
        if suffix:
            direct.delete(key)
            direct.zadd(key, {"wrong": 1})
        else:
            direct.rename(key, "aside")
            direct.set(key, "wrong")
        replies = [waiting("SPOP", "q") for _ in range(20)]
        for reply in replies:
            assert reply in (b"a", b"b", None) or re.match("[A-Z]+ .*'q'", str(reply)), reply
        if not suffix:
            assert direct.lrange("aside", 0, -1) == [b"b", b"a"]
        else:
            got = [reply for reply in replies if isinstance(reply, bytes)]
            assert got + direct.lrange(BASE, 0, -1)[::-1] == [b"a", b"b"], replies
    assert_works(impatient)
    assert_said(impatient)


# It forgets.


def test_scripts_are_flushed(start_server: StartServer, valkey: Valkey) -> None:
    server = start_server("--backend", valkey.url)
    with Crowd(server) as crowd, valkey.client() as direct:
        for _ in range(20):
            direct.script_flush()
            crowd.wait_for_success()
    assert crowd.errors == {}
    crowd.assert_nothing_lost()
    assert_said(server)


def test_all_data_is_flushed(start_server: StartServer, valkey: Valkey) -> None:
    server = start_server("--backend", valkey.url)
    with Crowd(server) as crowd, valkey.client() as direct:
        for _ in range(20):
            direct.flushall()
            crowd.wait_for_success()
    assert crowd.errors == {}
    assert not crowd.ledger.doubled()
    assert_works(server)
    assert_said(server)


def test_another_backend_is_in_its_place(
    start_valkey: StartValkey, start_server: StartServer, valkey: Valkey, relay: BackendRelay
) -> None:
    other = start_valkey(*ON_DISK)
    server = start_server("--backend", relay.url)
    with server.client() as client, valkey.client() as direct, other.client() as there:
        client.sadd("left", "here")
        NativeClient(there, "found").create()
        NativeClient(there, "found").put(b"there")
        with Crowd(server) as crowd, Waiter(server.port) as waiting:
            waiting.send("BLPOP", "found", 0)
            # Of the queues of this one, `found` is none yet.
            wait_for_blocked(client, 1)
            relay.backend = other.socket
            direct.client_kill_filter(_type="normal", skipme=True)
            assert waiting.reply() == [b"found", b"there"]
            crowd.wait_for_success()
        assert crowd.errors == {}
        assert not crowd.ledger.doubled()
        assert client.exists("left") == 0
        assert_works(server)
    assert_said(server, LOST, BACK)


class Impostor:
    """Answers whatever comes with the same bytes, on a unix socket."""

    def __init__(self, path: Path, reply: bytes) -> None:
        self.path = path
        self._reply = reply
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(65536):
                    connection.sendall(self._reply)
            except OSError:
                return  # who has asked did not like it


OLD = b"# Server\r\nredis_version:5.0.14\r\n"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"$%d\r\n%b\r\n" % (len(OLD), OLD), "is Redis 5.0.14; Redis 6.2 or Valkey is needed"),
        (b"+OK\r\n", "does not say which version of Redis it is"),
        (b":1\r\n", "does not say which version of Redis it is"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not of the Redis protocol"),
    ],
    ids=["an old one", "one that says yes", "one that counts", "a web server"],
)
def test_something_else_is_in_its_place(
    start_server: StartServer, valkey: Valkey, relay: BackendRelay, tmp_path: Path, reply: bytes, why: str
) -> None:
    server = start_server("--backend", relay.url, *IMPATIENT)
    with Crowd(server) as crowd, valkey.client() as direct:
        relay.backend = Impostor(tmp_path / "impostor", reply).path
        direct.client_kill_filter(_type="normal", skipme=True)
        crowd.wait_for_errors(f"BACKEND the backend is away: .*{why}")
        relay.backend = valkey.socket
        crowd.wait_for_success()
    crowd.assert_nothing_lost()
    assert_works(server)
    assert_said(server, LOST, why, BACK)


# The time.

CLOCKS = re.compile(r"\b(time\.time|datetime\.now|datetime\.utcnow|localtime|gmtime|from time import time)\b")


def test_our_clock_jumps() -> None:
    """Nothing that decides anything asks what time it is: only how much has passed."""
    asks = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("pressure_server", "handlers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if CLOCKS.search(line)
    ]
    # For INFO and stats.
    told = {
        "pressure_server/net/handler.py",
        "handlers/resp/commands/info.py",
        "handlers/memcached/commands/statistics.py",
    }
    assert {one.partition(":")[0] for one in asks} == told, asks


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-1000, 1000])
def test_the_clock_of_the_backend_jumps(start_server: StartServer, valkey: Valkey, hours: int) -> None:
    """An empty queue that nobody uses is deleted in the end; one that is used, or has messages, is not."""
    server = start_server("--backend", valkey.url, "--implicit-queue-ttl", "2")
    settings = "__pressure__:%s:ext:settings"
    with server.client() as client, Waiter(server.port) as waiting, valkey.client() as direct:
        for name in ("unused", "used", "kept"):
            assert client.lpush(name, "a") == 1
        for name in ("unused", "used"):
            assert client.spop(name) == b"a"
        waiting.send("BLPOP", "used", 0)
        wait_for(lambda: direct.hget(settings % "unused", "since"), "the queue to be found unused")
        direct.hset(settings % "unused", "since", int(direct.time()[0]) - 3600 * hours)
        wait_for(lambda: not client.exists("unused"), "it to be deleted")
        assert client.exists("used", "kept") == 2
        client.lpush("used", "b")
        assert waiting.reply() == [b"used", b"b"]


@pytest.mark.slow
def test_it_lets_us_begin_no_epoch(start_valkey: StartValkey, start_server: StartServer) -> None:
    """Calls that change something are refused with the reason, on one connection; until it is permitted."""
    valkey = start_valkey()
    server = start_server("--backend", valkey.url)
    with server.client() as client, valkey.client() as direct:
        assert client.lpush("q", "a") == 1
        direct.execute_command("ACL", "SETUSER", "default", "-hset")
        direct.flushall()
        before = direct.info("stats")["total_connections_received"]
        for _ in range(10):
            with pytest.raises(redis.ResponseError, match="BACKEND"):
                client.lpush("q", "a")
        assert client.llen("q") == 0
        assert direct.info("stats")["total_connections_received"] - before < 5
        direct.execute_command("ACL", "SETUSER", "default", "+hset")
        assert client.lpush("q", "a") == 1
