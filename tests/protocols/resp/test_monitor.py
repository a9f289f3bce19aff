"""MONITOR: what it shows and hides, which users may use it, and monitors that do not read."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handlers.resp.parser import split_inline
from pressure_server.net.monitors import MAX_UNSENT, line_of
from tests.support.guards import reload, users_toml
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Protocol, Wire, each_protocol
from tests.support.side_by_side import Pair, compare
from tests.support.waiters import Waiter, is_refused, packed

SECRET = "s3cret-Passw0rd"
_TIME_AND_PLACE = re.compile(rb"\+?\d+\.\d{6} \[(\d+) [^\]]+\] ")


@pytest.fixture(scope="module", params=[True, False], ids=["password", "no password"])
def monitored(
    request: pytest.FixtureRequest, shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with listeners of all protocols, with or without a password."""
    log = tmp_path_factory.mktemp("monitored") / "log"
    password = ["--password", SECRET] if request.param else []
    options = ["--slowlog-slower-than", "0", "--log-level", "debug"]
    server = Server(log, "--backend", shared_backend.url, *password, *options, *LISTEN)
    yield server
    server.end_well()


def monitor_of(server: Server) -> Waiter:
    """Return a connection that monitors the server."""
    connected = Waiter(server.port)
    connected("AUTH", SECRET)
    assert connected("MONITOR") == b"OK"
    return connected


def has_password(server: Server) -> bool:
    with Waiter(server.port) as stranger:
        return is_refused(stranger("PING"), "NOAUTH")


def shown_until(monitor: Waiter, last: bytes) -> list[bytes]:
    """Return the lines up to the one with `last`, without time and address."""
    lines: list[bytes] = []
    while not lines or last not in lines[-1]:
        lines.append(_TIME_AND_PLACE.sub(b"", monitor.reply(), count=1))
    return lines


COMMANDS: list[tuple[bytes, ...]] = [
    (b"SADD", b"q", b"a b", b""), (b"sadd", b"q", bytes(range(256))), (b"SCARD", b"q"), (b"PING",),
    (b"SADD", b"q"), (b"nonsense", b"x"), (b"CLIENT", b"SETNAME", b"me"), (b"CLIENT", b"nonsense"),
    (b"CLIENT", b"GETNAME"), (b"AUTH", b"x"), (b"HELLO", b"2"), (b"SELECT", b"1"), (b"SPOP", b"q", b"2"),
]  # fmt: skip


def test_lines_are_those_of_redis(pair: Pair) -> None:
    found: list[list[bytes]] = []
    for monitor, wire in zip(pair.connect(), pair.connect(), strict=True):
        assert monitor.do((b"MONITOR",)).line == b"+OK\r\n"
        for command in COMMANDS:
            wire.do(command)
        lines: list[bytes] = []
        while not lines or b'"SPOP"' not in lines[-1]:
            line = monitor.line()
            place = _TIME_AND_PLACE.match(line)
            assert place is not None, line
            lines.append(place[1] + b" " + line[place.end() :])
        # Redis shows AUTH and HELLO without their arguments, and the database after SELECT.
        hidden = (b'"AUTH"', b'"HELLO"', b'"SELECT"')
        found.append([line for line in lines if not any(word in line for word in hidden)])
    assert found[0] == found[1]


def test_commands_of_all_protocols_are_shown(monitored: Server) -> None:
    with monitor_of(monitored) as monitor:
        for protocol in (RESP, MEMCACHED, BEANSTALK):
            with Wire(protocol, monitored) as wire:
                if has_password(monitored):  # to memcached without a password, a login is a message
                    wire.log_in("default", SECRET)
                wire.put(b"q", b"message of " + protocol.name.encode())
                assert any(b'"q"' in line or b'"use"' in line for line in shown_until(monitor, b"message of"))


