"""TLS: connections of clients, certificates and their reload, invalid files, and TLS to the backend."""

import contextlib
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pressure_server.auth.access_policy import AccessError
from tests.support.guards import Authority, reload, settings_of
from tests.support.ports import free_ports
from tests.support.programs import (
    TIMEOUT,
    Server,
    StartServer,
    Valkey,
    refused_start,
    run_command,
    run_here,
    wait_for,
)
from tests.support.protocols import MEMCACHED, PROTOCOLS, RESP, Protocol, Wire, each_protocol
from tests.support.requirements import need
from tests.support.waiters import wait_for_blocked

StartTls = Callable[..., Server]
LISTEN_TLS = tuple(f"--listen={protocol.url(tls=True)}" for protocol in PROTOCOLS)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that no server and no client trusts."""
    return Authority(tmp_path_factory.mktemp("strangers"))


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key, in files that the test may change."""
    copies = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for copy, original in zip(copies, authority.issue("server"), strict=True):
        copy.write_bytes(original.read_bytes())
    return copies


@pytest.fixture
def start_tls(start_server: StartServer, backend: Valkey, files: tuple[Path, Path]) -> StartTls:
    """Start a server that also has TLS listeners, with further options."""

    def start(*options: str) -> Server:
        certificate, key = map(str, files)
        return start_server(
            "--backend", backend.url, *LISTEN_TLS, "--tls-certificate", certificate, "--tls-key", key,
            *options,
        )  # fmt: skip

    return start


