"""The attacks that docs/guides/security.md lists, by network and by protocol.

Another client must be served during each attack. At the end memory is freed, and the log shows no secret.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from pressure_server.auth.users import RIGHTS, User, Users, password_digest
from tests.support.bystander import served
from tests.support.guards import Authority, users_toml
from tests.support.measures import MB, memory
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import TIMEOUT, Server, Valkey, wait_for
from tests.support.protocols import MEMCACHED, RESP, Wire
from tests.support.side_by_side import split, words
from tests.support.waiters import Waiter, is_refused, packed

PASSWORD = "s3cret-Passw0rd"
DIGEST = password_digest(PASSWORD.encode())
WRONG = "wr0ng-Passw0rd"
GROWTH = 64 * MB


@dataclass(frozen=True)
class Target:
    """A server with users, and with listeners with and without TLS. `mutual` also demands certificates."""

    server: Server
    mutual: Server
    authority: Authority
    strangers: Authority
    users_file: Path

    def waiter(self, user: str = "") -> Waiter:
        """Return a connection; if a user is named, it is logged in."""
        connected = Waiter(self.server.port)
        assert not user or connected("AUTH", user, PASSWORD) == b"OK"
        return connected

    def memcached(self, user: str = "") -> MemcachedWire:
        """Return a memcached connection; if a user is named, it is logged in."""
        connected = MemcachedWire(self.server)
        return connected.log_in(user, PASSWORD) if user else connected

    def replies_to(self, data: bytes, scheme: str = "resp") -> bytes:
        """Send these bytes and a FIN. Return all bytes until the server closes the connection."""
        wire = Wire(RESP, connected=connect(self.server, scheme))
        wire.send(data)
        return wire.half_close()


def connect(server: Server, scheme: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port_of(scheme)), TIMEOUT)


ATTACKS: dict[str, tuple[str, Callable[[Target], None]]] = {}


def attack(name: str, outcome: str) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Enter an attack. Its name and outcome are a row of the table in docs/guides/security.md."""

    def enter(function: Callable[[Target], None]) -> Callable[[Target], None]:
        ATTACKS[name] = outcome, function
        return function

    return enter


# ---------------------------------------------------------------- port scans

SCANS = {
    "HTTP GET": b"GET / HTTP/1.1\r\nHost: queues\r\nUser-Agent: scan\r\n\r\n",
    "HTTP POST with commands in it": b"POST / HTTP/1.1\r\nHost: a\r\n\r\nSADD own:evil x\r\n",
    "TLS ClientHello": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "SSH banner": b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(64),
    "SMB negotiation": bytes.fromhex("00000054ff534d4272000000001801280000") + bytes(66),
    "RDP connection request": bytes.fromhex("030000130ee000000000000100080003000000"),
    "MySQL login": bytes.fromhex("5400000185a60f0000000001210000") + b"root\x00" + bytes(60),
    "PostgreSQL startup": bytes.fromhex("0000001500030000") + b"user\x00root\x00\x00",
    "memcached": b"stats\r\nget a\r\nset a 0 0 1\r\nx\r\n",
    "MongoDB isMaster": bytes.fromhex("3a00000001000000000000d4070000") + b"\x00admin.$cmd\x00" + bytes(30),
    "DNS over TCP": bytes.fromhex("001e000601000001000000000000")
    + b"\x07version\x04bind\x00\x00\x10\x00\x03",
    "SIP OPTIONS": b"OPTIONS sip:nm SIP/2.0\r\nVia: SIP/2.0/TCP nm\r\n\r\n",
    "SMTP": b"EHLO scan\r\nMAIL FROM:<a@b>\r\nQUIT\r\n",
    "a megabyte of random bytes": random.Random(1).randbytes(MB),
    "a megabyte of zeros": bytes(MB),
}
for _name, _data in SCANS.items():

    @attack(f"{_name}, to the plain listener", "an error or no reply; closed, and no command is executed")
    def _scan(target: Target, data: bytes = _data) -> None:
        assert b"+" not in target.replies_to(data)[:1]
        with target.waiter("root") as root:
            assert root("EXISTS", "own:evil") == 0


@attack(
    "all port scans above, and `PING`, to the TLS listener", "closed; at most one line of the log a minute"
)
def _scan_tls(target: Target) -> None:
    before = target.server.log.count("TLS handshake with")
    for data in (*SCANS.values(), packed("PING")):
        assert b"PONG" not in target.replies_to(data, "resps")
    assert target.server.log.count("TLS handshake with") - before <= 1


