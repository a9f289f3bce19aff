"""WATCH, and commands that store results, on queues of jobs, logs and groups: as on plain queues."""

from collections.abc import Callable

import pytest
import redis

from tests.support.programs import Client, wait_for
from tests.support.waiters import about

KINDS = ["fifo", "jobs", "lifo", "random", "log", "group"]
# What another client does to the queue `q`, which has been watched; and whether the EXEC after it is done.
Act = Callable[[Client], object]


def make(client: Client, kind: str) -> str:
    """Make a queue of the kind with two messages; return its name."""
    if kind == "group":
        client.execute_command("PRESSURE.CREATE", "l", "TYPE", "log")
        client.execute_command("PRESSURE.GROUP", "CREATE", "l", "g")
        client.rpush("l", "a", "b")
        return "l+g"
    client.execute_command("PRESSURE.CREATE", "q", *(() if kind == "fifo" else ("TYPE", kind)))
    client.rpush("q", "a", "b")
    return "q"


def is_done_after(client: Client, name: str, act: Act) -> bool:
    """Watch the queue, let another connection act, and return whether an EXEC is done then."""
    with client.client() as other, client.pipeline() as pipe:
        pipe.watch(name)
        act(other)
        pipe.multi()
        pipe.llen(name)
        pipe.rpush("elsewhere", "x")
        try:
            pipe.execute()
        except redis.WatchError:
            assert not other.exists("elsewhere")
            return False
        assert other.delete("elsewhere") == 1
        return True


def reserve(client: Client, name: str) -> int:
    return int(client.execute_command("PRESSURE.RESERVE", name, "DETACHED", "t")[1])


@pytest.mark.parametrize("kind", KINDS)
def test_exec_is_done_unless_something_has_changed(client: Client, kind: str) -> None:
    name = make(client, kind)
    into = "l" if kind == "group" else name

    def look(other: Client) -> None:
        other.llen(name)
        other.lrange(name, 0, -1)
        other.execute_command("PRESSURE.INFO", name)
        other.info("queues")

    def put_and_take(other: Client) -> None:
        other.rpush(into, "c")
        assert other.lpop(name) is not None

    assert is_done_after(client, name, look)
    assert not is_done_after(client, name, lambda other: other.rpush(into, "c"))
    assert not is_done_after(client, name, lambda other: other.lpop(name))
    assert not is_done_after(client, name, put_and_take)
    assert not is_done_after(client, name, lambda other: other.execute_command("PRESSURE.CLOSE", into))


@pytest.mark.parametrize("kind", ["jobs", "lifo", "random", "group"])
def test_exec_is_not_done_after_any_event_of_a_job(client: Client, kind: str) -> None:
    name = make(client, kind)
    job = 0

    def event(*words: object) -> Act:
        return lambda other: other.execute_command(words[0], name, *words[1:])

    def reserve_and_release(other: Client) -> None:
        one = reserve(other, name)
        other.execute_command("PRESSURE.RELEASE", name, one, "TOKEN", "t")

    def bury_again(other: Client) -> None:
        other.execute_command("PRESSURE.KICK", name)
        other.execute_command("PRESSURE.BURY", name, reserve(other, name), "TOKEN", "t")

    assert not is_done_after(client, name, lambda other: reserve(other, name))
    assert not is_done_after(client, name, reserve_and_release)
    for act in (("RELEASE",), ("RELEASE", "DELAY", 100), ("BURY",), ("ACK",)):
        if kind == "random":
            client.execute_command("PRESSURE.PURGE", name)
            client.rpush(name, "c")
        job = reserve(client, name)
        command = f"PRESSURE.{act[0]}"
        assert not is_done_after(client, name, event(command, job, *act[1:], "TOKEN", "t")), act
        client.rpush("l" if kind == "group" else name, "c")
    job = reserve(client, name)
    client.execute_command("PRESSURE.BURY", name, job, "TOKEN", "t")
    assert not is_done_after(client, name, bury_again)
    assert not is_done_after(client, name, event("PRESSURE.KICK"))
    assert not is_done_after(client, name, event("PRESSURE.PAUSE", 100))
    assert is_done_after(client, name, lambda other: other.llen(name))  # the time left of the pause changes


