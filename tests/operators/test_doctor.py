"""The doctor: it repairs the queues of dead native clients, and leaves live clients alone."""

import itertools
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pressure_server.errors import BackendError
from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.options import UNIQUE
from pressure_server.queues.repair import Case, Finding, Snapshot
from tests.support.native import NativeClient, NativeError, NativeSteps, Steps, run, step_until
from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, Client, StartServer, Valkey, keys_left
from tests.support.repair_table import MARKER, table
from tests.support.waiters import wait_for_blocked
from tests.support.ward import OPERATIONS, STATES, Keys, Ward, copy_queue, drop_queue, naming

QUEUE = "q"
BASE = f"__pressure__:{QUEUE}"
DOCUMENT = ROOT / "docs" / "guides" / "repair.md"
SCRIPTS = ROOT / "pressure_server" / "lua"
REPAIRS = 20
PRODUCED, CONSUMED = "produced_messages", "consumed_messages"
# Seconds within which a thread that is woken up continues.
WAKE_UP_TIME = 0.4


@pytest.fixture
def ward(backend: Valkey) -> Iterator[Ward]:
    made = Ward(backend)
    yield made
    made.close()


def abandon(steps: Steps[Any], count: int) -> bool:
    """Do `count` steps of an operation. Return False if it ended or had to wait before."""
    try:
        for _ in range(count):
            if next(steps) is not None:
                return False
    except (StopIteration, NativeError):
        return False
    finally:
        steps.close()
    return True


def create(direct: Client, bound: int, *messages: bytes, queue: str = QUEUE) -> None:
    native = NativeSteps(direct, queue, "earlier")
    run(native.create(bound))
    for message in messages:
        run(native.put(message))


def victim(direct: Client) -> NativeSteps:
    return NativeSteps(direct, QUEUE, "victim")


def read(ward: Ward) -> Keys:
    return Keys.read(ward.direct, QUEUE)


# Every state in which a client can die.


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_every_death_is_repaired_and_the_table_of_deaths_is_current(backend: Valkey) -> None:
    current = table(backend)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert current.count("\n|") > 70
    assert text.partition(MARKER)[2] == current, f"run: python -m tests.support.repair_table {DOCUMENT}"


def queues_with_two_deaths(direct: Client) -> dict[str, Keys]:
    """Return queues with different keys, in which a producer of 0.15 and a consumer of 0.1 died."""
    found: dict[Keys, str] = {}
    for state in STATES:
        if state.name not in ("bound 3, 1 message", "one below its bound of 2", "full, of 2", "new"):
            continue
        state.make(direct, "before")
        for producer_first, puts, gets in itertools.product((True, False), range(1, 12), range(1, 10)):
            copy_queue(direct, "before", QUEUE)
            put = OPERATIONS["put"](NativeSteps(direct, QUEUE, "dead producer"))
            get = OPERATIONS["get"](NativeSteps(direct, QUEUE, "dead consumer", version="0.1"))
            pair = [(put, puts), (get, gets)]
            died = [abandon(*one) for one in (pair if producer_first else reversed(pair))]
            keys = Keys.read(direct, QUEUE)
            if all(died) and keys not in found:
                order = "put first" if producer_first else "get first"
                found[keys] = copy_queue(direct, QUEUE, f"{state.name}, {order}, steps {puts:02} and {gets}")
            drop_queue(direct, QUEUE)
        drop_queue(direct, "before")
    return {queue: keys for keys, queue in found.items()}


@pytest.mark.slow
def test_a_dead_producer_and_a_dead_consumer_of_one_queue_are_repaired(ward: Ward) -> None:
    """A role that a live client could hold is kept; so the test brings what that client would wait for."""
    died = queues_with_two_deaths(ward.direct)
    assert len(died) > 100
    messages = {queue: list(keys.messages) for queue, keys in died.items()}
    for _ in range(3):
        assert not [told.left for told in ward.repair().values() if told.left]
        for queue, expected in messages.items():
            keys = Keys.read(ward.direct, queue)
            other = NativeSteps(ward.direct, queue, "other")
            with naming(queue):
                assert list(keys.messages) == expected
                if keys.producer_may_wait:
                    assert run(other.get()) == expected.pop(0)
                elif keys.consumer_may_wait:
                    run(other.put(b"more"))
                    expected.append(b"more")
    ward.assert_all_work(messages)


