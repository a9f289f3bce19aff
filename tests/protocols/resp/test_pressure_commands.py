"""PRESSURE.*: options, replies, errors and documentation; what closing and deleting a queue does."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hiredis
import pytest

from handlers.resp import commands
from handlers.resp.table import COMMANDS
from tests.support.native import (
    NativeClient,
    NativeError,
    NativeSteps,
    Steps,
    run,
    step_until,
)
from tests.support.programs import (
    TIMEOUT,
    Client,
    Server,
    StartServer,
    Valkey,
    keys_left,
    wait_for,
    wait_until_settled,
)
from tests.support.series import matches, refusals, run_series, words
from tests.support.waiters import (
    Waiter,
    Words,
    about,
    all_are_refused,
    blocked,
    create,
    is_refused,
    wait_for_blocked,
    wait_for_waiting,
    waiters,
)

# Commands with their replies, on an empty server. A str is the beginning of an error.
CREATING = [
    ("PRESSURE.EXISTS q", 0),
    ("PRESSURE.CREATE q", b"OK"),
    ("PRESSURE.CREATE q", "EXISTS queue 'q' already exists"),
    ("PRESSURE.CREATE q BOUND 5", "EXISTS "),
    ("PRESSURE.EXISTS q", 1),
    ("PRESSURE.CREATE bounded bound 0007", "ERR value is not an integer or out of range"),
    ("PRESSURE.CREATE bounded bound 7", b"OK"),
    ("PRESSURE.CREATE strict Overflow Error", b"OK"),
    ("PRESSURE.CREATE both OVERFLOW block BOUND 9007199254740992", b"OK"),
    ("PRESSURE.LIST", [b"both", b"bounded", b"q", b"strict"]),
    ("PRESSURE.LIST MATCH b*", [b"both", b"bounded"]),
    ("PRESSURE.LIST match [qs]*", [b"q", b"strict"]),
    ("PRESSURE.LIST MATCH nothing", []),
]
PUTTING = [
    ("PRESSURE.CREATE q BOUND 2 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.PUT q a", 1),
    ("PRESSURE.PUT q a NX", 0),
    ("PRESSURE.PUT q a", 1),
    ("PRESSURE.LENGTH q", 2),
    ("PRESSURE.PUT q b", "FULL queue 'q' is full"),
    *refusals("FULL ", "PUT q b", "NX", "NOWAIT", "nowait nx", "TIMEOUT 0.02", "NX TIMEOUT 0.02"),
    ("PRESSURE.PUT q a NX NOWAIT", 0),
    ("PRESSURE.LENGTH q", 2),
    ("PRESSURE.PUT q b OVERFILL", 1),
    ("PRESSURE.PUT q b OVERFILL NX", 0),
    ("PRESSURE.PUT q c NX overfill NOWAIT", 1),
    ("PRESSURE.LENGTH q", 4),
    ("PRESSURE.GET q", b"a"),
    ("PRESSURE.GET q NOWAIT", b"a"),
    ("PRESSURE.PUT q d", "FULL "),
    ("PRESSURE.GET q TIMEOUT 0.5", b"b"),
    ("PRESSURE.PUT q '' ", 1),
    ("PRESSURE.GET q timeout 0", b"c"),
    ("PRESSURE.GET q", b""),
    ("PRESSURE.GET q NOWAIT", None),
    ("PRESSURE.GET q TIMEOUT 0.02", None),
]
ALTERING = [
    ("PRESSURE.CREATE q IF NOT EXISTS BOUND 2 OVERFLOW ERROR", 1),
    ("PRESSURE.CREATE q BOUND 5 if not exists", 0),
    ("PRESSURE.CREATE q BOUND 5", "EXISTS "),
    ("SADD q a b", 2),
    ("SADD q c", "FULL "),
    ("PRESSURE.ALTER q BOUND 3", b"OK"),
    ("SADD q c", 1),
    ("SADD q d", "FULL "),
    ("PRESSURE.ALTER q BOUND 1", b"OK"),
    ("SPOP q 2", [b"a", b"b"]),
    ("SADD q d", "FULL "),
    ("SPOP q", b"c"),
    ("SADD q d", 1),
    ("SADD q e", "FULL "),
    ("PRESSURE.ALTER q bound 0", b"OK"),
    ("SADD q e f g", 3),
    ("PRESSURE.ALTER q BOUND 2 OVERFLOW BLOCK", b"OK"),
    ("PRESSURE.PUT q h TIMEOUT 0.02", "FULL "),
    ("PRESSURE.ALTER q MAX-DELIVERIES 3", b"OK"),
    ("PRESSURE.CREATE j MAX-DELIVERIES 1", b"OK"),
    ("PRESSURE.ALTER j DEAD-LETTER dead", b"OK"),
    ("PRESSURE.ALTER j MAX-DELIVERIES 0", b"OK"),
    ("PRESSURE.ALTER j DEAD-LETTER dead", "TYPE "),
    ("PRESSURE.ALTER j MAX-DELIVERIES 2 DEAD-LETTER dead", b"OK"),
    ("PRESSURE.ALTER j DEAD-LETTER ''", b"OK"),
    ("PRESSURE.ALTER j MAX-DELIVERIES 0 DEAD-LETTER dead", "TYPE "),
    ("PRESSURE.ALTER j RETRY-DELAY-MAX 9", "TYPE "),
    ("PRESSURE.ALTER j RETRY-DELAY 1 RETRY-DELAY-MAX 9", b"OK"),
    ("PRESSURE.ALTER j RETRY-DELAY-MAX 8", b"OK"),
    ("PRESSURE.ALTER j RETRY-DELAY 0", b"OK"),
    ("PRESSURE.ALTER j RETRY-DELAY-MAX 9", "TYPE "),
    ("PRESSURE.ALTER j ACK-TTR 9", "TYPE "),
    ("PRESSURE.ALTER j ACK NEXT ACK-TTR 9", b"OK"),
    ("PRESSURE.ALTER j ACK FINAL", b"OK"),
    ("PRESSURE.ALTER j ACK-TTR 9", "TYPE "),
    ("PRESSURE.ALTER j OVERFLOW OVERWRITE", "TYPE queue 'j' has no BOUND or MAX-BYTES"),
    ("PRESSURE.ALTER j MAX-BYTES 9 OVERFLOW OVERWRITE", b"OK"),
    ("PRESSURE.ALTER j MAX-BYTES 0 OVERFLOW OVERWRITE", "TYPE "),
    ("PRESSURE.CREATE log TYPE LOG", b"OK"),
    ("PRESSURE.GROUP CREATE log g", b"OK"),
    ("PRESSURE.ALTER log+g BOUND 1", "TYPE queue 'log+g' belongs to a group"),
    ("PRESSURE.ALTER log+g OVERFLOW ERROR", "TYPE "),
    ("PRESSURE.ALTER log+g BOUND 0", b"OK"),
]
OVERWRITING = [
    ("PRESSURE.CREATE q BOUND 3 OVERFLOW OVERWRITE", b"OK"),
    ("SADD q a b c", 3),
    ("SADD q c", 0),
    ("SADD q d", 1),
    ("SMEMBERS q", [b"b", b"c", b"d"]),
    ("SADD q a b", 1),
    ("LPUSH q x y", 3),
    ("LRANGE q 0 -1", [b"a", b"x", b"y"]),
    ("PRESSURE.PUT q z", 1),
    ("PRESSURE.PUT q w NOWAIT", 1),
    ("PRESSURE.PUT q w NX", 0),
    ("LRANGE q 0 -1", [b"y", b"z", b"w"]),
    ("LPUSH q 1 2 3 4 5", 3),
    ("LRANGE q 0 -1", [b"3", b"4", b"5"]),
    ("PRESSURE.PUT q 6 TIMEOUT 0.02", "FULL "),
    ("PRESSURE.PUT q 6 OVERFILL", 1),
    ("LLEN q", 4),
    ("LPUSH q 7", 3),
    ("LRANGE q 0 -1", [b"5", b"6", b"7"]),
    ("LPUSH from a", 1),
    ("LMOVE from q RIGHT LEFT", b"a"),
    ("LRANGE q 0 -1", [b"6", b"7", b"a"]),
    ("PRESSURE.CREATE p BOUND 2 OVERFLOW ERROR", b"OK"),
    ("PRESSURE.PUT p a OVERWRITE", 0),
    ("PRESSURE.PUT p b OVERWRITE", 0),
    ("PRESSURE.PUT p c OVERWRITE", 1),
    ("PRESSURE.PUT p d", "FULL "),
    ("LRANGE p 0 -1", [b"b", b"c"]),
    ("PRESSURE.ALTER p OVERFLOW OVERWRITE", b"OK"),
    ("LPUSH p d", 2),
    ("PRESSURE.CREATE j TYPE JOBS BOUND 1", b"OK"),
    ("PRESSURE.PUT j a OVERWRITE", 0),
    ("PRESSURE.PUT j b OVERWRITE", 1),
    ("PRESSURE.ALTER j OVERFLOW OVERWRITE BOUND 2", b"OK"),
    ("PRESSURE.PUT j urgent PRIORITY 1", 3),
    ("PRESSURE.PUT j c PRIORITY 2000", 4),
    ("LRANGE j 0 -1", [b"urgent", b"b"]),
    ("LPUSH j d e f", 2),
    ("LRANGE j 0 -1", [b"urgent", b"f"]),
    ("SADD j g f", 1),
    ("LRANGE j 0 -1", [b"urgent", b"g"]),
    ("PRESSURE.PUT q 8 PRIORITY 1", 68),
    ("LRANGE q 0 -1", [b"8", b"7", b"a"]),
]
CLOSING = [
    ("PRESSURE.CREATE q", b"OK"),
    ("PRESSURE.PUT q a", 1),
    ("PRESSURE.PUT q b", 1),
    ("PRESSURE.CLOSED q", 0),
    ("PRESSURE.CLOSE q", b"OK"),
    ("PRESSURE.CLOSED q", 1),
    ("PRESSURE.CLOSE q", "CLOSED queue 'q' is closed"),
    *refusals("CLOSED ", "PUT q c", "", "NX", "NOWAIT", "TIMEOUT 5", "OVERFILL", "OVERFILL NX NOWAIT"),
    ("SADD q c", "CLOSED "),
    ("PRESSURE.LENGTH q", 2),
    ("PRESSURE.GET q", b"a"),
    ("PRESSURE.GET q TIMEOUT 5", b"b"),
    *refusals("CLOSED ", "GET q", "", "NOWAIT", "TIMEOUT 0", "TIMEOUT 5"),
    ("SPOP q", None),
    ("PRESSURE.EXISTS q", 1),
    ("PRESSURE.LENGTH q", 0),
    ("PRESSURE.DELETE q", b"OK"),
    ("PRESSURE.EXISTS q", 0),
    ("PRESSURE.DELETE q", "NOQUEUE queue 'q' does not exist"),
    ("PRESSURE.CREATE q", b"OK"),
    ("PRESSURE.CLOSED q", 0),
]
MISSING = [
    ("PRESSURE.LENGTH q", "NOQUEUE queue 'q' does not exist: PRESSURE.CREATE makes it"),
    ("PRESSURE.ALTER q BOUND 1", "NOQUEUE "),
    *[(f"PRESSURE.{name} q", "NOQUEUE ") for name in ("CLOSED", "INFO", "CLOSE", "DELETE")],
    *refusals("NOQUEUE ", "GET q", "", "NOWAIT", "TIMEOUT 5"),
    *refusals("NOQUEUE ", "PUT q a", "", "NX", "NOWAIT", "OVERFILL", "NX OVERFILL"),
    ("PRESSURE.LIST", []),
]

SYNTAX, BOUND = "ERR syntax error", "ERR value is not an integer or out of range"
NO_TIMEOUT, NO_NAME = "ERR timeout is not a float or out of range", "ERR 'q:bound' cannot be a queue's name"
REFUSED = [
    *refusals(SYNTAX, "CREATE new", "BOUND", "OVERFLOW", "OVERFLOW drop", "5", "BOUND 5 OVERFLOW"),
    ("PRESSURE.CREATE x BOUND", "ERR syntax error: BOUND needs a value after it"),
    ("PRESSURE.CREATE x SIZE 5", "ERR syntax error: 'SIZE' is none of the options IF NOT EXISTS, BOUND, "),
    *refusals(SYNTAX, "CREATE new BOUND 5", "BOUND 6", "OVERFLOW BLOCK BOUND 5"),
    *refusals(SYNTAX, "CREATE new OVERFLOW BLOCK", "OVERFLOW ERROR", "BOUND 5 OVERFLOW BLOCK"),
    *refusals(SYNTAX, "CREATE new IF", "", "NOT", "NOT EXIST", "NOT EXISTS BOUND"),
    *refusals("ERR OVERFLOW OVERWRITE needs", "CREATE new OVERFLOW OVERWRITE", "", "TYPE JOBS"),
    *refusals(BOUND, "CREATE new MAX-BYTES", "x", "-1"),
    *refusals("ERR timeout is", "CREATE new TTL", "x", "-1"),
    *refusals("ERR OVERWRITE can be", "PUT q m OVERWRITE", "NX", "NOWAIT", "PRIORITY 1", "OVERFILL"),
    *refusals(SYNTAX, "ALTER q", "", "BOUND", "TYPE JOBS", "OVERFLOW drop", "BOUND 1 BOUND 2"),
    *refusals(BOUND, "ALTER q BOUND", "x", "-1", "9007199254740993"),
    *refusals("ERR value is out of range", "ALTER q MAX-DELIVERIES", "-1", "x"),
    *refusals("ERR a queue cannot be its own", "ALTER q", "DEAD-LETTER q"),
    *refusals(BOUND, "CREATE new BOUND", "x", "-1", "1.5", "''", "9007199254740993"),
    *refusals(SYNTAX, "PUT q m", "TIMEOUT", "NONSENSE", "NX XX", "m2", "''", "NOWAIT TIMEOUT 1"),
    *refusals(SYNTAX, "PUT q m", "TIMEOUT 1 NOWAIT", "TIMEOUT 1 TIMEOUT 2"),
    *refusals(NO_TIMEOUT, "PUT q m TIMEOUT", "x", "nan", "inf", "''", "NX"),
    *refusals("ERR timeout is negative", "PUT q m TIMEOUT", "-1", "-0.001"),
    *refusals("ERR timeout is out of range", "PUT q m TIMEOUT", "1e300"),
    *refusals(SYNTAX, "GET q", "TIMEOUT", "NONSENSE", "5", "NOWAIT NOWAIT", "NOWAIT TIMEOUT 1"),
    *refusals(SYNTAX, "GET q", "TIMEOUT 1 2", "TIMEOUT 1 NOWAIT", "TIMEOUT 1 TIMEOUT 2"),
    *refusals(NO_TIMEOUT, "GET q TIMEOUT", "x", "nan", "inf", "''"),
    *refusals("ERR timeout is negative", "GET q TIMEOUT", "-1", "-0.001"),
    *refusals("ERR timeout is out of range", "GET q TIMEOUT", "1e300"),
    *refusals(SYNTAX, "LIST", "MATCH", "NONSENSE q", "q", "MATCH q q"),
    *refusals(NO_NAME, "CREATE", "q:bound", "q:bound BOUND 1"),
    *refusals(NO_NAME, "PUT", "q:bound m", "q:bound m NX", "q:bound m NOWAIT"),
    *refusals(NO_NAME, "GET", "q:bound", "q:bound NOWAIT"),
    *[(f"PRESSURE.{name} q:bound", NO_NAME) for name in ("LENGTH", "CLOSED", "CLOSE", "DELETE", "INFO")],
]
for _name, *_ends in (
    ("CREATE", ""),
    ("PUT", "", "q"),
    ("GET", ""),
    *((name, "", "q q") for name in ("EXISTS", "LENGTH", "CLOSED", "CLOSE", "DELETE", "INFO")),
):
    _error = f"ERR wrong number of arguments for 'pressure.{_name.lower()}' command"
    REFUSED += refusals(_error, _name, *_ends)


@pytest.fixture(params=[False, True], ids=["RESP2", "RESP3"])
def connection(server: Server, request: pytest.FixtureRequest) -> Iterator[Waiter]:
    """A plain connection that speaks RESP2 or RESP3."""
    with Waiter(server.port, resp3=request.param) as waiter:
        yield waiter


@pytest.mark.parametrize("script", [CREATING, PUTTING, ALTERING, OVERWRITING, CLOSING, MISSING])
def test_a_series_of_commands_has_the_documented_replies(
    connection: Waiter, script: list[tuple[str, Any]]
) -> None:
    run_series(connection, script)


def test_invalid_arguments_are_refused_and_change_nothing(
    connection: Waiter, client: Client, direct: Client
) -> None:
    create(client, "q", "BOUND", 2)
    client.rpush("q", "there")
    wait_until_settled(direct)
    keys = sorted(keys_left(direct))
    replies = [(line, connection(*words(line)), expected) for line, expected in REFUSED]
    assert [(line, reply) for line, reply, expected in replies if not matches(reply, expected)] == []
    assert sorted(keys_left(direct)) == keys
    assert client.lrange("q", 0, -1) == [b"there"]


def test_every_command_is_in_command_docs(connection: Waiter) -> None:
    commands.load()
    names = [name for name in COMMANDS if name.startswith(b"PRESSURE.")]
    assert len(names) == 30
    docs = mapping(connection("COMMAND", "DOCS", *names))
    assert {name.upper() for name in docs} == set(names)
    for name, found in docs.items():
        described = mapping(found)
        assert described[b"group"] in (b"pressure", b"jobs", b"logs")
        assert described[b"summary"].endswith(b".")
        spec = COMMANDS[name.upper()]
        if spec.subcommands:
            continue
        arguments = [mapping(argument) for argument in described.get(b"arguments", ())]
        tokens = [argument.get(b"token", b"").decode() for argument in arguments]
        assert tokens == [argument.token for argument in spec.arguments]
        if spec.names_queues:
            assert arguments[0][b"type"] == b"key"
            others = sum(argument.words for argument in spec.arguments[1:] if not argument.optional)
            assert connection("COMMAND", "GETKEYS", name, "q", *["m"] * others) == [b"q"], name


def mapping(reply: Any) -> dict[Any, Any]:
    """Return a map of RESP3, or RESP2's list of names and values, as a dict."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def test_info_returns_the_settings_and_statistics_of_a_queue(connection: Waiter) -> None:
    connection("PRESSURE.CREATE", "q", "BOUND", 3, "OVERFLOW", "ERROR")
    for message in ("1", "22", "333"):
        connection("PRESSURE.PUT", "q", message)
    connection("PRESSURE.GET", "q")
    connection("PRESSURE.CLOSE", "q")
    found = mapping(connection("PRESSURE.INFO", "q"))
    assert list(found) == [
        b"bound", b"length", b"closed", b"overflow", b"dropped_messages", b"producer", b"producer_role",
        b"consumer", b"consumer_role", b"produced_messages", b"produced_bytes", b"consumed_messages",
        b"consumed_bytes", b"waiting_producers", b"waiting_consumers", b"type", b"ready", b"delayed",
        b"reserved", b"buried", b"paused_ms", b"unique", b"max_deliveries", b"dead_letter", b"head_offset",
        b"tail_offset", b"groups", b"group_of", b"missed_messages", b"max_bytes",
        b"ack", b"ack_ttr_ms", b"retry_delay_ms", b"retry_delay_max_ms", b"in_flight", b"rate",
        b"ttl_ms", b"template", b"prefix",
    ]  # fmt: skip
    assert found.pop(b"producer").startswith(b"pressure-server:")
    assert found.pop(b"consumer").startswith(b"pressure-server:")
    assert list(found.values()) == [
        3, 2, 1, b"error", 0, b"free", b"free", 3, 6, 1, 1, 0, 0, b"fifo", 2, 0, 0, 0, 0, b"", 0, b"",
        None, None, 0, b"", 0, 0, b"final", 0, 0, 0, 0, b"", 0, b"", b"__pressure__",
    ]  # fmt: skip


