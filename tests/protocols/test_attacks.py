"""The attacks listed in docs/guides/security.md, with their outcomes.

During each attack another client is served. Afterwards memory is as before, and the log has no secret.
"""

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
from tests.support.crowd import served
from tests.support.guards import Authority, users_toml
from tests.support.measures import MB, memory
from tests.support.memcached_wire import MemcachedWire
from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, Server, Valkey, wait_for
from tests.support.protocols import MEMCACHED, RESP, Wire
from tests.support.side_by_side import split, words
from tests.support.waiters import Waiter, is_refused, packed

PASSWORD = "s3cret-Passw0rd"
WRONG = "wr0ng-Passw0rd"
GROWTH = 64 * MB


def connect(server: Server, scheme: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port_of(scheme)), TIMEOUT)


@dataclass(frozen=True)
class Target:
    """A server with users, plain and TLS listeners; `mutual` also requires client certificates."""

    server: Server
    mutual: Server
    authority: Authority
    strangers: Authority

    def waiter(self, user: str = "") -> Waiter:
        """Open a RESP connection, and log in as the user, if any."""
        connected = Waiter(self.server.port)
        assert not user or connected("AUTH", user, PASSWORD) == b"OK"
        return connected

    def memcached(self, user: str = "") -> MemcachedWire:
        """Open a memcached connection, and log in as the user, if any."""
        connected = MemcachedWire(self.server)
        return connected.log_in(user, PASSWORD) if user else connected

    def send(self, data: bytes, scheme: str = "resp") -> bytes:
        """Send only these bytes; return all bytes until the server closes."""
        wire = Wire(RESP, connect(self.server, scheme))
        wire.send(data)
        return wire.half_close()


Attack = Callable[[Target], None]
# By name: the outcome as in docs/guides/security.md, and the attack.
ATTACKS: dict[str, tuple[str, Attack]] = {}


def attack(name: str, outcome: str) -> Callable[[Attack], Attack]:
    """Enter the decorated function in ATTACKS."""

    def enter(function: Attack) -> Attack:
        ATTACKS[name] = outcome, function
        return function

    return enter


SCANS = {
    "HTTP GET": b"GET / HTTP/1.1\r\nHost: queues\r\nUser-Agent: scan\r\n\r\n",
    "HTTP POST with commands in it": b"POST / HTTP/1.1\r\nHost: a\r\n\r\nSADD tenant:evil x\r\n",
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
        f"{_name}, to the plain listener", "an error or nothing; the connection is closed, and nothing stored"
    )
    def _scan(target: Target, data: bytes = _data) -> None:
        assert b"+" not in target.send(data)[:1]
        with target.waiter("root") as root:
            assert root("EXISTS", "tenant:evil") == 0


@attack(
    "all of these, and an unencrypted `PING`, to the TLS listener",
    "the connection is closed; at most one log line a minute",
)
def _scan_tls(target: Target) -> None:
    before = target.server.log.count("TLS handshake with")
    for data in (*SCANS.values(), packed("PING")):
        assert b"PONG" not in target.send(data, "resps")
    assert target.server.log.count("TLS handshake with") - before <= 1


def shake(server: Server, context: ssl.SSLContext) -> bytes:
    """Return the reply to PING over TLS. Raises ConnectionError or SSLError if the handshake fails."""
    with connect(server, "resps") as plain:
        secure = context.wrap_socket(plain, server_hostname="localhost")
        secure.sendall(packed("PING"))
        # In TLS 1.3, a client whose certificate is refused learns it only when it reads.
        if not (reply := secure.recv(100)):
            raise ConnectionResetError
        return reply


@attack("a TLS handshake sent byte by byte", "the connection is closed after 10 seconds")
def _slow_handshake(target: Target) -> None:
    with connect(target.server, "resps") as slow:
        began = time.monotonic()
        slow.settimeout(1.0)
        with contextlib.suppress(ConnectionError):
            for byte in SCANS["TLS ClientHello"]:
                with contextlib.suppress(TimeoutError):
                    slow.sendall(bytes([byte]))
                    if not slow.recv(1):
                        break
        assert 8 < time.monotonic() - began < TIMEOUT