def test_the_server_s_own_queues_have_no_problem(ward: Ward) -> None:
    for state in STATES:
        ward.operate(state.name, verbs.CREATE, b"%d" % (state.bound or 0))
        messages = [b"%d" % number for number in range(min(state.put, state.bound or 9))]
        if messages:
            ward.operate(state.name, verbs.PUT, *messages, size=len(messages), options=UNIQUE)
        ward.operate(state.name, verbs.CONTAINS, b"1")
        if state.taken:
            ward.operate(state.name, verbs.GET)
        if state.closed:
            ward.operate(state.name, verbs.CLOSE)
    assert not ward.repair()


# Live clients.


def start(direct: Client, work: Callable[[], Any]) -> Future[Any]:
    """Run `work` in a thread. Return when it is blocked at the backend."""
    result: Future[Any] = Future()
    threading.Thread(target=lambda: result.set_result(work()), daemon=True).start()
    wait_for_blocked(direct, 1)
    return result


@pytest.fixture
def waiting(backend: Valkey) -> Iterator[NativeClient]:
    """A native client that blocks, on a connection of its own."""
    with backend.client() as connection:
        yield NativeClient(connection, QUEUE, "waiting")


def test_a_live_producer_gets_the_token_that_a_dead_consumer_did_not_push(
    ward: Ward, waiting: NativeClient
) -> None:
    create(ward.direct, 1, b"first")
    blocked = start(ward.direct, lambda: waiting.put(b"last"))
    step_until(victim(ward.direct).get(), lambda: ward.direct.llen(BASE) == 0)
    ward.doctor.wait = WAKE_UP_TIME
    told = ward.repair_only(QUEUE)
    blocked.result(TIMEOUT)
    assert "no :not_full token" in {finding.name for finding in told.found[0]}
    assert "gave the producer role back" not in told.done
    assert not told.left
    assert read(ward).messages == (b"last",)
    ward.doctor.wait = 0
    # There is a message now, so a consumer that holds the role cannot be waiting.
    assert not ward.repair_only(QUEUE).left
    ward.assert_works(QUEUE)


def test_a_producer_that_waits_for_a_dead_one_gets_the_role(ward: Ward, waiting: NativeClient) -> None:
    create(ward.direct, 0)
    step_until(victim(ward.direct).put(b"x"), lambda: not read(ward).producer_free)
    blocked = start(ward.direct, lambda: waiting.put(b"y"))
    ward.doctor.wait = WAKE_UP_TIME
    assert ward.repair_only(QUEUE).done == ["gave the producer role back"]
    blocked.result(TIMEOUT)
    assert read(ward).messages == (b"y",)
    ward.assert_works(QUEUE)


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_delete_that_waits_for_a_dead_client_finishes(ward: Ward, waiting: NativeClient, role: str) -> None:
    create(ward.direct, 0, b"first")
    steps = victim(ward.direct).put(b"x") if role == "producer" else victim(ward.direct).get()
    step_until(steps, lambda: ward.direct.get(f"{BASE}:{role}") == b"victim")
    blocked = start(ward.direct, waiting.delete)
    ward.doctor.wait = WAKE_UP_TIME
    assert not ward.repair_only(QUEUE).left
    blocked.result(TIMEOUT)
    # A token that the deleter did not need may be left.
    ward.doctor.wait = 0
    assert not ward.repair_only(QUEUE).left
    assert keys_left(ward.direct) == []


def test_the_surplus_tokens_of_a_client_that_was_taken_for_dead_are_removed(ward: Ward) -> None:
    create(ward.direct, 2, b"first")
    put = victim(ward.direct).put(b"late")
    step_until(put, lambda: not read(ward).not_full)
    assert not ward.repair_only(QUEUE).left
    run(put)
    assert read(ward).producer_free == 2
    told = ward.repair_only(QUEUE)
    found = {finding.name for finding in told.found[0]}
    assert found == {"too many tokens", ":not_full token on a full queue"}
    assert not told.left
    assert read(ward).messages == (b"first", b"late")
    ward.assert_works(QUEUE)


# Servers, which park a token during their turn.