def test_pipelines_are_shown_command_by_command(server: Server) -> None:
    with monitor_of(server) as monitor, Waiter(server.port) as client:
        client.socket.sendall(b"".join(packed("SADD", "q", number) for number in range(600)))
        assert [client.reply() for _ in range(600)] == [1] * 600
        expected = [f'"SADD" "q" "{number}"'.encode() for number in range(600)]
        assert shown_until(monitor, b'"599"') == expected


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
@example([b'"\\\n\r\t\a\b\x00\xff '])
def test_quoted_words_can_be_read_back(words: list[bytes]) -> None:
    line = line_of(words)
    assert line.isascii()
    assert b"\n" not in line
    assert split_inline(line) == words


def test_long_words_are_shortened() -> None:
    assert line_of([b"x" * 2000]) == b'"' + b"x" * 1024 + b'... (976 more bytes)"'
    assert line_of([b"x"] * 200).endswith(b'"... (73 more arguments)"')


_S = SECRET.encode()
RESP_LOGINS = [
    packed("AUTH", SECRET), packed("auth", "default", SECRET), packed("aUtH", SECRET) * 30,
    packed("AUTH", "default", SECRET) * 30, packed("AUTH", "a", "b", SECRET), packed("AUTH", SECRET + "x"),
    packed("HELLO", 3, "AUTH", "default", SECRET), packed("hello", "AUTH", "default", SECRET),
    packed("HELLO", SECRET), packed("AUTHH", SECRET), packed("AUT", SECRET), packed("AUTH ", SECRET),
    packed("\0AUTH", SECRET), packed("", SECRET), packed("CLIENT", "AUTH", SECRET), packed(SECRET),
    packed("ACL", "SETUSER", "x", f">{SECRET}"), packed("CONFIG", "SET", "requirepass", SECRET),
    packed("MULTI") + packed("AUTH", SECRET) + packed("EXEC"), packed("PING") + packed("AUTH", SECRET),
    b"auth %b\r\n" % _S, b" AUTH  default %b\n" % _S, b'"auth" "%b"\r\n' % _S, b"AUTH\t%b\r\n" % _S,
    b"hello 3 auth default %b\r\n" % _S, b"AUTH '%b'\r\n" % _S, b"Auth:%b\r\n" % _S, b"%b\r\n" % _S,
    b"AUTH %b" % _S, b"*2\r\n$4\r\nAUTH\r\n$15\r\n%b" % _S, b"*3\r\n$4\r\nAUTH\r\n$15\r\n%b\r\n" % _S,
    MEMCACHED.log_in(b"default", _S), BEANSTALK.log_in(b"default", _S),
]  # fmt: skip
OTHER_LOGINS = [
    b"auth %b\r\n" % _S, b"auth default %b\r\n" % _S, b"AUTH %b\r\n" % _S, b" auth %b\r\n" % _S,
    b"auth\t%b\r\n" % _S, b"authh %b\r\n" % _S, b"auth\0 %b\r\n" % _S, b"auth a b %b\r\n" % _S,
    b"auth  %b \r\n" % _S, b"auth %b\n\r\n" % _S, b"SET x 0 0 23\r\ndefault %b\r\n" % _S,
    packed("AUTH", "default", SECRET), packed("HELLO", 3, "AUTH", "default", SECRET),
]  # fmt: skip
BEFORE_LOGIN = [
    MEMCACHED.log_in(b"default", _S), MEMCACHED.log_in(b"", _S),
    b"set x 0 0 24\r\ndefault %b!\r\n" % _S, b"set x 0 0 15 noreply\r\n%b\r\n" % _S,
    b"add x 0 0 15\r\n%b\r\n" % _S, b"put 0 0 1 15\r\n%b\r\n" % _S,
    b"get %b\r\n" % _S, b"use %b\r\n" % _S, packed("SADD", "q", SECRET),
    packed("ECHO", SECRET),
]  # fmt: skip