@attack(
    "500 TLS handshakes that are begun and not finished",
    "at most 256 are kept, and the oldest are closed; other clients can connect",
)
def _half_open(target: Target) -> None:
    files = Path(f"/proc/{target.server.process.pid}/fd")
    before = len(list(files.iterdir()))
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            half_open = stack.enter_context(connect(target.server, "resps"))
            half_open.sendall(b"\x16\x03\x01\x02\x00\x01")
        wait_for(lambda: len(list(files.iterdir())) - before <= 260, "the oldest handshakes to be closed")
        assert shake(target.server, target.authority.client_context()).startswith(b"-NOAUTH")


@attack("TLS 1.1", "the handshake fails")
def _tls_1_1(target: Target) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(target.authority.certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ConnectionError, ssl.SSLError)):
        shake(target.server, context)


@attack("TLS renegotiation", "refused")
def _renegotiation(target: Target) -> None:
    command = [
        "openssl", "s_client", "-connect", f"127.0.0.1:{target.server.port_of('resps')}", "-tls1_2",
        "-CAfile", str(target.authority.certificate),
    ]  # fmt: skip
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


CERTIFICATES: dict[str, Callable[[Target], tuple[Path, Path] | None]] = {
    "no client certificate, although one is required": lambda _target: None,
    "a client certificate of another CA": lambda target: target.strangers.issue("foreign"),
    "an expired client certificate": lambda target: target.authority.issue("expired", days=0),
}
for _name, _certificate in CERTIFICATES.items():

    @attack(_name, "the handshake fails")
    def _wrong_certificate(
        target: Target, certificate: Callable[[Target], tuple[Path, Path] | None] = _certificate
    ) -> None:
        context = target.authority.client_context(certificate(target))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            shake(target.mutual, context)


GUESSES_OUTCOME = (
    "each is refused after up to 2 seconds, and every fifth closes its connection; "
    "at most two log lines a minute"
)


def guess(target: Target, password: str) -> int:
    """Guess until the server closes the connection. Return the number of guesses."""
    with target.waiter() as guessing:
        for number in range(100):
            try:
                assert is_refused(guessing("AUTH", "root", f"{password}{number}"), "WRONGPASS")
            except ConnectionError:
                return number
    raise AssertionError("the connection was not closed")


@attack("1 000 wrong passwords", GUESSES_OUTCOME)
def _guesses(target: Target) -> None:
    before = target.server.log.count("failed login")
    with ThreadPoolExecutor(200) as pool:
        assert sum(pool.map(lambda _: guess(target, WRONG), range(200))) == 1000
    assert target.server.log.count("failed login") - before <= 2
    with target.waiter("root") as root:
        assert root("PING") == b"PONG"


@attack("measuring times to find names of users", "known and unknown names take the same time")
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


TOO_LARGE = {
    "a password of 32 MB": b"*2\r\n$4\r\nAUTH\r\n$33554432\r\n" + b"x" * MB,
    "a command of a million words before the login": b"*1000000\r\n" + b"$1\r\na\r\n" * 100_000,
}
for _name, _data in TOO_LARGE.items():

    @attack(_name, "an error before it is read; the connection is closed")
    def _too_large(target: Target, data: bytes = _data) -> None:
        reply = target.send(data)
        assert reply.startswith(b"-ERR Protocol error: unauthenticated") or reply == b""


@attack("10 000 commands before the login", "`-NOAUTH` for each")
def _before_login(target: Target) -> None:
    replies = target.send(packed("SADD", "tenant:1", "x") * 10_000)
    assert replies == b"-NOAUTH Authentication required.\r\n" * 10_000


DIGEST = password_digest(PASSWORD.encode())
WRONG_PASSWORDS: dict[str, list[str | bytes]] = {
    "an incomplete password, one in upper case, and one with a zero byte or a line end": [
        PASSWORD[:-1], PASSWORD.upper(), PASSWORD + "\x00", PASSWORD + "\n", "",
    ],
    "the hash of a password instead of the password": [DIGEST.hex(), DIGEST],
}  # fmt: skip
for _name, _passwords in WRONG_PASSWORDS.items():

    @attack(_name, "`-WRONGPASS`")
    def _wrong_password(target: Target, passwords: list[str | bytes] = _passwords) -> None:
        def is_wrong(password: str | bytes) -> bool:
            with target.waiter() as guessing:
                return is_refused(guessing("AUTH", "root", password), "WRONGPASS")

        # In parallel, because the reply to each takes up to two seconds.
        with ThreadPoolExecutor(len(passwords)) as pool:
            assert all(pool.map(is_wrong, passwords))