# ---------------------------------------------------------------- TLS


def shake(server: Server, context: ssl.SSLContext) -> bytes:
    """Return the reply to PING over TLS. Raises ConnectionError or SSLError."""
    with connect(server, "resps") as plain:
        secure = context.wrap_socket(plain, server_hostname="localhost")
        secure.sendall(packed("PING"))
        return secure.recv(100)


@attack("a handshake sent byte by byte", "closed after 10 seconds")
def _slow_handshake(target: Target) -> None:
    with connect(target.server, "resps") as slow:
        began = time.monotonic()
        slow.settimeout(1.0)
        for byte in SCANS["TLS ClientHello"]:
            with contextlib.suppress(TimeoutError):
                try:
                    slow.sendall(bytes([byte]))
                    if not slow.recv(1):
                        break
                except ConnectionError:
                    break
        assert 8 < time.monotonic() - began < TIMEOUT


@attack("500 unfinished handshakes", "the server keeps the newest 256; other clients can connect")
def _half_open(target: Target) -> None:
    files = Path(f"/proc/{target.server.process.pid}/fd")
    before = len(list(files.iterdir()))
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            half = stack.enter_context(connect(target.server, "resps"))
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
        wait_for(lambda: len(list(files.iterdir())) - before <= 260, "the oldest to be closed")
        assert shake(target.server, target.authority.client_context()).startswith(b"-NOAUTH")


@attack("TLS 1.1", "the handshake fails")
def _tls_1_1(target: Target) -> None:
    context = target.authority.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ConnectionError, ssl.SSLError)):
        shake(target.server, context)


@attack("renegotiation", "refused")
def _renegotiation(target: Target) -> None:
    address = f"127.0.0.1:{target.server.port_of('resps')}"
    ca = str(target.authority.certificate)
    command = ["openssl", "s_client", "-connect", address, "-tls1_2", "-CAfile", ca]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        for line in client.stdout:
            if b"Verify return code: 0" in line:
                client.stdin.write(b"R\n")
                client.stdin.flush()
            if b"RENEGOTIATING" in line:
                break
        assert b"no renegotiation" in client.stdout.read()


# A client's certificate on a listener that demands one.
CERTIFICATES: dict[str, Callable[[Target], tuple[Path, Path] | None]] = {
    "no certificate on a listener that demands one": lambda _target: None,
    "a certificate of another CA": lambda target: target.strangers.issue("stranger"),
    "an expired certificate": lambda target: target.authority.issue("expired", days=0),
}
for _name, _issue in CERTIFICATES.items():

    @attack(_name, "the handshake fails")
    def _wrong_certificate(
        target: Target, issue: Callable[[Target], tuple[Path, Path] | None] = _issue
    ) -> None:
        context = target.authority.client_context(issue(target))
        with pytest.raises((ConnectionError, ssl.SSLError)):  # noqa: PT012 -- in TLS 1.3 at the first read
            if not shake(target.mutual, context):
                raise ConnectionResetError


# ---------------------------------------------------------------- guesses


GUESSES_OUTCOME = (
    "refused after up to 2 seconds; the fifth closes the connection; two lines of the log a minute"
)


def guess(target: Target, password: str) -> int:
    """Guess passwords until the server closes the connection. Return the number of guesses."""
    with target.waiter() as guessing:
        for number in range(100):
            try:
                assert is_refused(guessing("AUTH", "root", f"{password}{number}"), "WRONGPASS")
            except ConnectionError:
                return number
    raise AssertionError("the server never closed the connection")


@attack("1 000 wrong passwords", GUESSES_OUTCOME)
def _guesses(target: Target) -> None:
    before = target.server.log.count("failed login")
    with ThreadPoolExecutor(200) as pool:
        assert sum(pool.map(lambda _: guess(target, WRONG), range(200))) == 1000
    assert target.server.log.count("failed login") - before <= 2
    with target.waiter("root") as root:
        assert root("PING") == b"PONG"


