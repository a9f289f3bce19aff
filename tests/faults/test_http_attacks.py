"""Attacks on the HTTP listener: what the attacker gets, and that nobody else is harmed."""

import base64
import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pressure_server.web.events import MAX_STREAMS
from pressure_server.web.http_settings import MAX_CONNECTIONS
from tests.support.guards import reload, users_toml
from tests.support.http_requests import Response, connect, request, send_raw
from tests.support.programs import Server, StartServer, Valkey, wait_for

_ALL = ["put", "get", "read", "administer"]
_USERS = {
    "root": ("secret", ["*"], _ALL),
    "writer": ("secret", ["*"], ["put"]),
    "reader": ("secret", ["mine"], ["read"]),
}


@pytest.fixture(scope="module")
def open_server(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that needs no login."""
    server = Server(
        tmp_path_factory.mktemp("open") / "log",
        *("--backend", shared_backend.url, "--http", "http://127.0.0.1:0?host=queues.example.com"),
    )
    yield server
    server.end_well()


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.toml"
    path.write_text(users_toml(_USERS))
    return path


@pytest.fixture(scope="module")
def closed_server(
    shared_backend: Valkey, users_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with users."""
    server = Server(
        tmp_path_factory.mktemp("closed") / "log",
        *("--backend", shared_backend.url, "--http", "http://127.0.0.1:0", "--users", str(users_file)),
    )
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(autouse=True)
def others_are_served(open_server: Server) -> Iterator[None]:
    """After each attack: other clients are served, over HTTP and RESP."""
    yield
    assert request(open_server, "/healthz").status == 200
    with open_server.client() as client:
        assert client.ping()


_HOST = b"Host: 127.0.0.1\r\n"
_RAW = {
    "garbage": (b"\x00\xff" * 500, b"400"),
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"400"),
    "a RESP command": (b"*1\r\n$4\r\nPING\r\n", b"400"),
    "no host": (b"GET /metrics HTTP/1.1\r\n\r\n", b"4"),
    "two hosts": (b"GET /metrics HTTP/1.1\r\n" + _HOST + b"Host: evil.com\r\n\r\n", b"4"),
    "a foreign host": (
        b"GET http://evil.com/metrics HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n", b"421",
    ),
    "length and chunks": (
        b"POST /api/login HTTP/1.1\r\n" + _HOST
        + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /metrics HTTP/1.1\r\n\r\n", b"400",
    ),
    "two lengths": (
        b"POST /api/login HTTP/1.1\r\n" + _HOST + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n", b"400"
    ),
    "an unknown transfer coding": (
        b"POST /api/login HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b"400"
    ),
    "a folded header": (b"GET / HTTP/1.1\r\n" + _HOST + b"X: a\r\n b\r\n\r\n", b"400"),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n", b"400"),
    "a bare carriage return": (b"GET / HTTP/1.1\r\n" + _HOST + b"X: a\rY: b\r\n\r\n", b"400"),
    "a negative length": (b"POST /api/login HTTP/1.1\r\n" + _HOST + b"Content-Length: -1\r\n\r\n", b"400"),
    "a wrong chunk": (
        b"POST /api/login HTTP/1.1\r\n" + _HOST + b"Content-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400",
    ),
    "a long request line": (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n", b"4"),
    "a long header": (b"GET / HTTP/1.1\r\n" + _HOST + b"X: " + b"a" * 20000 + b"\r\n\r\n", b"4"),
    "many headers": (b"GET / HTTP/1.1\r\n" + _HOST + b"X: a\r\n" * 5000 + b"\r\n", b"4"),
    "an endless header": (b"GET / HTTP/1.1\r\n" + _HOST + b"X: " + b"a" * 3_000_000, b"4"),
    "another version": (b"GET / HTTP/9.9\r\n" + _HOST + b"\r\n", b"400"),
}  # fmt: skip


@pytest.mark.parametrize("attack", _RAW)
def test_bytes_that_are_no_proper_request_are_refused(open_server: Server, attack: str) -> None:
    data, status = _RAW[attack]
    reply = send_raw(open_server, data)
    cut_short = not reply and len(data) > 1_000_000  # the connection was reset before all was sent
    assert cut_short or (reply.startswith(b"HTTP/1.") and reply.split()[1].startswith(status)), reply[:300]
    assert b"pressure_queues" not in reply
    assert reply.count(b"HTTP/1.1 ") <= 1


def _is_refused(response: Response, *statuses: int) -> None:
    assert response.status in statuses, (response.status, response.text[:300])
    assert b"pressure_queues" not in response.body


_PATHS = [
    "/static/../listener.py", "/static/%2e%2e/listener.py", "/static/..%2flistener.py",
    "/static/....//listener.py",
    "/static/..%5clistener.py", "/static//etc/passwd", "/static/%00", "/static/", "/static/index.html/..",
    "//evil.com/", "/static/%ff", "/../../../../etc/passwd", "/static/~root", "/.git/config", "/api", "/api/",
]  # fmt: skip


@pytest.mark.parametrize("path", _PATHS)
def test_paths_lead_to_no_other_files(open_server: Server, path: str) -> None:
    response = request(open_server, path)
    _is_refused(response, 400, 403, 404)
    assert b"root:" not in response.body
    assert b"import" not in response.body


@pytest.mark.parametrize("path", ["/metrics", "/api/unknown", "/anything"])
def test_nothing_is_shown_without_a_login(closed_server: Server, path: str) -> None:
    _is_refused(request(closed_server, path), 401)


def test_a_user_without_the_right_to_read_sees_nothing(closed_server: Server) -> None:
    _is_refused(request(closed_server, "/metrics", login=("writer", "secret")), 403)


@pytest.mark.parametrize(
    "header",
    [
        "Basic",
        "Basic ",
        "Basic !!!",
        "Basic cm9vdA==",
        "Bearer x",
        "Negotiate " + "a" * 4000,
        "Basic " + "QUFB" * 1500,
    ],
)
def test_malformed_logins_are_refused(closed_server: Server, header: str) -> None:
    _is_refused(request(closed_server, "/metrics", headers={"Authorization": header}), 400, 401)


def test_an_invented_cookie_is_no_login(closed_server: Server) -> None:
    for token in ("", "x", "a" * 3000, "../../x", "%00"):
        cookie = {"Cookie": f"pressure-session={token}"}
        _is_refused(request(closed_server, "/metrics", headers=cookie), 401)


_CROSS_SITE: dict[str, dict[str, str]] = {
    "a form": {"Content-Type": "application/x-www-form-urlencoded"},
    "plain text, which needs no permission": {"Content-Type": "text/plain"},
    "a multipart form": {"Content-Type": "multipart/form-data; boundary=x"},
    "no type": {"Content-Type": ""},
    "a foreign origin": {"Content-Type": "application/json", "Origin": "http://evil.com"},
    "an origin that looks alike": {"Content-Type": "application/json", "Origin": "http://127.0.0.1.evil.com"},
    "no origin": {"Content-Type": "application/json", "Origin": "null"},
    "another port": {"Content-Type": "application/json", "Origin": "http://127.0.0.1:1"},
    "a page of another site": {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
    "a page of the same domain": {"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"},
}


@pytest.mark.parametrize("attack", _CROSS_SITE)
def test_other_sites_cannot_send_requests_that_change_something(open_server: Server, attack: str) -> None:
    response = request(open_server, "/api/logout", method="POST", headers=_CROSS_SITE[attack], body=b"{}")
    _is_refused(response, 403, 415)
    assert "access-control-allow-origin" not in response.headers


def test_other_sites_get_no_permission_to_send_json(open_server: Server) -> None:
    asked = {"Origin": "http://evil.com", "Access-Control-Request-Method": "POST"}
    response = request(open_server, "/api/logout", method="OPTIONS", headers=asked)
    assert response.status in (403, 405, 415)
    assert not any(name.startswith("access-control") for name in response.headers)


def test_other_sites_cannot_read_the_api(open_server: Server) -> None:
    _is_refused(request(open_server, "/api/me", headers={"Sec-Fetch-Site": "cross-site"}), 403)


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:80",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "[::1].evil.com",
        "a b",
        "x@y.com",
    ],
)
def test_a_name_that_a_stranger_can_own_is_refused_without_a_login(open_server: Server, host: str) -> None:
    for path in ("/", "/metrics", "/api/me"):
        _is_refused(request(open_server, path, headers={"Host": host}), 400, 421)