@pytest.mark.parametrize("is_split", [False, True])
@each_protocol
def test_no_login_is_ever_shown_or_logged(monitored: Server, protocol: Protocol, *, is_split: bool) -> None:
    streams = RESP_LOGINS if protocol is RESP else OTHER_LOGINS
    with monitor_of(monitored) as monitor, monitor_of(monitored) as asking:
        for stream in streams + BEFORE_LOGIN * has_password(monitored):
            with Wire(protocol, monitored) as wire:
                if is_split:
                    wire.send(stream[: len(stream) // 2])
                    asking.send("PING")
                    wire.send(stream[len(stream) // 2 :])
                else:
                    wire.send(stream)
                wire.half_close()
        with Wire(RESP, monitored) as last:
            last(RESP.log_in(b"default", _S))
            last(packed("ECHO", "the end"))
        lines = shown_until(monitor, b"the end")
        assert not any(_S in line for line in lines), [line for line in lines if _S in line]
    with monitored.client(password=SECRET if has_password(monitored) else None) as client:
        assert SECRET not in repr(client.execute_command("SLOWLOG", "GET", -1))
        assert SECRET not in repr(client.info("everything"))
    assert SECRET not in monitored.log


def test_replies_to_a_monitor_keep_their_order(server: Server) -> None:
    with Waiter(server.port) as monitor, Waiter(server.port) as other:
        monitor.socket.sendall(
            packed("SADD", "q", "a") + packed("MONITOR") + packed("SPOP", "q") + packed("ECHO", "x") * 3
        )
        assert [monitor.reply() for _ in range(2)] == [1, b"OK"]
        other("SADD", "r", "b")
        monitor.send("ECHO", "the end")
        found = [monitor.reply()]
        while found[-1] != b"the end":
            found.append(monitor.reply())
        assert [reply for reply in found if not _TIME_AND_PLACE.match(reply)] == [
            b"a", b"x", b"x", b"x", b"the end",
        ]  # fmt: skip


def test_a_transaction_refuses_monitor_as_redis_does(pair: Pair) -> None:
    compare(pair, ["MULTI", "MONITOR", "EXEC", "PING"], 2)


def test_reset_and_disconnecting_end_monitoring(server: Server, client: Client) -> None:
    with Waiter(server.port) as monitor:
        monitor("MONITOR")
        wait_for(lambda: [one for one in client.client_list() if one["flags"] == "O"], "the monitor")
        monitor.replies_now()
        monitor.send("RESET")
        while monitor.reply() != b"RESET":
            pass
        client.sadd("q", "a")
        assert monitor("PING") == b"PONG"
        monitor("MONITOR")
    client.sadd("q", "b")
    wait_for(lambda: len(client.client_list()) == 1, "the monitor to be gone")
    assert client.sadd("q", "c") == 1


def test_a_monitor_that_does_not_read_is_disconnected(server: Server, client: Client) -> None:
    with Wire(RESP, server, small_buffers=True) as silent, Waiter(server.port) as other:
        assert silent(packed("MONITOR")) == b"+OK"
        part, sent = packed("ECHO", "x" * 900) * 200, 0
        while len(client.client_list()) == 3:
            assert sent < 8 * MAX_UNSENT
            other.socket.sendall(part)
            for _ in range(200):
                other.reply()
            sent += len(part)
        assert sent > MAX_UNSENT // 2
        assert other("PING") == b"PONG"


def test_a_user_who_loses_the_right_sees_no_more(
    tmp_path: Path, start_server: StartServer, backend: Valkey
) -> None:
    users = tmp_path / "users.toml"
    rights = ["put", "get", "read", "administer"]
    users.write_text(users_toml({"default": ("", ["*"], ["put"]), "admin": ("pw", ["*"], rights)}))
    server = start_server("--backend", backend.url, "--users", str(users))
    with Waiter(server.port) as monitor, Waiter(server.port) as other:
        assert is_refused(other("MONITOR"), "NOPERM")
        monitor("AUTH", "admin", "pw")
        assert monitor("MONITOR") == b"OK"
        other("SADD", "q", "seen")
        assert shown_until(monitor, b"seen") == [b'"SADD" "q" "seen"']
        users.write_text(users_toml({"default": ("", ["*"], ["put"]), "admin": ("pw", ["q*"], rights)}))
        reload(server)
        other("SADD", "r", "not seen")
        with pytest.raises(ConnectionError):
            monitor.reply()
        assert other("SADD", "r", "b") == 1
