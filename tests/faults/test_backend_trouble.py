"""A backend in trouble: no message is lost, and clients and the log are told the reason.

Each row of the table in docs/reliability.md names tests of this module. The first test compares both.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import redis

from tests.support import faults
from tests.support.backend_relay import BackendRelay
from tests.support.crowd import Crowd
from tests.support.faults import BackendFault, Disk, Impostor, LimitedFiles, small_disk, stopped, supervised
from tests.support.measures import connections, heartbeats
from tests.support.native import NativeClient
from tests.support.paths import ROOT
from tests.support.programs import (
    Server,
    StartServer,
    StartValkey,
    Valkey,
    run_command,
    start_replicated,
    wait_for,
    wait_until_settled,
)
from tests.support.waiters import Waiter, about, create, is_refused, packed, wait_for_blocked, waiters

BASE = "__pressure__:q"
ON_DISK = ("--appendonly", "yes", "--appendfsync", "always")
# Seconds: enough for a busy machine, and few for a test.
IMPATIENT = ("--backend-timeout", "2", "--backend-grace", "1")
PATIENT = ("--backend-grace", "20")


NAMED_TEST = re.compile(r"`(test_\w+(?:\[[^]]+\])?)`")


def table() -> list[list[str]]:
    """Return the rows of the table: the trouble, its effects, its end, the log, the tests."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    section = text.partition("## When the backend is in trouble")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "trouble"]


def test_the_document_names_the_tests_of_each_trouble() -> None:
    named = set()
    for row in table():
        assert len(row) == 5, row
        found = NAMED_TEST.findall(row[-1])
        assert found, row
        assert not NAMED_TEST.sub("", row[-1]).strip(" ,"), row
        named.update(found)
    troubled = test_no_message_is_lost_when_the_backend.__name__
    others = {test_the_document_names_the_tests_of_each_trouble.__name__, troubled}
    tests = {name for name in globals() if name.startswith("test_")} - others
    assert named == tests | {f"{troubled}[{name}]" for name in TROUBLES}


LOST = r"^backend database 0: the connection to \S+ was lost \("
LACKS = r"^backend database 0 lacks the last \d+ calls? that it had answered"
BACK = r"^backend database 0 is back after [\d.]+ seconds"
REFUSES = r"^backend database 0 refuses: "
REFUSES_NO_MORE = r"^backend database 0: no %s errors for 5 seconds"
# Logged sometimes: a backend that starts is loading, or closes a new connection.
STARTING = r"(with: LOADING .*|was lost \(.*\)); trying again$"
# Logged if the trouble lasts until the next heartbeat.
HEARTBEAT = r"^backend database 0 (no longer )?refuses this server's heartbeat"


# Patterns, each with the least and the greatest number of lines that it matches.
Lines = tuple[tuple[str, int, int], ...]
NEVER = "never logged"


def lines(*patterns: str | tuple[str, int, int]) -> Lines:
    """Return expected lines. A pattern without numbers matches one line."""
    return tuple(each if isinstance(each, tuple) else (each, 1, 1) for each in patterns)


def logged(server: Server, *, ignored: str = NEVER) -> list[str]:
    """Return the lines that the server has logged since it was ready, without times and levels."""
    found = server.log.partition(" ready: ")[2].splitlines()[1:]
    without = [line.split(None, 3)[3] for line in found]
    # redis-py asks for commands that the server does not have.
    return [line for line in without if not re.search(rf"{ignored}|^unknown command ", line)]


def assert_logs(server: Server, expected: Lines = (), *, ignored: str = NEVER) -> None:
    """Wait until the server has logged these lines. Raise AssertionError if it logs others."""
    pattern = "".join(rf"(?:.*(?:{each}).*\n){{{least},{most}}}" for each, least, most in expected)

    def agrees() -> bool:
        text = "".join(f"{line}\n" for line in logged(server, ignored=ignored))
        return re.fullmatch(pattern, text, re.MULTILINE) is not None

    with suppress(AssertionError):
        wait_for(agrees, "the log")
    assert agrees(), logged(server)


def assert_logs_once(server: Server, *, ignored: str = NEVER) -> None:
    """Raise AssertionError if the server has logged a line twice."""
    found = logged(server, ignored=ignored)
    assert len(found) == len(set(found)), found


