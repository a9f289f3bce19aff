"""Logins, rights and listener options of memcached's protocol.

test_logins.py, test_access.py and test_tls.py test what all protocols share.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from handlers.memcached import commands
from handlers.memcached.table import COMMANDS, QUEUE
from pressure_server.auth.users import RIGHTS
from tests.support.memcached_wire import MemcachedWire
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, Valkey, run_here
from tests.support.protocols import LISTEN, MEMCACHED

SECRET = "s3cret-Passw0rd"
UNAUTHENTICATED = MEMCACHED.unauthenticated


# A server with one password.
locked = module_server("--password", SECRET, *LISTEN, secret=SECRET)


@pytest.fixture
def owner(backend: Valkey, locked: Server) -> Iterator[Client]:
    with locked.client(password=SECRET) as client:
        yield client


BEFORE = [
    b"version", b"stats", b"get q", b"gets q r", b"get q/t=1000", b"delete q", b"flush_all", b"verbosity 1",
    b"", b"nonsense", b"add q 0 0 7\r\ndefault", b"cas q 0 0 1 1\r\nx", b"flush_all noreply",
    b"SET q 0 0 1\r\nx", b"mg q v", b"ms q 7\r\ndefault", b"mg q v q", b"mn", b"ms !! 6 b\r\nmd q q",
    b"set " + b"k" * 251 + b" 0 0 1\r\nx", b"set q 0 0 1 2 3 4\r\nx",
]  # fmt: skip


def test_commands_before_the_login_are_refused(locked: Server, owner: Client) -> None:
    with MemcachedWire(locked) as stranger:
        owner.sadd("q", "m")
        for request in BEFORE:
            assert stranger(request) == UNAUTHENTICATED, request
        stranger.send(b"get q\r\n" * 1000 + b"".join(request + b"\r\n" for request in BEFORE) * 100)
        for _ in range(1000 + 100 * len(BEFORE)):
            assert stranger.reply() == UNAUTHENTICATED
        stranger.log_in("default", SECRET)
        assert stranger.get(b"q") == b"m"
        assert (owner.keys("*"), owner.llen("q")) == ([b"q"], 0)


@pytest.mark.parametrize(
    "line", [b"set any 0 0 %d", b"set any 5 9 %d noreply", b"set any x y %d", b" set any 0 0 %d"]
)
def test_a_set_of_any_key_logs_in(locked: Server, owner: Client, line: bytes) -> None:
    """As in memcached, the rest of the line does not matter, and noreply gets a reply."""
    data = b"default " + SECRET.encode()
    with MemcachedWire(locked) as client:
        assert client(line % len(data) + b"\r\n" + data) == b"STORED"
        # After the login, set is the command again.
        assert client.store(b"q", data) == b"STORED"
        assert client.get(b"q") == data


USERS = {
    **{f"no-{right}": (SECRET, ["*"], [other for other in RIGHTS if other != right]) for right in RIGHTS},
    "root": (SECRET, ["*"], list(RIGHTS)),
    "alice": (SECRET, ["alice:*"], list(RIGHTS)),
    "q": (SECRET, ["q"], list(RIGHTS)),
    "slashes": (SECRET, ["q/*"], list(RIGHTS)),
}
# By command: a request for a queue, and the rights that it needs.
REQUESTS: dict[str, tuple[bytes, set[str]]] = {
    "set": (b"set %b 0 0 1\r\nx", {"put"}),
    "add": (b"add %b 0 0 1\r\nx", {"put"}),
    "get": (b"get %b", {"get"}),
    "gets": (b"gets %b", {"get"}),
    "mg": (b"mg %b v k", {"get"}),
    "ms": (b"ms %b 1 k\r\nx", {"put"}),
    "md": (b"md %b k", {"administer"}),
    "scard": (b"scard %b", {"read"}),
    "sismember": (b"sismember %b x", {"read"}),
    "delete": (b"delete %b", {"administer"}),
    "flush": (b"flush %b", {"get"}),
}
# Commands on all queues.
ON_ALL: dict[str, set[str]] = {
    "stats": {"read"},
    "dump_stats": {"read"},
    "flush_all": {"get", "administer"},
}
NO_KEY = MEMCACHED.no_permission + b"for one of these keys"


guarded = module_server("--listen", "memcached://127.0.0.1:0?flush_all=yes", users=USERS, secret=SECRET)


# Returns the connection of a user.
Guests = Callable[[str], MemcachedWire]


@pytest.fixture(scope="module")
def connected(guarded: Server) -> Iterator[Guests]:
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(MemcachedWire(guarded)).log_in(name, SECRET))


@pytest.fixture
def guests(backend: Valkey, connected: Guests) -> Guests:
    """Connections of all users, on a backend without data."""
    return connected


def test_the_tables_here_list_every_command_that_needs_a_right() -> None:
    commands.load()
    needing = {spec.name: set(spec.needs) for spec in COMMANDS[QUEUE].values() if spec.needs}
    assert needing == {name: needs for name, (_, needs) in REQUESTS.items()} | ON_ALL


def is_refused(reply: bytes) -> bool:
    return reply.startswith(MEMCACHED.no_permission)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_command_needs_exactly_its_rights(guests: Guests, name: str) -> None:
    request, needs = REQUESTS[name]
    for right in RIGHTS:
        assert is_refused(guests(f"no-{right}")(request % b"alice:q")) == (right in needs)
    assert not is_refused(guests("alice")(request % b"alice:q"))
    assert guests("alice")(request % b"bob:q") == NO_KEY
    guests("alice").send((request % b"bob:q" + b"\r\n") * 1000)
    assert {guests("alice").reply() for _ in range(1000)} == {NO_KEY}
    assert not is_refused(guests("root")(request % b"bob:q"))


@pytest.mark.parametrize("name", ON_ALL)
def test_a_command_on_all_queues_needs_exactly_its_rights(guests: Guests, name: str) -> None:
    for right in RIGHTS:
        assert is_refused(guests(f"no-{right}")(name.encode())) == (right in ON_ALL[name])
    assert is_refused(guests("alice")(name.encode())) == (name == "flush_all")


def test_a_refused_get_of_several_queues_takes_nothing(guests: Guests) -> None:
    for queue in (b"alice:a", b"alice:b", b"bob:q"):
        assert guests("root").store(queue, b"m") == b"STORED"
    for keys in (b"alice:a bob:q", b"bob:q alice:a", b"alice:a alice:b bob:q", b"alice:a bob:q/open"):
        assert guests("alice")(b"get " + keys) == guests("alice")(b"gets " + keys) == NO_KEY
    assert (
        guests("alice")(b"get alice:a alice:b") == b"VALUE alice:a 0 1\r\nm\r\nVALUE alice:b 0 1\r\nm\r\nEND"
    )
    assert guests("root")(b"scard bob:q") == b"1"


OPTIONS = [b"/open", b"/close", b"/abort", b"/peek", b"/t=5", b"/close/open", b"/open/t=5", b"/peek/t=5"]
READS = ("get", "gets", "mg")


@pytest.mark.parametrize("options", OPTIONS)
def test_options_are_no_part_of_the_name_that_is_read_but_of_other_names(
    guests: Guests, options: bytes
) -> None:
    """A user of q has no right to a queue called q/open."""
    for name, (request, _) in REQUESTS.items():
        is_read = name in READS
        assert is_refused(guests("q")(request % (b"q" + options))) != is_read
        assert is_refused(guests("slashes")(request % (b"q" + options))) == is_read
        assert not is_refused(guests("slashes")(request % (b"q/r" + options)))
        for other in (b"r", b"q/r"):
            assert guests("q")(request % (other + options)) == NO_KEY


@pytest.mark.parametrize("key", [b"/open", b"//open", b"alice:/../bob:q", b"q\xff", b"Q", b"q/open/x"])
def test_a_name_similar_to_an_allowed_one_is_refused(guests: Guests, key: bytes) -> None:
    for name in ("q", "alice") if not key.startswith(b"alice:") else ("q",):
        assert guests(name)(b"get " + key) == NO_KEY
        assert guests(name).store(key, b"x") == NO_KEY


def test_statistics_show_only_the_user_s_queues(guests: Guests) -> None:
    for queue in (b"alice:a", b"bob:q"):
        assert guests("root").store(queue, b"m") == b"STORED"
    for request in (b"stats\r\n", b"dump_stats\r\n"):
        guests("alice").send(request + b"version\r\n")
        found = b""
        while b"VERSION" not in found:
            found += guests("alice").reply() + b"\n"
        assert b"alice:a" in found
        assert b"bob" not in found
        assert b"total_items 2" not in found


def test_each_listener_on_a_unix_socket_has_its_own_options(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    # By URL options: the mode, and whether flush_all is allowed.
    expected = {
        "": (b"queue", b"no"),
        "?mode=kv": (b"kv", b"yes"),
        "?mode=queue&flush_all=yes": (b"queue", b"yes"),
        "?flush_all=no&mode=kv": (b"kv", b"no"),
    }
    paths = {options: tmp_path / f"{number}.sock" for number, options in enumerate(expected)}
    urls = {options: f"memcached+unix://{path}{options}" for options, path in paths.items()}
    server = start_server("--backend", backend.url, *(f"--listen={url}" for url in urls.values()))
    for options, (mode, flush_all) in expected.items():
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(paths[options]))
        with MemcachedWire(connected) as client:
            assert client(b"version").startswith(b"VERSION ")
            settings = client(b"stats settings").splitlines()
            assert b"STAT mode " + mode in settings
            assert b"STAT flush_all " + flush_all in settings
            assert client(b"flush_all").startswith(
                b"OK" if flush_all == b"yes" else b"CLIENT_ERROR flush_all"
            )
        assert f"listening on memcached+unix://{paths[options]}" in server.log
        for ready in ([], ["--ready"]):
            ping = run_here("ping", "--listen", urls[options], *ready)
            assert (ping.returncode, ping.stderr) == (0, "")
    server.end_well()
    for options, path in paths.items():
        assert not path.exists()
        ping = run_here("ping", "--listen", urls[options])
        assert (ping.returncode, ping.stderr.count("\n")) == (1, 1)