@attack("timing logins to find out which users exist", "known and unknown users take the same time")
def _timing(_target: Target) -> None:
    users = Users([User("ada", frozenset([DIGEST]))])
    times: dict[str, list[int]] = {"ada": [], "nobody": []}
    for _ in range(5000):
        for name, taken in times.items():
            began = time.perf_counter_ns()
            users.log_in(name, WRONG.encode())
            taken.append(time.perf_counter_ns() - began)
    known, unknown = (median(taken) for taken in times.values())
    assert 0.5 < known / unknown < 2


# ---------------------------------------------------------------- before the login

TOO_LARGE_OUTCOME = "an error before the server reads it, and the connection is closed"
TOO_LARGE = {
    "a password of 32 MB": b"*2\r\n$4\r\nAUTH\r\n$33554432\r\n" + b"x" * MB,
    "a command of a million words before the login": b"*1000000\r\n" + b"$1\r\na\r\n" * 100_000,
}
for _name, _data in TOO_LARGE.items():

    @attack(_name, TOO_LARGE_OUTCOME)
    def _too_large(target: Target, data: bytes = _data) -> None:
        reply = target.replies_to(data)
        assert reply.startswith(RESP.refused_before_login) or reply == b""


@attack("10 000 commands before the login", "`-NOAUTH` to each")
def _before_login(target: Target) -> None:
    replies = target.replies_to(packed("SADD", "own:1", "x") * 10_000)
    assert replies == b"-NOAUTH Authentication required.\r\n" * 10_000


WRONG_PASSWORDS: dict[str, list[str | bytes]] = {
    "a part of the password, or the password and a zero byte": [
        PASSWORD[:-1], PASSWORD + "\x00", PASSWORD + "\n", PASSWORD.upper(), "",
    ],
    "the hash of the password instead of the password": [DIGEST.hex(), DIGEST],
}  # fmt: skip
for _name, _passwords in WRONG_PASSWORDS.items():

    @attack(_name, "`-WRONGPASS`")
    def _wrong_passwords(target: Target, passwords: list[str | bytes] = _passwords) -> None:
        def is_wrong(password: str | bytes) -> bool:
            with target.waiter() as guessing:
                return is_refused(guessing("AUTH", "root", password), "WRONGPASS")

        # All at the same time: each reply takes up to two seconds.
        with ThreadPoolExecutor(len(passwords)) as pool:
            assert all(pool.map(is_wrong, passwords))


@attack(
    "line breaks, zero bytes and escapes in a user's name", "the log shows the name escaped and truncated"
)
def _forged_name(target: Target) -> None:
    with target.waiter() as guessing:
        name = b"\n2026-01-01 ERROR forged\x00\x1b[2J" + b"x" * 10_000
        assert is_refused(guessing("AUTH", name, WRONG), "WRONGPASS")
    assert not re.search(r"^2026-01-01 ERROR forged", target.server.log, re.MULTILINE)
    assert "\x1b" not in target.server.log


@attack("commands sent together with a wrong `AUTH`, after it", "`-NOAUTH` to each")
def _after_failed_auth(target: Target) -> None:
    with target.waiter() as guessing:
        guessing.socket.sendall(packed("AUTH", "root", WRONG) + packed("SADD", "own:1", "x") * 100)
        assert is_refused(guessing.reply(), "WRONGPASS")
        assert all(is_refused(guessing.reply(), "NOAUTH") for _ in range(100))


@attack("`HELLO` without `AUTH`, then commands", "`-NOAUTH`, and the RESP version does not change")
def _hello(target: Target) -> None:
    with target.waiter() as guessing:
        assert is_refused(guessing("HELLO", 3, "SETNAME", "x"), "NOAUTH")
        assert is_refused(guessing("GET", "x"), "ERR")
        assert is_refused(guessing("CLIENT", "GETNAME"), "NOAUTH")


@attack("a wrong `AUTH` between `MULTI` and `EXEC`", "`-WRONGPASS` in its place; the user does not change")
def _auth_in_multi(target: Target) -> None:
    with target.waiter("tenant") as tenant:
        for line in ("MULTI", f"AUTH root {WRONG}", "SADD own:1 m"):
            tenant(*line.split())
        refused, put = tenant("EXEC")
        assert is_refused(refused, "WRONGPASS")
        assert put == 1
        assert tenant("ACL", "WHOAMI") == b"tenant"


