"""Settings of queues by name: a put creates a queue with the settings of the configuration file."""

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from pressure_server.queues.operations import verbs
from pressure_server.queues.operations.queue_options import Creation
from pressure_server.queues.policy import Policy
from pressure_server.queues.templates import QueueTemplate
from pressure_server.text import Glob
from tests.support.brokers import default_broker
from tests.support.guards import reload
from tests.support.memcached_wire import MemcachedWire
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, run_command, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, Wire
from tests.support.waiters import about, create, wait_for_blocked, waiters

# The last line of the log after SIGHUP: now the settings are in force.
_RELOADED = "with settings of queues"
CONFIG = """
default-bound = 77
implicit-queue-ttl = "1s"

[queues."mails*"]
bound = 2
overflow = "error"
max-deliveries = 1
dead-letter = "failed"

[queues.failed]
bound = 3

[queues."stack[0-9]"]
type = "lifo"
ttl = 3600

[queues."ring?"]
bound = 2
overflow = "overwrite"

[queues."log*"]
type = "log"

[queues.rated]
retry-delay = 2
in-flight = 3
rate = "10/0.5"

[queues.safe]
ack = "next"
ack-ttr = 30
"""
SHOWN = (b"bound", b"overflow", b"type", b"max_deliveries", b"dead_letter", b"ttl_ms", b"template")
MAILS = (2, b"error", b"jobs", 1, b"failed", 0, b"mails*")
DEFAULTS = (77, b"block", b"fifo", 0, b"", 0, b"")


def shown(client: Client, queue: str) -> tuple[Any, ...]:
    found = about(client, queue)
    return tuple(found[name] for name in SHOWN)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pressure.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def server(backend: Valkey, start_server: StartServer, config: Path) -> Server:
    return start_server("--config", str(config), "--backend", backend.url, *LISTEN)


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


def test_puts_of_all_protocols_create_queues_with_the_settings(server: Server, client: Client) -> None:
    client.sadd("mails-set", "a")
    client.rpush("mails-list", "a", "b")
    with MemcachedWire(server.port_of("memcached")) as memcached:
        assert memcached.store(b"mails-memcached", b"a") == b"STORED"
    with Wire(BEANSTALK, server) as beanstalk:
        beanstalk.put(b"mails-beanstalk", b"a")
        assert beanstalk(b"use mails-paused\r\n") == b"USING mails-paused"
        assert beanstalk(b"pause-tube mails-paused 0\r\n") == b"PAUSED"
    client.rpush("source", "a", "b")
    client.lmove("source", "mails-moved", "LEFT", "RIGHT")
    client.pipeline().rpush("mails-multi", "a").execute()
    client.sunionstore("mails-stored", "source")
    for way in ("set", "list", "memcached", "beanstalk", "paused", "moved", "multi", "stored"):
        assert shown(client, f"mails-{way}") == MAILS, way
    with pytest.raises(redis.ResponseError, match=r"^FULL"):
        client.rpush("mails-list", "c")
    client.sadd("three", "1", "2", "3")
    with pytest.raises(redis.ResponseError, match=r"^FULL"):
        client.sunionstore("mails-large", "three")
    assert shown(client, "source") == DEFAULTS


def test_queues_get_all_settings_of_their_section(client: Client, direct: Client) -> None:
    for name, fields in {
        "stack1": {"type": b"lifo", "bound": 77, "ttl_ms": 3600_000, "template": b"stack[0-9]"},
        "stacks": {"type": b"fifo", "bound": 77, "ttl_ms": 0, "template": b""},
        "ring1": {"type": b"fifo", "bound": 2, "overflow": b"overwrite"},
        "log1": {"type": b"log", "tail_offset": 1},
        "rated": {"type": b"jobs", "retry_delay_ms": 2000, "in_flight": 3, "rate": b"10/500ms"},
        "safe": {"type": b"fifo", "ack": b"next", "ack_ttr_ms": 30_000},
    }.items():
        client.rpush(name, "a")
        found = about(client, name)
        assert {field: found[field.encode()] for field in fields} == fields, name
    client.lpop("ring1", 2)
    client.lpop("stack1")
    # Without a time to live of its own, a queue has the server's.
    wait_for(lambda: not client.exists("ring1"), "the ring to expire")
    assert client.execute_command("PRESSURE.EXISTS", "stack1") == 1
    assert direct.hget("__pressure__:stack1:ext:settings", "implicit") is None


def test_workers_that_wait_before_the_first_put_reserve_what_they_get(server: Server, client: Client) -> None:
    with waiters(server, 3) as workers:
        for _ in range(2):  # the second time, the server has known the queue
            for worker in workers:
                worker.send("BLPOP", "safe", 0)
            wait_for_blocked(client, 3)
            client.rpush("safe", "a", "b", "c", "d")
            assert sorted(worker.reply()[1] for worker in workers) == [b"a", b"b", b"c"]
            last = client.execute_command("PRESSURE.RESERVE", "safe")[1]
            jobs = [client.execute_command("PRESSURE.JOB", "safe", last - number) for number in (1, 2, 3)]
            assert [(job[b"state"], job[b"ttr_ms"]) for job in jobs] == [(b"reserved", 30_000)] * 3
            client.delete("safe")