@pytest.fixture(scope="module")
def shared_secure(
    shared_backend: Valkey, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    certificate, key = map(str, authority.issue("shared"))
    log = tmp_path_factory.mktemp("secure") / "log"
    options = ("--tls-certificate", certificate, "--tls-key", key)
    server = Server(log, "--backend", shared_backend.url, *LISTEN_TLS, *options)
    yield server
    server.end_well()


@pytest.fixture
def secure(backend: Valkey, shared_secure: Server) -> Server:
    """A server with a TLS listener for each protocol, on a backend without data."""
    return shared_secure


def connect(
    server: Server, context: ssl.SSLContext, protocol: Protocol = RESP, session: ssl.SSLSession | None = None
) -> Wire:
    """Open a connection over TLS, and resume the session, if any."""
    plain = socket.create_connection(("127.0.0.1", server.port_of(f"{protocol.name}s")), TIMEOUT)
    secure = context.wrap_socket(plain, server_hostname="localhost", session=session)
    return Wire(protocol, secure)


def assert_served(wire: Wire) -> None:
    assert wire.protocol.pong.fullmatch(wire(wire.protocol.ping))


def assert_not_served(server: Server, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
    """In TLS 1.3 the client receives the refusal only at its first read."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        assert_served(connect(server, context, session=session))


def serial_number(wire: Wire) -> object:
    """Return the serial number of the server's certificate."""
    assert isinstance(wire.socket, ssl.SSLSocket)
    return (wire.socket.getpeercert() or {})["serialNumber"]


@each_protocol
def test_messages_of_all_sizes_pass_over_tls(
    secure: Server, authority: Authority, protocol: Protocol
) -> None:
    large = b"x" * (9 << 20)
    with secure.client() as plain, connect(secure, authority.client_context(), protocol) as client:
        client.put(b"q", b"a\r\nb")
        client.put(b"q", large)
        assert plain.llen("q") == 2
        assert client.get(b"q") == b"a\r\nb"
        assert client.get(b"q") == large
        client.send(b"".join(protocol.put(b"q", b"%d" % number) for number in range(5000)))
        assert client.replies(5000) == [protocol.stored(number + 1) for number in range(5000)]
        assert plain.llen("q") == 5000
        client.send(protocol.get(b"q") * 5000)
        assert [client.message() for _ in range(5000)] == [b"%d" % number for number in range(5000)]


@each_protocol
def test_a_tls_listener_serves_only_encrypted_clients_that_trust_it(
    secure: Server, protocol: Protocol
) -> None:
    port = secure.port_of(f"{protocol.name}s")
    with Wire(protocol, port) as unencrypted:
        unencrypted.send(protocol.ping)
        assert not protocol.pong.search(unencrypted.rest())
    with pytest.raises(ssl.SSLError):
        connect(secure, ssl.create_default_context(), protocol)


@each_protocol
def test_the_ping_command_works_over_tls(secure: Server, protocol: Protocol) -> None:
    port = secure.port_of(f"{protocol.name}s")
    for ready, state in (((), "healthy"), (("--ready",), "ready")):
        asked = run_here("ping", "--listen", f"{protocol.name}s://127.0.0.1:{port}", *ready)
        assert (asked.returncode, asked.stdout) == (0, f"{protocol.name}s://127.0.0.1:{port} is {state}\n")
    assert run_here("ping", "--listen", f"{protocol.name}://127.0.0.1:{port}").returncode == 1


def test_disconnecting_from_tls_puts_an_open_read_back(secure: Server, authority: Authority) -> None:
    with connect(secure, authority.client_context(), MEMCACHED) as client, secure.client() as plain:
        client.put(b"q", b"x" * (9 << 20))
        assert client(b"get q/open\r\n").startswith(b"VALUE q/open 0 9437184\r\nxx")
        client.close()
        wait_for(lambda: plain.llen("q") == 1, "the open message to be put back")


@pytest.mark.clients
def test_redis_cli_logs_in_over_tls(start_tls: StartTls, authority: Authority) -> None:
    port = start_tls("--password", "password").port_of("resps")
    command = [
        need("redis-cli", "redis-tools"), "--tls", "--cacert", str(authority.certificate), "-p", str(port),
        "-a", "password", "--no-auth-warning", "PING",
    ]  # fmt: skip
    assert subprocess.check_output(command, text=True) == "PONG\n"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_supported(secure: Server, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    assert_served(connect(secure, context))


def test_with_a_client_ca_clients_need_its_certificate(
    start_tls: StartTls, authority: Authority, strangers: Authority
) -> None:
    server = start_tls("--tls-client-ca", str(authority.certificate))
    known = authority.client_context(authority.issue("client"))
    assert_served(connect(server, known))
    for certificate in (None, strangers.issue("client"), authority.issue("expired", days=0)):
        assert_not_served(server, authority.client_context(certificate))
    assert server.log.count("TLS handshake with") == 1
    assert_served(connect(server, known))


def test_a_reload_changes_certificates_and_keeps_connections(
    start_tls: StartTls, authority: Authority, strangers: Authority, files: tuple[Path, Path], tmp_path: Path
) -> None:
    ca = tmp_path / "client-ca.pem"
    ca.write_bytes(authority.certificate.read_bytes())
    server = start_tls("--tls-client-ca", str(ca))
    context = authority.client_context(authority.issue("client"))
    old = connect(server, context)
    old.put(b"q", b"a")
    for copy, renewed in zip(files, authority.issue("renewed"), strict=True):
        copy.write_bytes(renewed.read_bytes())
    reload(server)
    new = connect(server, context)
    assert serial_number(new) != serial_number(old)
    assert (old.get(b"q"), new.get(b"q")) == (b"a", None)
    assert isinstance(new.socket, ssl.SSLSocket)
    # Without its CA the client is refused, even if it resumes a session.
    ca.write_bytes(strangers.certificate.read_bytes())
    reload(server)
    for session in (None, new.socket.session):
        assert_not_served(server, context, session)
    assert_served(old)


@pytest.mark.parametrize("broken", ["garbage", "another key", "missing"])
def test_a_reload_of_invalid_files_changes_nothing(
    start_tls: StartTls, authority: Authority, files: tuple[Path, Path], broken: str
) -> None:
    server = start_tls()
    certificate, key = files
    first = connect(server, authority.client_context())
    if broken == "garbage":
        certificate.write_text("no certificate")
    elif broken == "missing":
        key.unlink()
    else:
        key.write_bytes(authority.issue("another")[1].read_bytes())
    reload(server, "reload failed")
    assert serial_number(connect(server, authority.client_context())) == serial_number(first)
    assert_served(first)


@each_protocol
def test_a_waiting_client_that_disconnects_from_tls_takes_no_message(
    secure: Server, authority: Authority, protocol: Protocol
) -> None:
    with secure.client() as plain, connect(secure, authority.client_context(), protocol) as waiting:
        waiting.send(protocol.get_waiting(b"q"))
        wait_for_blocked(plain, 1)
        waiting.close()
        wait_for_blocked(plain, 0)
        plain.sadd("q", "m")
        assert plain.spop("q") == b"m"


def test_a_stop_closes_connections_cleanly_and_waits_for_no_handshake(
    start_tls: StartTls, authority: Authority
) -> None:
    server = start_tls()
    clients = [connect(server, authority.client_context(), protocol) for protocol in PROTOCOLS]
    with socket.create_connection(("127.0.0.1", server.port_of("resps")), TIMEOUT) as half_open:
        half_open.sendall(b"\x16\x03\x01\x02\x00\x01")
        for client in clients:
            assert_served(client)
        began = time.monotonic()
        assert server.stop() == 0
        for client in clients:
            assert client.is_closed()
        with contextlib.suppress(ConnectionError):
            assert half_open.recv(1) == b""
        assert time.monotonic() - began < 9  # a handshake may take ten seconds
    assert "too many at once" not in server.log


@pytest.fixture(scope="module")
def pem_files(authority: Authority) -> dict[str, Path]:
    certificate, key = authority.issue("any")
    locked = authority.folder / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", str(key), "-out", str(locked)],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"ca": authority.certificate, "cert": certificate, "key": key, "locked": locked}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--tls-certificate=/no/such.pem", "No such file"),
        ("--tls-certificate={ca}", "holds no private key in PEM format"),
        ("--tls-certificate={key}", "holds no certificate in PEM format"),
        ("--tls-certificate={cert} --tls-key={cert}", "--tls-key"),
        ("--tls-certificate={cert} --tls-key={key} --tls-client-ca={key}", "no certificate in PEM format"),
        ("--tls-certificate={cert} --tls-key={locked}", "--tls-key"),
    ],
)
def test_an_invalid_file_is_named_in_one_line(pem_files: dict[str, Path], options: str, error: str) -> None:
    policy = settings_of(*options.format(**pem_files).split()).access_policy
    assert policy.tls is not None
    with pytest.raises(AccessError) as refused:
        policy.tls.context()
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_invalid_file_prevents_the_start_with_one_line(pem_files: dict[str, Path], tmp_path: Path) -> None:
    certificate, key = str(pem_files["cert"]), str(pem_files["locked"])
    options = ("--data-dir", str(tmp_path / "data"), "--tls-certificate", certificate, "--tls-key", key)
    assert "--tls-key" in refused_start(*options)


