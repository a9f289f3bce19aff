"""Who may come in over memcached, and what for: logins, rights, TLS, sockets, and listeners' options."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from handlers.memcached import commands
from handlers.memcached.client import QUEUE
from handlers.memcached.login import MOST_BYTES
from handlers.memcached.table import COMMANDS
from pressure_server.auth.logins import MOST_FAILURES, delay_after
from pressure_server.auth.users import RIGHTS, digest_of
from tests.support.guards import Authority, port_of, reload, users_toml
from tests.support.measures import MB, memory
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import Client, Server, StartServer, Valkey, run_here, wait_for
from tests.test_logins import own_address

SECRET = "s3cret-Passw0rd"
WRONG = "wr0ng-Passw0rd"
LISTEN = ("--listen", "memcached://127.0.0.1:0")
UNAUTHENTICATED = b"CLIENT_ERROR unauthenticated"
FAILED = b"CLIENT_ERROR authentication failure"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    return file


@pytest.fixture
def locked(start_server: StartServer, backend: Valkey, password_file: Path) -> Server:
    """A server with one password."""
    return start_server(
        "--backend", backend.url, "--password-file", str(password_file), "--log-level", "debug", *LISTEN
    )


def log_in(client: MemcachedWire, name: str, password: str = SECRET) -> bytes:
    return client.store(b"any", f"{name} {password}".encode())


def is_closed(client: MemcachedWire) -> bool:
    """Whether nothing more comes; waits for it."""
    return client.rest() == b""


# ---------------------------------------------------------------- logging in

BEFORE = [
    b"version", b"stats", b"get q", b"gets q r", b"get q/t=1000", b"delete q", b"flush_all", b"verbosity 1",
    b"", b"nonsense", b"add q 0 0 7\r\ndefault", b"cas q 0 0 1 1\r\nx", b"flush_all noreply", b"SET q 0 0 1",
    b"set " + b"k" * 251 + b" 0 0 1\r\nx", b"set q 0 0 1 2 3 4\r\nx",
]  # fmt: skip


def test_nothing_is_done_before_the_login(locked: Server) -> None:
    with locked.client(password=SECRET) as owner, MemcachedWire(locked) as stranger:
        owner.sadd("q", "m")
        for request in BEFORE:
            assert stranger(request) == UNAUTHENTICATED, request
        stranger.send(b"get q\r\n" * 1000 + b"".join(request + b"\r\n" for request in BEFORE) * 100)
        for _ in range(1000 + 100 * len(BEFORE)):
            assert stranger.reply() == UNAUTHENTICATED
        assert log_in(stranger, "default") == b"STORED"
        assert stranger.take(b"q") == b"m"
        assert (owner.keys("*"), owner.llen("q")) == ([b"q"], 0)


@pytest.mark.parametrize(
    "line", [b"set any 0 0 %d", b"set any 5 9 %d noreply", b"set any x y %d", b" set any 0 0 %d"]
)
def test_a_login_is_a_set_of_a_name_and_a_password(locked: Server, line: bytes) -> None:
    """As memcached: nothing else in the line matters, and there is a reply."""
    login = b"default " + SECRET.encode()
    with MemcachedWire(locked) as client:
        assert client(line % len(login) + b"\r\n" + login) == b"STORED"
        # From now on a set is a set.
        assert client.store(b"q", login) == b"STORED"
        assert client.take(b"q") == login


NEARLY = {
    "one byte too few": f"default {SECRET[:-1]}",
    "one byte too many": f"default {SECRET}x",
    "a line end": f"default {SECRET}\n",
    "a zero": f"default {SECRET}\0",
    "a space before": f"default  {SECRET}",
    "upper case": f"default {SECRET.upper()}",
    "no password": "default ",
    "the password alone": SECRET,
    "a colon": f"default:{SECRET}",
    "another user": f"ada {SECRET}",
    "no user": f" {SECRET}",
    "the hash": f"default {digest_of(SECRET.encode()).hex()}",
    "nothing": "",
    "2 KB": "default " + "x" * 2000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_right_is_wrong(locked: Server, name: str) -> None:
    with MemcachedWire(locked) as guessing:
        assert guessing.store(b"any", NEARLY[name].encode()) == FAILED
        assert guessing(b"get q") == UNAUTHENTICATED
    locked.stop()
    assert locked.log.count("failed login") == 1
    for secret in (SECRET, SECRET.upper(), SECRET[:-1], digest_of(SECRET.encode()).hex()):
        assert secret not in locked.log


def test_failures_are_slowed_and_the_last_closes(locked: Server) -> None:
    with MemcachedWire(locked) as guessing, locked.client(password=SECRET) as other:
        taken = []
        for number in range(MOST_FAILURES):
            began = time.monotonic()
            guessing.send(b"set any 0 0 %d\r\ndefault %b\r\n" % (8 + len(WRONG), WRONG.encode()))
            assert other.ping()
            assert guessing.reply() == FAILED
            taken.append(time.monotonic() - began)
            assert taken[-1] > delay_after(number + 1) - 0.01
        assert is_closed(guessing)
        assert all(one < two for one, two in pairwise(map(delay_after, range(1, MOST_FAILURES + 1))))
        # Who knows the password is not held up, from the same address.
        began = time.monotonic()
        with MemcachedWire(locked) as another:
            assert log_in(another, "default") == b"STORED"
        assert time.monotonic() - began < taken[-1]
        assert other.info("stats")["acl_access_denied_auth"] == MOST_FAILURES
    assert locked.log.count("failed login") == 1


def test_what_comes_with_a_wrong_login_is_not_done(locked: Server) -> None:
    wrong = b"set any 0 0 8\r\ndefault \r\n"
    with MemcachedWire(locked) as guessing:
        guessing.send(wrong + b"get q\r\n" * 100)
        assert guessing.reply() == FAILED
        assert [guessing.reply() for _ in range(100)] == [UNAUTHENTICATED] * 100
    with MemcachedWire(locked) as guessing:
        guessing.send(wrong * 100)
        assert guessing.rest() == (FAILED + b"\r\n") * MOST_FAILURES


def test_what_comes_with_a_right_login_is_done(locked: Server) -> None:
    login = b"default " + SECRET.encode()
    with MemcachedWire(locked) as client:
        client.send(b"set any 0 0 %d\r\n%b\r\n" % (len(login), login))
        client.send(b"set q 0 0 %d\r\n%b\r\n" % (MB, b"x" * MB) + b"scard q\r\n")
        assert [client.reply() for _ in range(3)] == [b"STORED", b"STORED", b"1"]


@pytest.mark.parametrize(
    "request_",
    [
        b"set any 0 0 %d\r\n" % MOST_BYTES,
        b"set any 0 0 30000000\r\n",
        b"set any 0 0 33554433\r\n",
        b"add any 0 0 30000000\r\n",
        b"get " + b"k " * 10_000,
    ],
)
def test_who_has_not_logged_in_may_send_little(locked: Server, request_: bytes) -> None:
    before = memory(locked)
    for _ in range(20):
        with MemcachedWire(locked) as stranger:
            stranger.send(request_)
            replies = stranger.rest()
            assert set(replies.splitlines()) == {UNAUTHENTICATED}
    assert memory(locked) - before < 8 * MB


def test_a_name_cannot_forge_a_line_of_the_log(locked: Server) -> None:
    with MemcachedWire(locked) as guessing:
        assert log_in(guessing, "ada\r\n2026-01-01 ERROR\x00\x1b[2Jforged" + "x" * 500, WRONG) == FAILED
    assert not re.search(r"^2026-01-01 ERROR", locked.log, re.MULTILINE)
    assert "\x1b" not in locked.log


def test_a_browser_cannot_guess(locked: Server) -> None:
    login = b"default " + SECRET.encode()
    with MemcachedWire(locked) as browser:
        browser.send(
            b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset any 0 0 %d\r\n%b\r\nset q 0 0 1\r\nx\r\n"
            % (len(login), login)
        )
        assert b"STORED" not in browser.rest()
    with locked.client(password=SECRET) as owner:
        assert owner.exists("q") == 0


# ---------------------------------------------------------------- rights

USERS = {
    **{f"no-{right}": (SECRET, ["*"], [one for one in RIGHTS if one != right]) for right in RIGHTS},
    "root": (SECRET, ["*"], list(RIGHTS)),
    "ours": (SECRET, ["ours:*"], list(RIGHTS)),
    "q": (SECRET, ["q"], list(RIGHTS)),
    "slashes": (SECRET, ["q/*"], list(RIGHTS)),
}
# What each command sends, with a queue's name, and what it must have a right to.
REQUESTS: dict[str, tuple[bytes, set[str]]] = {
    "set": (b"set %b 0 0 1\r\nx", {"put"}),
    "add": (b"add %b 0 0 1\r\nx", {"put"}),
    "get": (b"get %b", {"get"}),
    "gets": (b"gets %b", {"get"}),
    "scard": (b"scard %b", {"read"}),
    "sismember": (b"sismember %b x", {"read"}),
    "delete": (b"delete %b", {"administer"}),
    "flush": (b"flush %b", {"get"}),
}
# Those that are about no queue, or all.
ABOUT_ALL: dict[str, set[str]] = {
    "stats": {"read"},
    "dump_stats": {"read"},
    "flush_all": {"get", "administer"},
}
NO_KEY = b"CLIENT_ERROR this user has no permission for one of these keys"


@pytest.fixture(scope="module")
def guarded(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "users.toml").write_text(users_toml(USERS))
    server = Server(
        folder / "log", "--backend", shared_backend.url, "--users", str(folder / "users.toml"),
        "--listen", "memcached://127.0.0.1:0?flush_all=yes",
    )  # fmt: skip
    yield server
    assert SECRET not in server.log
    server.end_well()


class Guests:
    """Connections, one for each user."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._server, self._stack = server, stack
        self._connected: dict[str, MemcachedWire] = {}

    def __getitem__(self, name: str) -> MemcachedWire:
        if name not in self._connected:
            self._connected[name] = self._stack.enter_context(MemcachedWire(self._server))
            assert log_in(self._connected[name], name) == b"STORED"
        return self._connected[name]