def test_a_server_that_is_stopped_in_its_turn_loses_only_the_turn(
    ward: Ward, backend: Valkey, start_server: StartServer
) -> None:
    create(ward.direct, 0)
    server = start_server("--backend", backend.url, "--role-timeout", "30")
    native = victim(ward.direct).put(b"native")
    step_until(native, lambda: not read(ward).producer_free)
    with server.client() as client:
        blocked = start(ward.direct, lambda: client.sadd(QUEUE, "server"))
        server.process.send_signal(signal.SIGSTOP)
        run(native)
        assert ward.direct.llen(f"{BASE}:ext:producer_turn") == 1
        assert ward.repair_only(QUEUE).done == ["moved the producer's token back"]
        run(NativeSteps(ward.direct, QUEUE, "other").put(b"meanwhile"))
        server.process.send_signal(signal.SIGCONT)
        assert blocked.result(TIMEOUT) == 1
    assert read(ward).messages == (b"native", b"meanwhile", b"server")
    ward.assert_works(QUEUE)
    assert server.stop() == 0


def park(direct: Client, role: str) -> None:
    """Do what a server does when its turn begins."""
    direct.lmove(f"{BASE}:{role}_free", f"{BASE}:ext:{role}_turn", "RIGHT", "LEFT")


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_only_a_token_that_stays_parked_is_moved_back(ward: Ward, role: str) -> None:
    create(ward.direct, 0, b"first")
    park(ward.direct, role)
    (case,) = ward.examine().values()
    ward.operate(QUEUE, verbs.TURN)
    assert ward.fix(case) == []
    assert ward.look_again() == []
    park(ward.direct, role)
    told = ward.repair_only(QUEUE)
    assert told.summary == f"{role}'s token parked"
    assert told.done == [f"moved the {role}'s token back"]
    ward.assert_works(QUEUE)


def test_a_server_in_its_turn_is_left_alone_until_a_message_waits_for_it(ward: Ward) -> None:
    create(ward.direct, 1)
    park(ward.direct, "consumer")
    for _ in range(REPAIRS):
        assert not ward.repair()
    # A live server would take this message.
    run(NativeSteps(ward.direct, QUEUE, "other").put(b"first"))
    park(ward.direct, "producer")
    assert ward.repair_only(QUEUE).done == ["moved the consumer's token back"]
    run(NativeSteps(ward.direct, QUEUE, "other").get())
    assert ward.repair_only(QUEUE).done == ["moved the producer's token back"]
    ward.assert_works(QUEUE)


def test_a_parked_token_besides_the_free_one_is_removed(ward: Ward) -> None:
    create(ward.direct, 0)
    ward.direct.lpush(f"{BASE}:ext:consumer_turn", 0)
    assert ward.repair_only(QUEUE).summary == "too many tokens"
    ward.assert_works(QUEUE)


# A queue that has changed since it was examined.


def give_the_role_to_another(direct: Client) -> None:
    direct.lpush(f"{BASE}:producer_free", 0)
    abandon(NativeSteps(direct, QUEUE, "another").put(b"x"), 3)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda direct: direct.lpush(f"{BASE}:producer_free", 0), id="gave the role back"),
        pytest.param(give_the_role_to_another, id="another has the role"),
        pytest.param(lambda direct: direct.delete(f"{BASE}:not_full"), id="took the token"),
        pytest.param(lambda direct: direct.incr(f"{BASE}:stats:produced_messages"), id="counted"),
        pytest.param(lambda direct: direct.delete(f"{BASE}:bound"), id="deleted the queue"),
    ],
)
def test_nothing_is_repaired_if_the_producer_has_continued(
    ward: Ward, change: Callable[[Client], None]
) -> None:
    create(ward.direct, 0)
    assert abandon(victim(ward.direct).put(b"x"), 4)
    (case,) = ward.examine().values()
    change(ward.direct)
    before = read(ward)
    assert ward.fix(case) == []
    assert read(ward) == before


def test_a_consumer_that_may_wait_now_keeps_its_role(ward: Ward) -> None:
    create(ward.direct, 0, b"first")
    step_until(victim(ward.direct).get(), lambda: read(ward).consumer == b"victim")
    (case,) = ward.examine().values()
    ward.direct.rpop(BASE)
    assert "gave the consumer role back" not in ward.fix(case)
    assert read(ward).consumer_free == 0


