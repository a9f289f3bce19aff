"""Waits go on while the backend is away for longer than the grace: a client that waits gets no error."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.support.faults import stopped
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Protocol, Wire, joined
from tests.support.waiters import Waiter, create, is_refused, packed, wait_for_blocked


class Wait(NamedTuple):
    """A command that waits for {q}: {t} is a timeout in seconds, {ms} in milliseconds; {e} stays empty."""

    command: str
    # The reply when the time is up; None if there is no timeout, or no reply that says so.
    in_vain: bytes | None = None
    protocol: Protocol = RESP
    # For what it waits: a message, one that a group reads, or room.
    need: str = "message"

    def __str__(self) -> str:
        return f"{self.protocol} {self.command}"


_MANY = " ".join(f"{{e}}{number}" for number in range(20))
_NO_ARRAY = b"*-1"
WAITS = [
    Wait("BLPOP {q} {t}", _NO_ARRAY),
    Wait("BLPOP {e} {q} {t}", _NO_ARRAY),
    Wait("BLMPOP {t} 2 {e} {q} LEFT", _NO_ARRAY),
    Wait("BLMOVE {q} {e} LEFT RIGHT {t}", _NO_ARRAY),
    Wait("PRESSURE.GET {q}"),
    Wait("PRESSURE.RESERVE {q} TIMEOUT {t}", _NO_ARRAY),
    Wait("PRESSURE.RESERVE {e} {q} TIMEOUT {t}", _NO_ARRAY),
    Wait(f"PRESSURE.RESERVE {_MANY} {{q}} TIMEOUT {{t}}", _NO_ARRAY),
    Wait("BLPOP {q}+g {t}", _NO_ARRAY, need="group"),
    Wait("PRESSURE.READ {q} GROUP g me TIMEOUT {t}", _NO_ARRAY, need="group"),
    Wait("RPUSH {q} x", need="room"),
    Wait("SADD {q} x", need="room"),
    Wait("get {q}/t={ms}\r\n", b"END", MEMCACHED),
    Wait("get {q}/t={ms}/open\r\n", b"END", MEMCACHED),
    Wait("get {q}/t={ms}/peek\r\n", b"END", MEMCACHED),
    Wait("watch {q};ignore default;reserve-with-timeout {t}", b"TIMED_OUT", BEANSTALK),
    Wait("watch {q};reserve-with-timeout {t}", b"TIMED_OUT", BEANSTALK),
    Wait("watch {q};watch {e};reserve", None, BEANSTALK),
]


class Waiting:
    """A client that waits, and the queues that it names."""

    def __init__(self, wait: Wait, number: int) -> None:
        self._wait = wait
        self._names = {"q": f"q{number}", "e": f"e{number}"}
        self.is_put = False

    def prepare(self, client: Client) -> None:
        queue = self._names["q"]
        match self._wait.need:
            case "group":
                create(client, queue, "TYPE", "log")
                client.execute_command("PRESSURE.GROUP", "CREATE", queue, "g")
            case "room":
                create(client, queue, "BOUND", 1)
                client.rpush(queue, "full")
            case _:
                create(client, queue)
        create(client, self._names["e"])

    def send(self, server: Server, stack: ExitStack, seconds: float) -> None:
        self.wire = stack.enter_context(Wire(self._wait.protocol, server))
        times = {"t": f"{seconds:g}", "ms": str(round(1000 * seconds))}
        command = self._wait.command.format(**self._names, **times)
        if self._wait.protocol is RESP:
            self.wire.send(packed(*command.split()))
        elif self._wait.protocol is BEANSTALK:
            self.wire.send(joined(*(f"{line}\r\n".encode() for line in command.split(";"))))
        else:
            self.wire.send(command.encode())

    def serve(self, client: Client) -> None:
        """Put a message, or make room."""
        if self._wait.need == "room":
            assert client.lpop(self._names["q"]) == b"full"
        else:
            client.rpush(self._names["q"], f"message of {self._names['q']}")

    def mistake(self) -> str:
        """Return the reply, if it is wrong."""
        reply = self.wire.reply()
        if self._wait.need == "room":
            return "" if reply == b":1" else f"{self._wait}: {reply!r}"
        return "" if f"message of {self._names['q']}".encode() in reply else f"{self._wait}: {reply!r}"

    def mistake_in_vain(self) -> str:
        reply = self.wire.reply()
        return "" if reply == self._wait.in_vain else f"{self._wait}: {reply!r}"


@pytest.fixture
def valkey(start_valkey: StartValkey) -> Valkey:
    return start_valkey("--appendonly", "yes")


@pytest.fixture
def server(start_server: StartServer, valkey: Valkey) -> Server:
    return start_server("--backend", valkey.url, "--backend-grace", "0.2", *LISTEN)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def lose(server: Server, valkey: Valkey) -> None:
    """Kill the backend, and wait until the grace is over."""
    valkey.kill()
    with Waiter(server.port) as asking:
        wait_for(lambda: is_refused(asking("LLEN", "other"), "BACKEND"), "the end of the grace")


@pytest.mark.parametrize("begins", ["before", "during"])
def test_waits_go_on_while_the_backend_is_away(
    server: Server, valkey: Valkey, stack: ExitStack, begins: str
) -> None:
    waits = [wait for wait in WAITS if begins == "before" or wait.need != "room"]
    waiting = [Waiting(wait, number) for number, wait in enumerate(waits)]
    with server.client() as client:
        for one in waiting:
            one.prepare(client)
        if begins == "during":
            lose(server, valkey)
        for one in waiting:
            one.send(server, stack, 60)
        wait_for_blocked(client, len(waiting))
        if begins == "before":
            lose(server, valkey)
            wait_for_blocked(client, len(waiting))
        valkey.start()
        wait_for(lambda: client.info("backend")["backend_link_status"] == "up", "the backend to be back")
        for one in waiting:
            one.serve(client)
    assert not [wrong for one in waiting if (wrong := one.mistake())]
    assert "Traceback" not in server.log


def test_waits_end_at_their_time_while_the_backend_is_away(
    server: Server, valkey: Valkey, stack: ExitStack
) -> None:
    waiting = [Waiting(wait, number) for number, wait in enumerate(WAITS) if wait.in_vain is not None]
    with server.client() as client:
        for one in waiting:
            one.prepare(client)
        lose(server, valkey)
        for one in waiting:
            one.send(server, stack, 1)
        assert not [wrong for one in waiting if (wrong := one.mistake_in_vain())]
        wait_for_blocked(client, 0)
        valkey.start()
        wait_for(lambda: client.info("backend")["backend_link_status"] == "up", "the backend to be back")
        for one in waiting:
            one.serve(client)


def test_a_wait_that_begins_as_another_command_fails_goes_on(
    server: Server, valkey: Valkey, stack: ExitStack
) -> None:
    """The failing command forgets the queue's lane, in the moment in which the wait begins there."""
    with server.client() as client:
        waiting = [stack.enter_context(Waiter(server.port)) for _ in range(50)]
        failing = stack.enter_context(Waiter(server.port))
        lose(server, valkey)
        for number, waiter in enumerate(waiting):
            failing.send("LPUSH", f"q{number}", "refused")
            waiter.send("BLPOP", f"q{number}", 0)
            assert is_refused(failing.reply(), "BACKEND")
            wait_for_blocked(client, number + 1)
        valkey.start()
        wait_for(lambda: client.info("backend")["backend_link_status"] == "up", "the backend to be back")
        for number in range(len(waiting)):
            client.rpush(f"q{number}", "m")
        assert [waiter.reply() for waiter in waiting] == [[b"q%d" % n, b"m"] for n in range(len(waiting))]