@attack("line breaks, zeros and escapes in a user's name", "the log has them escaped, and cuts a long name")
def _forged_name(target: Target) -> None:
    with target.waiter() as guessing:
        name = b"\n2026-01-01 ERROR forged\x00\x1b[2J" + b"x" * 10_000
        assert is_refused(guessing("AUTH", name, WRONG), "WRONGPASS")
    assert not re.search(r"^2026-01-01 ERROR forged", target.server.log, re.MULTILINE)
    assert "\x1b" not in target.server.log


@attack("commands in the same packet as a failed `AUTH`", "`-NOAUTH` for each")
def _after_failed_auth(target: Target) -> None:
    with target.waiter() as guessing:
        guessing.socket.sendall(packed("AUTH", "root", WRONG) + packed("SADD", "tenant:1", "x") * 100)
        assert is_refused(guessing.reply(), "WRONGPASS")
        assert all(is_refused(guessing.reply(), "NOAUTH") for _ in range(100))


@attack("`HELLO` without `AUTH`, then commands", "`-NOAUTH`, and the protocol version stays")
def _hello(target: Target) -> None:
    with target.waiter() as guessing:
        assert is_refused(guessing("HELLO", 3, "SETNAME", "x"), "NOAUTH")
        assert is_refused(guessing("NONSENSE", "x"), "ERR")
        assert is_refused(guessing("GET", "x"), "NOAUTH")
        assert is_refused(guessing("CLIENT", "GETNAME"), "NOAUTH")


@attack("commands after `RESET`", "`-NOAUTH`, because `RESET` logs out")
def _reset(target: Target) -> None:
    with target.waiter("root") as root:
        assert root("RESET") == b"RESET"
        assert is_refused(root("SADD", "tenant:1", "x"), "NOAUTH")


@attack(
    "a failed `AUTH` between `MULTI` and `EXEC`", "`-WRONGPASS` among the replies; the client keeps its user"
)
def _auth_in_multi(target: Target) -> None:
    with target.waiter("tenant") as tenant:
        for line in ("MULTI", f"AUTH root {WRONG}", "SADD tenant:1 m"):
            tenant(*line.split())
        refused, put = tenant("EXEC")
        assert is_refused(refused, "WRONGPASS")
        assert put == 1
        assert tenant("ACL", "WHOAMI") == b"tenant"


@attack(
    "`AUTH` as a user with fewer rights, then commands that need more, in one transaction",
    "`-NOPERM` at `EXEC`",
)
def _fewer_rights_in_multi(target: Target) -> None:
    with target.waiter("root") as root:
        for line in ("MULTI", f"AUTH tenant {PASSWORD}", "SADD other:1 m", "KEYS *"):
            root(*line.split())
        _ok, refused, listed = root("EXEC")
        assert is_refused(refused, "NOPERM")
        assert [name for name in listed if not name.startswith(b"tenant:")] == []


# Commands of the tenant, whose queues are tenant:*, and the error of the last command.
EVASIONS = {
    "another user's queue in a transaction": ("MULTI|SADD other:1 x|EXEC", "EXECABORT"),
    "another user's queue among the queues of `BLPOP`": ("BLPOP tenant:1 other:1 tenant:2 0", "NOPERM"),
    "another user's queue after the number of queues in `LMPOP`": ("LMPOP 2 tenant:1 other:1 LEFT", "NOPERM"),
    "an invalid number of queues in `BLMPOP`": ("BLMPOP 0 01 other:1 LEFT", "ERR"),
    "another user's queue as `SMOVE`'s destination": ("SADD tenant:1 x|SMOVE tenant:1 other:1 x", "NOPERM"),
    "another user's queue as `LMOVE`'s source": ("LMOVE other:1 tenant:1 LEFT LEFT", "NOPERM"),
    "the name of a command in mixed case": ("sPoP other:1", "NOPERM"),
    "`WATCH` of another user's queue, to notice changes": ("WATCH tenant:1 other:1", "NOPERM"),
    "another user's queue in a set operation": ("SUNION tenant:1 other:1", "NOPERM"),
    "`PRESSURE.INFO` of another user's queue": ("PRESSURE.INFO other:1", "NOPERM"),
    "`PRESSURE.DELETE` of another user's queue": ("pressure.delete other:1", "NOPERM"),
    "another user's queue in another database": ("SELECT 1|SPOP other:1", "NOPERM"),
    "`FLUSHALL` by a user without access to all queues": ("FLUSHALL", "NOPERM"),
    "`CLIENT KILL` by a user without access to all queues": ("CLIENT KILL SKIPME yes ID 1", "NOPERM"),
    "a name with a line break in the allowed prefix": ("SPOP tenant\\n:1", "NOPERM"),
}
for _name, (_lines, _code) in EVASIONS.items():

    @attack(_name, f"`-{_code}`")
    def _evade(target: Target, lines: str = _lines, code: str = _code) -> None:
        with target.waiter("tenant") as tenant:
            assert is_refused([tenant(*words(line)) for line in split(lines)][-1], code)