@pytest.fixture
def guests(backend: Valkey, guarded: Server) -> Iterator[Guests]:
    with ExitStack() as stack:
        yield Guests(guarded, stack)


def test_every_command_that_needs_a_right_is_tried_here() -> None:
    commands.load()
    needing = {spec.name: set(spec.needs) for spec in COMMANDS[QUEUE].values() if spec.needs}
    assert needing == {name: needs for name, (_, needs) in REQUESTS.items()} | ABOUT_ALL


def is_refused(reply: bytes) -> bool:
    return reply.startswith(b"CLIENT_ERROR this user has no permission")


@pytest.mark.parametrize("name", REQUESTS)
def test_each_right_is_needed_and_enough(guests: Guests, name: str) -> None:
    request, needs = REQUESTS[name]
    for right in RIGHTS:
        assert is_refused(guests[f"no-{right}"](request % b"ours:q")) == (right in needs)
    assert not is_refused(guests["ours"](request % b"ours:q"))
    assert guests["ours"](request % b"theirs") == NO_KEY
    guests["ours"].send((request % b"theirs" + b"\r\n") * 1000)
    assert {guests["ours"].reply() for _ in range(1000)} == {NO_KEY}
    assert not is_refused(guests["root"](request % b"theirs"))


@pytest.mark.parametrize("name", ABOUT_ALL)
def test_each_right_about_all_is_needed(guests: Guests, name: str) -> None:
    for right in RIGHTS:
        assert is_refused(guests[f"no-{right}"](name.encode())) == (right in ABOUT_ALL[name])
    assert is_refused(guests["ours"](name.encode())) == (name == "flush_all")