def test_dead_letters_create_their_queue_with_its_settings(client: Client) -> None:
    client.rpush("mails1", "a")
    client.execute_command("PRESSURE.RESERVE", "mails1")
    client.execute_command("PRESSURE.RELEASE", "mails1", "1")
    assert client.lrange("failed", 0, -1) == [b"a"]
    assert shown(client, "failed")[0] == 3


def test_a_queue_that_exists_or_is_created_explicitly_has_its_own_settings(client: Client) -> None:
    create(client, "mails1", "BOUND", 5)
    client.rpush("mails1", "a")
    assert shown(client, "mails1") == (5, b"block", b"fifo", 0, b"", 0, b"mails*")


def test_a_reload_changes_the_settings_of_new_queues(server: Server, client: Client, config: Path) -> None:
    client.rpush("mails1", "a")
    config.write_text("[queues.'*']\nbound = 9")
    reload(server, _RELOADED)
    client.rpush("mails1", "b")
    client.rpush("mails2", "b")
    assert shown(client, "mails1") == (*MAILS[:-1], b"*")
    assert shown(client, "mails2")[0] == 9
    config.write_text("[queues.'*']\nbuond = 9")
    reload(server, "settings of queues stay in force")
    assert f'{config}, line 2, [queues."*"]: unknown option buond: did you mean bound?' in server.log
    client.rpush("mails3", "b")
    assert shown(client, "mails3")[0] == 9
    config.write_text("")
    reload(server, _RELOADED)
    client.rpush("mails4", "b")
    assert shown(client, "mails4") == DEFAULTS


def test_settings_survive_the_loss_of_all_data(server: Server, client: Client, backend: Valkey) -> None:
    client.rpush("mails1", "a")
    with backend.client() as direct:
        direct.flushall()
    client.rpush("mails2", "a")
    assert shown(client, "mails2") == MAILS


def test_all_workers_have_the_settings_and_reload_them(
    backend: Valkey, start_server: StartServer, config: Path
) -> None:
    server = start_server("--config", str(config), "--backend", backend.url, "--workers", "2")

    def bounds(word: str) -> set[int]:
        found = set()
        for number in range(20):
            with server.client() as client:
                client.rpush(f"mails{word}{number}", "a")
                found.add(shown(client, f"mails{word}{number}")[0])
        return found

    assert bounds("before") == {2}
    config.write_text("[queues.'*']\nbound = 9")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.count("reloaded:") == 3, "all processes to reload")
    assert bounds("after") == {9}


def test_without_auto_create_no_template_creates_a_queue(
    backend: Valkey, start_server: StartServer, config: Path
) -> None:
    client = start_server("--config", str(config), "--backend", backend.url, "--no-auto-create").client()
    with pytest.raises(redis.ResponseError, match=r"^NOQUEUE"):
        client.rpush("mails1", "a")


def test_the_doctor_tells_if_servers_have_different_settings(
    start_valkey: StartValkey, start_server: StartServer, config: Path
) -> None:
    # A backend of its own: on the shared one is the shared server, which has other settings.
    backend = start_valkey()
    one, other = (start_server("--config", str(config), "--backend", backend.url) for _ in range(2))
    doctor = ("doctor", "--wait", "0", "--backend", backend.url)
    assert run_command(*doctor).stdout == "0 queues checked: no problems\n"
    config.write_text("[queues.'*']\nbound = 9")
    reload(one, _RELOADED)
    done = run_command(*doctor)
    assert done.returncode == 0
    assert "servers on this backend have different settings of new queues" in done.stdout
    reload(other, _RELOADED)
    assert run_command(*doctor).stdout == "0 queues checked: no problems\n"


def test_the_library_matches_names_as_redis_does(backend: Valkey) -> None:
    """Create queues by templates of random patterns, and compare with Glob."""
    choose = random.Random(1)
    letters = (b"a", b"a", b"a", b"b", b"b", b"%", b"-", b"]", b"^", b".", b"z", b"\x00", b"\n", b"\xff")
    classes = (b"?", b"[ab]", b"[^ab]", b"[a-z]", b"[]", b"[%^]", b"\\*", b"[\\]-]")
    signs = (*letters, *[b"*"] * 4, *classes)

    def text(parts: tuple[bytes, ...], most: int) -> bytes:
        return b"".join(choose.choices(parts, k=choose.randint(1, most)))

    async def compare() -> int:
        broker = default_broker(backend.url)
        await broker.start()
        matched = 0
        try:
            for number in range(100):
                pattern = text(signs, 4)
                glob = Glob(pattern)
                template = QueueTemplate(repr(pattern), glob, {}, Creation(bound=number + 1))
                broker.change_policy(Policy(templates=(template,)))
                for name in [text(letters, 3) for _ in range(5)]:
                    database = broker.default_database
                    await database.run(verbs.PUT, name, [b"m"])
                    bound = (await database.run(verbs.INFO, name))[0].bound
                    await database.run(verbs.DELETE, name)
                    assert (bound == number + 1) == glob.matches(name), (pattern, name)
                    matched += bound == number + 1
        finally:
            await broker.close()
        return matched

    assert 25 < asyncio.run(compare()) < 450