def test_a_backend_with_and_without_tls_in_place_of_each_other(
    authority: Authority, start_server: StartServer, tmp_path: Path
) -> None:
    certificate, key = authority.issue("backend")
    plain, secure = free_ports(2)
    backend = Valkey(
        tmp_path, "--port", str(plain), "--tls-port", str(secure), "--tls-auth-clients", "no",
        "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        binary=need("redis-server", "redis-server"),
    )  # fmt: skip
    try:
        server = start_server("--backend", f"redis://127.0.0.1:{secure}")
        wait_for(lambda: "if that port speaks TLS, write rediss://" in server.log, "the advice")
        seen = run_command("queues", "--backend", f"rediss://127.0.0.1:{plain}")
        assert seen.returncode == 1
        assert "; if that port does not speak TLS, write redis:// instead of rediss://" in seen.stderr
    finally:
        backend.stop()


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("user", ["", "ada"])
def test_a_backend_with_tls_and_a_password_works(
    authority: Authority, start_server: StartServer, tmp_path: Path, user: str
) -> None:
    certificate, key = authority.issue("backend")
    client_certificate, client_key = authority.issue("proxy")
    (port,) = free_ports(1)
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
    options = ("--backend", url, "--backend-password-file", str(tmp_path / "password"))
    try:
        server = start_server(*options)
        with server.client() as client:
            assert client.sadd("q", "a") == 1
            assert list(client.blpop("q", 1)) == [b"q", b"a"]
        assert "s3cret" not in server.log
        doctor = run_command("doctor", *options)
        assert doctor.stdout == "1 queue checked: no problems\n"
        server.end_well()
    finally:
        backend.kill()
    twice = run_here(*options, "--backend", f"rediss://x:y@127.0.0.1:{port}/0")
    assert (twice.returncode, "given twice" in twice.stderr) == (2, True)