@pytest.mark.parametrize(
    "host",
    [
        "localhost:80",
        "127.0.0.1",
        "[::1]:4080",
        "pressure-server",
        "queues.svc.cluster.local",
        "queues.example.com",
    ],
)
def test_own_names_are_served(open_server: Server, host: str) -> None:
    assert request(open_server, "/api/me", headers={"Host": host}).status == 200


def test_a_login_makes_any_name_acceptable(closed_server: Server) -> None:
    done = request(closed_server, "/metrics", headers={"Host": "any.example.com"}, login=("root", "secret"))
    assert done.status == 200


@pytest.mark.parametrize("method", ["TRACE", "PUT", "DELETE", "PATCH", "CONNECT", "PROPFIND", "BREW"])
def test_other_methods_are_refused(open_server: Server, method: str) -> None:
    _is_refused(request(open_server, "/metrics", method=method), 400, 403, 404, 405, 415, 421)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"user": 1}', b'{"user": "a", "password": ["b"]}'],
)
def test_bodies_that_are_no_login_are_refused(closed_server: Server, body: bytes) -> None:
    _is_refused(request(closed_server, "/api/login", method="POST", body=body), 400, 401, 413)


def test_large_bodies_are_refused_before_they_are_read(open_server: Server) -> None:
    head = b"POST /api/login HTTP/1.1\r\n" + _HOST + b"Content-Type: application/json\r\n"
    chunks = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    bodies = {
        b"Content-Length: 10000000000\r\n\r\n" + b"x" * 6_000_000: [b"413"],
        # The server may have reset the connection before its response was read.
        b"Transfer-Encoding: chunked\r\n\r\n" + chunks * 6: [b"413", b""],
    }
    for body, statuses in bodies.items():
        with connect(open_server) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(head + body)
            assert _status(connection) in statuses