def assert_works(server: Server) -> None:
    """Raise AssertionError unless a put, a get and a waiting get work, each at the first attempt."""
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
    """Return a backend that keeps its data and permits every fault."""
    return start_valkey(
        *ON_DISK, "--save", "3600 1", "--enable-debug-command", "yes", "--enable-protected-configs", "yes"
    )


@pytest.fixture
def impatient(start_server: StartServer, valkey: Valkey) -> Server:
    return start_server("--backend", valkey.url, *IMPATIENT)


@pytest.fixture
def relay(valkey: Valkey) -> Iterator[BackendRelay]:
    with BackendRelay(valkey.socket) as opened:
        yield opened


@dataclass(frozen=True)
class Trouble:
    """A fault of the backend, the errors that clients receive, and the lines that the server logs.

    All clients receive `errors` while the fault lasts, and every error matches `only`. Without `errors` they
    receive none. The server logs the lines of `log`, besides `ignored` ones, and none twice, unless it
    `repeats` them. `mentions` is a word, and the least and the greatest number of lines that have it.
    """

    fault: BackendFault
    errors: str = ""
    only: str = "^BACKEND"
    log: Lines = ()
    ignored: str = NEVER
    mentions: tuple[str, int, int] = ("", 0, 99)
    repeats: bool = False
    times: int = 1
    options: tuple[str, ...] = IMPATIENT
    # The fault deletes all messages, or permits gets while it lasts.
    deletes: bool = False
    permits_gets: bool = False
    is_slow: bool = False


AWAY = "BACKEND the backend is away: .*"
REFUSED = "BACKEND the backend answered for queue 'q': "


def refusal(fault: BackendFault, code: str, text: str = "", *, permits_gets: bool = False) -> Trouble:
    """Return the trouble of a backend that refuses commands with this code."""
    return Trouble(
        fault,
        errors=f"{REFUSED}{code} ",
        only=code if permits_gets else "^BACKEND",
        log=lines(REFUSES + (text or code), REFUSES_NO_MORE % code),
        ignored=NEVER if permits_gets else HEARTBEAT,
        permits_gets=permits_gets,
        is_slow=True,
    )


TROUBLES = {
    "is killed for longer than the grace": Trouble(
        faults.killed,
        errors=f"{AWAY}no connection to .*: Connection refused",
        log=lines(LOST, "Connection refused; trying again", BACK),
        ignored=STARTING,
    ),
    "is killed for less than the grace": Trouble(
        faults.killed,
        log=lines(LOST, (".", 0, 2), BACK) * 3,
        ignored=STARTING,
        repeats=True,
        times=3,
        options=PATIENT,
    ),
    "hangs": Trouble(
        faults.hanging, errors="BACKEND", log=lines(LOST + "it has not answered for 2 seconds", BACK)
    ),
    "hangs for less than the timeout": Trouble(faults.ASLEEP),
    "pauses its clients": Trouble(
        faults.PAUSED, errors="BACKEND", log=lines(LOST, (".", 0, 1), BACK), is_slow=True
    ),
    "pauses writes": Trouble(
        faults.WRITES_PAUSED, errors="BACKEND", log=lines(LOST, (".", 0, 1), BACK), is_slow=True
    ),
    "closes all connections": Trouble(
        faults.DISCONNECTED, log=lines(LOST, BACK) * 10, repeats=True, times=10, options=PATIENT
    ),
    "has too many clients": Trouble(
        faults.TOO_MANY_CLIENTS,
        errors=f"{AWAY}max number of clients",
        # The end of the connection may overtake the error.
        log=lines(LOST, (".", 0, 9), BACK),
    ),
    "loads its data": Trouble(
        faults.loading,
        errors=f"{AWAY}LOADING",
        log=lines(LOST, (".", 0, 9), BACK),
        mentions=("LOADING", 1, 1),
        is_slow=True,
    ),
    "runs a script that does not end": Trouble(
        faults.busy,
        errors=f"{AWAY}BUSY",
        log=lines(LOST, (".", 0, 2), BACK),
        mentions=("BUSY", 1, 2),
        repeats=True,
    ),
    "is out of memory": refusal(faults.OUT_OF_MEMORY, "OOM", "OOM command not allowed", permits_gets=True),
    "cannot save": refusal(faults.unable_to_save, "MISCONF"),
    "has too few replicas": refusal(faults.TOO_FEW_REPLICAS, "NOREPLICAS"),
    "permits no scripts": refusal(faults.NO_SCRIPTS, "NOPERM"),
    "forgets its scripts": Trouble(faults.SCRIPTS_FLUSHED, times=50, options=PATIENT),
    "deletes all data": Trouble(faults.FLUSHED, times=20, options=PATIENT, deletes=True),
}


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(each, id=name, marks=[pytest.mark.slow] * each.is_slow) for name, each in TROUBLES.items()],
)
def test_no_message_is_lost_when_the_backend(
    start_server: StartServer, valkey: Valkey, trouble: Trouble
) -> None:
    server = start_server("--backend", valkey.url, *trouble.options)
    messages = [b"%d" % number for number in range(100)]
    with server.client() as client, Crowd(server) as crowd:
        client.sadd("full", *messages)
        for _ in range(trouble.times):
            with trouble.fault(valkey):
                if trouble.errors:
                    crowd.wait_for_errors(trouble.errors)
                if trouble.permits_gets:
                    assert [client.spop("full") for _ in messages] == messages
            crowd.wait_for_success()
        if not trouble.permits_gets:
            assert client.spop("full", 100) == ([] if trouble.deletes else messages)
    assert crowd.errors_of(trouble.only if trouble.errors else "never received") == crowd.errors.total()
    if trouble.deletes:
        assert not crowd.ledger.doubled()
    else:
        crowd.assert_nothing_lost()
    assert_works(server)
    assert_logs(server, trouble.log, ignored=trouble.ignored)
    word, least, most = trouble.mentions
    assert least <= sum(word in line for line in logged(server)) <= most, logged(server)
    if not trouble.repeats:
        assert_logs_once(server, ignored=trouble.ignored)


