"""Rights: a command needs the rights in the table of commands, and access to every queue that it names."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS, Command, command
from pressure_server.auth.users import RIGHTS, User
from pressure_server.net.command_table import Refusal
from tests.support.guards import reload, users_toml
from tests.support.module_servers import module_server
from tests.support.programs import Server, StartServer, Valkey
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, Protocol, Wire, each_protocol
from tests.support.requirements import need
from tests.support.side_by_side import Wire as RedisWire
from tests.support.side_by_side import difference, split, words
from tests.support.waiters import Waiter, is_refused, packed

commands.load()
SPECS = {
    entry.name: entry
    for entered in COMMANDS.values()
    for entry in (entered.subcommands.values() if entered.subcommands else [entered])
}
ON_QUEUES = [name for name, entry in SPECS.items() if entry.names_queues]
# The tenant may use the first queue, and not the second.
OWN, OTHER = b"tenant:1", b"foreign:1"
NO_COMMAND = "NOPERM this user has no permissions to run the '{}' command"
NO_QUEUE = "NOPERM this user has no permissions to access one of the keys used as arguments"
ConnectAs = Callable[[str], Waiter]


def examples(entry: Command) -> Iterator[list[bytes]]:
    """Return the shortest request on the tenant's queue, then requests that name another's queue once."""
    named = [word.encode() for word in entry.name.split("|")]
    arguments: list[bytes] = []
    for argument in entry.arguments:
        if argument.optional and not argument.multiple:
            continue
        arguments += [argument.token.encode()] if argument.token else []
        if argument.type == "key":
            arguments += [OWN] * (3 if argument.multiple else 1)
        elif argument.name == "numkeys":
            arguments.append(b"3")
        elif argument.name:
            arguments.append(b"1")
    yield [*named, *arguments]
    for position, word in enumerate(arguments):
        if word == OWN:
            yield [*named, *arguments[:position], OTHER, *arguments[position + 1 :]]


def example(entry: Command) -> list[bytes]:
    return next(examples(entry))


def test_a_command_without_needs_is_rejected() -> None:
    with pytest.raises(TypeError, match="needs"):
        command("NEW key", "Is new.", group="server")  # type: ignore[call-arg] # the missing argument
    for needs in ("", "nothing", "write", "put nothing"):
        with pytest.raises(ValueError, match="cannot need"):
            command("NEW key", "Is new.", group="server", needs=needs)(lambda _client, _words: None)
    assert b"NEW" not in COMMANDS


def test_needs_match_the_flags_of_redis() -> None:
    for entry in SPECS.values():
        if "readonly" in entry.flags:
            assert entry.needs == {"read"}, entry.name
        if "write" in entry.flags:
            assert entry.needs & {"put", "get", "administer"}, entry.name
        if "denyoom" in entry.flags:
            assert "put" in entry.needs, entry.name
        if "admin" in entry.flags:
            assert entry.needs == {"administer"}, entry.name


def test_a_missing_right_is_refused_before_the_names_of_queues_are_read() -> None:
    without = User("u", rights=frozenset(RIGHTS) - {"get"})
    assert SPECS["lmpop"].refuses(without, [b"LMPOP", b"x", b"q", b"LEFT"]) is Refusal.COMMAND


def test_administering_the_server_needs_access_to_all_queues() -> None:
    user = User("u", queues=("tenant:*",))
    for name in sorted(set(SPECS) - set(ON_QUEUES)):
        refused = SPECS[name].refuses(user, example(SPECS[name]))
        assert (refused is Refusal.COMMAND) == ("administer" in SPECS[name].needs), name


USERS = {
    **{f"no-{right}": ("password", ["*"], [other for other in RIGHTS if other != right]) for right in RIGHTS},
    # A tube of beanstalk has no colon in its name.
    "tenant": ("password", ["tenant:*", "tenant.*"], list(RIGHTS)),
    "putter": ("password", ["tenant:*"], ["put"]),
    "root": ("password", ["*"], list(RIGHTS)),
}


guarded = module_server(*LISTEN, users=USERS)


@pytest.fixture
def connect_as(backend: Valkey, guarded: Server) -> Iterator[ConnectAs]:
    """Return the test's connection of a user, which is logged in."""
    with ExitStack() as stack:

        @cache
        def connect_as(user: str) -> Waiter:
            connection = stack.enter_context(Waiter(guarded.port))
            assert connection("AUTH", user, "password") == b"OK"
            return connection

        yield connect_as