@attack("`AUTH` as a user with fewer rights in a transaction, then forbidden commands", "`-NOPERM` at `EXEC`")
def _fewer_rights_in_multi(target: Target) -> None:
    with target.waiter("root") as root:
        for line in ("MULTI", f"AUTH tenant {PASSWORD}", "SADD foreign:1 m", "KEYS *"):
            root(*line.split())
        _ok, refused, listed = root("EXEC")
        assert is_refused(refused, "NOPERM")
        assert [name for name in listed if not name.startswith(b"own:")] == []


# ---------------------------------------------------------------- other users' queues

# Commands of the tenant, who has all rights on own:* only. The last one must fail with this code.
EVASIONS = {
    "commands after `RESET`": ("RESET|SADD own:1 x", "NOAUTH"),
    "another user's queue in `MULTI`": ("MULTI|SADD foreign:1 x|EXEC", "EXECABORT"),
    "another user's queue among the queues of `BLPOP`": ("BLPOP own:1 foreign:1 own:2 0", "NOPERM"),
    "another user's queue after the count of `LMPOP`": ("LMPOP 2 own:1 foreign:1 LEFT", "NOPERM"),
    "an invalid count of queues": ("BLMPOP 0 01 foreign:1 LEFT", "ERR"),
    "another user's queue as the destination of `SMOVE`": ("SADD own:1 x|SMOVE own:1 foreign:1 x", "NOPERM"),
    "another user's queue as the source of `LMOVE`": ("LMOVE foreign:1 own:1 LEFT LEFT", "NOPERM"),
    "a command in mixed case on another user's queue": ("sPoP foreign:1", "NOPERM"),
    "`WATCH` on another user's queue, to notice changes": ("WATCH own:1 foreign:1", "NOPERM"),
    "another user's queue in set algebra": ("SUNION own:1 foreign:1", "NOPERM"),
    "`PRESSURE.INFO` of another user's queue": ("PRESSURE.INFO foreign:1", "NOPERM"),
    "`PRESSURE.DELETE` of another user's queue": ("pressure.delete foreign:1", "NOPERM"),
    "another user's queue in another database": ("SELECT 1|SPOP foreign:1", "NOPERM"),
    "`FLUSHALL` by a user without access to all queues": ("FLUSHALL", "NOPERM"),
    "`CLIENT KILL` by a user without access to all queues": ("CLIENT KILL SKIPME yes ID 1", "NOPERM"),
    "a queue's name with a line break after a permitted beginning": ("SPOP own\\n:1", "NOPERM"),
}
for _name, (_lines, _code) in EVASIONS.items():

    @attack(_name, f"`-{_code}`")
    def _evade(target: Target, lines: str = _lines, code: str = _code) -> None:
        with target.waiter("tenant") as tenant:
            assert is_refused([tenant(*words(line)) for line in split(lines)][-1], code)


@attack("names of other users' queues by `KEYS`, `SCAN`, `RANDOMKEY`, `INFO`, `PRESSURE.LIST`", "not listed")
def _names(target: Target) -> None:
    with target.waiter("root") as root, target.waiter("tenant") as tenant:
        root("SADD", "foreign:hidden", "x")
        lines = "KEYS *|SCAN 0 MATCH *hidden COUNT 10000|RANDOMKEY|INFO|PRESSURE.LIST MATCH fo*"
        assert "hidden" not in "".join(str(tenant(*words(line))) for line in split(lines))


@attack("another user's queue in a pipeline of 1 000", "`-NOPERM` to each; permitted commands are executed")
def _pipeline(target: Target) -> None:
    with target.waiter("tenant") as tenant, target.waiter("root") as root:
        tenant.socket.sendall(packed("RPUSH", "own:p", "x") * 500 + packed("RPUSH", "foreign:p", "x") * 500)
        replies = [tenant.reply() for _ in range(1000)]
        assert replies[:500] == list(range(1, 501))
        assert all(is_refused(reply, "NOPERM") for reply in replies[500:])
        assert root("EXISTS", "foreign:p") == 0


@attack("names that are slow to match with the user's patterns", "`-NOPERM` within milliseconds")
def _slow_patterns(target: Target) -> None:
    with target.waiter("patterns") as client:
        began = time.monotonic()
        for size in (1000, 4096, 4097, 10**6):
            assert is_refused(client("SADD", "a" * size, "x"), "NOPERM")
        assert time.monotonic() - began < 2


