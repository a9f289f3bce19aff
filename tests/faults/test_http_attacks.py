"""Attacks on the HTTP listener: what the attacker gets, and that nobody else is harmed."""

import base64
import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pressure_server.web.events import MAX_STREAMS
from pressure_server.web.http_settings import MAX_CONNECTIONS
from tests.support.guards import reload, users_toml
from tests.support.http_requests import Response, connect, request, send_raw
from tests.support.programs import Server, StartServer, Valkey

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
def closed_server(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with users."""
    folder = tmp_path_factory.mktemp("closed")
    users = folder / "users.toml"
    users.write_text(users_toml(_USERS))
    server = Server(
        folder / "log",
        *("--backend", shared_backend.url, "--http", "http://127.0.0.1:0", "--users", str(users)),
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
_GET = b"GET / HTTP/1.1\r\n" + _HOST
_POST = b"POST /api/login HTTP/1.1\r\n" + _HOST
_POST_JSON = _POST + b"Content-Type: application/json\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
_METRICS = b"GET /metrics HTTP/1.1\r\n"
_RAW = {
    "garbage": (b"\x00\xff" * 500, b"400"),
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"400"),
    "a RESP command": (b"*1\r\n$4\r\nPING\r\n", b"400"),
    "no host": (_METRICS + b"\r\n", b"4"),
    "two hosts": (_METRICS + _HOST + b"Host: evil.com\r\n\r\n", b"4"),
    "a foreign host": (
        b"GET http://evil.com/metrics HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n", b"421",
    ),
    "length and chunks": (_POST + b"Content-Length: 4\r\n" + _CHUNKED + b"0\r\n\r\n" + _METRICS, b"400"),
    "two lengths": (_POST + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n", b"400"),
    "an unknown transfer coding": (_POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", b"400"),
    "a folded header": (_GET + b"X: a\r\n b\r\n\r\n", b"400"),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n", b"400"),
    "a bare carriage return": (_GET + b"X: a\rY: b\r\n\r\n", b"400"),
    "a negative length": (_POST + b"Content-Length: -1\r\n\r\n", b"400"),
    "a wrong chunk": (_POST_JSON + _CHUNKED + b"zz\r\n", b"400"),
    "a long request line": (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n", b"4"),
    "a long header": (_GET + b"X: " + b"a" * 20000 + b"\r\n\r\n", b"4"),
    "many headers": (_GET + b"X: a\r\n" * 5000 + b"\r\n", b"4"),
    "an endless header": (_GET + b"X: " + b"a" * 3_000_000, b"4"),
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


class Attack(NamedTuple):
    """A request, and the statuses with which it may be refused. With `users`, the server has users."""

    statuses: tuple[int, ...]
    path: str = "/metrics"
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes | None = None
    users: bool = False


_PATHS = """
    /static/../listener.py /static/%2e%2e/listener.py /static/..%2flistener.py /static/....//listener.py
    /static/..%5clistener.py /static//etc/passwd /static/%00 /static/ /static/index.html/.. //evil.com/
    /static/%ff /../../../../etc/passwd /static/~root /.git/config /api /api/
"""
_LOGINS = ["Basic", "Basic ", "Basic !!!", "Basic cm9vdA==", "Bearer x", "Negotiate " + "a" * 4000,
           "Basic " + "QUFB" * 1500]  # fmt: skip
_COOKIES = [f"pressure-session={token}" for token in ("", "x", "a" * 3000, "../../x", "%00")]
_HOSTS = "evil.com evil.com:80 127.0.0.1.evil.com localhost.evil.com [::1].evil.com x@y.com"
_BODIES = [b"", b"[]", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"user": 1}',
           b'{"user": "a", "password": ["b"]}']  # fmt: skip
_METHODS = "TRACE PUT DELETE PATCH CONNECT PROPFIND BREW"
_GZIP = gzip.compress(b"{}")
_JSON = {"Content-Type": "application/json"}
# What a page of another site may send, each as the headers of a request that changes something.
_CROSS_SITE: dict[str, dict[str, str]] = {
    "a form": {"Content-Type": "application/x-www-form-urlencoded"},
    "plain text, which needs no permission": {"Content-Type": "text/plain"},
    "a multipart form": {"Content-Type": "multipart/form-data; boundary=x"},
    "no type": {"Content-Type": ""},
    "a foreign origin": {**_JSON, "Origin": "http://evil.com"},
    "an origin that looks alike": {**_JSON, "Origin": "http://127.0.0.1.evil.com"},
    "no origin": {**_JSON, "Origin": "null"},
    "another port": {**_JSON, "Origin": "http://127.0.0.1:1"},
    "a page of another site": {**_JSON, "Sec-Fetch-Site": "cross-site"},
    "a page of the same domain": {**_JSON, "Sec-Fetch-Site": "same-site"},
}
_PREFLIGHT = {"Origin": "http://evil.com", "Access-Control-Request-Method": "POST"}
_ATTACKS = {
    **{f"the path {path}": Attack((400, 403, 404), path) for path in _PATHS.split()},
    **{f"{path}, no login": Attack((401,), path, users=True) for path in ("/metrics", "/api/unknown", "/x")},
    **{f"the login {login[:16]}": Attack((400, 401), headers={"Authorization": login}, users=True)
       for login in _LOGINS},
    **{f"the {cookie[:24]}": Attack((401,), headers={"Cookie": cookie}, users=True) for cookie in _COOKIES},
    # Names that a stranger can own.
    **{f"{path} of the host {host}": Attack((400, 421), path, headers={"Host": host})
       for host in (*_HOSTS.split(), "a b") for path in ("/", "/metrics", "/api/me")},
    **{f"the method {method}": Attack((400, 403, 404, 405, 415, 421), method=method)
       for method in _METHODS.split()},
    **{f"the body {body[:40]!r}": Attack((400, 401, 413), "/api/login", "POST", None, body, users=True)
       for body in _BODIES},
    **{f"cross-site, {name}": Attack((403, 415), "/api/logout", "POST", headers, b"{}")
       for name, headers in _CROSS_SITE.items()},
    "a compressed body": Attack((415,), "/api/login", "POST", {**_JSON, "Content-Encoding": "gzip"}, _GZIP),
    "cross-site, a question for permission": Attack((403, 405, 415), "/api/logout", "OPTIONS", _PREFLIGHT),
    "cross-site, a read": Attack((403,), "/api/me", headers={"Sec-Fetch-Site": "cross-site"}),
}  # fmt: skip


def _is_refused(response: Response, *statuses: int) -> None:
    assert response.status in statuses, (response.status, response.text[:300])
    for secret in (b"pressure_queues", b"root:", b"import"):
        assert secret not in response.body
    assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize("attack", _ATTACKS.values(), ids=_ATTACKS)
def test_an_attack_is_refused_and_learns_nothing(
    open_server: Server, closed_server: Server, attack: Attack
) -> None:
    server = closed_server if attack.users else open_server
    response = request(server, attack.path, method=attack.method, headers=attack.headers, body=attack.body)
    _is_refused(response, *attack.statuses)


def test_a_user_without_the_right_to_read_sees_nothing(closed_server: Server) -> None:
    _is_refused(request(closed_server, "/metrics", login=("writer", "secret")), 403)


_OWN_HOSTS = "localhost:80 127.0.0.1 [::1]:4080 pressure-server queues.svc.cluster.local queues.example.com"


@pytest.mark.parametrize("host", _OWN_HOSTS.split())
def test_own_names_are_served(open_server: Server, host: str) -> None:
    assert request(open_server, "/api/me", headers={"Host": host}).status == 200


def test_a_login_makes_any_name_acceptable(closed_server: Server) -> None:
    done = request(closed_server, "/metrics", headers={"Host": "any.example.com"}, login=("root", "secret"))
    assert done.status == 200


def test_a_large_body_is_refused_before_it_is_read(open_server: Server) -> None:
    with connect(open_server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(_POST_JSON + b"Content-Length: 10000000000\r\n\r\n" + b"x" * 6_000_000)
        assert _status(connection) == b"413"


_SCRIPT = "/%3Cscript%3Ealert(1)%3C/script%3E"
_SHOWN = ["/", "/healthz", "/metrics", "/api/me", "/unknown", "/static/index.html", _SCRIPT]


@pytest.mark.parametrize("path", _SHOWN)
def test_each_response_forbids_frames_scripts_and_guesses(open_server: Server, path: str) -> None:
    status, headers, _ = request(open_server, path)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert "aiohttp" not in headers["server"].lower()
    if path == _SCRIPT:
        assert (status, headers["content-type"].partition(";")[0]) == (404, "text/plain")


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
        slow_body.sendall(_POST_JSON + b"Content-Length: 9\r\n\r\n{")
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
    assert request(closed_server, "/healthz").status == 200
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
