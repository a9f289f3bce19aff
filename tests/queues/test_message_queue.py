"""The examples of MessageQueue's README with the clients that it names, on queues and on keys and values.

docs/reference/abilities.md lists the abilities of MessageQueue with the tests that show them.
"""

import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.client_scripts import CLIENTS, output_of, run_script
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey
from tests.support.waiters import create

MEMCACHED = ("--listen", "memcached://127.0.0.1:0", "--listen", "memcached://127.0.0.1:0?mode=kv")
SIZE = ["Size: 10"]
ITEMS = [f"Item {number}" for number in range(10)]
# By program: its output. Today's redis-py prints 1 and 0 where the README has True and False.
EXAMPLES = {
    "message_queue.php": [*SIZE, *ITEMS],
    "message_queue_predis.php": [*SIZE, *ITEMS],
    "message_queue.rb": [*SIZE, *ITEMS, "true", "true", "2", "false", "true", '"12"', '"15"', "nil"],
    "message_queue.py": ["1", "1", "2", "0", "1", "12", "15", "None"],
}
SEED = 7


shared_server = module_server(*MEMCACHED)


def memcached_ports(server: Server) -> list[str]:
    """Return the port for queues, and the port for keys and values."""
    return re.findall(r"listening on memcached://127\.0\.0\.1:(\d+)", server.log)


def lines_of(script: str, server: Server) -> list[str]:
    """Run a program on the server. Return the lines that it prints."""
    return run_script(script, str(server.port)).splitlines()


@pytest.mark.clients
@pytest.mark.parametrize("script", EXAMPLES)
def test_the_examples_print_their_output(script: str, server: Server) -> None:
    assert lines_of(script, server) == EXAMPLES[script]


@pytest.mark.clients
@pytest.mark.parametrize("script", EXAMPLES)
def test_the_examples_work_on_a_random_queue(script: str, server: Server, client: Client) -> None:
    """As with MessageQueue's random queue, only the order differs."""
    create(client, "niki", "TYPE", "RANDOM")
    assert sorted(lines_of(script, server)) == sorted(EXAMPLES[script])


@pytest.mark.parametrize("options", [(), ("TYPE", "RANDOM"), ("TYPE", "LOG")], ids=str)
def test_the_python_example_returns_the_values_of_the_text(client: Client, options: tuple[str, ...]) -> None:
    create(client, "niki", *options)
    assert client.sadd("niki", "12") == True  # noqa: E712 # as the text has it
    assert client.sadd("niki", "15") == True  # noqa: E712
    assert client.scard("niki") == 2
    assert client.sismember("niki", "abc") == False  # noqa: E712
    assert client.sismember("niki", "12") == True  # noqa: E712
    taken = [client.spop("niki"), client.spop("niki")]
    assert (sorted(taken) if "RANDOM" in options else taken) == [b"12", b"15"]
    assert client.spop("niki") is None


@pytest.mark.clients
def test_the_memcached_example_prints_its_output_on_a_queue(server: Server) -> None:
    """The second get is not in the README: on a queue, the first one has taken the message."""
    port, _ = memcached_ports(server)
    script = str(CLIENTS / "memcached" / "message_queue.py")
    assert output_of(sys.executable, script, port) == "None\nTrue\n123\nNone\n"


@pytest.mark.clients
def test_the_memcached_example_prints_its_output_on_keys_and_values(server: Server) -> None:
    _, port = memcached_ports(server)
    script = str(CLIENTS / "memcached" / "message_queue.py")
    assert output_of(sys.executable, script, port) == "None\nTrue\n123\n123\n"


def test_a_random_queue_works_as_a_redis_set(client: Client, original: Valkey) -> None:
    create(client, "q", "TYPE", "RANDOM")
    chance = random.Random(SEED)
    members = [f"m{number}" for number in range(12)]
    with original.client() as redis_set:
        redis_set.flushall()
        for _ in range(600):
            some = chance.choices(members, k=chance.randrange(1, 4))
            match chance.randrange(6):
                case 0 | 1:
                    assert client.sadd("q", *some) == redis_set.sadd("q", *some)
                case 2:
                    assert client.srem("q", *some) == redis_set.srem("q", *some)
                case 3:
                    assert client.smismember("q", some) == redis_set.smismember("q", some)
                case 4:
                    assert client.smembers("q") == redis_set.smembers("q")
                case 5:
                    taken = client.spop("q")
                    # Which member it is, is up to either.
                    assert (taken is None) == (redis_set.scard("q") == 0)
                    assert taken is None or redis_set.srem("q", taken) == 1
            assert client.scard("q") == redis_set.scard("q")


def test_a_random_queue_returns_messages_in_random_order(client: Client) -> None:
    create(client, "q", "TYPE", "RANDOM")
    firsts: Counter[bytes] = Counter()
    for _ in range(400):
        client.sadd("q", "a", "b", "c", "d")
        order = [client.spop("q") for _ in range(4)]
        assert sorted(order) == [b"a", b"b", b"c", b"d"]
        firsts[order[0]] += 1
    # Each is expected 100 times; the limits are more than five standard deviations away.
    assert all(50 < firsts[message] < 150 for message in order)


@pytest.mark.parametrize("type_of", ["FIFO", "RANDOM"])
def test_sizes_are_exact_and_queues_can_be_deleted(client: Client, type_of: str) -> None:
    """MessageQueue's queues in one file had no size, and could not be deleted."""
    for name in ("q", "r"):
        create(client, name, "TYPE", type_of)
        client.sadd(name, *map(str, range(50)))
    client.spop("q", 7)
    assert (client.scard("q"), client.scard("r")) == (43, 50)
    assert client.delete("q") == 1
    assert (client.exists("q"), client.scard("r")) == (0, 50)


def test_queues_need_no_file_descriptors(server: Server, client: Client) -> None:
    """MessageQueue opened one or two files for each queue."""

    def opened() -> int:
        return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

    client.sadd("q0", "message")
    before = opened()
    for number in range(500):
        client.sadd(f"q{number}", "message")
    assert opened() == before


def test_a_single_queue_can_be_copied_to_another_backend(
    client: Client, direct: Client, start_valkey: StartValkey, start_server: StartServer
) -> None:
    client.sadd("q", "a", "b", "c")
    client.sadd("r", "z")
    other = start_valkey()
    with other.client() as copied:
        for key in direct.keys("__pressure__:q*"):
            copied.restore(key, 0, direct.dump(key))
    with start_server("--backend", other.url).client() as second:
        assert second.keys() == [b"q"]
        assert second.sismember("q", "b") == 1
        assert second.spop("q", 9) == [b"a", b"b", b"c"]
    assert client.scard("q") == 3
