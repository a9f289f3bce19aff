"""The doctor: what native clients leave that die, and that it breaks no role of one that waits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pressure_server.broker import operation as kinds
from pressure_server.broker.diagnosis import Trouble
from tests.native import NativeClient, NativeError, NativeSteps, Steps, run
from tests.programs import Client, Server, Valkey, run_command, wait_for
from tests.repair_table import (
    BASE,
    OPERATIONS,
    QUEUE,
    STATES,
    Keys,
    State,
    VersionedSteps,
    Ward,
    assert_works,
    table,
)

StartServer = Callable[..., Server]
DOCUMENT = Path(__file__).parent.parent / "docs" / "repair.md"
SCRIPTS = Path(__file__).parent.parent / "pressure_server" / "broker" / "scripts"
STATE = {state.name: state for state in STATES}
MANY = 20


@pytest.fixture
def ward(backend: Valkey) -> Iterator[Ward]:
    made = Ward(backend)
    yield made
    made.close()


def abandon(steps: Steps[Any], count: int) -> bool:
    """Do so many steps and no more; False where there were fewer, or it began to wait."""
    try:
        for _ in range(count):
            if next(steps) is not None:
                return False
    except (StopIteration, NativeError):
        return False
    finally:
        steps.close()
    return True


def stop_before(steps: Steps[Any], reached: Callable[[], bool]) -> None:
    """Abandon the operation when that is so."""
    while not reached():
        assert next(steps) is None
    steps.close()


def make(direct: Client, bound: int, messages: int = 0) -> None:
    State("", bound, messages).make(direct)


def victim(direct: Client) -> VersionedSteps:
    return VersionedSteps(direct, "victim", "0.15")


def troubles(ward: Ward) -> list[Trouble]:
    return [finding.trouble for case in ward.examine().values() for finding in case.lasting(0)]


# Every state


def test_every_death_is_mended_and_the_table_of_them_is_current(backend: Valkey) -> None:
    """Fails where an outcome has changed, for the better too: then `make docs`."""
    made = table(backend)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.endswith(made), "docs/repair.md is out of date: python -m tests.repair_table docs/repair.md"


@pytest.mark.parametrize("name", ["bound 3, 1 message", "one below its bound of 2", "full, of 2", "new"])
@pytest.mark.parametrize("consumer_first", [False, True], ids=["producer first", "consumer first"])
def test_two_that_died(ward: Ward, name: str, consumer_first: bool) -> None:
    """One in each role, after any number of their steps."""
    direct, died = ward.direct, 0
    for producing in range(1, 12):
        for consuming in range(1, 10):
            STATE[name].make(direct)
            put = OPERATIONS["put"](VersionedSteps(direct, "dead producer", "0.15"))
            get = OPERATIONS["get"](VersionedSteps(direct, "dead consumer", "0.1"))
            pair = [(put, producing), (get, consuming)]
            for steps, count in reversed(pair) if consumer_first else pair:
                died += abandon(steps, count)
            before = Keys.read(direct).messages
            for _ in range(3):
                assert not ward.repair().left
                keys = Keys.read(direct)
                assert keys.messages == before
                if keys.producer_may_wait:
                    assert run(NativeSteps(direct, QUEUE, "other").get()) == before.pop(0)
                elif keys.consumer_may_wait:
                    run(NativeSteps(direct, QUEUE, "other").put(b"more"))
                    before.append(b"more")
            assert_works(ward)
    assert died > 100


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_a_queue_where_nobody_died_is_well(ward: Ward, state: State) -> None:
    state.make(ward.direct)
    before = Keys.read(ward.direct)
    assert not ward.repair().found
    assert Keys.read(ward.direct) == before


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_what_our_server_leaves_is_well(ward: Ward, state: State) -> None:
    if state.bound is None:
        return
    ward.ours(kinds.CREATE, b"%d" % state.bound)
    ward.ours(kinds.ADD, *[b"%d" % number for number in range(min(state.put, state.bound or 9))])
    ward.ours(kinds.CONTAINS, b"1")
    ward.ours(kinds.GET)
    if state.closed:
        ward.ours(kinds.CLOSE)
    assert not ward.repair().found


# Those who live


def start(work: Callable[[], Any], results: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread


def wait_for_blocked(direct: Client, count: int) -> None:
    wait_for(lambda: direct.info("clients")["blocked_clients"] == count, f"{count} to be blocked")


def test_a_consumer_that_waits_for_a_message_is_never_broken(ward: Ward, backend: Valkey) -> None:
    make(ward.direct, 0)
    got: list[bytes] = []
    with backend.client() as theirs:
        thread = start(NativeClient(theirs, QUEUE, "waiting").get, got)
        wait_for_blocked(ward.direct, 1)
        for _ in range(MANY):
            assert not ward.repair().found
        assert Keys.read(ward.direct).free["consumer"] == 0
        ward.ours(kinds.ADD, b"message")
        thread.join(20)
    assert got == [b"message"]
    assert_works(ward)


def test_a_producer_that_waits_for_room_is_never_broken(ward: Ward, backend: Valkey) -> None:
    make(ward.direct, 2, 2)
    put: list[None] = []
    with backend.client() as theirs:
        thread = start(lambda: NativeClient(theirs, QUEUE, "waiting").put(b"last"), put)
        wait_for_blocked(ward.direct, 1)
        for _ in range(MANY):
            assert not ward.repair().found
        assert Keys.read(ward.direct).free["producer"] == 0
        run(NativeSteps(ward.direct, QUEUE, "other").get())
        thread.join(20)
    assert put == [None]
    assert Keys.read(ward.direct).messages == [b"message 1", b"last"]
    assert_works(ward)


def test_a_producer_waits_for_a_token_that_a_dead_consumer_never_pushed(ward: Ward, backend: Valkey) -> None:
    make(ward.direct, 1, 1)
    put: list[None] = []
    ward.doctor.wait = 0.5
    with backend.client() as theirs:
        thread = start(lambda: NativeClient(theirs, QUEUE, "waiting").put(b"last"), put)
        wait_for_blocked(ward.direct, 1)
        stop_before(victim(ward.direct).get(), lambda: ward.direct.llen(BASE) == 0)
        told = ward.repair()
        thread.join(20)
    assert put == [None]
    assert Trouble.NO_NOT_FULL in {finding.trouble for finding in told.found[0]}
    assert "gave the producer role back" not in told.done
    assert not ward.repair().left
    assert Keys.read(ward.direct).messages == [b"last"]
    assert_works(ward)


def test_who_waits_in_line_behind_a_dead_producer_goes_on(ward: Ward, backend: Valkey) -> None:
    make(ward.direct, 0)
    put: list[None] = []
    ward.doctor.wait = 0.5
    stop_before(victim(ward.direct).put(b"x"), lambda: ward.direct.llen(f"{BASE}:producer_free") == 0)
    with backend.client() as theirs:
        thread = start(lambda: NativeClient(theirs, QUEUE, "next").put(b"y"), put)
        wait_for_blocked(ward.direct, 1)
        assert ward.repair().done == ["gave the producer role back"]
        thread.join(20)
    assert put == [None]
    assert_works(ward)


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_delete_that_waits_for_a_dead_client_finishes(ward: Ward, backend: Valkey, role: str) -> None:
    make(ward.direct, 0, 1)
    steps = victim(ward.direct).put(b"x") if role == "producer" else victim(ward.direct).get()
    stop_before(steps, lambda: ward.direct.get(f"{BASE}:{role}") == b"victim")
    deleted: list[None] = []
    ward.doctor.wait = 0.5
    with backend.client() as theirs:
        thread = start(NativeClient(theirs, QUEUE, "deleter").delete, deleted)
        wait_for_blocked(ward.direct, 1)
        assert not ward.repair().left
        thread.join(20)
    assert deleted == [None]
    assert not ward.repair().left
    assert ward.direct.keys("*") == []


def test_a_client_that_was_called_dead_and_comes_back(ward: Ward) -> None:
    make(ward.direct, 2, 1)
    put = victim(ward.direct).put(b"late")
    while ward.direct.llen(f"{BASE}:not_full"):
        next(put)
    assert not ward.repair().left
    run(put)
    assert Keys.read(ward.direct).free["producer"] == 2
    told = ward.repair()
    assert {finding.trouble for finding in told.found[0]} == {
        Trouble.TOO_MANY_TOKENS,
        Trouble.NOT_FULL_ON_FULL,
    }
    assert not told.left
    assert_works(ward)


# Evidence


def step_on(steps: Steps[Any], _direct: Client) -> None:
    next(steps)


def go_back(_steps: Steps[Any], direct: Client) -> None:
    direct.lpush(f"{BASE}:producer_free", 0)


def give_to_another(steps: Steps[Any], direct: Client) -> None:
    go_back(steps, direct)
    abandon(NativeSteps(direct, QUEUE, "another").put(b"x"), 3)


def take_the_token(_steps: Steps[Any], direct: Client) -> None:
    direct.delete(f"{BASE}:not_full")


def count(_steps: Steps[Any], direct: Client) -> None:
    direct.incr(f"{BASE}:stats:produced_messages")


def delete(_steps: Steps[Any], direct: Client) -> None:
    direct.delete(f"{BASE}:bound")


@pytest.mark.parametrize("change", [go_back, give_to_another, take_the_token, count, delete])
def test_nothing_is_mended_where_the_producer_has_changed_since(
    ward: Ward, change: Callable[[Steps[Any], Client], None]
) -> None:
    make(ward.direct, 0)
    put = victim(ward.direct).put(b"x")
    for _ in range(4):
        next(put)
    (case,) = ward.examine().values()
    change(put, ward.direct)
    before = Keys.read(ward.direct)
    assert ward.mend(case) == []
    assert Keys.read(ward.direct) == before


def test_nothing_is_mended_where_the_consumer_may_wait_by_now(ward: Ward) -> None:
    make(ward.direct, 0, 1)
    stop_before(victim(ward.direct).get(), lambda: ward.direct.get(f"{BASE}:consumer") == b"victim")
    (case,) = ward.examine().values()
    ward.direct.rpop(BASE)
    assert "gave the consumer role back" not in ward.mend(case)
    assert Keys.read(ward.direct).free["consumer"] == 0


def test_no_token_is_pushed_where_the_producer_has_gone_on(ward: Ward) -> None:
    make(ward.direct, 1)
    put = victim(ward.direct).put(b"x")
    while ward.direct.llen(f"{BASE}:not_full"):
        next(put)
    (case,) = ward.examine().values()
    next(put)
    assert ward.mend(case) == []
    run(put)
    assert_works(ward)


def test_nothing_is_unlinked_where_somebody_deletes(ward: Ward) -> None:
    make(ward.direct, 0, 1)
    delete_steps = victim(ward.direct).delete()
    stop_before_closed = lambda: ward.direct.llen(f"{BASE}:closed") == 2  # noqa: E731 # read once
    while not stop_before_closed():
        next(delete_steps)
    (case,) = ward.examine().values()
    next(delete_steps)
    keys = ward.direct.keys("*")
    assert ward.mend(case) == []
    assert ward.direct.keys("*") == keys


def test_a_client_that_moves_between_looks_is_not_stuck(ward: Ward) -> None:
    make(ward.direct, 0)
    steps = victim(ward.direct).put(b"x")
    for _ in range(4):
        next(steps)
    cases = ward.examine()
    run(steps)
    ward.loop.run_until_complete(ward.doctor.look_again(cases))
    assert not cases


# What is found by other means than a death in one of the steps


def test_a_parked_token_is_moved_back(ward: Ward) -> None:
    make(ward.direct, 0)
    ward.direct.lmove(f"{BASE}:producer_free", f"{BASE}:ext:producer_turn", "RIGHT", "LEFT")
    told = ward.repair()
    assert told.in_words == "token parked"
    assert told.done == ["moved the producer's token back"]
    assert_works(ward)


def test_a_parked_token_beside_another_is_one_too_many(ward: Ward) -> None:
    make(ward.direct, 0)
    ward.direct.lpush(f"{BASE}:ext:consumer_turn", 0)
    assert ward.repair().in_words == "too many tokens"
    assert_works(ward)


@pytest.mark.parametrize("units", [["messages", "bytes"], ["messages"]])
@pytest.mark.parametrize("verb", ["produced", "consumed"])
@pytest.mark.parametrize("change", [3, -3])
def test_statistics_that_do_not_add_up(ward: Ward, verb: str, units: list[str], change: int) -> None:
    make(ward.direct, 0, 5)
    for unit in units:
        ward.direct.incrby(f"{BASE}:stats:{verb}_{unit}", change)
    assert ward.repair().in_words == "statistics"
    Keys.read(ward.direct).assert_sound()
    assert_works(ward)


def test_bytes_alone_are_no_finding(ward: Ward) -> None:
    make(ward.direct, 0, 5)
    ward.direct.delete(f"{BASE}:stats:produced_bytes")
    assert not ward.repair().found


def test_the_mirror_stays_exact(ward: Ward) -> None:
    make(ward.direct, 0)
    ward.ours(kinds.ADD, b"a", b"b")
    assert ward.ours(kinds.CONTAINS, b"a", b"b", b"c", size=3) == [1, 1, 0]
    stop_before(victim(ward.direct).put(b"c"), lambda: ward.direct.llen(BASE) == 3)
    stop_before(victim(ward.direct).get(), lambda: ward.direct.llen(BASE) == 2)
    assert not ward.repair().left
    assert ward.ours(kinds.CONTAINS, b"a", b"b", b"c", size=3) == [0, 1, 1]
    assert ward.ours(kinds.ADD, b"b", b"a", size=2) == [1]


def test_keys_that_are_no_queues(ward: Ward) -> None:
    direct = ward.direct
    direct.sadd(f"{BASE}:ext:members", "a")
    direct.hset("__pressure__:foreign", "a", 1)
    direct.set("__pressure__!ours", 1)
    direct.lpush("__pressure__:list", "somebody's")
    cases = ward.examine()
    assert {name: list(case.findings.values())[0].trouble for name, case in cases.items()} == {
        b"q": Trouble.LEFT_BEHIND,
        b"list": Trouble.LONE_LIST,
    }
    assert list(ward.doctor.unreadable) == [b"foreign"]
    assert ward.repair().done == ["deleted what was left"]
    assert set(direct.keys("*")) == {b"__pressure__:foreign", b"__pressure__!ours", b"__pressure__:list"}


def test_the_doctor_knows_all_our_keys() -> None:
    def named(text: str) -> set[str]:
        return set(re.findall(r":ext:[a-z_]+", text))

    mine = named((SCRIPTS / "doctor.lua").read_text())
    for script in SCRIPTS.glob("*.lua"):
        assert named(script.read_text()) <= mine, f"{script.name} names keys that doctor.lua does not"


# The command


def kill_a_producer(direct: Client, queue: str = QUEUE) -> None:
    run(NativeSteps(direct, queue, "native").create(10))
    steps = NativeSteps(direct, queue, "host-1 42").put(b"x")
    while direct.llen(f"__pressure__:{queue}:stats:produced_messages") if False else True:
        next(steps)
        if direct.get(f"__pressure__:{queue}:producer") == b"host-1 42":
            break
    steps.close()


def doctor(backend: Valkey, *arguments: str) -> tuple[int, str]:
    ran = run_command("doctor", "--backend", backend.url, "--wait", "0.2", *arguments)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


def test_it_says_what_is_wrong_and_what_it_would_do(backend: Valkey, client: Client, direct: Client) -> None:
    assert doctor(backend) == (0, "0 queues looked at: all is well\n")
    client.sadd("other", "a")
    kill_a_producer(direct)
    status, said = doctor(backend)
    assert status == 1
    assert said == (
        "queue 'q' (bound 10, messages: 0)\n"
        "  producer stuck: the producer role is held by 'host-1 42', who does nothing; there is a :not_full "
        "token, so it does not wait for room\n"
        "    it means: a native producer died in the middle of its work, and its message may or may not be "
        "queued: all other producers wait\n"
        "    --repair would: give the role back (push :producer_free), and correct the statistics\n"
        "\n"
        "2 queues looked at: 1 in trouble\n"
    )
    assert direct.llen(f"{BASE}:producer_free") == 0
    assert doctor(backend, "other") == (0, "1 queue looked at: all is well\n")


def test_it_repairs_and_clients_of_the_server_go_on(backend: Valkey, client: Client, direct: Client) -> None:
    kill_a_producer(direct)
    status, said = doctor(backend, "q", "--repair")
    assert status == 0
    assert "  done: gave the producer role back\n" in said
    assert said.endswith("1 queue looked at: 1 in trouble, 1 mended, 0 left\n")
    assert client.sadd("q", "a") == 1
    assert client.spop("q") == b"a"
    assert doctor(backend) == (0, "1 queue looked at: all is well\n")


def test_a_list_alone_is_deleted_only_by_its_name(backend: Valkey, direct: Client) -> None:
    direct.lpush(BASE, "a")
    for _ in range(2):
        status, said = doctor(backend, "--repair")
        assert status == 1
        assert "a list alone: there is a list with 1 message, and nothing else of a queue" in said
        assert said.endswith("0 queues looked at: 1 in trouble, 0 mended, 1 left\n")
    assert doctor(backend, "q", "--repair")[0] == 0
    assert direct.keys("*") == []


def test_it_uses_the_prefix(backend: Valkey, direct: Client) -> None:
    kill_a_producer(direct)
    assert doctor(backend, "--prefix", "other")[0] == 0
    assert doctor(backend, "--prefix", "__pressure__")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["none"], 2, "there is no queue 'none'"),
        (["q:bound"], 2, "'q:bound' cannot be a queue's name"),
        (["--wait", "-1"], 2, "not in the range"),
        (["--repair", "a", "b"], 2, "unexpected extra argument"),
    ],
)
def test_what_it_refuses(backend: Valkey, arguments: list[str], status: int, complaint: str) -> None:
    refused = run_command("doctor", "--backend", backend.url, *arguments)
    assert (refused.returncode, refused.stdout) == (status, "")
    assert complaint in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_backend_that_is_not_there(tmp_path: Path) -> None:
    refused = run_command("doctor", "--backend", f"unix://{tmp_path}/none.sock")
    assert refused.returncode == 1
    assert "no connection to" in refused.stderr
    nothing = run_command("doctor", "--data-dir", str(tmp_path / "none"))
    assert nothing.returncode == 2
    assert "there is no data directory" in nothing.stderr
    assert not (tmp_path / "none").exists()


def test_the_embedded_backend_with_and_without_its_server(start_server: StartServer, tmp_path: Path) -> None:
    import redis

    data = tmp_path / "data"
    server = start_server("--data-dir", str(data))
    with redis.Redis(unix_socket_path=str(data / "valkey.sock")) as direct:
        kill_a_producer(direct)
    arguments = ("doctor", "--data-dir", str(data), "--wait", "0.1")
    running = run_command(*arguments)
    assert (running.returncode, running.stdout[-33:]) == (1, "1 queue looked at: 1 in trouble\n"[-33:])
    assert server.stop() == 0
    stopped = run_command(*arguments, "--repair")
    assert stopped.returncode == 0, stopped.stderr
    assert "done: gave the producer role back" in stopped.stdout
    with start_server("--data-dir", str(data)).client() as client:
        assert client.sadd("q", "a") == 1


# In the running server


def test_auto_repair_mends_what_is_stuck_and_nothing_else(
    backend: Valkey, direct: Client, start_server: StartServer
) -> None:
    kill_a_producer(direct)
    got: list[bytes] = []
    run(NativeSteps(direct, "live", "native").create(0))
    with backend.client() as theirs:
        thread = start(NativeClient(theirs, "live", "waiting").get, got)
        wait_for_blocked(direct, 1)
        server = start_server("--backend", backend.url, "--auto-repair-after", "1", "--role-timeout", "20")
        with server.client() as client:
            # It waits for the role until the role has been given back.
            assert client.sadd("q", "a") == 1
            warning = wait_for(lambda: [line for line in server.log.splitlines() if "WARNING" in line], "it")
            assert len(warning) == 1
            assert "queue 'q' was in trouble for" in warning[0]
            assert "held by 'host-1 42'" in warning[0]
            assert warning[0].endswith("Auto-repair gave the producer role back")
            assert direct.llen("__pressure__:live:consumer_free") == 0
            client.sadd("live", "message")
            thread.join(20)
    assert got == [b"message"]
    assert server.stop() == 0
    assert "ERROR" not in server.log


def test_auto_repair_is_off_unless_asked_for(server: Server, direct: Client, ward: Ward) -> None:
    kill_a_producer(direct)
    with server.client() as client, pytest.raises(Exception, match="INUSE"):
        client.sadd("q", "a")
    assert troubles(ward) == [Trouble.PRODUCER_STUCK]


def test_auto_repair_survives_a_backend_that_goes_away(
    start_valkey: Callable[..., Valkey], start_server: StartServer
) -> None:
    valkey = start_valkey("--appendonly", "yes")
    server = start_server("--backend", valkey.url, "--auto-repair-after", "1")
    valkey.kill()
    valkey.start()
    with valkey.client() as direct:
        kill_a_producer(direct)
        wait_for(lambda: direct.llen(f"{BASE}:producer_free") == 1, "the role to be given back")
    assert server.stop() == 0
    assert "Traceback" not in server.log