def test_a_server_enforces_the_rights_in_the_table(connect_as: ConnectAs) -> None:
    tenant = connect_as("tenant")
    for name, entry in SPECS.items():
        arguments = example(entry)[len(name.split("|")) :]
        for right in entry.needs:
            for spelt in (name.upper(), name.lower(), name.swapcase().title()):
                request = [*(word.encode() for word in spelt.split("|")), *arguments]
                assert str(connect_as(f"no-{right}")(*request)) == NO_COMMAND.format(name), request
        for request in list(examples(entry))[1:] if entry.needs else []:
            assert str(tenant(*request)) == NO_QUEUE, request
            assert tenant("MULTI") == b"OK"
            assert str(tenant(*request)) == NO_QUEUE, request
            assert is_refused(tenant("EXEC"), "EXECABORT"), request


def test_before_the_login_only_commands_to_log_in_or_leave_are_allowed(guarded: Server) -> None:
    expected = "NOAUTH Authentication required."
    for name, entry in SPECS.items():
        with Waiter(guarded.port) as stranger:
            reply = stranger(*example(entry))
            if "no_auth" in entry.flags:
                assert name in ("auth", "hello", "quit", "reset", "pressure.ready")
                continue
            assert str(reply).endswith(expected), reply
            stranger.socket.sendall(packed(*example(entry)) * 40)
            assert all(str(stranger.reply()).endswith(expected) for _ in range(40)), name


@pytest.mark.parametrize("count", [1, 7, 600])
def test_each_command_of_a_pipeline_is_checked(connect_as: ConnectAs, count: int) -> None:
    tenant = connect_as("tenant")

    def check(
        words: tuple[str | bytes, ...], refused: tuple[str | bytes, ...], expected: Sequence[object]
    ) -> None:
        tenant.socket.sendall(packed(*words) * count + packed(*refused) * count)
        assert [tenant.reply() for _ in range(count)] == expected
        assert all(str(tenant.reply()) == NO_QUEUE for _ in range(count))

    check(("SADD", OWN, "a"), ("SADD", OTHER, "a"), [1] + [0] * (count - 1))
    assert connect_as("root")("EXISTS", OTHER) == 0
    check(("SPOP", OWN), ("SPOP", OTHER), [b"a"] + [None] * (count - 1))
    # Its second word does not name the queue.
    check(("SINTERCARD", "1", OWN), ("SINTERCARD", "1", OTHER), [0] * count)


def test_a_user_with_the_right_to_put_creates_a_queue_by_a_put(connect_as: ConnectAs) -> None:
    putter = connect_as("putter")
    assert putter("SADD", OWN, "a") == 1
    assert str(putter("PRESSURE.CREATE", "tenant:2")) == NO_COMMAND.format("pressure.create")
    assert str(putter("KEYS", "*")) == NO_COMMAND.format("keys")
    assert str(putter("INFO")) == NO_COMMAND.format("info")


def test_a_user_sees_only_the_names_of_its_own_queues(connect_as: ConnectAs) -> None:
    root, tenant = connect_as("root"), connect_as("tenant")
    for name in (OWN, OTHER, b"tenant:2", b"alien"):
        root("SADD", name, "a")
    visible = [OWN, b"tenant:2"]
    assert sorted(tenant("KEYS", "*")) == visible
    assert sorted(tenant("SCAN", 0, "COUNT", 1000)[1]) == visible
    assert tenant("PRESSURE.LIST") == visible
    assert tenant("DBSIZE") == 2
    assert {tenant("RANDOMKEY") for _ in range(40)} <= set(visible)
    info = tenant("INFO").decode()
    assert "keys=2," in info
    assert "queue_tenant%3A1" in info
    assert "foreign" not in info
    assert "alien" not in info
    assert sorted(root("KEYS", "*")) == [b"alien", OTHER, OWN, b"tenant:2"]