def begin(client: Client, direct: Client, role: str) -> Steps[Any]:
    """Begin a native put of `m`, or a native get, which then holds the role."""
    native = NativeSteps(direct, "q", f"native-{role}")
    steps: Steps[Any] = native.put(b"m") if role == "producer" else native.get()
    step_until(steps, lambda: about(client, "q")[role.encode()] == f"native-{role}".encode())
    return steps


def test_info_names_the_holders_of_roles_and_counts_waiting_clients(
    client: Client, direct: Client, server: Server
) -> None:
    create(client, "q", "BOUND", 1)
    put, get = begin(client, direct, "producer"), begin(client, direct, "consumer")
    with waiters(server, 5) as waiting:
        for waiter in waiting[:3]:
            waiter.send("PRESSURE.PUT", "q", "served")
        for waiter in waiting[3:]:
            waiter.send("PRESSURE.GET", "q")
        wait_for_waiting(client, "q", consumers=2, producers=3)
        found = about(client, "q")
        assert (found[b"producer_role"], found[b"consumer_role"]) == (b"held", b"held")
        run(put)
        assert run(get) == b"m"
        # The bound is 1: the two gets make room for all three puts.
        assert [waiter.reply() for waiter in waiting] == [1, 1, 1, b"served", b"served"]
    # A turn for which the server has asked may come now: it is given back at once.
    roles = (b"producer_role", b"consumer_role")
    wait_for(lambda: {about(client, "q")[role] for role in roles} == {b"free"}, "both roles to be free")
    found = about(client, "q")
    assert (found[b"waiting_producers"], found[b"waiting_consumers"]) == (0, 0)
    assert (found[b"produced_messages"], found[b"consumed_messages"]) == (4, 3)


