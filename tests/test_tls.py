"""Listeners for TLS: who comes in by which certificate, what a reload changes, and TLS to the backend."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis

from tests.support.guards import Authority, port_of, reload
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    Valkey,
    run_command,
    run_here,
    wait_for,
)
from tests.support.requirements import need
from tests.support.waiters import packed

StartTls = Callable[..., Server]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("strangers"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key, which the test may change."""
    copies = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for copy, original in zip(copies, authority.issue("server"), strict=True):
        copy.write_bytes(original.read_bytes())
    return copies


@pytest.fixture
def start_tls(start_server: StartServer, backend: Valkey, files: tuple[Path, Path]) -> StartTls:
    """Start a server that listens for TLS, too, with these options."""

    def start(*options: str) -> Server:
        certificate, key = map(str, files)
        return start_server(
            "--backend", backend.url, "--listen", "resps://127.0.0.1:0",
            "--tls-certificate", certificate, "--tls-key", key, *options,
        )  # fmt: skip

    return start


def client_of(server: Server, authority: Authority, **options: Any) -> Client:
    return redis.Redis(
        "localhost", port_of(server, "resps"), ssl=True, ssl_ca_certs=str(authority.certificate), **options
    )


class Secure:
    """A plain connection over TLS."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        plain = socket.create_connection(("127.0.0.1", port_of(server, "resps")), TIMEOUT)
        self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self._reader = hiredis.Reader()

    def __call__(self, *words: str | bytes) -> object:
        self.socket.sendall(packed(*words))
        while (reply := self._reader.gets()) is False:
            received = self.socket.recv(65536)
            if not received:
                raise ConnectionResetError
            self._reader.feed(received)
        return reply

    @property
    def serial(self) -> object:
        """Which certificate the server has shown."""
        return (self.socket.getpeercert() or {})["serialNumber"]


def test_queues_work_over_tls_in_all_sizes(start_tls: StartTls, authority: Authority) -> None:
    server = start_tls()
    for protocol in (2, 3):
        with client_of(server, authority, protocol=protocol) as client, server.client() as plain:
            large = b"x" * (9 << 20)
            assert client.sadd("q", "a", large) == 2
            assert client.spop("q") == b"a"
            assert plain.spop("q") == large
            with client.pipeline(transaction=False) as pipeline:
                for number in range(5000):
                    pipeline.sadd("q", number)
                assert pipeline.execute() == [1] * 5000
            assert client.llen("q") == 5000
            assert len(client.lpop("q", 5000)) == 5000
    server.end_well()


@pytest.mark.clients
def test_redis_cli_and_ping_come_in(start_tls: StartTls, authority: Authority) -> None:
    server = start_tls("--password", "password")
    port = port_of(server, "resps")
    command = [
        need("redis-cli", "redis-tools"), "--tls", "--cacert", str(authority.certificate), "-p", str(port),
        "-a", "password", "--no-auth-warning", "PING",
    ]  # fmt: skip
    assert subprocess.check_output(command, text=True) == "PONG\n"
    asked = run_here("ping", "--listen", f"resps://127.0.0.1:{port}")
    assert (asked.returncode, asked.stdout) == (0, f"resps://127.0.0.1:{port} is healthy\n")
    assert run_here("ping", "--listen", f"resp://127.0.0.1:{port}").returncode == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_that_are_good_work(
    start_tls: StartTls, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    assert Secure(start_tls(), context)("PING") == b"PONG"


def test_clients_need_a_certificate_where_a_ca_for_them_is_set(
    start_tls: StartTls, authority: Authority, strangers: Authority
) -> None:
    server = start_tls("--tls-client-ca", str(authority.certificate))
    known = authority.client_context(authority.issue("client"))
    assert Secure(server, known)("PING") == b"PONG"
    wrong = {
        "none": authority.client_context(),
        "of others": authority.client_context(strangers.issue("client")),
        "expired": authority.client_context(authority.issue("late", days=0)),
    }
    for context in wrong.values():
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Secure(server, context)("PING")
    assert server.log.count("TLS handshake with") == 1
    assert Secure(server, known)("PING") == b"PONG"


def test_a_reload_changes_the_certificate_and_no_connection(
    start_tls: StartTls, authority: Authority, strangers: Authority, files: tuple[Path, Path], tmp_path: Path
) -> None:
    ca = tmp_path / "client-ca.pem"
    ca.write_bytes(authority.certificate.read_bytes())
    server = start_tls("--tls-client-ca", str(ca))
    context = authority.client_context(authority.issue("client"))
    old = Secure(server, context)
    assert old("SADD", "q", "a") == 1
    for copy, renewed in zip(files, authority.issue("renewed"), strict=True):
        copy.write_bytes(renewed.read_bytes())
    reload(server)
    new = Secure(server, context)
    assert new.serial != old.serial
    assert old("SPOP", "q") == new("SPOP", "q") or old("PING") == new("PING") == b"PONG"
    # Clients of the CA that was taken away come in no longer, not even those who have been here.
    ca.write_bytes(strangers.certificate.read_bytes())
    reload(server)
    for session in (None, new.socket.session):
        plain = socket.create_connection(("127.0.0.1", port_of(server, "resps")), TIMEOUT)
        with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012 -- TLS 1.3 says so at the first read
            again = context.wrap_socket(plain, server_hostname="localhost", session=session)
            again.sendall(packed("PING"))
            if not again.recv(1):
                raise ConnectionResetError
    assert old("PING") == b"PONG"


@pytest.mark.parametrize("broken", ["garbage", "another's key", "gone"])
def test_files_that_cannot_be_used_leave_the_old_ones_in_force(
    start_tls: StartTls, authority: Authority, files: tuple[Path, Path], broken: str
) -> None:
    server = start_tls()
    certificate, key = files
    first = Secure(server, authority.client_context())
    if broken == "garbage":
        certificate.write_text("no certificate")
    elif broken == "gone":
        key.unlink()
    else:
        key.write_bytes(authority.issue("another")[1].read_bytes())
    reload(server, "reload failed")
    assert Secure(server, authority.client_context()).serial == first.serial
    assert first("PING") == b"PONG"


def test_who_waits_over_tls_and_hangs_up_takes_nothing(start_tls: StartTls, authority: Authority) -> None:
    server = start_tls()
    with server.client() as plain:
        waiting = Secure(server, authority.client_context())
        waiting.socket.sendall(packed("BLPOP", "q", 0))
        wait_for(lambda: plain.info("clients")["blocked_clients"] == 1, "the client to wait")
        waiting.socket.close()
        wait_for(lambda: plain.info("clients")["blocked_clients"] == 0, "the client to be gone")
        plain.sadd("q", "m")
        assert plain.spop("q") == b"m"


def test_a_stop_says_goodbye_over_tls_and_waits_for_no_handshake(
    start_tls: StartTls, authority: Authority
) -> None:
    server = start_tls()
    client = Secure(server, authority.client_context())
    with socket.create_connection(("127.0.0.1", port_of(server, "resps")), TIMEOUT) as begun:
        begun.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert client("PING") == b"PONG"
        began = time.monotonic()
        assert server.stop() == 0
        assert client.socket.recv(1) == b""
        with contextlib.suppress(ConnectionError):
            assert begun.recv(1) == b""
        assert time.monotonic() - began < 5
    assert "handshakes" not in server.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (["--listen", "resps://127.0.0.1:0"], 2, "needs --tls-certificate"),
        (["--tls-key", "/x"], 2, "have no effect without --tls-certificate"),
        (["--tls-certificate", "/no/such.pem"], 1, "No such file"),
        (["--tls-certificate", "{ca}"], 1, "holds no private key in PEM format"),
        (["--tls-certificate", "{key}"], 1, "holds no certificate in PEM format"),
        (["--tls-certificate", "{cert}", "--tls-key", "{cert}"], 1, "--tls-key"),
        (
            ["--tls-certificate", "{cert}", "--tls-key", "{key}", "--tls-client-ca", "{key}"],
            1,
            "holds no certificate in PEM format",
        ),
        (["--tls-certificate", "{cert}", "--tls-key", "{locked}"], 1, "--tls-key"),
        (["--listen", "gophers://127.0.0.1:70"], 2, "there is no handler 'gopher'"),
    ],
)
def test_wrong_files_are_one_clear_line(
    authority: Authority, tmp_path: Path, options: list[str], status: int, complaint: str
) -> None:
    certificate, key = authority.issue("wrong")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", str(key), "-out", str(locked)],
        check=True, capture_output=True,
    )  # fmt: skip
    words = {"ca": authority.certificate, "cert": certificate, "key": key, "locked": locked}
    refused = run_command(
        "--data-dir", str(tmp_path / "data"), *(option.format(**words) for option in options)
    )
    assert refused.returncode == status
    assert complaint in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


# ---------------------------------------------------------------- the backend


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("user", ["", "ada"])
def test_a_backend_with_tls_and_a_password(
    authority: Authority, start_server: StartServer, tmp_path: Path, user: str
) -> None:
    certificate, key = authority.issue("backend")
    client_certificate, client_key = authority.issue("proxy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path / "redis"
    folder.mkdir()
    backend = Valkey(
        folder, "--requirepass", "other", "--user", "ada", "on", ">s3cret/w@rd", "~*", "&*", "+@all",
        "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(authority.certificate),
        binary=need("redis-server", "redis-server"),
    )  # fmt: skip
    (tmp_path / "password").write_text("s3cret/w@rd\n" if user else "other\n")
    url = (
        f"rediss://{user + '@' if user else ''}127.0.0.1:{port}/0?ssl_ca_certs={authority.certificate}"
        f"&ssl_certfile={client_certificate}&ssl_keyfile={client_key}"
    )
    try:
        server = start_server("--backend", url, "--backend-password-file", str(tmp_path / "password"))
        with server.client() as client:
            assert client.sadd("q", "a") == 1
            assert list(client.blpop("q", 1)) == [b"q", b"a"]
        assert "s3cret" not in server.log
        named = run_command("doctor", "--backend", url, "--backend-password-file", str(tmp_path / "password"))
        assert named.stdout == "1 queue checked: no problems\n"
        server.end_well()
    finally:
        backend.kill()
    given = f"rediss://x:y@127.0.0.1:{port}/0"
    twice = run_command("--backend", given, "--backend-password-file", str(tmp_path / "password"))
    assert (twice.returncode, "given twice" in twice.stderr) == (2, True)