@attack(
    "`KEYS`, `SCAN`, `RANDOMKEY`, `INFO` and `PRESSURE.LIST`, to find other users' queues",
    "the replies do not contain them",
)
def _names(target: Target) -> None:
    with target.waiter("root") as root, target.waiter("tenant") as tenant:
        root("SADD", "other:hidden", "x")
        lines = "KEYS *|SCAN 0 MATCH *hidden COUNT 10000|RANDOMKEY|INFO|PRESSURE.LIST MATCH ot*"
        seen = [str(tenant(*words(line))) for line in split(lines)]
        assert "hidden" not in "".join(seen)


@attack(
    "500 commands on an allowed queue, then 500 on another user's, in one pipeline",
    "the first are executed; `-NOPERM` for each of the others",
)
def _pipeline(target: Target) -> None:
    with target.waiter("tenant") as tenant, target.waiter("root") as root:
        tenant.socket.sendall(packed("RPUSH", "tenant:p", "x") * 500 + packed("RPUSH", "other:p", "x") * 500)
        replies = [tenant.reply() for _ in range(1000)]
        assert replies[:500] == list(range(1, 501))
        assert all(is_refused(reply, "NOPERM") for reply in replies[500:])
        assert root("EXISTS", "other:p") == 0


@attack("names that are slow to match with the user's patterns", "refused in milliseconds")
def _slow_patterns(target: Target) -> None:
    with target.waiter("globs") as globs:
        began = time.monotonic()
        for size in (1000, 4096, 4097, 10**6):
            assert is_refused(globs("SADD", "a" * size, "x"), "NOPERM")
        assert time.monotonic() - began < 2


@attack("commands during repeated reloads of the users file", "each is checked correctly")
def _race(target: Target) -> None:
    with target.waiter("tenant") as tenant:
        before = target.server.log.count("reloaded:")
        for _ in range(50):
            target.server.process.send_signal(1)
            tenant.socket.sendall((packed("SADD", "tenant:r", "x") + packed("SPOP", "other:r")) * 20)
            replies = [tenant.reply() for _ in range(40)]
            assert all(reply in (0, 1) for reply in replies[::2])
            assert all(is_refused(reply, "NOPERM") for reply in replies[1::2])
        wait_for(lambda: target.server.log.count("reloaded:") > before, "a reload")


UNAUTHENTICATED = MEMCACHED.unauthenticated
NO_KEY = MEMCACHED.no_permission + b"for one of these keys"