def test_nowait_and_timeout_limit_the_wait_for_a_role(client: Client, direct: Client, waiter: Waiter) -> None:
    create(client, "q")
    client.rpush("q", "first", "second")
    put, get = begin(client, direct, "producer"), begin(client, direct, "consumer")
    for line in ("PRESSURE.PUT q x NOWAIT", "PRESSURE.PUT q x TIMEOUT 0.05"):
        assert matches(waiter(*words(line)), "INUSE queue 'q' is in use by its producer 'native-producer'")
    in_use = "INUSE queue 'q' is in use by its consumer 'native-consumer'"
    assert matches(waiter("PRESSURE.GET", "q", "NOWAIT"), in_use)
    # TIMEOUT ends before the role timeout, so the reply is nil instead of an error.
    assert waiter("PRESSURE.GET", "q", "TIMEOUT", 0.05) is None
    run(put)
    assert run(get) == b"first"
    assert client.lrange("q", 0, -1) == [b"second", b"m"]


def test_a_put_with_a_timeout_waits_despite_overflow_error(client: Client, waiter: Waiter) -> None:
    create(client, "q", "BOUND", 1, "OVERFLOW", "ERROR")
    assert waiter("PRESSURE.PUT", "q", "1") == 1
    began = time.monotonic()
    assert is_refused(waiter("PRESSURE.PUT", "q", "2", "TIMEOUT", 0.2), "FULL")
    assert 0.19 <= time.monotonic() - began < 3


