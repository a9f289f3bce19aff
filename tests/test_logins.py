"""Logging in: where the password comes from, what failures cost, and that no secret shows anywhere."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from pressure_server.app.process_title import without_secrets
from pressure_server.auth.log_throttle import LogThrottle
from pressure_server.auth.logins import LONGEST_DELAY, MOST_FAILURES, Logins, delay_after
from pressure_server.auth.peer_address import house_of, is_local
from tests.support.guards import reload, users_toml
from tests.support.programs import TIMEOUT, StartServer, StartValkey, Valkey, run_command, run_here, wait_for
from tests.support.requirements import need
from tests.support.side_by_side import Wire, split
from tests.support.waiters import Waiter, is_refused

SECRET = "s3cret-Passw0rd"
WRONG = "wr0ng-Passw0rd"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    return file


# ---------------------------------------------------------------- where the password comes from


@pytest.mark.slow
@pytest.mark.parametrize(
    "by", ["flag", "flag with a sign", "variable", "file", "variable for the file", "TOML"]
)
def test_a_password_can_be_given_in_many_ways(
    start_server: StartServer, backend: Valkey, tmp_path: Path, password_file: Path, by: str
) -> None:
    (tmp_path / "config.toml").write_text(f'password-file = "{password_file}"')
    arguments, environment = {
        "flag": (["--password", SECRET], {}),
        "flag with a sign": ([f"--password={SECRET}"], {}),
        "variable": ([], {"PRESSURE_PASSWORD": SECRET}),
        "file": (["--password-file", str(password_file)], {}),
        "variable for the file": ([], {"PRESSURE_PASSWORD_FILE": str(password_file)}),
        "TOML": (["--config", str(tmp_path / "config.toml")], {}),
    }[by]
    server = start_server("--backend", backend.url, *arguments, environment=environment)
    with server.client() as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    for protocol in (2, 3):
        with server.client(password=SECRET, protocol=protocol) as client:
            assert client.ping()
    # Of the server's session, which is its own: other tests start others with the same password.
    processes = subprocess.check_output(["ps", "-o", "args=", "-s", str(server.process.pid)], text=True)
    assert "pressure_server" in processes
    assert SECRET not in processes
    assert run_here("ping", "--listen", f"resp://127.0.0.1:{server.port}").returncode == 0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot be read"), ("", "on one line"), ("\n", "on one line"), ("a\nb\n", "on one line"),
     ("a" * 2000, "from 1 to 1024 bytes")],
)  # fmt: skip
def test_a_password_file_holds_one_line(tmp_path: Path, content: str | None, complaint: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    refused = run_command("--password-file", str(file), "--data-dir", str(tmp_path / "data"))
    assert refused.returncode == 1
    assert complaint in refused.stderr
    assert "aaa" not in refused.stderr


def test_a_password_is_given_once(tmp_path: Path, password_file: Path) -> None:
    twice = run_command("--password", SECRET, "--password-file", str(password_file))
    assert (twice.returncode, "given twice" in twice.stderr, SECRET in twice.stderr) == (2, True, False)
    (tmp_path / "users.toml").write_text(users_toml({"default": (SECRET, ["*"], ["put"])}))
    twice = run_command("--password", SECRET, "--users", str(tmp_path / "users.toml"))
    assert (twice.returncode, "password there" in twice.stderr, SECRET in twice.stderr) == (1, True, False)


def test_hash_password_makes_what_a_users_file_takes() -> None:
    for line in (SECRET, SECRET + "\n", SECRET + "\r\n"):
        made = subprocess.run(
            [sys.executable, "-m", "pressure_server", "hash-password"],
            input=line.encode(),
            capture_output=True,
            check=True,
        )
        assert made.stdout.decode().strip() == hashlib.sha256(SECRET.encode()).hexdigest()


def test_without_secrets_a_command_line_is_as_it_was() -> None:
    plain = ["python", "-m", "pressure_server", "--listen", "resp://127.0.0.1:4000", "--password-file", "x"]
    assert without_secrets(plain) == plain
    secret = ["--password", SECRET, f"--password={SECRET}", f"--backend=redis://u:{SECRET}@h/0"]
    secret += ["--backend", f"redis://:{SECRET}/x@h:1", "--password"]
    shown = without_secrets(secret)
    assert SECRET not in " ".join(shown)
    assert len(shown) == len(secret)
    assert shown[-2] == "redis://***@h:1" or shown[-2] == "redis://***@h:1/0"


# ---------------------------------------------------------------- clients


PHP_LOGIN = (
    "$r = new Redis(); $r->connect('127.0.0.1', %d); $r->auth(['ada', '%s']); echo $r->sAdd('q', 'php');"
)
RUBY_LOGIN = "require 'redis'; print Redis.new(port: %d, username: 'ada', password: '%s').sadd('q', ['ruby'])"


@pytest.mark.clients
def test_libraries_log_in(start_server: StartServer, backend: Valkey, tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(users_toml({"ada": (SECRET, ["*"], ["put", "get"])}))
    server = start_server("--backend", backend.url, "--users", str(tmp_path / "users.toml"))
    port = server.port
    for program, package, flag, script in (
        ("php", "php-redis", "-r", PHP_LOGIN),
        ("ruby", "ruby-redis", "-e", RUBY_LOGIN),
    ):
        command = [need(program, package), flag, script % (port, SECRET)]
        assert subprocess.check_output(command, text=True) == "1"
    cli = need("redis-cli", "redis-tools")
    command = [cli, "-p", str(port), "--user", "ada", "--pass", SECRET, "--no-auth-warning", "SPOP", "q"]
    assert subprocess.check_output(command, text=True) == "php\n"


# ---------------------------------------------------------------- failures


def test_failures_are_slowed_and_the_fifth_closes(
    start_server: StartServer, backend: Valkey, password_file: Path
) -> None:
    server = start_server("--backend", backend.url, "--password-file", str(password_file))
    with Waiter(server.port) as guessing, server.client(password=SECRET) as other:
        other.ping()
        taken = []
        for _ in range(MOST_FAILURES):
            began = time.monotonic()
            guessing.send("AUTH", WRONG)
            assert other.ping()
            assert is_refused(guessing.reply(), "WRONGPASS")
            taken.append(time.monotonic() - began)
        with pytest.raises(ConnectionError):
            guessing.reply()
        assert taken[-1] > delay_after(MOST_FAILURES) - 0.01
        assert taken == sorted(taken)
        # Who knows the password is not held up, from the same address.
        began = time.monotonic()
        with server.client(password=SECRET) as another:
            assert another.ping()
        assert time.monotonic() - began < taken[-1]
        assert other.info("stats")["acl_access_denied_auth"] == MOST_FAILURES
        assert server.log.count("failed login") == 1


def test_a_login_that_hangs_up_leaves_nothing(
    start_server: StartServer, backend: Valkey, password_file: Path
) -> None:
    server = start_server("--backend", backend.url, "--password-file", str(password_file))
    with server.client(password=SECRET) as client:
        for _ in range(20):
            with Waiter(server.port) as guessing:
                guessing.send("HELLO", 3, "AUTH", "default", WRONG)
        wait_for(lambda: client.info("clients")["connected_clients"] == 1, "the others to be gone")
    server.end_well()


@pytest.mark.parametrize("failures", range(1, 100))
def test_a_delay_grows_and_is_bounded(failures: int) -> None:
    assert 0 < delay_after(failures) <= delay_after(failures + 1) <= LONGEST_DELAY


class Transport(asyncio.Transport):
    """One that knows where its client is."""

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
def test_who_is_on_this_machine(peer: object, local: bool) -> None:
    assert is_local(Transport(peer)) == local


def test_an_ipv6_network_is_one_house() -> None:
    one, two, three = (house_of(Transport((f"2001:db8::{net}:1", 1, 0, 0))) for net in ("1", "2", "1:0:0:0"))
    assert one == two != three


def test_the_memory_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_seconds: float) -> None:
        return None

    async def fail_often() -> int:
        monkeypatch.setattr(asyncio, "sleep", nothing)
        logins = Logins()
        for number in range(25_000):
            await logins.fail(
                Transport((f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1)), b"x", 0
            )
        return len(logins._houses)

    assert asyncio.run(fail_often()) == 10_000


def test_a_flood_is_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    summed_up = asyncio.Event()

    class Listening(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if "more" in record.getMessage():
                summed_up.set()
            return True

    async def flood() -> None:
        logger = logging.getLogger("flood")
        logger.addFilter(Listening())
        seldom = LogThrottle(logger, "floods", every=0.05)
        for number in range(1000):
            seldom.warn(f"number {number}")
        await asyncio.wait_for(summed_up.wait(), TIMEOUT)

    asyncio.run(flood())
    assert caplog.messages == ["number 0", "999 more floods; the last: number 999"]


# ---------------------------------------------------------------- secrets and protected mode

TELLING = "INFO|CONFIG GET *|CLIENT LIST|ACL LIST|ACL USERS|COMMAND DOCS|nonsense"


@pytest.mark.slow
def test_no_secret_is_shown_anywhere(
    start_server: StartServer, start_valkey: StartValkey, tmp_path: Path
) -> None:
    guarded = start_valkey("--requirepass", SECRET)
    server = start_server(
        "--backend",
        guarded.url.replace("unix://", f"unix://:{SECRET}@"),
        "--password",
        SECRET,
        "--log-level",
        "debug",
    )
    seen = [Path(f"/proc/{server.process.pid}/cmdline").read_bytes().decode()]
    assert "serve" in seen[0]
    with server.client(password=SECRET) as client, Waiter(server.port) as waiter:
        waiter("AUTH", "default", WRONG + SECRET)
        waiter("AUTH", "default", SECRET)
        seen += [str(waiter(*line.split())) for line in split(TELLING)]
        assert client.ping()
    guarded.kill()
    with Waiter(server.port) as waiter:
        waiter("AUTH", SECRET)
        seen.append(str(waiter("SADD", "q", "a")))
        wait_for(lambda: "trying again" in server.log, "the loss of the backend to be logged")
    server.stop()
    seen.append(server.log)
    digest = hashlib.sha256(SECRET.encode())
    for secret in (SECRET, WRONG, digest.hexdigest(), repr(digest.digest())[2:-1]):
        assert not [text for text in seen if secret in text]


def test_a_name_cannot_forge_a_line_of_the_log(
    start_server: StartServer, backend: Valkey, password_file: Path
) -> None:
    server = start_server("--backend", backend.url, "--password-file", str(password_file))
    with Waiter(server.port) as waiter:
        waiter("AUTH", b"ada\n2026-01-01 INFO all is well\x00\x1b[2J\xff" + b"x" * 5000, WRONG)
    line = wait_for(lambda: [line for line in server.log.splitlines() if "failed login" in line], "the line")[
        0
    ]
    assert r"ada\n2026-01-01 INFO all is well\x00\x1b[2J\xff" in line
    assert len(line) < 300
    assert "127.0.0.1:" in line


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("options", [[], ["--no-protected-mode"], ["--password", SECRET]])
def test_protected_mode_is_redis_s(start_server: StartServer, backend: Valkey, options: list[str]) -> None:
    server = start_server("--backend", backend.url, "--listen", "resp://0.0.0.0:0", *options)
    port = int(server.log.partition("resp://0.0.0.0:")[2].split()[0])
    with socket.create_connection((own_address(), port)) as elsewhere:
        said = Wire(elsewhere).all_for(b"PING\r\nQUIT\r\n")
        if options:
            assert said in (b"+PONG\r\n+OK\r\n", b"-NOAUTH Authentication required.\r\n+OK\r\n")
        else:
            assert said.startswith(b"-DENIED pressure-server is in protected mode")
            assert said.count(b"\r\n") == 1
    with redis.Redis(port=port, password=SECRET if "--password" in options else None) as here:
        assert here.ping()
        assert here.info("stats")["rejected_connections"] == (not options)


def test_a_password_file_is_read_again(
    start_server: StartServer, backend: Valkey, password_file: Path
) -> None:
    server = start_server("--backend", backend.url, "--password-file", str(password_file))
    with Waiter(server.port) as old:
        assert old("AUTH", SECRET) == b"OK"
        password_file.write_text("another\n")
        reload(server)
        with pytest.raises(ConnectionError):
            old.reply()
    with server.client(password="another") as client:
        assert client.ping()