@attack(
    "the data of all scans, and an HTTP POST with a `set` in it, to the memcached listener",
    "errors or nothing; the connection is closed, and nothing stored",
)
def _scan_memcached(target: Target) -> None:
    for data in (*SCANS.values(), b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset tenant:evil 0 0 1\r\nx\r\n"):
        assert not re.search(rb"STORED|VALUE|STAT|VERSION", target.send(data, "memcached"))
    with target.waiter("root") as root:
        assert root("EXISTS", "tenant:evil") == root("EXISTS", "a") == 0


@attack("memcached's binary protocol", "a binary error response, and the connection is closed")
def _binary(target: Target) -> None:
    login = b"PLAIN\x00root\x00" + PASSWORD.encode()
    header = b"\x80\x21\x00\x05" + bytes(4) + len(login).to_bytes(4, "big") + b"OPAQ" + bytes(8)
    reply = target.send(header + login, "memcached")
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


@attack("a login of 32 MB over memcached", "an error before it is read; the connection is closed")
def _huge_login(target: Target) -> None:
    reply = target.send(b"set any 0 0 33554432\r\n" + b"x" * MB, "memcached")
    assert reply in (b"", UNAUTHENTICATED + b"\r\n")


@attack("10 000 commands over memcached before the login", "`CLIENT_ERROR` for each")
def _memcached_before_login(target: Target) -> None:
    replies = target.send(b"set2 tenant:1 0 0 1\r\n" * 5000 + b"get tenant:1\r\n" * 5000, "memcached")
    assert replies == (UNAUTHENTICATED + b"\r\n") * 10_000


@attack(
    "an incomplete password over memcached, one with further bytes, and one without a user", "`CLIENT_ERROR`"
)
def _memcached_nearly(target: Target) -> None:
    def replies_to(login: str) -> tuple[bytes, bytes]:
        with target.memcached() as guessing:
            return guessing.store(b"any", login.encode()), guessing(b"get tenant:1")

    logins = (
        f"root {PASSWORD[:-1]}", f"root {PASSWORD}\0", f"root {PASSWORD}\r\n", PASSWORD, f" {PASSWORD}",
    )  # fmt: skip
    with ThreadPoolExecutor(len(logins)) as pool:
        assert set(pool.map(replies_to, logins)) == {(MEMCACHED.login_failed, UNAUTHENTICATED)}


# The user `one` may use only the queue `one`.
MEMCACHED_EVASIONS = {
    "another user's queue among the keys of a memcached `get`": ("tenant", b"get tenant:1 other:1 tenant:2"),
    "another user's queue with kestrel options after its name": ("tenant", b"get other:1/close/open/t=5"),
    "kestrel options in the middle of another queue's name": ("one", b"get one/open/two"),
    "`set` on a queue whose name is an allowed name with options": ("one", b"set one/open 0 0 1\r\nx"),
    "`delete` of a queue whose name is an allowed name with options": ("one", b"delete one/t=5"),
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


@attack("`stats` and `dump_stats`, to find other users' queues", "the replies do not contain them")
def _memcached_names(target: Target) -> None:
    with target.waiter("root") as root, target.memcached("tenant") as tenant:
        root("SADD", "other:hidden", "x")
        tenant.send(b"stats\r\ndump_stats\r\nquit\r\n")
        assert b"hidden" not in tenant.rest()


@attack("a queue's name that contains replies, in `stats`", "invisible characters are shown as `_`")
def _forged_stats(target: Target) -> None:
    with target.waiter("root") as root, target.memcached("root") as reader:
        root("SADD", "tenant:\r\nEND\r\nVALUE q 0 1", "x")
        reader.send(b"dump_stats\r\nstats\r\nquit\r\n")
        lines = reader.rest().split(b"\r\n")
        assert lines.count(b"END") == 2
        assert not [line for line in lines if line.startswith(b"VALUE")]


@attack("commands in the data of a refused `set`", "the data is skipped")
def _commands_in_data(target: Target) -> None:
    evil = b"set tenant:evil 0 0 1\r\nx\r\n" * 100
    with target.memcached("tenant") as tenant, target.waiter("root") as root:
        long = b"set " + b"k" * 251 + b" 0 0"
        for start in (b"set tenant:1 x 0", b"set other:1 0 0", b"cas tenant:1 0 0", long):
            assert tenant(b"%b %d\r\n" % (start, len(evil)) + evil).startswith(b"CLIENT_ERROR")
        for line in (
            b"ms other:1 %d",
            b"ms tenant:1 %d Fx",
            b"ms tenant:1 %d b",
            b"ms " + b"k" * 251 + b" %d",
        ):
            assert tenant(line % len(evil) + b"\r\n" + evil).startswith(b"CLIENT_ERROR")
        assert tenant(b"get tenant:evil") == b"END"
        assert root("EXISTS", "tenant:evil") == 0


USERS = {
    "root": (PASSWORD, ["*"], list(RIGHTS)),
    "tenant": (PASSWORD, ["tenant:*"], list(RIGHTS)),
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
        shake(server, authority.client_context())
        before = memory(server)
        yield Target(server, mutual, authority, strangers)
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
def test_an_attack_has_the_documented_result(target: Target, backend: Valkey, name: str) -> None:
    with served(Wire(RESP, target.server).log_in("root", PASSWORD)):
        ATTACKS[name][1](target)


def test_the_document_lists_exactly_these_attacks() -> None:
    text = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text.partition("## Attacks")[2], re.MULTILINE)
    assert rows[1:] == [(name, outcome) for name, (outcome, _) in ATTACKS.items()], "see test_attacks.py"
    assert len(ATTACKS) >= 30