def test_a_compressed_bomb_is_refused(open_server: Server) -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    response = request(
        open_server, "/api/login", method="POST", body=bomb,
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )  # fmt: skip
    _is_refused(response, 415)


def test_scripts_in_a_path_are_not_shown_as_a_page(open_server: Server) -> None:
    response = request(open_server, "/%3Cscript%3Ealert(1)%3C/script%3E")
    assert response.status == 404
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/api/me", "/unknown", "/static/index.html"])
def test_each_response_forbids_frames_scripts_and_guesses(open_server: Server, path: str) -> None:
    headers = request(open_server, path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert "aiohttp" not in headers["server"].lower()


def _log_in(server: Server, name: str, password: str) -> Response:
    return request(server, "/api/login", method="POST", body={"user": name, "password": password})


def test_a_session_has_a_cookie_that_scripts_and_other_sites_do_not_get(closed_server: Server) -> None:
    done = _log_in(closed_server, "root", "secret")
    assert done.status == 200
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    kept = {"Cookie": cookie.partition(";")[0]}
    assert request(closed_server, "/metrics", headers=kept).status == 200
    assert request(closed_server, "/api/logout", method="POST", headers=kept, body={}).status == 200
    _is_refused(request(closed_server, "/metrics", headers=kept), 401)


def test_a_session_ends_when_its_user_is_removed(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    users = tmp_path / "users.toml"
    users.write_text(users_toml(_USERS))
    server = start_server("--backend", backend.url, "--http", "http://127.0.0.1:0", "--users", str(users))
    kept = {"Cookie": _log_in(server, "root", "secret").headers["set-cookie"].partition(";")[0]}
    assert request(server, "/metrics", headers=kept).status == 200
    users.write_text(users_toml({**_USERS, "root": ("secret", ["*"], ["put"])}))
    reload(server)
    _is_refused(request(server, "/metrics", headers=kept), 403)
    users.write_text(users_toml({name: user for name, user in _USERS.items() if name != "root"}))
    reload(server)
    _is_refused(request(server, "/metrics", headers=kept), 401)


@pytest.mark.slow
def test_guesses_of_passwords_are_slowed_and_limited(closed_server: Server) -> None:
    statuses: list[int] = []

    def guess() -> None:
        statuses.extend(_log_in(closed_server, "root", "guess").status for _ in range(4))

    began = time.monotonic()
    guessing = [threading.Thread(target=guess) for _ in range(60)]
    for thread in guessing:
        thread.start()
    for thread in guessing:
        thread.join()
    tried = statuses.count(401)
    assert set(statuses) == {401, 429}
    # At most 32 are checked at a time, and after the first ones each takes two seconds.
    assert tried / (time.monotonic() - began) < 32
    assert _log_in(closed_server, "root", "secret").status == 200


@pytest.mark.slow
def test_slow_requests_do_not_keep_their_connections(open_server: Server) -> None:
    began = time.monotonic()
    with connect(open_server) as silent, connect(open_server) as slow, connect(open_server) as slow_body:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        slow_body.sendall(
            b"POST /api/login HTTP/1.1\r\n"
            + _HOST
            + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        for connection in (silent, slow, slow_body):
            connection.settimeout(60)
        assert _read_to_end(silent) == b""
        assert _read_to_end(slow) == b""
        assert time.monotonic() - began < 30
        assert _status(slow_body) == b"408"


def _read_to_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while some := connection.recv(4096):
            received += some
            if b"\r\n\r\n" in received:
                break
    except ConnectionError:
        pass
    return received


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Connections, which are closed at the end."""
    connected: list[socket.socket] = []
    yield connected
    for one in connected:
        one.close()


def _get(path: str, login: str = "") -> bytes:
    """Return a request, maybe with the name and the password of a user."""
    header = b"Authorization: Basic " + base64.b64encode(login.encode()) + b"\r\n" if login else b""
    return b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), _HOST, header)


def _status(connection: socket.socket) -> bytes:
    """Return the status of the response; nothing if the server has closed the connection."""
    return _read_to_end(connection).partition(b" ")[2][:3]


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(20)
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def test_health_checks_are_answered_beside_a_stranger_s_connections(
    closed_server: Server, crowd: list[socket.socket]
) -> None:
    crowd.extend(connect(closed_server) for _ in range(MAX_CONNECTIONS + 20))
    assert request(closed_server, "/healthz").status == 200
    assert all(map(_is_closed, crowd[:20]))
    crowd[-1].sendall(_get("/readyz"))
    assert _status(crowd[-1]) == b"200"
    assert "closed the HTTP connection of 127.0.0.1:" in closed_server.log


@pytest.mark.slow
def test_health_checks_are_answered_while_a_stranger_opens_connections(
    closed_server: Server, crowd: list[socket.socket]
) -> None:
    is_over = threading.Event()

    def attack() -> None:
        while not is_over.is_set():
            crowd.append(connect(closed_server))
            if len(crowd) > 700:
                crowd.pop(0).close()

    attacking = threading.Thread(target=attack)
    attacking.start()
    try:
        wait_for(lambda: len(crowd) > 600, "the attack")
        assert [request(closed_server, "/healthz").status for _ in range(40)] == [200] * 40
    finally:
        is_over.set()
        attacking.join()


def test_health_checks_are_answered_beside_event_streams(
    open_server: Server, crowd: list[socket.socket]
) -> None:
    for _ in range(MAX_CONNECTIONS):
        crowd.append(connect(open_server))
        crowd[-1].sendall(_get("/api/clients/events"))
    assert _status(crowd[0]) == b"200"
    assert _status(crowd[-1]) == b"503"
    assert request(open_server, "/healthz").status == 200
    assert request(open_server, "/readyz").status == 200


def test_users_with_many_connections_leave_some_to_health_checks_and_other_users(
    closed_server: Server, crowd: list[socket.socket]
) -> None:
    for _ in range(MAX_CONNECTIONS):
        crowd.append(connect(closed_server))
        crowd[-1].sendall(_get("/api/me", "root:secret"))
        assert _status(crowd[-1]) == b"200"
    for _ in range(3):
        assert request(closed_server, "/healthz").status == 200
        assert request(closed_server, "/metrics", login=("reader", "secret")).status == 200
    assert _is_closed(crowd[0])


def test_a_user_with_all_event_streams_loses_one_to_another_user(
    closed_server: Server, crowd: list[socket.socket]
) -> None:
    def stream(login: str) -> bytes:
        crowd.append(connect(closed_server))
        crowd[-1].sendall(_get("/api/overview/events", login))
        return _status(crowd[-1])

    assert [stream("root:secret") for _ in range(MAX_STREAMS)] == [b"200"] * MAX_STREAMS
    assert stream("root:secret") == b"503"
    assert stream("reader:secret") == b"200"
    assert _is_closed(crowd[0])
    assert stream("root:secret") == b"503"
    assert stream("reader:secret") == b"200"


def test_requests_in_a_row_on_one_connection_are_answered_in_order(open_server: Server) -> None:
    one = b"GET /healthz HTTP/1.1\r\n" + _HOST + b"\r\n"
    last = b"GET /readyz HTTP/1.1\r\n" + _HOST + b"Connection: close\r\n\r\n"
    with connect(open_server) as connection:
        connection.sendall(one * 20 + last)
        reply = b""
        while some := connection.recv(65536):
            reply += some
    assert reply.count(b"HTTP/1.1 200") == 21
    assert reply.endswith(b"ready\n")