def test_a_server_starts_before_its_backend(start_server: StartServer, valkey: Valkey) -> None:
    valkey.kill()
    server = start_server("--backend", valkey.url, "--backend-grace", "0.3")
    assert " ready: " not in server.log
    assert "waiting for the backend: commands wait up to 0.3 seconds for it, then fail" in server.log
    with Waiter(server.port) as waiting:
        assert is_refused(waiting("SADD", "q", "a"), "BACKEND")
        valkey.start()
        wait_for(lambda: waiting("SADD", "q", "a") in (0, 1), "the backend")
    assert_works(server)
    assert re.search(r"no connection to \S+: Connection refused; trying again", server.log)
    assert server.log.count("WARNING") == 1
    assert server.log.count("is back after") == 1
    assert server.log.count(" ready: ") == 1


@pytest.mark.slow
def test_no_message_is_lost_when_connections_break_in_the_middle_of_a_reply(
    start_server: StartServer, relay: BackendRelay
) -> None:
    server = start_server("--backend", relay.url)
    replies = count(1)
    with Crowd(server) as crowd:
        relay.cuts = lambda _: next(replies) % 50 == 0 and relay.made < 20
        wait_for(lambda: relay.made == 20, "cuts")
        crowd.wait_for_success()
    assert crowd.errors == {}
    crowd.assert_nothing_lost()
    assert_works(server)
    assert len(logged(server)) <= 3 * 20


def test_a_question_that_the_backend_does_not_answer_changes_nothing(
    impatient: Server, valkey: Valkey
) -> None:
    # The error of a question depends on whether it had been sent.
    asked = [
        (packed("SADD", "q", "b"), "may or may not have been done"),
        (packed("SCARD", "q"), "ask again|the backend is away"),
        (packed("LRANGE", "q", 0, -1), "the backend is away"),
        (packed("MULTI") + packed("SCARD", "q") + packed("EXEC"), "ask again|the backend is away"),
    ]
    with waiters(impatient, len(asked)) as clients:
        clients[0]("SADD", "q", "a")
        with stopped(valkey.process):
            for client, (request, _) in zip(clients, asked, strict=True):
                client.socket.sendall(request)
            assert [clients[3].reply() for _ in range(2)] == [b"OK", b"QUEUED"]
            replies = [client.reply() for client in clients]
    wait_for(lambda: "is back" in impatient.log, "the backend")
    for reply, (request, text) in zip(replies, asked, strict=True):
        assert is_refused(reply, "BACKEND"), request
        assert re.search(text, str(reply)), request
    assert_works(impatient)


