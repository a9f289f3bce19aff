"""Logins: sources of the password, failures, hidden secrets, and protected mode.

What handlers do themselves is tested over each protocol; test_login.py tests requests that only
memcached has.
"""

import asyncio
import hashlib
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest

from pressure_server.app.process import without_secrets
from pressure_server.auth.access_policy import AccessError, AccessPolicy
from pressure_server.auth.logins import MAX_DELAY, MAX_FAILURES, Logins, delay_after
from pressure_server.auth.peer_address import is_local, network_of
from pressure_server.auth.users import NOBODY
from pressure_server.log_limits import LogThrottle
from tests.support.guards import reload, settings_of, users_toml
from tests.support.measures import MB, memory
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, run_here, wait_for
from tests.support.protocols import LISTEN, PROTOCOLS, RESP, Protocol, Wire, each_protocol
from tests.support.requirements import need
from tests.support.side_by_side import split
from tests.support.waiters import Waiter

SECRET = "s3cret-Passw0rd"
WRONG = "wr0ng-Passw0rd"
# A user's name that contains a line of the log.
FORGED = b"ada\n2026-01-01 INFO all is well\x00\x1b[2J\xff" + b"x" * 2000


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    return file


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--password", SECRET], {}),
        ([f"--password={SECRET}"], {}),
        ([], {"PRESSURE_PASSWORD": SECRET}),
        (["--password-file", "{file}"], {}),
        ([], {"PRESSURE_PASSWORD_FILE": "{file}"}),
        (["--config", "{config}"], {}),
    ],
    ids=["option", "option with =", "variable", "file", "variable for the file", "configuration"],
)
def test_each_source_of_a_password_works(
    tmp_path: Path, password_file: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'password-file = "{password_file}"')
    settings = settings_of(
        *(argument.format(file=password_file, config=config) for argument in arguments),
        environment={name: value.format(file=password_file) for name, value in variables.items()},
    )
    users = settings.access_policy.read_users()
    assert users.initial is NOBODY
    assert users.log_in("default", SECRET.encode()) is not None
    assert users.log_in("default", WRONG.encode()) is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot be read"), ("", "on one line"), ("\n", "on one line"), ("a\nb\n", "on one line"),
     ("a" * 2000, "from 1 to 1024 bytes")],
)  # fmt: skip
def test_a_password_file_must_have_exactly_one_line(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    with pytest.raises(AccessError, match=complaint) as refused:
        AccessPolicy(password_file=file).read_users()
    assert "aaa" not in str(refused.value)


def test_a_password_from_two_sources_is_refused(tmp_path: Path, password_file: Path) -> None:
    twice = run_here("--password", SECRET, "--password-file", str(password_file))
    assert (twice.returncode, "given twice" in twice.stderr, SECRET in twice.stderr) == (2, True, False)
    (tmp_path / "users.toml").write_text(users_toml({"default": (SECRET, ["*"], ["put"])}))
    with pytest.raises(AccessError, match="set its password there instead") as refused:
        AccessPolicy(SECRET.encode(), users=tmp_path / "users.toml").read_users()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("line_end", ["", "\n", "\r\n"])
def test_hash_password_prints_the_hash_for_a_users_file(line_end: str) -> None:
    command = [sys.executable, "-m", "pressure_server", "hash-password"]
    printed = subprocess.check_output(command, input=(SECRET + line_end).encode())
    assert printed.decode().strip() == hashlib.sha256(SECRET.encode()).hexdigest()


def test_secrets_are_hidden_in_shown_command_lines() -> None:
    plain = ["python", "-m", "pressure_server", "--listen", "resp://127.0.0.1:4000", "--password-file", "x"]
    assert without_secrets(plain) == plain
    secret = ["--password", SECRET, f"--password={SECRET}", f"--backend=redis://u:{SECRET}@h/0"]
    secret += ["--backend", f"redis://:{SECRET}/x@h:1", "--password"]
    shown = without_secrets(secret)
    assert SECRET not in " ".join(shown)
    assert len(shown) == len(secret)
    assert shown[-2] in ("redis://***@h:1", "redis://***@h:1/0")


PHP_LOGIN = (
    "$r = new Redis(); $r->connect('127.0.0.1', %d); $r->auth(['ada', '%s']); echo $r->sAdd('q', 'php');"
)
RUBY_LOGIN = "require 'redis'; print Redis.new(port: %d, username: 'ada', password: '%s').sadd('q', ['ruby'])"


@pytest.mark.clients
def test_client_libraries_log_in(start_server: StartServer, backend: Valkey, tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(users_toml({"ada": (SECRET, ["*"], ["put", "get"])}))
    port = start_server("--backend", backend.url, "--users", str(tmp_path / "users.toml")).port
    php = [need("php", "php-redis"), "-r", PHP_LOGIN % (port, SECRET)]
    ruby = [need("ruby", "ruby-redis"), "-e", RUBY_LOGIN % (port, SECRET)]
    assert subprocess.check_output(php, text=True) == "1"
    assert subprocess.check_output(ruby, text=True) == "1"
    cli = need("redis-cli", "redis-tools")
    command = [cli, "-p", str(port), "--user", "ada", "--pass", SECRET, "--no-auth-warning", "SPOP", "q"]
    assert subprocess.check_output(command, text=True) == "php\n"


@pytest.fixture
def locked(start_server: StartServer, backend: Valkey, password_file: Path) -> Server:
    """A server with a password, for one test: each failed login delays the next."""
    options = ("--password-file", str(password_file), "--log-level", "debug")
    return start_server("--backend", backend.url, *options, *LISTEN)


# For tests without a failed login.
shared_server = module_server("--password", SECRET, *LISTEN, secret=SECRET)


@pytest.fixture
def owner(server: Server) -> Iterator[Client]:
    """redis-py, which has logged in to the shared server."""
    with server.client(password=SECRET) as client:
        yield client


@each_protocol
def test_a_login_permits_the_commands_that_follow(server: Server, owner: Client, protocol: Protocol) -> None:
    with Wire(protocol, server) as client:
        client.send(
            protocol.get(b"q") * 100
            + protocol.log_in(b"default", SECRET.encode())
            + protocol.put(b"q", b"x" * MB)
            + protocol.size(b"q")
        )
        assert [client.reply() for _ in range(100)] == [protocol.unauthenticated] * 100
        assert client.reply() == protocol.logged_in
        assert client.reply() == protocol.stored(1)
        assert client.reply() == protocol.sized(1)
    assert owner.llen("q") == 1


@each_protocol
def test_requests_before_a_login_are_limited_in_size(
    server: Server, owner: Client, protocol: Protocol
) -> None:
    before = memory(server)
    for request in protocol.too_large_before_login:
        for _ in range(20):
            with Wire(protocol, server) as stranger:
                stranger.send(request)
                assert set(stranger.rest().splitlines()) == {protocol.refused_before_login}
    assert memory(server) - before < 8 * MB


@each_protocol
def test_a_browser_s_request_cannot_log_in(server: Server, owner: Client, protocol: Protocol) -> None:
    for method in (b"POST", b"GET"):
        head = method + b" / HTTP/1.1\r\nHost: a\r\n\r\n"
        with Wire(protocol, server) as browser:
            browser.send(head + protocol.log_in(b"default", SECRET.encode()) + protocol.put(b"q", b"x"))
            assert protocol.logged_in not in browser.rest()
    assert owner.exists("q") == 0


@each_protocol
def test_failed_logins_are_delayed_and_the_fifth_closes_the_connection(
    locked: Server, protocol: Protocol
) -> None:
    with Wire(protocol, locked) as guessing, locked.client(password=SECRET) as other:
        other.ping()
        delays = []
        for number in range(MAX_FAILURES):
            began = time.monotonic()
            guessing.send(protocol.log_in(b"default", SECRET[:-1].encode()) + protocol.get(b"q") * 100)
            assert other.ping()
            assert guessing.reply() == protocol.login_failed
            delays.append(time.monotonic() - began)
            if number < MAX_FAILURES - 1:
                assert guessing.replies(100) == [protocol.unauthenticated] * 100
            assert delays[-1] > delay_after(number + 1) - 0.01
        assert guessing.is_closed()
        # A correct login from the same address is not delayed.
        began = time.monotonic()
        with Wire(protocol, locked) as another:
            another.log_in("default", SECRET)
        assert time.monotonic() - began < delays[-1]
        assert other.info("stats")["acl_access_denied_auth"] == MAX_FAILURES
    assert locked.log.count("failed login") == 1


def test_a_client_that_disconnects_during_its_login_leaves_nothing(locked: Server) -> None:
    with locked.client(password=SECRET) as client:
        for _ in range(20):
            with Wire(RESP, locked) as guessing:
                guessing.send(RESP.log_in(b"default", WRONG.encode()))
        wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the other clients to be gone")
    locked.end_well()


def test_a_new_password_disconnects_clients_with_the_old_one(locked: Server, password_file: Path) -> None:
    with Wire(RESP, locked).log_in("default", SECRET) as old, Wire(RESP, locked) as stranger:
        password_file.write_text("another\n")
        reload(locked)
        assert old.is_closed()
        stranger.log_in("default", "another")


def test_the_delay_of_failures_grows_up_to_a_maximum() -> None:
    delays = [delay_after(failures) for failures in range(1, 100)]
    assert delays[0] > 0
    assert delays == sorted(delays)
    assert all(one < two for one, two in pairwise(delays[:MAX_FAILURES]))
    assert delays[-1] == MAX_DELAY


class Transport(asyncio.Transport):
    """A transport whose peer has this address."""

    def __init__(self, peer: object) -> None:
        super().__init__({"peername": peer})


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("", True),
        (None, True),
        (("127.0.0.1", 1), True),
        (("127.9.9.9", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("::ffff:10.0.0.1", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        (("10.0.0.1", 1), False),
        (("0.0.0.0", 1), False),
    ],
)
def test_a_local_client_is_recognised_by_its_address(peer: object, local: bool) -> None:
    assert is_local(Transport(peer)) == local


def test_an_ipv6_network_counts_as_one_address() -> None:
    first, same, other = (
        network_of(Transport((f"2001:db8::{end}:1", 1, 0, 0))) for end in ("1", "2", "1:0:0:0")
    )
    assert first == same != other


def test_a_user_s_name_is_escaped_and_shortened_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(Logins().fail(Transport(("10.0.0.1", 4711)), FORGED, 0))
    (line,) = caplog.messages
    assert r"ada\n2026-01-01 INFO all is well\x00\x1b[2J\xff" in line
    assert line.endswith(" from 10.0.0.1:4711")
    assert len(line) < 300


def test_a_limited_number_of_addresses_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_often() -> int:
        monkeypatch.setattr(asyncio, "sleep", mock.AsyncMock())
        logins = Logins()
        for number in range(25_000):
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            await logins.fail(Transport((address, 1)), b"x", 0)
        return len(logins._failures)

    assert asyncio.run(fail_often()) == 10_000


@pytest.mark.parametrize(
    ("warnings", "kinds", "summary"),
    [
        (1000, "", "999 more floods; the last: number 999"),
        (2, "", "1 more flood; the last: number 1"),
        (2, "any floods", "1 more flood; the last: number 1"),
        (3, "any floods", "2 more any floods; the last: number 2"),
    ],
)
def test_many_warnings_are_summarised(
    caplog: pytest.LogCaptureFixture, warnings: int, kinds: str, summary: str
) -> None:
    async def warn_often() -> None:
        throttle = LogThrottle(logging.getLogger("flood"), "flood", kinds, every=0.05)
        for number in range(warnings):
            throttle.warn(f"number {number}")
        await asyncio.to_thread(wait_for, lambda: len(caplog.messages) == 2, "the summary")

    asyncio.run(warn_often())
    assert caplog.messages == ["number 0", summary]


INFORMATIVE = "INFO|CONFIG GET *|CLIENT LIST|ACL LIST|ACL USERS|COMMAND DOCS|nonsense"


@pytest.mark.slow
def test_command_line_replies_and_log_show_no_secret(
    start_server: StartServer, start_valkey: StartValkey, tmp_path: Path
) -> None:
    backend = start_valkey("--requirepass", SECRET)
    server = start_server(
        "--backend", backend.url.replace("unix://", f"unix://:{SECRET}@"), "--password", SECRET,
        "--log-level", "debug", "--backend-grace", "0.5", "--drain-timeout", "0.5", new_process=True,
    )  # fmt: skip
    seen = [Path(f"/proc/{server.process.pid}/cmdline").read_bytes().decode()]
    assert "serve" in seen[0]
    for protocol in (2, 3):
        with server.client(password=SECRET, protocol=protocol) as client:
            assert client.ping()
    with Waiter(server.port) as waiter:
        waiter("AUTH", "default", WRONG + SECRET)
        waiter("AUTH", "default", SECRET)
        seen += [str(waiter(*line.split())) for line in split(INFORMATIVE)]
    backend.kill()
    with Waiter(server.port) as waiter:
        waiter("AUTH", SECRET)
        seen.append(str(waiter("SADD", "q", "a")))
        wait_for(lambda: "trying again" in server.log, "the loss of the backend to be logged")
    server.stop()
    seen.append(server.log)
    digest = hashlib.sha256(SECRET.encode())
    for secret in (SECRET, WRONG, digest.hexdigest(), repr(digest.digest())[2:-1]):
        assert not [text for text in seen if secret in text]


def own_address() -> str:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    ("options", "refuses"),
    [
        (("--listen", "resp://0.0.0.0:0"), True),
        (("--listen", "resp://[::]:0"), True),
        (("--http", "http://0.0.0.0:0"), True),
        (("--listen", "resp://0.0.0.0:0", "--workers", "2"), True),
        (("--listen", "resp://localhost:0", "--http", "http://127.0.0.2:0"), False),
        (("--listen", "resp://0.0.0.0:0", "--no-protected-mode"), False),
        (("--listen", "resp://0.0.0.0:0", "--password", SECRET), False),
    ],
)
def test_a_listener_whose_remote_clients_are_all_refused_causes_a_warning(
    start_server: StartServer, backend: Valkey, options: tuple[str, ...], refuses: bool
) -> None:
    log = start_server("--backend", backend.url, *options).log
    assert log.count("no password is set, so all clients on other machines are refused") == refuses


@pytest.mark.parametrize(
    "options", [(), ("--no-protected-mode",), ("--password", SECRET)], ids=["protected", "off", "password"]
)
def test_protected_mode_admits_only_local_clients(
    start_server: StartServer, backend: Valkey, options: tuple[str, ...]
) -> None:
    listeners = [f"--listen={protocol.name}://0.0.0.0:0" for protocol in PROTOCOLS]
    server = start_server("--backend", backend.url, *listeners, *options)
    has_password = "--password" in options
    for protocol in PROTOCOLS:
        port = int(server.log.partition(f"{protocol.name}://0.0.0.0:")[2].split()[0])
        admitted = re.compile(re.escape(protocol.unauthenticated)) if has_password else protocol.pong
        with Wire(protocol, socket.create_connection((own_address(), port))) as remote:
            if options:
                assert admitted.fullmatch(remote(protocol.ping))
            else:
                error = remote.rest()
                assert error.startswith(protocol.protected_mode)
                assert b"protected mode" in error or not protocol.has_reasons
                assert error.count(b"\r\n") == 1
        with Wire(protocol, port) as local:
            assert admitted.fullmatch(local(protocol.ping))
    with server.client(password=SECRET if has_password else None) as client:
        assert client.info("stats")["rejected_connections"] == (0 if options else len(PROTOCOLS))