def test_a_timed_wait_on_several_queues_ends_with_nothing_if_the_backend_dies_in_its_first_try(
    server: Server, valkey: Valkey, stack: ExitStack
) -> None:
    waiting = [stack.enter_context(Waiter(server.port)) for _ in range(3)]
    with server.client() as client, stopped(valkey.process):
        for waiter, words in zip(waiting, (("a",), ("a", "b"), ("a", "b", "c", "d")), strict=True):
            waiter.send("BRPOP", *words, 0.05)  # less than the grace
        client.ping()
        valkey.process.kill()
    assert [waiter.reply() for waiter in waiting] == [None, None, None]
    valkey.process.wait()


def test_a_message_that_was_taken_as_the_backend_died_is_delivered_once(
    server: Server, valkey: Valkey, stack: ExitStack
) -> None:
    """The calls in flight at the death may have been done: what they took goes back, and comes again."""
    with server.client() as client:
        for _ in range(20):
            taking = [stack.enter_context(Waiter(server.port)) for _ in range(4)]
            for waiter in taking:
                waiter.send("BLPOP", "q", "other", 0)
            wait_for_blocked(client, len(taking))
            with valkey.client() as direct:
                direct.execute_command("CLIENT", "PAUSE", "0")
            client.rpush("q", *range(len(taking)))
            valkey.kill()
            valkey.start()
            found = sorted(int(waiter.reply()[1]) for waiter in taking)
            assert found == list(range(len(taking)))
            wait_for(lambda: client.info("backend")["backend_link_status"] == "up", "the backend")
            assert client.llen("q") == 0