def test_nothing_is_deleted_if_the_deleting_client_has_continued(ward: Ward) -> None:
    create(ward.direct, 0, b"first")
    steps = victim(ward.direct).delete()
    step_until(steps, lambda: read(ward).closed == 2)
    (case,) = ward.examine().values()
    next(steps)
    before = read(ward)
    assert ward.fix(case) == []
    assert read(ward) == before


def test_a_client_that_continues_between_examinations_is_not_stuck(ward: Ward) -> None:
    create(ward.direct, 0)
    put = victim(ward.direct).put(b"x")
    step_until(put, lambda: read(ward).producer == b"victim")
    assert len(ward.examine()) == 1
    run(put)
    assert ward.look_again() == []


def test_statistics_are_left_to_a_client_that_is_about_to_count(ward: Ward) -> None:
    create(ward.direct, 0, b"first")
    get = victim(ward.direct).get()
    step_until(get, lambda: not read(ward).messages)
    step_until(get, lambda: read(ward).not_full == 1)
    (case,) = ward.examine().values()
    assert "statistics" in case.since
    # The work of another client does not prove that this one is dead.
    run(NativeSteps(ward.direct, QUEUE, "other").put(b"second"))
    assert ward.fix(case) == []
    ward.look_again()
    assert "statistics" not in case.since
    run(get)
    ward.assert_works(QUEUE)


def snapshot(sign: bytes) -> Snapshot:
    return Snapshot(0, 1, {"producer stuck": Finding("producer stuck", sign, "", "", "")})


def test_a_problem_must_last_without_interruption() -> None:
    case = Case(b"q", snapshot(b"1"), examined_at=10.0)
    assert case.lasting(1) == []
    case.update(snapshot(b"1"), 11.0)
    assert [finding.name for finding in case.lasting(1)] == ["producer stuck"]
    assert case.lasting(2) == []
    case.update(snapshot(b"2"), 12.0)
    assert not case.since
    case.update(snapshot(b"2"), 13.0)
    assert [finding.name for finding in case.lasting(1)] == ["producer stuck"]
    assert case.lasting(2) == []


# Problems that are not the state after one of a client's steps.


@pytest.mark.parametrize("units", [["messages", "bytes"], ["messages"]])
@pytest.mark.parametrize("verb", ["produced", "consumed"])
@pytest.mark.parametrize("change", [3, -3])
def test_statistics_that_do_not_add_up_are_corrected(
    ward: Ward, verb: str, units: list[str], change: int
) -> None:
    create(ward.direct, 0, *[b"message %d" % number for number in range(5)])
    for unit in units:
        ward.direct.incrby(f"{BASE}:stats:{verb}_{unit}", change)
    assert ward.repair_only(QUEUE).summary == "statistics"
    read(ward).assert_sound()
    ward.assert_works(QUEUE)


@pytest.mark.parametrize("statistics", [[PRODUCED], [CONSUMED], ["produced_bytes"], [PRODUCED, CONSUMED]])
@pytest.mark.parametrize("text", ["12x", "", "9223372036854775807"])
def test_statistics_that_are_not_numbers_are_set_right(ward: Ward, statistics: list[str], text: str) -> None:
    create(ward.direct, 0, b"first", b"second")
    run(NativeSteps(ward.direct, QUEUE, "other").get())
    for statistic in statistics:
        ward.direct.set(f"{BASE}:stats:{statistic}", text)
    told = ward.repair_only(QUEUE)
    assert told.summary == "statistics"
    invalid = f"invalid value in {' and '.join(statistics)}: not a number, or too large"
    assert told.found[0][0].evidence == invalid
    assert told.done[: len(statistics)] == [f"set {statistic} to 0" for statistic in statistics]
    assert not told.left
    read(ward).assert_sound()
    ward.assert_works(QUEUE)


def test_statistics_of_another_type_do_not_prevent_the_repair_of_a_death(ward: Ward) -> None:
    create(ward.direct, 0, b"first")
    step_until(victim(ward.direct).put(b"second"), lambda: ward.direct.llen(BASE) == 2)
    for statistic in (PRODUCED, "produced_bytes", CONSUMED, "consumed_bytes"):
        ward.direct.delete(f"{BASE}:stats:{statistic}")
        ward.direct.lpush(f"{BASE}:stats:{statistic}", "a list")
    assert not ward.repair_only(QUEUE).left
    ward.assert_works(QUEUE)


