"""`pressure-server doctor`: its output, its repairs, and its exit status."""

from pathlib import Path

import pytest
import redis

from tests.support.native import NativeSteps, run, step_until
from tests.support.programs import Client, StartServer, Valkey, keys_left, run_command, wait_until_settled
from tests.support.waiters import create

QUEUE = "q"
BASE = f"__pressure__:{QUEUE}"
OBSERVED = "queues with possible problems: 1; observing them for 0.2 seconds\n\n"


def kill_a_producer(direct: Client) -> None:
    """Let a producer die after it has taken its role."""
    run(NativeSteps(direct, QUEUE, "native").create(10))
    steps = NativeSteps(direct, QUEUE, "host-1 42").put(b"x")
    step_until(steps, lambda: direct.get(f"{BASE}:producer") == b"host-1 42")
    steps.close()


def doctor(backend: Valkey, *arguments: str) -> tuple[int, str]:
    ran = run_command("doctor", "--backend", backend.url, "--wait", "0.2", *arguments)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


@pytest.mark.slow
def test_without_repair_problems_are_only_reported(backend: Valkey, client: Client, direct: Client) -> None:
    assert doctor(backend) == (0, "0 queues checked: no problems\n")
    client.sadd("other", "a")
    kill_a_producer(direct)
    wait_until_settled(direct)
    keys = {key: direct.dump(key) for key in keys_left(direct)}
    status, output = doctor(backend)
    assert status == 1
    assert output == OBSERVED + (
        "queue 'q' (bound 10, messages: 0)\n"
        "  producer stuck: the producer role is held by 'host-1 42', but its holder is inactive; there is a "
        ":not_full token, so it is not waiting for room\n"
        "    it means: a native producer died while it held the role (its message may or may not be "
        "queued): all other producers wait for ever\n"
        "    --repair would: give the role back (push :producer_free), and correct the statistics; but first "
        "make sure that the producer is dead, not just suspended\n"
        "\n"
        "2 queues checked: 1 with problems; nothing was changed, use --repair\n"
    )
    assert {key: direct.dump(key) for key in keys_left(direct)} == keys
    assert doctor(backend, "other") == (0, "1 queue checked: no problems\n")


def test_after_a_repair_a_server_can_use_the_queue(backend: Valkey, client: Client, direct: Client) -> None:
    kill_a_producer(direct)
    direct.set(f"{BASE}:stats:produced_messages", "abc")
    status, output = doctor(backend, QUEUE, "--repair")
    assert status == 0
    assert "  done: gave the producer role back, set produced_messages to 0\n" in output
    assert output.endswith("1 queue checked: 1 with problems, 1 repaired, 0 not repaired\n")
    assert client.sadd(QUEUE, "a") == 1
    assert client.spop(QUEUE) == b"a"
    assert doctor(backend) == (0, "1 queue checked: no problems\n")


@pytest.mark.parametrize("kind", ["FIFO", "JOBS"])
def test_a_queue_that_is_full_by_its_bytes_has_no_problem(
    backend: Valkey, client: Client, direct: Client, kind: str
) -> None:
    create(client, QUEUE, "TYPE", kind, "MAX-BYTES", 5)
    client.rpush(QUEUE, "12345")
    assert doctor(backend, "--repair") == (0, "1 queue checked: no problems\n")
    client.rpop(QUEUE)
    wait_until_settled(direct)
    direct.delete(f"{BASE}:not_full")
    status, output = doctor(backend, "--repair")
    assert (status, "done: pushed a :not_full token\n" in output) == (0, True)


def test_a_list_alone_is_deleted_only_if_the_queue_is_named(backend: Valkey, direct: Client) -> None:
    direct.lpush(BASE, "a")
    status, output = doctor(backend, "--repair")
    assert status == 1
    assert "a list alone: there is a list with 1 message, but no other key of a queue" in output
    assert output.endswith("0 queues checked: 1 with problems, 0 repaired, 1 not repaired\n")
    assert keys_left(direct) == [BASE.encode()]
    assert doctor(backend, QUEUE, "--repair")[0] == 0
    assert keys_left(direct) == []


def test_a_key_that_belongs_to_no_queue_is_reported_and_kept(backend: Valkey, direct: Client) -> None:
    direct.hset(BASE, "a", 1)
    status, output = doctor(backend, "--repair")
    assert status == 1
    assert "'q' is named like a queue's key, but does not belong to a queue: " in output
    assert output.endswith("0 queues checked: 1 key unreadable\n")
    assert direct.hgetall(BASE) == {b"a": b"1"}


def test_it_examines_the_queues_of_its_prefix(backend: Valkey, direct: Client) -> None:
    kill_a_producer(direct)
    assert doctor(backend, "--prefix", "other")[0] == 0
    assert doctor(backend, "--prefix", "__pressure__")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none"], "there is no queue 'none'"),
        (["q:bound"], "'q:bound' cannot be a queue's name"),
        (["--wait", "-1"], "not in the range"),
        (["--wait", "nan"], "nan is not a time"),
        (["--repair", "a", "b"], "unexpected extra argument"),
        (["--backend", "unix:///nowhere/none.sock"], "no connection to unix:///nowhere/none.sock"),
        (["--backend", "embedded:", "--data-dir", "/nowhere"], "there is no data directory /nowhere"),
    ],
)
def test_an_examination_that_is_impossible_is_refused_in_one_line(
    backend: Valkey, arguments: list[str], complaint: str
) -> None:
    refused = run_command("doctor", "--backend", backend.url, *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert complaint in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_an_embedded_backend_is_examined_with_and_without_its_server(
    start_server: StartServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_server("--data-dir", str(data))
    with redis.Redis(unix_socket_path=str(data / "valkey.sock")) as direct:
        kill_a_producer(direct)
    arguments = ("doctor", "--data-dir", str(data), "--wait", "0.1")
    running = run_command(*arguments)
    assert (running.returncode, running.stderr) == (1, "")
    assert "1 queue checked: 1 with problems" in running.stdout
    assert server.stop() == 0
    stopped = run_command(*arguments, "--repair")
    assert stopped.returncode == 0, stopped.stderr
    assert "done: gave the producer role back" in stopped.stdout
    with start_server("--data-dir", str(data)).client() as client:
        assert client.sadd(QUEUE, "a") == 1