def test_another_s_queue_among_several_is_refused_and_nothing_is_taken(guests: Guests) -> None:
    for queue in (b"ours:a", b"ours:b", b"theirs"):
        assert guests["root"].store(queue, b"m") == b"STORED"
    for request in (
        b"get ours:a theirs",
        b"get theirs ours:a",
        b"gets ours:a ours:b theirs",
        b"get ours:a theirs/open",
    ):
        assert guests["ours"](request) == NO_KEY
    assert guests["ours"](b"get ours:a ours:b") == b"VALUE ours:a 0 1\r\nm\r\nVALUE ours:b 0 1\r\nm\r\nEND"
    assert guests["root"](b"scard theirs") == b"1"


OPTIONS = [b"/open", b"/close", b"/abort", b"/peek", b"/t=5", b"/close/open", b"/open/t=5", b"/peek/t=5"]


@pytest.mark.parametrize("options", OPTIONS)
def test_options_behind_a_name_are_none_of_the_pattern_s_concern(guests: Guests, options: bytes) -> None:
    assert not is_refused(guests["q"](b"get q" + options))
    assert guests["q"](b"get r" + options) == NO_KEY
    assert guests["q"](b"get q/r" + options) == NO_KEY
    assert guests["slashes"](b"get q" + options) == NO_KEY
    assert not is_refused(guests["slashes"](b"get q/r" + options))


@pytest.mark.parametrize("name", [name for name in REQUESTS if not name.startswith("get")])
@pytest.mark.parametrize("queue", [b"q/open", b"q/t=5", b"q/close/open", b"q/r"])
def test_what_looks_like_options_is_part_of_a_name_elsewhere(guests: Guests, name: str, queue: bytes) -> None:
    """A right to q is none to a queue called q/open."""
    request, _ = REQUESTS[name]
    assert guests["q"](request % queue) == NO_KEY
    assert not is_refused(guests["slashes"](request % queue))


