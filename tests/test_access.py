"""Rights: the rights that each command needs, and the queues that each user may use."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from handlers.resp import commands
from handlers.resp.access import Refusal, queues_of, refusal
from handlers.resp.client import Spec
from handlers.resp.table import COMMANDS, command
from pressure_server.auth.users import RIGHTS, User
from tests.support.guards import reload, users_toml
from tests.support.programs import Server, StartServer, Valkey
from tests.support.protocols import LISTEN, Protocol, Wire, each_protocol
from tests.support.requirements import need
from tests.support.side_by_side import Wire as RedisWire
from tests.support.side_by_side import split, words
from tests.support.waiters import Waiter, is_refused, packed

commands.load()
SPECS = {
    spec.name: spec
    for entered in COMMANDS.values()
    for spec in (entered.subcommands.values() if entered.subcommands else [entered])
}
ON_QUEUES = [name for name, spec in SPECS.items() if spec.names_queues]
OWN, FOREIGN = b"own:1", b"foreign:1"
NO_COMMAND = "NOPERM this user has no permissions to run the '{}' command"
NO_QUEUE = "NOPERM this user has no permissions to access one of the keys used as arguments"


def examples(spec: Spec) -> Iterator[list[bytes]]:
    """Yield the shortest request on permitted queues, and then one with each queue forbidden in turn."""
    named = [word.encode() for word in spec.name.split("|")]
    several: list[bytes] = []
    for argument in spec.arguments:
        if argument.optional and not argument.multiple:
            continue
        several += [argument.token.encode()] if argument.token else []
        if argument.type == "key":
            several += [OWN] * (3 if argument.multiple else 1)
        elif argument.name == "numkeys":
            several.append(b"3")
        elif argument.name:
            several.append(b"1")
    yield [*named, *several]
    for position, word in enumerate(several):
        if word == OWN:
            yield [*named, *several[:position], FOREIGN, *several[position + 1 :]]


def plain(spec: Spec) -> list[bytes]:
    return next(examples(spec))


def test_a_command_without_needs_is_rejected() -> None:
    with pytest.raises(TypeError, match="needs"):
        command("NEW key", "Is new.", group="server")  # type: ignore[call-arg] # the error under test
    for needs in ("", "nothing", "write", "put nothing"):
        with pytest.raises(ValueError, match="cannot need"):
            command("NEW key", "Is new.", group="server", needs=needs)(lambda _client, _words: None)
    assert b"NEW" not in COMMANDS


def test_needs_match_the_flags_of_redis() -> None:
    for spec in SPECS.values():
        if "readonly" in spec.flags:
            assert spec.needs == {"read"}, spec.name
        if "write" in spec.flags:
            assert spec.needs & {"put", "get", "administer"}, spec.name
        if "denyoom" in spec.flags:
            assert "put" in spec.needs, spec.name
        if "admin" in spec.flags:
            assert spec.needs == {"administer"}, spec.name


def test_a_command_needs_exactly_the_rights_in_the_table() -> None:
    for spec in SPECS.values():
        assert refusal(User("u", rights=spec.needs), spec, plain(spec)) is None, spec.name
        for right in spec.needs:
            lacking = User("u", rights=frozenset(RIGHTS) - {right})
            assert refusal(lacking, spec, plain(spec)) is Refusal.COMMAND, spec.name


def test_a_user_needs_access_to_each_queue_of_a_command() -> None:
    user = User("u", queues=("own:*",))
    for name in ON_QUEUES:
        spec = SPECS[name]
        allowed, *others = examples(spec)
        assert refusal(user, spec, allowed) is None, name
        assert queues_of(spec, allowed) == [OWN] * len(others), name
        for other in others:
            assert refusal(user, spec, other) is Refusal.QUEUE, other


def test_administering_the_server_needs_access_to_all_queues() -> None:
    user = User("u", queues=("own:*",))
    for name in sorted(set(SPECS) - set(ON_QUEUES)):
        refused = refusal(user, SPECS[name], plain(SPECS[name]))
        assert (refused is Refusal.COMMAND) == ("administer" in SPECS[name].needs), name


# ---------------------------------------------------------------- on a server

USERS = {
    **{f"no-{right}": ("password", ["*"], [other for other in RIGHTS if other != right]) for right in RIGHTS},
    "tenant": ("password", ["own:*"], list(RIGHTS)),
    "putter": ("password", ["own:*"], ["put"]),
    "root": ("password", ["*"], list(RIGHTS)),
}


@pytest.fixture(scope="module")
def guarded(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "users.toml").write_text(users_toml(USERS))
    options = ("--backend", shared_backend.url, "--users", str(folder / "users.toml"))
    server = Server(folder / "log", *options, *LISTEN)
    yield server
    server.end_well()


def logged_in(server: Server, user: str) -> Waiter:
    """Return a connection of a user."""
    connected = Waiter(server.port)
    assert connected("AUTH", user, "password") == b"OK"
    return connected


# Returns the connection of a user.
Guests = Callable[[str], Waiter]


@pytest.fixture
def guests(backend: Valkey, guarded: Server) -> Iterator[Guests]:
    """One connection for each user, on a backend without data."""
    with ExitStack() as stack:
        yield cache(lambda user: stack.enter_context(logged_in(guarded, user)))


def test_a_server_enforces_the_rights_in_the_table(guests: Guests) -> None:
    for name, spec in SPECS.items():
        named = name.split("|")
        for right in spec.needs:
            for spelt in (name.upper(), name.lower(), name.swapcase().title()):
                request = [word.encode() for word in spelt.split("|")] + plain(spec)[len(named) :]
                assert str(guests(f"no-{right}")(*request)) == NO_COMMAND.format(name), request
        for request in list(examples(spec))[1:] if spec.needs else []:
            tenant = guests("tenant")
            assert str(tenant(*request)) == NO_QUEUE, request
            assert tenant("MULTI") == b"OK"
            assert str(tenant(*request)) == NO_QUEUE, request
            assert is_refused(tenant("EXEC"), "EXECABORT"), request


def test_a_client_that_has_not_logged_in_may_log_in_and_leave(guarded: Server) -> None:
    expected = "NOAUTH Authentication required."
    for name, spec in SPECS.items():
        with Waiter(guarded.port) as stranger:
            reply = stranger(*plain(spec))
            if "no_auth" in spec.flags:
                assert name in ("auth", "hello", "quit", "reset", "pressure.ready")
                continue
            assert str(reply).endswith(expected), reply
            stranger.socket.sendall(packed(*plain(spec)) * 40)
            assert all(str(stranger.reply()).endswith(expected) for _ in range(40)), name


@pytest.mark.parametrize("count", [1, 7, 600])
def test_each_command_of_a_pipeline_is_checked(guests: Guests, count: int) -> None:
    tenant = guests("tenant")
    for name, arguments, first, rest in (("SADD", ["a"], 1, 0), ("SPOP", [], b"a", None)):
        tenant.socket.sendall(b"".join(packed(name, queue, *arguments) * count for queue in (OWN, FOREIGN)))
        replies = [tenant.reply() for _ in range(2 * count)]
        assert replies[:count] == [first] + [rest] * (count - 1)
        assert all(str(reply) == NO_QUEUE for reply in replies[count:])
        assert guests("root")("EXISTS", FOREIGN) == 0


def test_a_user_with_the_right_to_put_creates_a_queue_by_a_put(guests: Guests) -> None:
    putter = guests("putter")
    assert putter("SADD", OWN, "a") == 1
    assert str(putter("PRESSURE.CREATE", "own:2")) == NO_COMMAND.format("pressure.create")
    assert str(putter("KEYS", "*")) == NO_COMMAND.format("keys")
    assert str(putter("INFO")) == NO_COMMAND.format("info")


def test_a_user_sees_only_the_names_of_its_own_queues(guests: Guests) -> None:
    root, tenant = guests("root"), guests("tenant")
    for name in (OWN, FOREIGN, b"own:2", b"alien"):
        root("SADD", name, "a")
    own = [OWN, b"own:2"]
    assert sorted(tenant("KEYS", "*")) == own
    assert sorted(tenant("SCAN", 0, "COUNT", 1000)[1]) == own
    assert tenant("PRESSURE.LIST") == own
    assert tenant("DBSIZE") == 2
    assert {tenant("RANDOMKEY") for _ in range(40)} <= set(own)
    info = tenant("INFO").decode()
    assert "keys=2," in info
    assert "queue_own%3A1" in info
    assert "foreign" not in info
    assert "alien" not in info
    assert sorted(root("KEYS", "*")) == [b"alien", FOREIGN, *own]


@each_protocol
def test_refusals_are_counted(guests: Guests, guarded: Server, protocol: Protocol) -> None:
    with (
        guarded.client(username="root", password="password") as root,
        Wire(protocol, guarded).log_in("tenant", "password") as tenant,
        Wire(protocol, guarded).log_in("no-get", "password") as no_get,
    ):
        before = root.info("stats")
        assert tenant(protocol.get(FOREIGN)).startswith(protocol.no_permission)
        assert no_get(protocol.get(OWN)).startswith(protocol.no_permission)
        after = root.info("stats")
        for counter in ("acl_access_denied_cmd", "acl_access_denied_key"):
            assert after[counter] == before[counter] + 1


def test_acl_shows_the_user_and_no_hash(guests: Guests) -> None:
    assert guests("putter")("ACL", "WHOAMI") == b"putter"
    assert guests("root")("ACL", "USERS") == sorted(name.encode() for name in USERS)
    listed = guests("root")("ACL", "LIST")
    assert b"user putter on #(hidden) ~own:* +put" in listed
    lines = guests("root")("CLIENT", "LIST").decode().splitlines()
    assert {line.split(" user=")[1].split()[0] for line in lines} == {"putter", "root"}


def test_reset_and_failed_logins_behave_as_in_redis(guests: Guests) -> None:
    root = guests("root")
    assert is_refused(root("AUTH", "putter", "wrong"), "WRONGPASS")
    assert root("ACL", "WHOAMI") == b"root"
    assert root("AUTH", "putter", "password") == b"OK"
    assert root("ACL", "WHOAMI") == b"putter"
    assert root("RESET") == b"RESET"
    assert is_refused(root("PING"), "NOAUTH")


# ---------------------------------------------------------------- reloaded


@pytest.fixture
def changing(start_server: StartServer, backend: Valkey, tmp_path: Path) -> tuple[Server, Path]:
    """A server with a users file that the test may change."""
    file = tmp_path / "users.toml"
    file.write_text(users_toml(USERS))
    return start_server("--backend", backend.url, "--users", str(file), *LISTEN), file


@each_protocol
def test_a_reload_changes_rights_and_disconnects_removed_users(
    changing: tuple[Server, Path], protocol: Protocol
) -> None:
    server, file = changing
    file.write_text(users_toml({"ada": ("a", ["*"], ["put", "get"]), "bob": ("b", ["*"], ["put"])}))
    reload(server)
    with (
        Wire(protocol, server).log_in("ada", "a") as ada,
        Wire(protocol, server).log_in("bob", "b") as bob,
        Wire(protocol, server) as stranger,
    ):
        assert stranger(protocol.get(b"q")) == protocol.unauthenticated
        ada.put(b"q", b"m")
        file.write_text(users_toml({"ada": ("a", ["*"], ["put"]), "eve": ("e", ["q"], ["get"])}))
        reload(server)
        assert bob.is_closed()
        ada.put(b"r", b"m")
        assert ada(protocol.get(b"q")).startswith(protocol.no_permission)
        assert stranger(protocol.get(b"q")) == protocol.unauthenticated
        assert stranger.log_in("eve", "e").get(b"q") == b"m"
        assert stranger(protocol.get(b"r")).startswith(protocol.no_permission)


def test_new_rights_hold_from_the_next_command_and_at_exec(changing: tuple[Server, Path]) -> None:
    server, file = changing
    with logged_in(server, "tenant") as worker, logged_in(server, "tenant") as waiting:
        waiting.send("BLPOP", "own:wait", 0)
        worker("SADD", OWN, "a", "b")
        worker("MULTI")
        assert worker("SADD", "own:2", "c") == b"QUEUED"
        assert worker("SPOP", OWN) == b"QUEUED"
        assert worker("PING") == b"QUEUED"
        file.write_text(users_toml(USERS | {"tenant": ("password", ["own:*"], ["put"])}))
        reload(server)
        put, refused, ping = worker("EXEC")
        assert (put, ping) == (1, b"PONG")
        assert str(refused).startswith("NOPERM ACLs rules changed between the moment the transaction was")
        assert str(worker("SPOP", OWN)) == NO_COMMAND.format("spop")
        # An operation that waits was checked when it arrived.
        assert worker("SADD", "own:wait", "m") == 1
        assert waiting.reply() == [b"own:wait", b"m"]
        assert str(waiting("SPOP", OWN)) == NO_COMMAND.format("spop")


def test_a_client_whose_login_is_no_longer_valid_is_disconnected(changing: tuple[Server, Path]) -> None:
    server, file = changing
    with (
        logged_in(server, "putter") as removed,
        logged_in(server, "tenant") as changed,
        logged_in(server, "root") as kept,
    ):
        changed.send("BLPOP", "own:wait", 0)
        users = {name: entry for name, entry in USERS.items() if name != "putter"}
        file.write_text(users_toml(users | {"tenant": ("new", ["own:*"], list(RIGHTS))}))
        reload(server)
        for connection in (removed, changed):
            with pytest.raises(ConnectionError):
                connection.reply()
        kept("SADD", "own:wait", "m")
        assert kept("SPOP", "own:wait") == b"m"
        assert "2 clients disconnected" in server.log


@pytest.mark.parametrize("text", ["[users", "", '[users.root]\nqueues = ["*"]\nmay = ["put"]\n', None])
def test_a_reload_of_an_invalid_file_changes_nothing(changing: tuple[Server, Path], text: str | None) -> None:
    server, file = changing
    with logged_in(server, "root") as root:
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        reload(server, "reload failed")
        assert root("PING") == b"PONG"
        logged_in(server, "tenant").close()


# ---------------------------------------------------------------- as Redis

REDIS_USER = (
    "ACL SETUSER putter on >password ~own:* +sadd +multi +exec +discard +acl|whoami +reset +hello +ping"
)
SAME = """
PING|HELLO|HELLO 3|HELLO 9|HELLO x|HELLO 2 AUTH nobody x|HELLO 2 AUTH default wrong|HELLO 2 SETNAME x
HELLO 2 AUTH putter wrong SETNAME x|nonsense|nonsense a b|SADD|SADD q a|CLIENT|CLIENT nonsense|CLIENT ID
COMMAND COUNT|MULTI|EXEC|EXEC x|DISCARD|ACL WHOAMI|ACL nonsense|ACL|RESET|AUTH|AUTH a b c|AUTH wrong
AUTH default wrong|AUTH putter password|ACL WHOAMI|ACL WHOAMI x|SADD own:1 a|SADD foreign a|sAdD foreign a
SPOP own:1|CLIENT KILL ID 9|CLIENT LIST|ACL USERS|KEYS *|INFO|MULTI|SADD own:1 b|EXEC|MULTI
SADD foreign b|SADD own:1 b|EXEC|MULTI|SPOP own:1|DISCARD|SPOP|BLPOP own:1 foreign 0
SMOVE own:1 foreign a|DEL own:1|FLUSHALL|CONFIG GET *|RESET|PING|ACL WHOAMI
AUTH default password|ACL WHOAMI|PING|AUTH password|AUTH default password|PING|RESET|PING
"""


@pytest.mark.slow
@pytest.mark.clients
def test_refusals_have_the_texts_of_redis(tmp_path: Path, start_server: StartServer, backend: Valkey) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    binary = need("redis-server", "redis-server")
    original = Valkey(folder, "--requirepass", "password", binary=binary)
    (tmp_path / "password").write_text("password\n")
    (tmp_path / "users.toml").write_text(users_toml({"putter": USERS["putter"]}))
    server = start_server(
        "--backend", backend.url, "--users", str(tmp_path / "users.toml"),
        "--password-file", str(tmp_path / "password"),
    )  # fmt: skip
    try:
        with original.client(password="password") as client:
            client.execute_command(*REDIS_USER.split())
        differing = []
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(str(original.socket))
        redis, wire = RedisWire(unix), RedisWire(socket.create_connection(("127.0.0.1", server.port)))
        failures = 0
        for line in split(SAME):
            expected, found = redis.do(words(line)).raw, wire.do(words(line)).raw
            failures += expected.startswith(b"-WRONGPASS")
            if expected != found:
                differing.append((line, expected, found))
            if failures == 4:  # the server closes a connection after the fifth failure; Redis does not
                wire = RedisWire(socket.create_connection(("127.0.0.1", server.port)))
                failures = 0
        assert differing == []
    finally:
        original.kill()
    server.end_well()
