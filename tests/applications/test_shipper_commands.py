"""The commands that Beats, Logstash, Suricata and Telegraf send, in the order of their sources.

None of these can be installed from Debian or the registries, so it is not the programs that are tested.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.log_shippers import access
from tests.support.programs import Client, Server, StartServer, Valkey
from tests.support.waiters import Waiter, create, is_refused, wait_for_waiting

EVENTS = [
    f'{{"@timestamp":"2026-11-26T10:00:00Z","message":"order {number}"}}'.encode() for number in range(4)
]


@pytest.fixture
def shipper(server: Server) -> Iterator[Waiter]:
    with Waiter(server.port) as connected:
        yield connected


def connect_beat(beat: Waiter) -> None:
    """Send what libbeat/outputs/redis/client.go sends first: it reads the version in the reply."""
    assert beat("PING") == b"PONG"
    found = re.search(rb"redis_version:(\d+).(\d+)", beat("INFO"))
    assert found
    # From 2.4 on it sends a batch in one RPUSH.
    assert (int(found[1]), int(found[2])) >= (2, 4)


def test_a_beat_puts_a_batch_in_one_command(shipper: Waiter, client: Client) -> None:
    create(client, "logs", "BOUND", 100000, "OVERFLOW", "overwrite")
    connect_beat(shipper)
    assert shipper("RPUSH", "logs", *EVENTS) == 4
    assert client.lrange("logs", 0, -1) == EVENTS


def test_a_beat_whose_key_depends_on_the_event_sends_a_pipeline(shipper: Waiter, client: Client) -> None:
    connect_beat(shipper)
    for number, event in enumerate(EVENTS):
        shipper.send("RPUSH", f"logs-{number % 2}", event)
    assert [shipper.reply() for _ in EVENTS] == [1, 1, 2, 2]
    assert client.lrange("logs-0", 0, -1) == EVENTS[::2]


def test_a_full_queue_refuses_the_whole_batch_of_a_beat(shipper: Waiter, client: Client) -> None:
    create(client, "logs", "BOUND", 5, "OVERFLOW", "error")
    connect_beat(shipper)
    assert shipper("RPUSH", "logs", *EVENTS) == 4
    assert is_refused(shipper("RPUSH", "logs", *EVENTS), "FULL")
    assert client.lpop("logs", 4) == EVENTS
    # It sends the batch again, until it is put.
    assert shipper("RPUSH", "logs", *EVENTS) == 4
    assert client.lrange("logs", 0, -1) == EVENTS


def test_a_batch_of_a_beat_that_gives_up_at_a_full_queue_comes_twice_in_part(
    server: Server, client: Client
) -> None:
    create(client, "logs", "BOUND", 3)
    with Waiter(server.port) as beat:
        connect_beat(beat)
        beat.send("RPUSH", "logs", *EVENTS)
        wait_for_waiting(client, "logs", producers=1)
    wait_for_waiting(client, "logs", producers=0)
    with Waiter(server.port) as beat:
        connect_beat(beat)
        beat.send("RPUSH", "logs", *EVENTS)
        taken = [client.blpop("logs", 20)[1] for _ in range(7)]
        assert isinstance(beat.reply(), int)
    assert taken == [*EVENTS[:3], *EVENTS]


def test_logstash_ships_single_events_and_batches(shipper: Waiter, client: Client) -> None:
    assert shipper("RPUSH", "logs", EVENTS[0]) == 1
    assert shipper("LLEN", "logs") == 1  # for congestion_threshold
    assert shipper("RPUSH", "logs", *EVENTS[1:]) == 4  # batch => true
    assert client.lrange("logs", 0, -1) == EVENTS


@pytest.mark.parametrize("key", ["logs", "logs+search"])
def test_logstash_reads_with_a_batch_count_of_one(shipper: Waiter, client: Client, key: str) -> None:
    create(client, "logs", "TYPE", "log")
    if key == "logs+search":
        client.execute_command("PRESSURE.GROUP", "CREATE", "logs", "search")
    client.rpush("logs", *EVENTS)
    for event in EVENTS:
        assert shipper("BLPOP", key, 1) == [key.encode(), event]
    assert shipper("BLPOP", key, 0.01) is None


def test_logstash_with_its_default_batch_count_is_refused_and_takes_nothing(
    shipper: Waiter, client: Client
) -> None:
    client.rpush("logs", *EVENTS)
    assert is_refused(
        shipper("SCRIPT", "LOAD", "return redis.call('lrange', KEYS[1], 0, 124)"), "UNSUPPORTED"
    )
    assert is_refused(shipper("EVALSHA", "0" * 40, 1, "logs", 124), "UNSUPPORTED")
    assert client.llen("logs") == 4


@pytest.mark.parametrize("command", ["LPUSH", "RPUSH"])
def test_suricata_ships_in_order_in_each_mode_of_lists(shipper: Waiter, client: Client, command: str) -> None:
    create(client, "logs", "BOUND", 100000, "OVERFLOW", "overwrite")
    assert [shipper(command, "logs", event) for event in EVENTS] == [1, 2, 3, 4]
    # pipelining: it reads the replies when it has sent a batch.
    for event in EVENTS:
        shipper.send(command, "logs", event)
    assert [shipper.reply() for _ in EVENTS] == [5, 6, 7, 8]
    assert client.lrange("logs", 0, -1) == EVENTS * 2


def test_suricata_connects_asynchronously(shipper: Waiter, client: Client) -> None:
    assert shipper("ECHO", "suricata") == b"suricata"
    assert shipper("LPUSH", "logs", EVENTS[0]) == 1
    assert shipper("QUIT") == b"OK"
    assert client.lrange("logs", 0, -1) == EVENTS[:1]


def test_suricata_ships_without_a_login(start_server: StartServer, backend: Valkey, tmp_path: Path) -> None:
    server = start_server("--backend", backend.url, *access(tmp_path))
    with Waiter(server.port) as suricata:
        assert suricata("ECHO", "suricata") == b"suricata"
        assert suricata("LPUSH", "logs", EVENTS[0]) == 1
        assert is_refused(suricata("LPOP", "logs"), "NOPERM")
        assert is_refused(suricata("LPUSH", "others", EVENTS[0]), "NOPERM")


@pytest.mark.parametrize("words", [("PUBLISH", "logs", "event"), ("XADD", "logs", "*", "eve", "event")])
def test_suricata_s_other_modes_are_refused(shipper: Waiter, words: tuple[str, ...]) -> None:
    assert is_refused(shipper(*words), "UNSUPPORTED")


@pytest.mark.parametrize("resp3", [False, True])
def test_telegraf_reads_all_of_info_and_the_length_of_a_queue(
    server: Server, client: Client, *, resp3: bool
) -> None:
    client.rpush("logs", *EVENTS)
    with Waiter(server.port, resp3=resp3) as telegraf:
        text = telegraf("INFO", "ALL")
        assert telegraf("llen", "logs") == 4
    lines = text.decode().split("\r\n")
    sections = {line[2:] for line in lines if line.startswith("# ")}
    assert {"Server", "Clients", "Memory", "Stats", "Replication", "Keyspace", "Errorstats"} <= sections
    fields = dict(line.split(":", 1) for line in lines if line and not line.startswith("#"))
    assert int(fields["uptime_in_seconds"]) >= 0
    assert int(fields["connected_clients"]) >= 1
    assert fields["role"] == "master"
    keyspace = dict(pair.split("=") for pair in fields["db0"].split(","))
    assert {name: int(value) for name, value in keyspace.items()} == {"keys": 1, "expires": 0, "avg_ttl": 0}
    assert re.fullmatch(r"calls=\d+,usec=\d+,usec_per_call=[\d.]+,.*", fields["cmdstat_rpush"])