def test_a_machine_that_stands_still_breaks_no_connection(impatient: Server, valkey: Valkey) -> None:
    with Waiter(impatient.port) as client, impatient.client() as other:
        with stopped(valkey.process):
            client.send("SADD", "q", "a")
            other.ping()
            other.ping()
            with stopped(impatient.process):
                time.sleep(3)  # a time: longer than the timeout of the backend
            other.ping()
            other.ping()
        assert client.reply() == 1
    assert_works(impatient)
    assert_logs(impatient)


@pytest.mark.slow
def test_a_slow_network_breaks_no_connection(start_server: StartServer, valkey: Valkey) -> None:
    """A large message takes longer than the backend's timeout, in both directions."""
    with BackendRelay(valkey.socket, delay=0.2, rate=50_000) as slow:
        server = start_server("--backend", slow.url, *IMPATIENT)
        with Waiter(server.port) as client:
            large = b"x" * 80_000
            for words, reply in ((("LPUSH", "q", large), 1), (("SPOP", "q"), large), (("SADD", "q", "a"), 1)):
                client.send(*words)
                assert client.reply(timeout=60) == reply
        assert_logs(server)


@pytest.mark.alone
def test_a_huge_reply_arrives(impatient: Server, valkey: Valkey) -> None:
    with impatient.client() as client, valkey.client() as direct:
        create(client, "q")
        message = b"x" * (1 << 20)
        for number in range(100):
            direct.lpush(BASE, b"%d" % number + message)
        assert sum(map(len, client.lrange("q", 0, -1))) > 100 << 20
        assert client.spop("q").startswith(b"0x")
    assert_works(impatient)
    assert_logs(impatient)


@pytest.mark.slow
def test_no_message_is_lost_in_a_failover(start_valkey: StartValkey, start_server: StartServer) -> None:
    """The backend becomes a replica; later, its address leads to the promoted one."""
    main, replica = start_replicated(start_valkey, *ON_DISK)
    with main.client() as direct, replica.client() as promoted, BackendRelay(main.socket) as relay:
        server = start_server("--backend", relay.url, *IMPATIENT)
        with Crowd(server) as crowd:
            direct.execute_command("FAILOVER")
            wait_for(lambda: promoted.info("replication")["role"] == "master", "the failover")
            crowd.wait_for_errors("BACKEND the backend is away: .*READONLY")
            relay.backend = replica.socket
            crowd.wait_for_success()
        crowd.assert_nothing_lost()
        assert_works(server)
        assert_logs(server, lines((".", 1, 9), BACK))
        assert sum("READONLY" in line for line in logged(server)) in (1, 2), logged(server)
        assert_logs_once(server)


@pytest.mark.parametrize("has_mirror", [False, True], ids=["without a mirror", "with a mirror"])
def test_a_queue_can_be_emptied_when_the_backend_is_out_of_memory(
    impatient: Server, valkey: Valkey, has_mirror: bool
) -> None:
    """All kinds of gets and removals work, also on messages of native clients."""
    with impatient.client() as client, valkey.client() as direct, waiters(impatient, 3) as waiting:
        create(client, "q")
        native = NativeClient(direct, "q")
        client.execute_command("SADD" if has_mirror else "LPUSH", "q", "0")
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
        for command in ("SADD", "LPUSH", "PRESSURE.PUT"):
            assert re.match(r"BACKEND .*: OOM ", str(waiting[0](command, "q", "m")))
        assert client.spop("q", 10) == [b"10", b"11"]
        # Clients that wait for a message go on waiting while puts are refused.
        waiting[0].send("BLPOP", "q", 0)
        waiting[1].send("BLPOP", "other", "q", 0)
        wait_for_blocked(client, 2)
        # A message that goes straight to one of them may need no memory.
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


def test_undelivered_messages_go_back_when_the_backend_is_out_of_memory(
    start_server: StartServer, valkey: Valkey
) -> None:
    """A client leaves before its messages come; then a server dies before it delivers them."""

    def take_and(leave: Callable[[Waiter], None]) -> None:
        with Waiter(first.port) as waiter, Waiter(first.port) as after, stopped(valkey.process):
            waiter.send("SPOP", "q", 50)
            waiter.send("PING")
            assert after("PING") == b"PONG"  # the server has read the earlier requests
            leave(waiter)

    with valkey.client() as direct:
        first = start_server("--backend", valkey.url, "--proxy-timeout", "1")
        with first.client() as client:
            client.lpush("q", *range(100))
        direct.config_set("maxmemory", 1)
        before = heartbeats(direct)
        wait_for(lambda: heartbeats(direct) != before, "a heartbeat, which needs no memory")
        take_and(Waiter.reset)
        wait_for(lambda: direct.llen(BASE) == 100, "the messages to be back")
        take_and(lambda _: first.kill())
        second = start_server("--backend", valkey.url, "--proxy-timeout", "1")
        wait_for(lambda: "has died" in second.log, "the death to be noticed")
        with second.client() as client:
            assert client.spop("q", 100) == [b"%d" % number for number in range(100)]