@each_protocol
def test_refusals_are_counted(connect_as: ConnectAs, guarded: Server, protocol: Protocol) -> None:
    with (
        guarded.client(username="root", password="password") as root,
        Wire(protocol, guarded).log_in("tenant", "password") as tenant,
        Wire(protocol, guarded).log_in("no-get", "password") as no_get,
    ):
        before = root.info("stats")
        assert tenant(protocol.get(b"foreign.1")).startswith(protocol.no_permission)
        assert no_get(protocol.get(b"tenant.1")).startswith(protocol.no_permission)
        after = root.info("stats")
        for statistic in ("acl_access_denied_cmd", "acl_access_denied_key"):
            # A get over beanstalk is three commands: watch, ignore and reserve.
            refused = after[statistic] - before[statistic]
            assert refused == 1 or (protocol is BEANSTALK and refused in (2, 3))


def test_acl_and_client_list_name_users_and_hide_hashes(connect_as: ConnectAs) -> None:
    root = connect_as("root")
    assert connect_as("putter")("ACL", "WHOAMI") == b"putter"
    assert root("ACL", "USERS") == sorted(name.encode() for name in USERS)
    assert b"user putter on #(hidden) ~tenant:* +put" in root("ACL", "LIST")
    lines = root("CLIENT", "LIST").decode().splitlines()
    assert {line.split(" user=")[1].split()[0] for line in lines} == {"putter", "root"}


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    file = tmp_path / "users.toml"
    file.write_text(users_toml(USERS))
    return file


@pytest.fixture
def reloadable(start_server: StartServer, backend: Valkey, users_file: Path) -> Server:
    """A server whose users file the test may change."""
    return start_server("--backend", backend.url, "--users", str(users_file), *LISTEN)


def test_a_reload_disconnects_clients_whose_login_is_no_longer_valid(
    reloadable: Server, users_file: Path
) -> None:
    with (
        Waiter(reloadable.port) as changed,
        Waiter(reloadable.port) as kept,
        Wire(MEMCACHED, reloadable).log_in("putter", "password") as removed,
        Wire(MEMCACHED, reloadable) as stranger,
    ):
        for connection, name in ((changed, "tenant"), (kept, "root")):
            connection("AUTH", name, "password")
        changed.send("BLPOP", "tenant:wait", 0)
        assert stranger(MEMCACHED.get(b"q")) == MEMCACHED.unauthenticated
        users = USERS | {"tenant": ("new", ["tenant:*"], list(RIGHTS)), "eve": ("e", ["q"], ["get"])}
        del users["putter"]
        users_file.write_text(users_toml(users))
        reload(reloadable)
        assert removed.is_closed()
        assert changed.ends_without_reply()
        assert "2 clients disconnected" in reloadable.log
        for queue in ("tenant:wait", "q", "r"):
            kept("SADD", queue, "m")
        assert kept("SPOP", "tenant:wait") == b"m"
        assert stranger(MEMCACHED.get(b"q")) == MEMCACHED.unauthenticated
        assert stranger.log_in("eve", "e").get(b"q") == b"m"
        assert stranger(MEMCACHED.get(b"r")).startswith(MEMCACHED.no_permission)


def test_new_rights_apply_from_the_next_command_and_at_exec(reloadable: Server, users_file: Path) -> None:
    with Waiter(reloadable.port) as worker, Waiter(reloadable.port) as waiting:
        for connection in (worker, waiting):
            connection("AUTH", "tenant", "password")
        waiting.send("BLPOP", "tenant:wait", 0)
        worker("SADD", OWN, "a", "b")
        worker("MULTI")
        assert worker("SADD", "tenant:2", "c") == b"QUEUED"
        assert worker("SPOP", OWN) == b"QUEUED"
        assert worker("PING") == b"QUEUED"
        users_file.write_text(users_toml(USERS | {"tenant": ("password", ["tenant:*"], ["put"])}))
        reload(reloadable)
        put, refused, ping = worker("EXEC")
        assert (put, ping) == (1, b"PONG")
        assert str(refused).startswith("NOPERM ACLs rules changed between the moment the transaction was")
        assert str(worker("SPOP", OWN)) == NO_COMMAND.format("spop")
        # The waiting get was allowed when it began.
        assert worker("SADD", "tenant:wait", "m") == 1
        assert waiting.reply() == [b"tenant:wait", b"m"]
        assert str(waiting("SPOP", OWN)) == NO_COMMAND.format("spop")