def test_native_puts_that_wait_for_room_go_on_when_the_bound_is_raised(
    client: Client, direct: Client
) -> None:
    create(client, "q", "BOUND", 1)
    assert client.sadd("q", "1") == 1
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(NativeClient(direct, "q").put, b"2")
        wait_for(lambda: not direct.exists("__pressure__:q:producer_free"), "the native put to begin")
        assert client.execute_command("PRESSURE.ALTER", "q", "BOUND", 2) == b"OK"
        put.result(10)
    assert client.lrange("q", 0, -1) == [b"1", b"2"]
    assert not direct.exists("__pressure__:q:not_full")


def test_a_put_that_would_overwrite_waits_for_a_native_get_in_progress(
    client: Client, direct: Client, waiter: Waiter
) -> None:
    create(client, "q", "BOUND", 1, "OVERFLOW", "OVERWRITE")
    client.lpush("q", "1")
    get = NativeSteps(direct, "q", "native-consumer").get()
    step_until(get, lambda: not direct.exists("__pressure__:q:consumer_free"))
    waiter.send("LPUSH", "q", "2")
    wait_for_waiting(client, "q", producers=1)
    assert run(get) == b"1"
    assert waiter.reply() == 1
    assert client.lrange("q", 0, -1) == [b"2"]
    assert about(client, "q")[b"dropped_messages"] == 0