@pytest.fixture(params=["full", "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "limited":
        yield LimitedFiles(tmp_path)
    else:
        with small_disk(tmp_path / "disk") as mounted:
            yield mounted


@pytest.mark.slow
def test_no_message_is_lost_when_the_disk_of_the_embedded_backend_is_full(
    start_server: StartServer, disk: Disk
) -> None:
    options = ("--data-dir", str(disk.data_dir), "--durability", "fsync", "--proxy-timeout", "1")
    server = start_server(*options, environment=disk.environment)
    with server.client() as client, Waiter(server.port) as waiting, Waiter(server.port) as putting:
        assert client.sadd("q", "a", "b") == 2
        queued = 2
        disk.fill(server)
        while (reply := putting("SADD", "q", f"{queued}" + 1000 * "x")) == 1:
            queued += 1
        assert re.match("BACKEND (this has been done, but is not known to be safe|.*MISCONF)", str(reply))
        wait_for(lambda: "MISCONF" in str(waiting("PRESSURE.READY")), "the server to be not ready")
        for _ in range(50):
            assert is_refused(putting("SADD", "q", "refused"), "BACKEND")
            assert is_refused(putting("SPOP", "q"), "BACKEND")
            assert queued <= client.scard("q") <= queued + 1
            assert client.sismember("q", "b") == 1
            assert client.info("queues")
        assert server.log.count("Valkey ended with status") == 1
        assert len(logged(server)) <= 10, logged(server)
        disk.free(server)
        wait_for(lambda: putting("SADD", "q", "after") == 1, "puts to work again")
        wait_for(lambda: waiting("PRESSURE.READY") == b"OK", "the server to be ready again")
        got = client.spop("q", 1000)
        assert got[:2] == [b"a", b"b"]
        assert got[-1] == b"after"
        assert queued <= len(got) - 1 <= queued + 1
        assert len(set(got)) == len(got)
        wait_for(lambda: "Valkey syncs each write again" in server.log, "each write to be synced again")
        assert_works(server)
    assert server.log.count("Valkey ended") == 1
    assert server.stop() == 0


def kills(valkey: Valkey, word: bytes) -> Callable[[bytes], bool]:
    """Return a function that kills the backend if bytes contain the word, and returns whether they do."""

    def selects(data: bytes) -> bool:
        if word in data:
            valkey.process.kill()
        return word in data

    return selects


def test_a_call_that_kills_the_backend_three_times_is_given_up(
    start_server: StartServer, valkey: Valkey, relay: BackendRelay
) -> None:
    server = start_server("--backend", relay.url, "--backend-grace", "20")
    with supervised(valkey) as deaths, server.client() as client, Waiter(server.port) as waiting:
        assert client.sadd("q", "a") == 1
        relay.drops = kills(valkey, b"deadly")
        waiting.send("SADD", "q", "deadly")
        reply = str(waiting.reply())
        assert reply.startswith("BACKEND the backend died 3 times while it was doing this"), reply
        assert len(deaths) == 3
        assert client.sadd("q", "b") == 1
        assert client.spop("q", 5) == [b"a", b"b"]
        assert_works(server)
        assert len(deaths) == 3
    # A heartbeat may have been in flight, too.
    told = r"died 3 times with the same calls in flight: \d calls? answered with an error"
    assert len(re.findall(told, server.log)) == 1
    assert server.stop() == 0


@pytest.mark.slow
def test_a_put_back_that_kills_the_backend_is_retried_with_growing_pauses(
    start_server: StartServer, valkey: Valkey, relay: BackendRelay
) -> None:
    server = start_server("--backend", relay.url, "--backend-grace", "20")

    def lost() -> int:
        return sum(bool(re.search(LOST, line)) for line in logged(server, ignored=STARTING))

    with supervised(valkey) as deaths, server.client() as client, Waiter(server.port) as waiting:
        assert client.sadd("q", "taken", "b") == 2
        # The script's text has the word, too, but not as an argument.
        relay.drops, relay.cuts = kills(valkey, b"\r\nrecover\r\n"), kills(valkey, b"taken")
        waiting.send("SPOP", "q")
        assert "died 3 times" in str(waiting.reply())
        wait_for(lambda: len(deaths) == 5, "two attempts to put the message back")
        wait_for(lambda: lost() == 5, "the last loss to be noticed")
        first, second = deaths[3] - deaths[2], deaths[4] - deaths[3]
        assert first > 0.9
        assert second > 1.9
        assert client.sadd("other", "c") == 1
        relay.drops = relay.cuts = lambda _: False
        wait_for(lambda: client.scard("q") == 2, "the message to be back")
        assert client.spop("q", 2) == [b"taken", b"b"]
        with valkey.client() as direct:
            wait_until_settled(direct)
        assert len(deaths) == 5
    assert server.log.count("with the same calls in flight") == 1


def test_questions_are_answered_while_changes_are_refused(impatient: Server, valkey: Valkey) -> None:
    """Questions and changes share a call: they are sent while another call is in flight."""
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


def test_questions_about_jobs_that_are_due_are_answered_while_changes_are_refused(
    impatient: Server, valkey: Valkey
) -> None:
    with impatient.client() as client, valkey.client() as direct:
        for name, type_ in (("q", "JOBS"), ("lifo", "LIFO")):
            create(client, name, "TYPE", type_)
            # As native clients put.
            direct.lpush(f"__pressure__:{name}", "native")
        client.execute_command("PRESSURE.PUT", "q", "late", "DELAY", 0.01)
        create(client, "log", "TYPE", "LOG")
        client.rpush("log", "m")
        client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
        direct.config_set("min-replicas-to-write", 1)
        time.sleep(0.02)  # a time: the delay ends by the clock of the backend
        for name in ("q", "lifo", "log", "log+g"):
            assert client.llen(name) > 0
            assert client.lrange(name, 0, -1) is not None
            assert client.exists(name) == 1
            assert about(client, name)
        direct.config_set("min-replicas-to-write", 0)
        assert sorted(client.lpop("q", 5)) == [b"late", b"native"]
    assert_works(impatient)


@pytest.mark.parametrize(
    ("refuses", "permits"),
    [(["-evalsha", "-fcall"], ["+evalsha", "+fcall"]), (["resetkeys", "~__pressure__:*"], ["allkeys"])],
    ids=["no calls", "not that key"],
)
def test_a_server_that_may_not_send_its_heartbeat_is_not_ready(
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
                wait_for(lambda: "NOPERM" in str(client("PRESSURE.READY")), "the server to be not ready")
                direct.execute_command("ACL", "SETUSER", "default", *permits)
                wait_for(lambda: client("PRESSURE.READY") == b"OK", "the server to be ready again")
                direct.execute_command("ACL", "SETUSER", "default", *refuses)
        # The backend may refuse the heartbeat, the search for dead servers, or both.
        refused_times = server.log.count("so it is not ready (PRESSURE.READY)")
        assert 2 <= refused_times <= 6
        assert refused_times - server.log.count("no longer refuses") in (0, 1, 2)


def test_a_backend_without_evalsha_is_reported_once(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    server = start_server("--backend", start_valkey("--rename-command", "EVALSHA", "elsewhere").url)
    with Waiter(server.port) as client:
        assert "unknown command" in str(client("PRESSURE.READY"))
        assert is_refused(client("SADD", "q", "a"), "BACKEND")
    assert_logs(server)
    assert server.log.count("refuses this server's heartbeat") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "code"),
    [("", "another", "NOAUTH"), ("secret", "another", "WRONGPASS")],
    ids=["from none", "to another"],
)
def test_no_message_is_lost_when_the_password_is_changed(
    start_valkey: StartValkey, start_server: StartServer, before: str, after: str, code: str
) -> None:
    valkey = start_valkey(*ON_DISK, *(("--requirepass", before) if before else ()))
    url = valkey.url.replace("unix://", f"unix://:{before}@") if before else valkey.url
    server = start_server("--backend", url, *IMPATIENT)
    with Crowd(server) as crowd, valkey.client(password=before or None) as direct:
        direct.config_set("requirepass", after)
        crowd.wait_for_success()  # open connections stay authenticated
        direct.client_kill_filter(_type="normal", skipme=True)
        crowd.wait_for_errors(f"BACKEND the backend is away: .*{code}")
        with Waiter(server.port) as asking:
            assert is_refused(asking("SELECT", 3), "BACKEND")
        direct.config_set("requirepass", before)
        crowd.wait_for_success()
        wait_for(lambda: connections(direct, tracking=True), "the watch", timeout=15)
    with server.client(db=3) as client:
        assert client.sadd("q", "a") == 1
    crowd.assert_nothing_lost()
    assert_works(server)
    assert_logs(server, lines(".", code, "."), ignored="changes")
    assert "secret" not in server.log
    assert "another" not in server.log


KEYS = ":bound :producer :closed :not_full :ext:made :ext:index :ext:members :ext:copies :ext:marks"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", *KEYS.split()])
def test_a_key_of_the_wrong_type_loses_no_message(impatient: Server, valkey: Valkey, suffix: str) -> None:
    """Commands on that queue may fail. Its messages stay, and other queues work."""
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
    assert_logs(impatient)


def test_another_backend_at_the_address_serves_its_own_queues(
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
            wait_for_blocked(client, 1)
            relay.backend = other.socket
            direct.client_kill_filter(_type="normal", skipme=True)
            assert waiting.reply() == [b"found", b"there"]
            crowd.wait_for_success()
        assert crowd.errors == {}
        assert not crowd.ledger.doubled()
        assert client.exists("left") == 0
        assert_works(server)
    assert_logs(server, lines(LOST, LACKS, BACK))


OLD = b"# Server\r\nredis_version:5.0.14\r\n"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"$%d\r\n%b\r\n" % (len(OLD), OLD), "is Redis 5.0.14; Redis 7.0, Valkey 7.2 or newer is needed"),
        (b"+OK\r\n", "does not say which version of Redis it is"),
        (b":1\r\n", "does not say which version of Redis it is"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not follow the Redis protocol"),
    ],
    ids=["an old Redis", "a server that replies OK", "a server that replies 1", "a web server"],
)
def test_no_message_is_lost_when_something_else_is_at_the_address(
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
    assert_logs(server, lines(LOST, why, BACK))


CLOCKS = re.compile(r"\b(time\.time|datetime\.now|datetime\.utcnow|localtime|gmtime|from time import time)\b")


def test_no_decision_depends_on_the_time_of_day() -> None:
    uses = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("pressure_server", "handlers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if CLOCKS.search(line)
    ]
    # INFO, stats, the slow log, MONITOR and backups report the time of day, and tasks of Celery have an ETA.
    reports = {
        "pressure_server/client/kombu.py",
        "pressure_server/backend/backups/archive.py",
        "pressure_server/backend/data_directory.py",
        "pressure_server/net/monitors.py",
        "pressure_server/net/slow_log.py",
        "pressure_server/net/handler.py",
        "handlers/resp/commands/info.py",
        "handlers/memcached/commands/server.py",
        "handlers/beanstalk/commands/inspection.py",
    }
    assert {use.partition(":")[0] for use in uses} == reports, uses


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-1000, 1000])
def test_a_jump_of_the_backend_s_clock_deletes_unused_queues_only(
    start_server: StartServer, valkey: Valkey, hours: int
) -> None:
    server = start_server("--backend", valkey.url, "--implicit-queue-ttl", "2")
    settings = "__pressure__:%s:ext:settings"
    with server.client() as client, Waiter(server.port) as waiting, valkey.client() as direct:
        for name in ("unused", "used", "not empty"):
            assert client.lpush(name, "a") == 1
        for name in ("unused", "used"):
            assert client.spop(name) == b"a"
        waiting.send("BLPOP", "used", 0)
        wait_for(lambda: direct.hget(settings % "unused", "since"), "the queue to be found unused")
        direct.hset(settings % "unused", "since", int(direct.time()[0]) - 3600 * hours)
        wait_for(lambda: not client.exists("unused"), "the queue to be deleted")
        assert client.exists("used", "not empty") == 2
        client.lpush("used", "b")
        assert waiting.reply() == [b"used", b"b"]


@pytest.mark.slow
def test_changes_are_refused_until_the_server_may_begin_an_epoch(
    start_valkey: StartValkey, start_server: StartServer
) -> None:
    """The server does not reconnect for each refused change."""
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