@pytest.mark.parametrize("key", [b"/open", b"//open", b"ours:/../theirs", b"q\xff", b"Q", b"q/open/x"])
def test_names_that_only_look_like_what_is_allowed(guests: Guests, key: bytes) -> None:
    for name in ("q", "ours") if not key.startswith(b"ours:") else ("q",):
        assert guests[name](b"get " + key) == NO_KEY
        assert guests[name].store(key, b"x") == NO_KEY


def test_statistics_tell_of_the_user_s_queues_alone(guests: Guests) -> None:
    for queue in (b"ours:a", b"theirs"):
        assert guests["root"].store(queue, b"m") == b"STORED"
    for request in (b"stats\r\n", b"dump_stats\r\n"):
        client = guests["ours"]
        client.send(request + b"version\r\n")
        found = b""
        while b"VERSION" not in found:
            found += client.reply() + b"\n"
        assert b"ours:a" in found
        assert b"theirs" not in found
        assert b"total_items 2" not in found


def test_refusals_are_counted(guests: Guests, guarded: Server) -> None:
    with guarded.client(username="root", password=SECRET) as root:
        before = root.info("stats")
        assert guests["ours"](b"get theirs") == NO_KEY
        assert is_refused(guests["no-get"](b"get q"))
        after = root.info("stats")
        for what in ("acl_access_denied_cmd", "acl_access_denied_key"):
            assert after[what] == before[what] + 1


def test_users_are_read_again(start_server: StartServer, backend: Valkey, tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(users_toml({"ada": (SECRET, ["*"], ["put", "get"]), "bob": (SECRET, ["*"], ["put"])}))
    server = start_server("--backend", backend.url, "--users", str(file), *LISTEN)
    with MemcachedWire(server) as ada, MemcachedWire(server) as bob, MemcachedWire(server) as stranger:
        assert log_in(ada, "ada") == log_in(bob, "bob") == b"STORED"
        assert stranger(b"get q") == UNAUTHENTICATED
        assert ada.store(b"q", b"m") == b"STORED"
        assert ada(b"get q/open") == b"VALUE q/open 0 1\r\nm\r\nEND"
        file.write_text(users_toml({"ada": (SECRET, ["*"], ["put"]), "eve": (SECRET, ["q"], ["get"])}))
        reload(server)
        assert is_closed(bob)
        assert ada.store(b"r", b"m") == b"STORED"
        assert is_refused(ada(b"get q"))
        assert stranger(b"get q") == UNAUTHENTICATED
        assert log_in(stranger, "eve") == b"STORED"
        assert stranger(b"get q") == b"END"
        file.write_text(users_toml({"eve": (SECRET, ["q"], ["get"])}))
        reload(server)
        # What was open with her is back.
        assert is_closed(ada)
        assert stranger(b"get q/t=20000") == b"VALUE q/t=20000 0 1\r\nm\r\nEND"


# ---------------------------------------------------------------- where to listen


@pytest.mark.parametrize("options", [[], ["--no-protected-mode"], ["--password", SECRET]])
def test_protected_mode(start_server: StartServer, backend: Valkey, options: list[str]) -> None:
    server = start_server("--backend", backend.url, "--listen", "memcached://0.0.0.0:0", *options)
    where = own_address(), port_of(server, "memcached")
    with MemcachedWire(connected=socket.create_connection(where)) as elsewhere:
        if options:
            reply = elsewhere(b"version")
            assert reply.startswith(UNAUTHENTICATED if "--password" in options else b"VERSION ")
        else:
            assert re.fullmatch(rb"SERVER_ERROR DENIED [^\r\n]+protected mode[^\r\n]+\r\n", elsewhere.rest())
    with MemcachedWire(server) as here:
        assert here(b"version").startswith(UNAUTHENTICATED if "--password" in options else b"VERSION ")


def test_a_listener_for_tls(
    start_server: StartServer, backend: Valkey, tmp_path: Path, client: Client
) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = map(str, authority.issue("server"))
    server = start_server(
        "--backend", backend.url, "--listen", "memcacheds://127.0.0.1:0",
        "--tls-certificate", certificate, "--tls-key", key,
    )  # fmt: skip
    port = port_of(server, "memcacheds")
    plain = socket.create_connection(("127.0.0.1", port))
    secure = authority.client_context().wrap_socket(plain, server_hostname="localhost")
    large = b"x" * (9 << 20)
    with MemcachedWire(connected=secure) as wire:
        assert wire.store(b"q", b"a\r\nb") == wire.store(b"q", large) == b"STORED"
        assert client.llen("q") == 2
        assert wire.take(b"q") == b"a\r\nb"
        assert wire(b"get q/open").startswith(b"VALUE q/open 0 9437184\r\nxx")
    wait_for(lambda: client.llen("q") == 1, "the open message to be back")
    with MemcachedWire(connected=socket.create_connection(("127.0.0.1", port))) as unencrypted:
        unencrypted.send(b"version\r\n")
        assert b"VERSION" not in unencrypted.rest()
    for ready in ([], ["--ready"]):
        assert run_here("ping", "--listen", f"memcacheds://127.0.0.1:{port}", *ready).returncode == 0
    assert run_here("ping", "--listen", f"memcached://127.0.0.1:{port}").returncode == 1
    stranger = ssl.create_default_context()
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", port)) as untrusting:
        stranger.wrap_socket(untrusting, server_hostname="localhost")
    server.end_well()


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "?mode=kv", "?mode=queue&flush_all=yes", "?flush_all=no&mode=kv"])
def test_a_listener_on_a_unix_socket(
    start_server: StartServer, backend: Valkey, tmp_path: Path, options: str
) -> None:
    path = tmp_path / "memcached.sock"
    url = f"memcached+unix://{path}{options}"
    server = start_server("--backend", backend.url, "--listen", url)
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(path))
    with MemcachedWire(connected=connected) as client:
        assert client(b"version").startswith(b"VERSION ")
        client.send(b"stats settings\r\n")
        settings = client.reply().splitlines()
        assert b"STAT mode " + (b"kv" if "kv" in options else b"queue") in settings
        flush_all = "flush_all=yes" in options or options == "?mode=kv"
        assert b"STAT flush_all " + (b"yes" if flush_all else b"no") in settings
    assert "listening on memcached+unix://" in server.log
    for ready in ([], ["--ready"]):
        asked = run_here("ping", "--listen", url, *ready)
        assert (asked.returncode, asked.stderr) == (0, "")
    server.end_well()
    assert not path.exists()
    gone = run_here("ping", "--listen", url)
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("options", [[], ["--password", SECRET]], ids=["open", "with a password"])
def test_ping_asks_whether_it_is_well_or_ready(
    start_server: StartServer, backend: Valkey, options: list[str]
) -> None:
    server = start_server("--backend", backend.url, "--drain-delay", "600", *LISTEN, *options)
    url = f"memcached://127.0.0.1:{port_of(server, 'memcached')}"
    assert run_here("ping", "--listen", url).stdout == f"{url} is well\n"
    assert run_here("ping", "--listen", url, "--ready").stdout == f"{url} is ready\n"
    server.process.terminate()
    wait_for(lambda: "not ready any longer" in server.log, "it to be told to stop")
    assert run_here("ping", "--listen", url).returncode == 0
    refused = run_here("ping", "--listen", url, "--ready")
    assert refused.returncode == 1
    assert "STOPPING" in refused.stderr
    server.process.kill()