def test_an_altered_queue_does_not_expire(client: Client, direct: Client) -> None:
    assert client.sadd("q", "1") == 1
    assert direct.hget("__pressure__:q:ext:settings", "implicit") == b"1"
    assert client.execute_command("PRESSURE.ALTER", "q", "BOUND", 2) == b"OK"
    assert direct.hget("__pressure__:q:ext:settings", "implicit") is None


DELETES: dict[str, Callable[[Client, Client], object]] = {
    "by command": lambda client, _direct: client.execute_command("PRESSURE.DELETE", "q"),
    "natively": lambda _client, direct: NativeClient(direct, "q").delete(),
}
each_delete = pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES)


def wait_for_no_key(direct: Client) -> None:
    """Return when the queue has no keys; the server deletes its own keys a moment after a native client's."""
    wait_for(lambda: direct.keys("*:q*") == [], f"no key to be left, not {keys_left(direct)}")


@each_delete
@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_delete_wakes_waiting_clients_of_both_kinds_and_leaves_no_key(
    backend: Valkey, server: Server, client: Client, direct: Client, delete: Callable[..., None], role: str
) -> None:
    create(client, "q", "BOUND", 1)
    client.sadd("q", "full")
    if role == "consumer":
        assert client.spop("q") == b"full"

    def work_natively() -> str:
        with backend.client() as connected:
            native = NativeClient(connected, "q")
            try:
                native.get() if role == "consumer" else native.put(b"native")
            except NativeError as error:
                return type(error).__name__
        return "done"

    command: Words = ("PRESSURE.GET", "q") if role == "consumer" else ("PRESSURE.PUT", "q", "served")
    with waiters(server, 4) as waiting, ThreadPoolExecutor() as threads:
        outcomes = [threads.submit(work_natively) for _ in range(2)]
        wait_for(lambda: blocked(direct) == 2, "the native clients to wait")
        for waiter in waiting:
            waiter.send(*command, "TIMEOUT", 0)
        wait_for_waiting(client, "q", **{f"{role}s": 4})
        delete(client, direct)
        ended = sorted(outcome.result(TIMEOUT) for outcome in outcomes)
        all_are_refused(waiting, "NOQUEUE", "CLOSED")
    if role == "consumer":
        assert ended == ["QueueClosedError", "QueueClosedError"]
    else:
        # By the specification, the producer that waits for room puts into the queue before it is gone. The
        # second one does so, too, if it is faster than the steps of the deletion.
        assert ended in (["QueueClosedError", "done"], ["done", "done"])
    wait_for_blocked(client, 0)
    wait_for_no_key(direct)