def test_a_queue_that_cannot_be_repaired_does_not_prevent_other_repairs(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("a", QUEUE):
        create(ward.direct, 0, b"first", queue=queue)
        ward.direct.rpop(f"__pressure__:{queue}:producer_free")
    fix = ward.doctor.fix

    async def fix_all_but_one(case: Case) -> list[str]:
        if case.name == QUEUE.encode():
            raise BackendError("the backend refused it")
        return await fix(case)

    monkeypatch.setattr(ward.doctor, "fix", fix_all_but_one)
    told = ward.repair()
    assert told["a"].done == ["gave the producer role back"]
    assert told[QUEUE].done == ["nothing, because the backend refused it"]
    assert [finding.name for finding in told[QUEUE].left] == ["producer stuck"]


def test_wrong_bytes_alone_are_no_problem(ward: Ward) -> None:
    create(ward.direct, 0, b"first")
    ward.direct.delete(f"{BASE}:stats:produced_bytes")
    assert not ward.repair()


def test_a_token_on_a_full_queue_stays_while_a_consumer_works(ward: Ward) -> None:
    create(ward.direct, 1, b"first")
    get = victim(ward.direct).get()
    step_until(get, lambda: ward.direct.llen(BASE) == 0)
    step_until(get, lambda: read(ward).not_full == 1)
    # A put does not have to take the token in an extraordinary situation (pressure 0.15, Put).
    ward.direct.lpush(BASE, b"second")
    ward.direct.incr(f"{BASE}:stats:produced_messages")
    assert ":not_full token on a full queue" not in ward.problems()[QUEUE]
    run(get)
    assert ward.repair_only(QUEUE).done == ["took the :not_full token away"]
    assert read(ward).not_full == 0


def test_the_server_s_mirror_of_the_queue_stays_exact(ward: Ward) -> None:
    create(ward.direct, 0)
    ward.operate(QUEUE, verbs.PUT, b"a", b"b", size=2, options=UNIQUE)
    assert ward.operate(QUEUE, verbs.CONTAINS, b"a", b"b", b"c", size=3) == [1, 1, 0]
    step_until(victim(ward.direct).put(b"c"), lambda: ward.direct.llen(BASE) == 3)
    step_until(victim(ward.direct).get(), lambda: ward.direct.llen(BASE) == 2)
    ward.direct.set(f"{BASE}:stats:produced_messages", "abc")
    assert not ward.repair_only(QUEUE).left
    assert ward.operate(QUEUE, verbs.CONTAINS, b"a", b"b", b"c", size=3) == [0, 1, 1]
    assert ward.operate(QUEUE, verbs.PUT, b"b", b"a", size=2, options=UNIQUE) == [1]


def test_keys_that_are_not_queues_are_kept(ward: Ward) -> None:
    direct = ward.direct
    direct.sadd(f"{BASE}:ext:members", "a")
    direct.hset("__pressure__:foreign", "a", 1)
    direct.set("__pressure__!own", 1)
    direct.lpush("__pressure__:list", "foreign")
    assert ward.problems() == {QUEUE: ["left behind"], "list": ["a list alone"]}
    assert list(ward.doctor.unreadable) == [b"foreign"]
    done = {queue: told.done for queue, told in ward.repair().items()}
    assert done == {QUEUE: ["deleted what was left"], "list": []}
    assert set(keys_left(direct)) == {b"__pressure__:foreign", b"__pressure__!own", b"__pressure__:list"}


def test_keys_lua_lists_every_key_that_the_scripts_add() -> None:
    def named(text: str) -> set[str]:
        found = re.findall(r"(:ext:[a-z_]+)|key_of\('([a-z_]+)'\)", text)
        return {suffix or f":ext:{name}" for suffix, name in found}

    listed = named((SCRIPTS / "core" / "keys.lua").read_text())
    assert listed
    for script in SCRIPTS.rglob("*.lua"):
        assert named(script.read_text()) <= listed, f"{script.name} names keys that keys.lua does not list"