WRONG_LISTENERS = [
    ("memcached://127.0.0.1:0?mode=x", "mode must be one of queue, kv"),
    ("memcached://127.0.0.1:0?mode=", "mode must be one of queue, kv"),
    ("memcached://127.0.0.1:0?mode=QUEUE", "mode must be one of queue, kv"),
    ("memcached://127.0.0.1:0?nope=1", "unknown option 'nope': the options are flush_all, mode"),
    ("memcached+unix:///tmp/x.sock?nope=1", "unknown option 'nope'"),
    ("memcached://127.0.0.1:0?flush_all=1", "flush_all must be yes or no"),
    ("memcached://127.0.0.1:0?mode", "cannot be listened on"),
    ("memcached://127.0.0.1:0?mode=queue&mode=kv", "is given twice"),
    ("memcached://127.0.0.1", "cannot be listened on"),
    ("memcache://127.0.0.1:0", "there is no handler 'memcache': there are memcached, resp"),
    ("resp://127.0.0.1:0?mode=kv", "a RESP listener has no options"),
    ("resp+unix:///tmp/x.sock?x=", "a RESP listener has no options"),
]


@pytest.mark.parametrize(("url", "complaint"), WRONG_LISTENERS, ids=[url for url, _ in WRONG_LISTENERS])
@pytest.mark.parametrize("command", [[], ["ping"]], ids=["serve", "ping"])
def test_a_listener_that_cannot_be_is_one_line(command: list[str], url: str, complaint: str) -> None:
    environment = {"PRESSURE_BACKEND": "redis://127.0.0.1:1"}
    refused = run_here(*command, "--listen", url, environment=environment)
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""