@each_delete
def test_delete_during_puts_and_gets_leaves_no_key(
    server: Server, client: Client, direct: Client, delete: Callable[..., None]
) -> None:
    create(client, "q", "BOUND", 5)

    def repeat(command: Words) -> str:
        with Waiter(server.port) as busy:
            while not isinstance(reply := busy(*command), hiredis.ReplyError):
                pass
        return str(reply).partition(" ")[0]

    commands: list[Words] = [("PRESSURE.PUT", "q", "m")] * 3 + [("PRESSURE.PUT", "q", "n", "NX")]
    commands += [("PRESSURE.GET", "q")] * 3
    with ThreadPoolExecutor() as threads:
        repeating = [threads.submit(repeat, command) for command in commands]
        wait_for(lambda: about(client, "q")[b"consumed_messages"] > 100, "messages to go through")
        delete(client, direct)
        assert {repeated.result(TIMEOUT) for repeated in repeating} <= {"NOQUEUE", "CLOSED"}
    wait_for_no_key(direct)


def test_delete_fails_as_in_use_while_a_native_client_holds_a_role(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--role-timeout", "0.2")
    with server.client() as client, Waiter(server.port) as waiter:
        create(client, "q")
        begin(client, direct, "producer")
        assert matches(
            waiter("PRESSURE.DELETE", "q"), "INUSE queue 'q' is in use by its producer 'native-producer'"
        )
        # The deletion has begun: until it is complete, the queue can neither be used nor created.
        assert waiter("PRESSURE.EXISTS", "q") == 0
        assert is_refused(waiter("PRESSURE.CREATE", "q"), "INUSE")
