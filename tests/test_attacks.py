"""Attacks, by network and protocol: docs/guides/security.md lists them, and this file shows what happens.

While each goes on another client is served; at the end memory is what it was, and the log has no secret.
"""

from __future__ import annotations

import contextlib
import random
import re
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
from tests.support.guards import Authority, port_of, users_toml
from tests.support.measures import MB, memory
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import TIMEOUT, Server, Valkey, wait_for
from tests.support.protocols import MEMCACHED, RESP, Wire
from tests.support.side_by_side import split, words
from tests.support.waiters import Waiter, is_refused, packed

PASSWORD = "s3cret-Passw0rd"
WRONG = "wr0ng-Passw0rd"
GROWTH = 64 * MB


@dataclass(frozen=True)
class Target:
    """A server with users and listeners with and without TLS; `mutual` is one that demands certificates."""

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

    def sent(self, data: bytes, scheme: str = "resp") -> bytes:
        """Send these bytes only. Return all bytes until the server closes the connection."""
        connected = socket.create_connection(("127.0.0.1", port_of(self.server, scheme)), TIMEOUT)
        wire = Wire(RESP, connected=connected)
        wire.send(data)
        return wire.half_close()


ATTACKS: dict[str, tuple[str, Callable[[Target], None]]] = {}


def attack(name: str, outcome: str) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Enter an attack and its result, in the words of docs/guides/security.md."""

    def enter(function: Callable[[Target], None]) -> Callable[[Target], None]:
        ATTACKS[name] = outcome, function
        return function

    return enter


# ---------------------------------------------------------------- a port scan's worth of garbage

SCANS = {
    "HTTP GET": b"GET / HTTP/1.1\r\nHost: queues\r\nUser-Agent: scan\r\n\r\n",
    "HTTP POST with commands in it": b"POST / HTTP/1.1\r\nHost: a\r\n\r\nSADD ours:evil x\r\n",
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

    @attack(
        f"{_name}, to the plain listener",
        "an error or nothing, and the connection is closed; nothing is done",
    )
    def _scan(target: Target, data: bytes = _data) -> None:
        assert b"+" not in target.sent(data)[:1]
        with target.waiter("root") as root:
            assert root("EXISTS", "ours:evil") == 0


@attack("all of these, and `PING`, to the TLS listener", "closed, at no cost; one line in the log a minute")
def _scan_tls(target: Target) -> None:
    before = target.server.log.count("TLS handshake with")
    for data in (*SCANS.values(), packed("PING")):
        assert b"PONG" not in target.sent(data, "resps")
    assert target.server.log.count("TLS handshake with") - before <= 1


# ---------------------------------------------------------------- TLS


def shake(server: Server, context: ssl.SSLContext) -> bytes:
    """Return the reply to PING over TLS. Raises ConnectionError or SSLError."""
    with socket.create_connection(("127.0.0.1", port_of(server, "resps")), TIMEOUT) as plain:
        secure = context.wrap_socket(plain, server_hostname="localhost")
        secure.sendall(packed("PING"))
        return secure.recv(100)


@attack("a handshake byte by byte", "cut off after 10 seconds")
def _slow_handshake(target: Target) -> None:
    port = port_of(target.server, "resps")
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as slow:
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


@attack("500 handshakes begun and left", "256 at most are kept, the oldest go; others come in meanwhile")
def _half_open(target: Target) -> None:
    port = port_of(target.server, "resps")
    files = Path(f"/proc/{target.server.process.pid}/fd")
    before = len(list(files.iterdir()))
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))
            half.sendall(b"\x16\x03\x01\x02\x00\x01")
        wait_for(lambda: len(list(files.iterdir())) - before <= 260, "the oldest to be given up")
        assert shake(target.server, target.authority.client_context()).startswith(b"-NOAUTH")


def _old(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it is why we refuse it
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def _without_certificate(target: Target, context: ssl.SSLContext) -> None:
    with pytest.raises((ConnectionError, ssl.SSLError)):  # noqa: PT012 -- TLS 1.3 says so at the first read
        if not shake(target.mutual, context):
            raise ConnectionResetError


@attack("TLS 1.1", "no handshake")
def _tls_1_1(target: Target) -> None:
    with pytest.raises((ConnectionError, ssl.SSLError)):
        shake(target.server, _old(target.authority))


@attack("renegotiation", "refused")
def _renegotiation(target: Target) -> None:
    where = f"127.0.0.1:{port_of(target.server, 'resps')}"
    command = [
        "openssl",
        "s_client",
        "-connect",
        where,
        "-tls1_2",
        "-CAfile",
        str(target.authority.certificate),
    ]
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


@attack("no certificate, where one is needed", "no handshake")
def _no_certificate(target: Target) -> None:
    _without_certificate(target, target.authority.client_context())


@attack("a certificate by another CA", "no handshake")
def _alien_certificate(target: Target) -> None:
    _without_certificate(target, target.authority.client_context(target.strangers.issue("alien")))


@attack("a certificate that has expired", "no handshake")
def _late_certificate(target: Target) -> None:
    _without_certificate(target, target.authority.client_context(target.authority.issue("late", days=0)))


# ---------------------------------------------------------------- guessing


def guess(target: Target, password: str) -> int:
    """Guess passwords until the server closes the connection. Return the number of guesses."""
    with target.waiter() as guessing:
        for number in range(100):
            try:
                assert is_refused(guessing("AUTH", "root", f"{password}{number}"), "WRONGPASS")
            except ConnectionError:
                return number
    raise AssertionError("never closed")


@attack(
    "1 000 wrong passwords",
    "each is refused after up to 2 seconds, each fifth closes; two lines in the log a minute",
)
def _guesses(target: Target) -> None:
    before = target.server.log.count("failed login")
    with ThreadPoolExecutor(200) as pool:
        assert sum(pool.map(lambda _: guess(target, WRONG), range(200))) == 1000
    assert target.server.log.count("failed login") - before <= 2
    with target.waiter("root") as root:
        assert root("PING") == b"PONG"


@attack("telling users that exist from others by the time it takes", "there is no difference")
def _timing(_target: Target) -> None:
    users = Users([User("ada", frozenset([password_digest(PASSWORD.encode())]))])
    times: dict[str, list[int]] = {"ada": [], "nobody": []}
    for _ in range(5000):
        for name, taken in times.items():
            began = time.perf_counter_ns()
            users.log_in(name, WRONG.encode())
            taken.append(time.perf_counter_ns() - began)
    known, unknown = (median(taken) for taken in times.values())
    assert 0.5 < known / unknown < 2


# ---------------------------------------------------------------- before the login


@attack("a password of 32 MB", "an error before it is read, and the connection is closed")
def _huge_password(target: Target) -> None:
    reply = target.sent(b"*2\r\n$4\r\nAUTH\r\n$33554432\r\n" + b"x" * MB)
    assert reply.startswith(b"-ERR Protocol error: unauthenticated") or reply == b""


@attack("a command of a million words before the login", "the same")
def _many_words(target: Target) -> None:
    reply = target.sent(b"*1000000\r\n" + b"$1\r\na\r\n" * 100_000)
    assert reply.startswith(b"-ERR Protocol error: unauthenticated") or reply == b""


@attack("10 000 commands before the login", "`-NOAUTH` to each")
def _before_login(target: Target) -> None:
    replies = target.sent(packed("SADD", "ours:1", "x") * 10_000)
    assert replies == b"-NOAUTH Authentication required.\r\n" * 10_000


def assert_wrong(target: Target, *passwords: str | bytes) -> None:
    """Try all attacks at the same time, because each answer takes up to two seconds."""

    def is_wrong(password: str | bytes) -> bool:
        with target.waiter() as guessing:
            return is_refused(guessing("AUTH", "root", password), "WRONGPASS")

    with ThreadPoolExecutor(len(passwords)) as pool:
        assert all(pool.map(is_wrong, passwords))


@attack("a password that begins rightly, or has a zero behind it", "`-WRONGPASS`")
def _nearly(target: Target) -> None:
    assert_wrong(target, PASSWORD[:-1], PASSWORD + "\x00", PASSWORD + "\n", PASSWORD.upper(), "")


@attack("a password's hash in place of the password", "`-WRONGPASS`")
def _hash(target: Target) -> None:
    digest = password_digest(PASSWORD.encode())
    assert_wrong(target, digest.hex(), digest)


@attack("line breaks, zeros and escapes in a user's name", "they are escaped in the log, and cut")
def _forged_name(target: Target) -> None:
    with target.waiter() as guessing:
        name = b"\n2026-01-01 ERROR forged\x00\x1b[2J" + b"x" * 10_000
        assert is_refused(guessing("AUTH", name, WRONG), "WRONGPASS")
    assert not re.search(r"^2026-01-01 ERROR forged", target.server.log, re.MULTILINE)
    assert "\x1b" not in target.server.log


@attack("commands sent behind a wrong `AUTH`, in one packet", "`-NOAUTH` to each")
def _behind_auth(target: Target) -> None:
    with target.waiter() as guessing:
        guessing.socket.sendall(packed("AUTH", "root", WRONG) + packed("SADD", "ours:1", "x") * 100)
        assert is_refused(guessing.reply(), "WRONGPASS")
        assert all(is_refused(guessing.reply(), "NOAUTH") for _ in range(100))


@attack("`HELLO` without `AUTH`, then commands", "`-NOAUTH`, and the protocol stays as it was")
def _hello(target: Target) -> None:
    with target.waiter() as guessing:
        assert is_refused(guessing("HELLO", 3, "SETNAME", "x"), "NOAUTH")
        assert is_refused(guessing("GET", "x"), "ERR")
        assert is_refused(guessing("CLIENT", "GETNAME"), "NOAUTH")


@attack("commands after `RESET`", "`-NOAUTH`: it has logged out")
def _reset(target: Target) -> None:
    with target.waiter("root") as root:
        assert root("RESET") == b"RESET"
        assert is_refused(root("SADD", "ours:1", "x"), "NOAUTH")


@attack(
    "a wrong `AUTH` between `MULTI` and `EXEC`", "`-WRONGPASS` among the replies; it stays the user it was"
)
def _auth_in_multi(target: Target) -> None:
    with target.waiter("tenant") as tenant:
        for line in ("MULTI", f"AUTH root {WRONG}", "SADD ours:1 m"):
            tenant(*line.split())
        refused, put = tenant("EXEC")
        assert is_refused(refused, "WRONGPASS")
        assert put == 1
        assert tenant("ACL", "WHOAMI") == b"tenant"


@attack("`AUTH` as a lesser user, then what only the greater may, in one transaction", "`-NOPERM` at `EXEC`")
def _lesser_in_multi(target: Target) -> None:
    with target.waiter("root") as root:
        for line in ("MULTI", f"AUTH tenant {PASSWORD}", "SADD theirs:1 m", "KEYS *"):
            root(*line.split())
        _ok, refused, listed = root("EXEC")
        assert is_refused(refused, "NOPERM")
        assert [name for name in listed if not name.startswith(b"ours:")] == []


# ---------------------------------------------------------------- logged in, and after what is others'

# Of the tenant, who may do everything on ours:* and nothing elsewhere: the last command of each must fail so.
EVASIONS = {
    "another's queue in `MULTI`": ("MULTI|SADD theirs:1 x|EXEC", "EXECABORT"),
    "another's queue among those of `BLPOP`": ("BLPOP ours:1 theirs:1 ours:2 0", "NOPERM"),
    "another's queue behind a number in `LMPOP`": ("LMPOP 2 ours:1 theirs:1 LEFT", "NOPERM"),
    "numbers of queues that are none": ("BLMPOP 0 01 theirs:1 LEFT", "ERR"),
    "another's queue as the destination of `SMOVE`": ("SADD ours:1 x|SMOVE ours:1 theirs:1 x", "NOPERM"),
    "another's queue as the source of `LMOVE`": ("LMOVE theirs:1 ours:1 LEFT LEFT", "NOPERM"),
    "names of commands in mixed case": ("sPoP theirs:1", "NOPERM"),
    "`WATCH` on another's queue, to see it change": ("WATCH ours:1 theirs:1", "NOPERM"),
    "another's queue in set algebra": ("SUNION ours:1 theirs:1", "NOPERM"),
    "`PRESSURE.INFO` of another's queue": ("PRESSURE.INFO theirs:1", "NOPERM"),
    "`PRESSURE.DELETE` of another's queue": ("pressure.delete theirs:1", "NOPERM"),
    "another database's queue": ("SELECT 1|SPOP theirs:1", "NOPERM"),
    "`FLUSHALL` by who has not all queues": ("FLUSHALL", "NOPERM"),
    "`CLIENT KILL` by who has not all queues": ("CLIENT KILL SKIPME yes ID 1", "NOPERM"),
    "a name with a line break behind what is allowed": ("SPOP ours\\n:1", "NOPERM"),
}
for _name, (_lines, _code) in EVASIONS.items():

    @attack(_name, f"`-{_code}`")
    def _evade(target: Target, lines: str = _lines, code: str = _code) -> None:
        with target.waiter("tenant") as tenant:
            assert is_refused([tenant(*words(line)) for line in split(lines)][-1], code)


@attack("the names of others' queues, by `KEYS`, `SCAN`, `RANDOMKEY`, `DBSIZE`, `INFO`", "they are not there")
def _names(target: Target) -> None:
    with target.waiter("root") as root, target.waiter("tenant") as tenant:
        root("SADD", "theirs:hidden", "x")
        lines = "KEYS *|SCAN 0 MATCH *hidden COUNT 10000|RANDOMKEY|INFO|PRESSURE.LIST MATCH th*"
        seen = [str(tenant(*words(line))) for line in split(lines)]
        assert "hidden" not in "".join(seen)
        root("DEL", "theirs:hidden")


@attack("another's queue in a pipeline of a thousand", "`-NOPERM` to each; what is allowed before it is done")
def _pipeline(target: Target) -> None:
    with target.waiter("tenant") as tenant, target.waiter("root") as root:
        tenant.socket.sendall(packed("RPUSH", "ours:p", "x") * 500 + packed("RPUSH", "theirs:p", "x") * 500)
        replies = [tenant.reply() for _ in range(1000)]
        assert replies[:500] == list(range(1, 501))
        assert all(is_refused(reply, "NOPERM") for reply in replies[500:])
        assert root("EXISTS", "theirs:p") == 0
        root("DEL", "ours:p")


@attack("names made to be slow for the user's patterns", "refused in milliseconds")
def _evil_globs(target: Target) -> None:
    with target.waiter("globs") as globs:
        began = time.monotonic()
        for size in (1000, 4096, 4097, 10**6):
            assert is_refused(globs("SADD", "a" * size, "x"), "NOPERM")
        assert time.monotonic() - began < 2


@attack("commands while the users file is read again and again", "each is allowed or refused, never wrongly")
def _race(target: Target) -> None:
    with target.waiter("tenant") as tenant:
        before = target.server.log.count("reloaded:")
        for _ in range(50):
            target.server.process.send_signal(1)
            tenant.socket.sendall((packed("SADD", "ours:r", "x") + packed("SPOP", "theirs:r")) * 20)
            replies = [tenant.reply() for _ in range(40)]
            assert all(reply in (0, 1) for reply in replies[::2])
            assert all(is_refused(reply, "NOPERM") for reply in replies[1::2])
        wait_for(lambda: target.server.log.count("reloaded:") > before, "a reload")
        tenant("DEL", "ours:r")


# ---------------------------------------------------------------- over memcached

UNAUTHENTICATED = MEMCACHED.unauthenticated
NO_KEY = MEMCACHED.no_permission + b"for one of these keys"


@attack(
    "all that was sent to the other listeners, to the memcached listener",
    "errors or nothing, and the connection is closed; nothing is done",
)
def _scan_memcached(target: Target) -> None:
    for data in (*SCANS.values(), b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset ours:evil 0 0 1\r\nx\r\n"):
        assert not re.search(rb"STORED|VALUE|STAT|VERSION", target.sent(data, "memcached"))
    with target.waiter("root") as root:
        assert root("EXISTS", "ours:evil") == root("EXISTS", "a") == 0


@attack("memcached's binary protocol", "refused in its own words, and the connection is closed")
def _binary(target: Target) -> None:
    login = b"PLAIN\x00root\x00" + PASSWORD.encode()
    header = b"\x80\x21\x00\x05" + bytes(4) + len(login).to_bytes(4, "big") + b"OPAQ" + bytes(8)
    reply = target.sent(header + login, "memcached")
    assert (reply[:2], reply[6:8], reply[12:16]) == (b"\x81\x21", b"\x00\x81", b"OPAQ")


@attack(
    "100 wrong passwords over memcached",
    "each is refused after up to 2 seconds, each fifth closes; two lines in the log a minute",
)
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


@attack("a login of 32 MB over memcached", "an error before it is read, and the connection is closed")
def _huge_login(target: Target) -> None:
    reply = target.sent(b"set any 0 0 33554432\r\n" + b"x" * MB, "memcached")
    assert reply in (b"", UNAUTHENTICATED + b"\r\n")


@attack("10 000 commands over memcached before the login", "`CLIENT_ERROR` to each")
def _memcached_before_login(target: Target) -> None:
    replies = target.sent(b"set2 ours:1 0 0 1\r\n" * 5000 + b"get ours:1\r\n" * 5000, "memcached")
    assert replies == (UNAUTHENTICATED + b"\r\n") * 10_000


@attack("a password over memcached that begins rightly, or has more behind it, or no user", "`CLIENT_ERROR`")
def _memcached_nearly(target: Target) -> None:
    def replies_to(login: str) -> tuple[bytes, bytes]:
        with target.memcached() as guessing:
            return guessing.store(b"any", login.encode()), guessing(b"get ours:1")

    logins = [
        f"root {PASSWORD[:-1]}",
        f"root {PASSWORD}\0",
        f"root {PASSWORD}\r\n",
        PASSWORD,
        f" {PASSWORD}",
    ]
    with ThreadPoolExecutor(len(logins)) as pool:
        assert set(pool.map(replies_to, logins)) == {(MEMCACHED.login_failed, UNAUTHENTICATED)}


# Of the tenant, or who may use the queue called one, and nothing else.
MEMCACHED_EVASIONS = {
    "another's queue among several of a `get`": ("tenant", b"get ours:1 theirs:1 ours:2"),
    "another's queue with kestrel's options behind its name": ("tenant", b"get theirs:1/close/open/t=5"),
    "options in the middle of another's name": ("one", b"get one/open/two"),
    "a queue called as an allowed one with options": ("one", b"set one/open 0 0 1\r\nx"),
    "`delete` of a queue called as an allowed one with options": ("one", b"delete one/t=5"),
}
for _name, (_user, _request) in MEMCACHED_EVASIONS.items():

    @attack(_name, "`CLIENT_ERROR`")
    def _evade_memcached(target: Target, user: str = _user, request: bytes = _request) -> None:
        with target.memcached(user) as client:
            assert client(request) == NO_KEY


@attack("`flush_all` by who has not all queues", "`CLIENT_ERROR`")
def _flush_all(target: Target) -> None:
    with target.memcached("tenant") as tenant:
        assert tenant(b"flush_all").startswith(b"CLIENT_ERROR this user has no permission")


@attack("the names of others' queues, by `stats` and `dump_stats`", "they are not there")
def _memcached_names(target: Target) -> None:
    with target.waiter("root") as root, target.memcached("tenant") as tenant:
        root("SADD", "theirs:hidden", "x")
        tenant.send(b"stats\r\ndump_stats\r\nquit\r\n")
        assert b"hidden" not in tenant.rest()
        root("DEL", "theirs:hidden")


@attack("a queue's name with replies in it, shown by `stats`", "what is not visible in it is shown as `_`")
def _forged_stats(target: Target) -> None:
    with target.waiter("root") as root, target.memcached("root") as reader:
        root("SADD", "ours:\r\nEND\r\nVALUE q 0 1", "x")
        reader.send(b"dump_stats\r\nstats\r\nquit\r\n")
        lines = reader.rest().split(b"\r\n")
        assert lines.count(b"END") == 2
        assert not [line for line in lines if line.startswith(b"VALUE")]
        root("DEL", "ours:\r\nEND\r\nVALUE q 0 1")


@attack("commands in the data of a `set` that is refused", "they are passed over with it")
def _commands_in_data(target: Target) -> None:
    evil = b"set ours:evil 0 0 1\r\nx\r\n" * 100
    with target.memcached("tenant") as tenant, target.waiter("root") as root:
        for start in (
            b"set ours:1 x 0",
            b"set theirs:1 0 0",
            b"cas ours:1 0 0",
            b"set " + b"k" * 251 + b" 0 0",
        ):
            assert tenant(b"%b %d\r\n" % (start, len(evil)) + evil).startswith(b"CLIENT_ERROR")
        assert tenant(b"get ours:evil") == b"END"
        assert root("EXISTS", "ours:evil") == 0


# ---------------------------------------------------------------- all of them

USERS = {
    "root": (PASSWORD, ["*"], list(RIGHTS)),
    "tenant": (PASSWORD, ["ours:*"], list(RIGHTS)),
    "one": (PASSWORD, ["one"], list(RIGHTS)),
    "globs": (PASSWORD, ["*a" * 100 + "b", "*" + "a" * 200 + "b", "[a-z]*?" * 30 + "b"], list(RIGHTS)),
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
        hashed = password_digest(PASSWORD.encode()).hex()
        assert not [secret for secret in (PASSWORD, WRONG, hashed) if secret in server.log + mutual.log]
        server.end_well()
        mutual.end_well()
    finally:
        for one in (server, mutual):
            one.process.kill()
            one.process.wait(TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_has_the_documented_result(target: Target, name: str) -> None:
    with served(Wire(RESP, target.server).log_in("root", PASSWORD)):
        ATTACKS[name][1](target)


def test_the_document_lists_exactly_these_attacks() -> None:
    text = (Path(__file__).parent.parent / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text.partition("## Attacks")[2], re.MULTILINE)
    assert rows[1:] == [(name, outcome) for name, (outcome, _) in ATTACKS.items()], "see test_attacks.py"
    assert len(ATTACKS) >= 30