@pytest.mark.parametrize("text", ["[users", None], ids=["invalid", "missing"])
def test_a_reload_of_an_invalid_file_changes_nothing(
    reloadable: Server, users_file: Path, text: str | None
) -> None:
    with Waiter(reloadable.port) as root, Waiter(reloadable.port) as tenant:
        root("AUTH", "root", "password")
        if text is None:
            users_file.unlink()
        else:
            users_file.write_text(text)
        reload(reloadable, "reload failed")
        assert root("PING") == b"PONG"
        assert tenant("AUTH", "tenant", "password") == b"OK"


REDIS_USER = (
    "ACL SETUSER putter on >password ~tenant:* +sadd +multi +exec +discard +acl|whoami +reset +hello +ping"
)
SAME = """
PING|HELLO|HELLO 3|HELLO 9|HELLO x|HELLO 2 AUTH nobody x|HELLO 2 AUTH default wrong|HELLO 2 SETNAME x
HELLO 2 AUTH putter wrong SETNAME x|nonsense|nonsense a b|SADD|SADD q a|CLIENT|CLIENT nonsense|CLIENT ID
COMMAND COUNT|MULTI|EXEC|EXEC x|DISCARD|ACL WHOAMI|ACL nonsense|ACL|RESET|AUTH|AUTH a b c|AUTH wrong
AUTH default wrong|AUTH putter password|ACL WHOAMI|ACL WHOAMI x|AUTH default wrong|ACL WHOAMI
SADD tenant:1 a|SADD other a|sAdD other a
SPOP tenant:1|CLIENT KILL ID 9|CLIENT UNBLOCK 9|CLIENT LIST|ACL USERS|KEYS *|INFO|MULTI|SADD tenant:1 b|EXEC
MULTI|SADD other b|SADD tenant:1 b|EXEC|MULTI|SPOP tenant:1|DISCARD|SPOP|BLPOP tenant:1 other 0
SMOVE tenant:1 other a|DEL tenant:1|FLUSHALL|CONFIG GET *|RESET|PING|ACL WHOAMI
AUTH default password|ACL WHOAMI|PING|AUTH password|AUTH putter password|ACL WHOAMI|RESET|PING
AUTH default password|PING|RESET|PING
"""


@pytest.mark.slow
@pytest.mark.clients
def test_refusals_have_the_texts_of_redis(tmp_path: Path, start_server: StartServer, backend: Valkey) -> None:
    (tmp_path / "redis").mkdir()
    original = Valkey(
        tmp_path / "redis", "--requirepass", "password", binary=need("redis-server", "redis-server")
    )
    (tmp_path / "users.toml").write_text(users_toml({"putter": USERS["putter"]}))
    server = start_server(
        "--backend", backend.url, "--users", str(tmp_path / "users.toml"), "--password", "password"
    )

    def connect() -> RedisWire:
        return RedisWire(server)

    try:
        with original.client(password="password") as client:
            client.execute_command(*REDIS_USER.split())
        redis, wire = RedisWire(str(original.socket)), connect()
        differing: list[str] = []
        failures = 0
        for line in split(SAME):
            expected, found = redis.do(words(line)), wire.do(words(line))
            if expected != found:
                differing.append(difference(line, expected, found))
            failures += expected.line.startswith(b"-WRONGPASS")
            if failures == 4:  # the fifth would close the server's connection, and not Redis's
                wire, failures = connect(), 0
        assert not differing, "".join(differing)
    finally:
        original.kill()
    server.end_well()