@attack("commands during many reloads of the users file", "each is checked correctly")
def _reloads(target: Target) -> None:
    with target.waiter("tenant") as tenant:
        before = target.server.log.count("reloaded:")
        for _ in range(50):
            target.server.process.send_signal(signal.SIGHUP)
            tenant.socket.sendall((packed("SADD", "own:r", "x") + packed("SPOP", "foreign:r")) * 20)
            replies = [tenant.reply() for _ in range(40)]
            assert all(reply in (0, 1) for reply in replies[::2])
            assert all(is_refused(reply, "NOPERM") for reply in replies[1::2])
        wait_for(lambda: target.server.log.count("reloaded:") > before, "a reload")


# ---------------------------------------------------------------- memcached

UNAUTHENTICATED = MEMCACHED.unauthenticated
NO_KEY = MEMCACHED.no_permission + b"for one of these keys"


@attack(
    "all port scans above, and commands in an HTTP POST, to the memcached listener",
    "an error or no reply; closed, and no command is executed",
)
def _scan_memcached(target: Target) -> None:
    for data in (*SCANS.values(), b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset own:evil 0 0 1\r\nx\r\n"):
        assert not re.search(rb"STORED|VALUE|STAT|VERSION", target.replies_to(data, "memcached"))
    with target.waiter("root") as root:
        assert root("EXISTS", "own:evil") == root("EXISTS", "a") == 0


@attack("memcached's binary protocol", "an error in the binary protocol, and the connection is closed")
def _binary(target: Target) -> None:
    login = b"PLAIN\x00root\x00" + PASSWORD.encode()
    header = b"\x80\x21\x00\x05" + bytes(4) + len(login).to_bytes(4, "big") + b"OPAQ" + bytes(8)
    reply = target.replies_to(header + login, "memcached")
    assert (reply[:2], reply[6:8], reply[12:16]) == (b"\x81\x21", b"\x00\x81", b"OPAQ")


@attack("100 wrong passwords over memcached", GUESSES_OUTCOME)
def _memcached_guesses(target: Target) -> None:
    def guess_on(number: int) -> int:
        with target.memcached() as guessing:
            data = f"root {WRONG}{number}".encode()
            guessing.send(b"set any 0 0 %d\r\n%b\r\n" % (len(data), data) * 100)
            return guessing.rest().count(b"CLIENT_ERROR authentication failure\r\n")

    before = target.server.log.count("failed login")
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(guess_on, range(20))) == [5] * 20
    assert target.server.log.count("failed login") - before <= 2
    target.memcached("root").close()


@attack("a login of 32 MB over memcached", TOO_LARGE_OUTCOME)
def _huge_login(target: Target) -> None:
    reply = target.replies_to(b"set any 0 0 33554432\r\n" + b"x" * MB, "memcached")
    assert reply in (b"", UNAUTHENTICATED + b"\r\n")


@attack("10 000 commands over memcached before the login", "`CLIENT_ERROR` to each")
def _memcached_before_login(target: Target) -> None:
    replies = target.replies_to(b"set2 own:1 0 0 1\r\n" * 5000 + b"get own:1\r\n" * 5000, "memcached")
    assert replies == (UNAUTHENTICATED + b"\r\n") * 10_000


@attack("over memcached, a part of the password, the password and more, or no user", "`CLIENT_ERROR`")
def _memcached_similar_login(target: Target) -> None:
    def replies_to(login: str) -> tuple[bytes, bytes]:
        with target.memcached() as guessing:
            return guessing.store(b"any", login.encode()), guessing(b"get own:1")

    logins = [
        f"root {PASSWORD[:-1]}",
        f"root {PASSWORD}\0",
        f"root {PASSWORD}\r\n",
        PASSWORD,
        f" {PASSWORD}",
    ]
    with ThreadPoolExecutor(len(logins)) as pool:
        assert set(pool.map(replies_to, logins)) == {(MEMCACHED.login_failed, UNAUTHENTICATED)}


# Requests of the tenant, or of a user who may use only the queue named one.
MEMCACHED_EVASIONS = {
    "another user's queue among the keys of a `get`": ("tenant", b"get own:1 foreign:1 own:2"),
    "another user's queue with kestrel's options": ("tenant", b"get foreign:1/close/open/t=5"),
    "kestrel's options within the name of another user's queue": ("one", b"get one/open/two"),
    "`set` of a queue whose name is a permitted one with options": ("one", b"set one/open 0 0 1\r\nx"),
    "`delete` of a queue whose name is a permitted one with options": ("one", b"delete one/t=5"),
}
for _name, (_user, _request) in MEMCACHED_EVASIONS.items():

    @attack(_name, "`CLIENT_ERROR`")
    def _evade_memcached(target: Target, user: str = _user, request: bytes = _request) -> None:
        with target.memcached(user) as client:
            assert client(request) == NO_KEY