def test_exec_is_not_done_after_a_delay_or_a_reservation_has_ended(client: Client) -> None:
    client.execute_command("PRESSURE.CREATE", "q", "TYPE", "jobs")
    client.execute_command("PRESSURE.PUT", "q", "a", "DELAY", 0.3)

    def wait_until_ready(other: Client) -> None:
        wait_for(lambda: about(other, "q")[b"ready"] == 1, "the job to be ready")

    assert not is_done_after(client, "q", wait_until_ready)
    assert client.execute_command("PRESSURE.RESERVE", "q", "TTR", 0.3, "DETACHED", "t") is not None
    assert not is_done_after(client, "q", wait_until_ready)


def test_a_version_does_not_depend_on_what_has_been_noticed_of_ended_delays(
    client: Client, direct: Client
) -> None:
    """The script makes some of the due jobs ready in each call."""
    client.execute_command("PRESSURE.CREATE", "q", "TYPE", "jobs")
    with client.pipeline(transaction=False) as pipe:
        for number in range(700):
            pipe.execute_command("PRESSURE.PUT", "q", str(number), "DELAY", 100)
        pipe.execute()
    for job, _ in direct.zscan_iter("__pressure__:q:ext:delayed"):
        direct.zadd("__pressure__:q:ext:delayed", {job: 1})
    assert is_done_after(client, "q", lambda other: other.llen("q"))


def test_a_group_that_makes_jobs_of_its_log_has_not_changed(client: Client) -> None:
    make(client, "group")
    client.rpush("l", *map(str, range(100)))

    def peek_far(other: Client) -> None:
        with other.pipeline() as pipe:  # another client's transaction that takes nothing
            pipe.lrange("l+g", 0, -1)
            pipe.lindex("l+g", 50)
            pipe.execute()

    assert is_done_after(client, "l+g", peek_far)


def test_a_log_whose_groups_have_passed_messages_has_changed_once(client: Client) -> None:
    make(client, "group")
    client.rpush("l", *map(str, range(3000)))
    assert not is_done_after(client, "l", lambda other: other.lpop("l+g", 3002))
    # Calls drop some of the messages each.
    for _ in range(5):
        assert is_done_after(client, "l", lambda other: other.llen("l"))
    assert client.llen("l") == 0


@pytest.mark.parametrize("command", ["SUNIONSTORE", "SINTERSTORE", "SDIFFSTORE"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_set_algebra_are_stored(client: Client, kind: str, command: str) -> None:
    name = make(client, kind)
    client.sadd("plain", "b", "c")
    expected = {"SUNIONSTORE": {b"a", b"b", b"c"}, "SINTERSTORE": {b"b"}, "SDIFFSTORE": {b"a"}}[command]
    assert client.execute_command(command, "stored", name, "plain") == len(expected)
    assert set(client.lrange("stored", 0, -1)) == expected
    if kind in ("jobs", "lifo", "random"):
        assert client.execute_command(command, name, name, "plain") == len(expected)
        assert set(client.lrange(name, 0, -1)) == expected


def test_a_range_of_a_group_ends_at_its_last_position(client: Client) -> None:
    """The group has more jobs than are asked for, and its log has dropped their messages, and has others."""
    client.execute_command("PRESSURE.CREATE", "l", "TYPE", "log", "BOUND", 5, "OVERFLOW", "overwrite")
    client.execute_command("PRESSURE.GROUP", "CREATE", "l", "g")
    client.rpush("l", *range(5))
    for job in [reserve(client, "l+g") for _ in range(5)]:
        client.execute_command("PRESSURE.RELEASE", "l+g", job, "TOKEN", "t")
    client.rpush("l", *range(5, 15))
    everything = client.lrange("l+g", 0, -1)
    assert len(everything) == 10
    for last in range(10):
        assert client.lrange("l+g", 0, last) == everything[: last + 1], last


@pytest.mark.parametrize("kind", KINDS)
def test_exec_that_does_nothing_on_the_watched_queue_is_done(client: Client, kind: str) -> None:
    name = make(client, kind)
    for queued, reply in ((("PING",), "True"), (("LRANGE", name, "a", "b"), "not an integer")):
        with client.pipeline() as pipe:
            pipe.watch(name)
            pipe.multi()
            pipe.execute_command(*queued)
            (got,) = pipe.execute(raise_on_error=False)
        assert reply in str(got)