@attack("`flush_all` by a user without access to all queues", "`CLIENT_ERROR`")
def _flush_all(target: Target) -> None:
    with target.memcached("tenant") as tenant:
        assert tenant(b"flush_all").startswith(b"CLIENT_ERROR this user has no permission")


@attack("names of other users' queues by `stats` and `dump_stats`", "not listed")
def _memcached_names(target: Target) -> None:
    with target.waiter("root") as root, target.memcached("tenant") as tenant:
        root("SADD", "foreign:hidden", "x")
        tenant.send(b"stats\r\ndump_stats\r\nquit\r\n")
        assert b"hidden" not in tenant.rest()


@attack("a queue's name that contains replies, in `stats`", "unprintable characters are shown as `_`")
def _forged_stats(target: Target) -> None:
    with target.waiter("root") as root, target.memcached("root") as reader:
        root("SADD", "own:\r\nEND\r\nVALUE q 0 1", "x")
        reader.send(b"dump_stats\r\nstats\r\nquit\r\n")
        lines = reader.rest().split(b"\r\n")
        assert lines.count(b"END") == 2
        assert not [line for line in lines if line.startswith(b"VALUE")]


@attack("commands in the data of a refused `set`", "not executed")
def _commands_in_data(target: Target) -> None:
    evil = b"set own:evil 0 0 1\r\nx\r\n" * 100
    with target.memcached("tenant") as tenant, target.waiter("root") as root:
        for start in (
            b"set own:1 x 0",
            b"set foreign:1 0 0",
            b"cas own:1 0 0",
            b"set " + b"k" * 251 + b" 0 0",
        ):
            assert tenant(b"%b %d\r\n" % (start, len(evil)) + evil).startswith(b"CLIENT_ERROR")
        assert tenant(b"get own:evil") == b"END"
        assert root("EXISTS", "own:evil") == 0


# ---------------------------------------------------------------- the test

USERS = {
    "root": (PASSWORD, ["*"], list(RIGHTS)),
    "tenant": (PASSWORD, ["own:*"], list(RIGHTS)),
    "one": (PASSWORD, ["one"], list(RIGHTS)),
    "patterns": (PASSWORD, ["*a" * 100 + "b", "*" + "a" * 200 + "b", "[a-z]*?" * 30 + "b"], list(RIGHTS)),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, shared_backend: Valkey) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacked")
    authority, strangers = Authority(folder / "ca"), Authority(folder / "strangers")
    certificate, key = map(str, authority.issue("server"))
    users = folder / "users.toml"
    users.write_text(users_toml(USERS))
    options = [
        "--backend", shared_backend.url, "--users", str(users), "--listen", "resps://127.0.0.1:0",
        "--listen", "memcached://127.0.0.1:0?flush_all=yes",
        "--tls-certificate", certificate, "--tls-key", key,
    ]  # fmt: skip
    server = Server(folder / "log", *options)
    mutual = Server(folder / "mutual.log", *options, "--tls-client-ca", str(authority.certificate))
    try:
        attacked = Target(server, mutual, authority, strangers, users)
        shake(server, authority.client_context())
        before = memory(server)
        yield attacked
        wait_for(lambda: memory(server) - before < GROWTH, "memory to be freed")
        assert len(server.log.splitlines()) < 200
        assert not [text for text in (PASSWORD, WRONG, DIGEST.hex()) if text in server.log + mutual.log]
        server.end_well()
        mutual.end_well()
    finally:
        for one in (server, mutual):
            one.process.kill()
            one.process.wait(TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_has_the_documented_result(target: Target, backend: Valkey, name: str) -> None:
    with served(Wire(RESP, target.server).log_in("root", PASSWORD)):
        ATTACKS[name][1](target)


def test_the_document_lists_exactly_these_attacks() -> None:
    text = (Path(__file__).parent.parent / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text.partition("## Attacks")[2], re.MULTILINE)
    assert rows[1:] == [(name, outcome) for name, (outcome, _) in ATTACKS.items()], "see test_attacks.py"
    assert len(ATTACKS) >= 30
