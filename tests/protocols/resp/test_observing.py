"""CLIENT LIST of all protocols, INFO of commands and queues, SLOWLOG, LATENCY, MEMORY and OBJECT."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pressure_server.lua import scripts
from pressure_server.queues.names import EXTENSION_SUFFIXES
from tests.support.module_servers import module_server
from tests.support.programs import Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, RESP, Wire
from tests.support.side_by_side import Pair, compare, split
from tests.support.waiters import Waiter, packed

# A server with listeners of all protocols, whose slow log keeps all measured commands.
shared_observed = module_server("--slowlog-slower-than", "0", *LISTEN)


@pytest.fixture
def observed(backend: Valkey, shared_observed: Server) -> Server:
    """That server, with statistics of this test only."""
    with shared_observed.client() as client:
        client.config_resetstat()
        client.slowlog_reset()
    return shared_observed


@pytest.fixture
def watcher(observed: Server) -> Iterator[Client]:
    with observed.client() as client:
        yield client


def fields_of(line: bytes) -> list[str]:
    return [field.partition("=")[0] for field in line.decode().split(" ")]


def test_client_list_has_the_fields_of_redis_in_its_order(pair: Pair) -> None:
    redis, server = pair.connect()
    for command in (b"INFO", b"LIST"):
        expected = fields_of(redis.do((b"CLIENT", command)).line.split(b"\r\n")[1])
        found = fields_of(server.do((b"CLIENT", command)).line.split(b"\r\n")[1])
        assert [field for field in found if field in expected] == expected
        assert found[len(expected) :] == ["lib-name", "lib-ver", "protocol", "waiting"]


def test_clients_of_all_protocols_are_listed_and_killed(observed: Server, watcher: Client) -> None:
    with (
        Wire(RESP, observed) as resp,
        Wire(MEMCACHED, observed) as memcached,
        Wire(BEANSTALK, observed) as beans,
    ):
        memcached(b"get q\r\n")
        beans.send(b"reserve\r\n")
        resp.send(b"BLPOP a\xffb q,r 0\r\n")

        def listed() -> dict[str, tuple[str, str]]:
            entries = [entry for entry in watcher.client_list() if entry["cmd"] != "client|list"]
            return {entry["protocol"]: (entry["cmd"], entry["waiting"]) for entry in entries}

        # A client waits on the first queue before the second one has been tried.
        expected = {
            "resp": ("blpop", "a%FFb,q%2Cr"),
            "memcached": ("get", ""),
            "beanstalk": ("reserve", "default"),
        }
        wait_for(lambda: listed() == expected, "two clients to wait")
        (number,) = [one["id"] for one in watcher.client_list() if one["protocol"] == "memcached"]
        assert watcher.execute_command("CLIENT", "KILL", "ID", number) == 1
        assert memcached.is_closed()
        assert watcher.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") == 2


def test_client_list_bounds_the_queues_on_which_a_client_waits(observed: Server, watcher: Client) -> None:
    with Waiter(observed.port) as waiting:
        waiting.send("BLPOP", *[f"q{number}" for number in range(20)], 0)
        expected = ",".join([*[f"q{number}" for number in range(16)], "+4"])
        wait_for(lambda: expected in [one["waiting"] for one in watcher.client_list()], "the client to wait")


def test_clients_are_killed_by_user_and_by_age(observed: Server, watcher: Client) -> None:
    with Waiter(observed.port) as other:
        assert other("PING") == b"PONG"
        assert watcher.execute_command("CLIENT", "KILL", "MAXAGE", 100000) == 0
        assert watcher.execute_command("CLIENT", "KILL", "USER", "default", "TYPE", "pubsub") == 0
        assert watcher.execute_command("CLIENT", "KILL", "USER", "default") == 1
        with pytest.raises(ConnectionError):
            other.reply()


def test_errors_are_those_of_redis(pair: Pair) -> None:
    lines = """
    CLIENT KILL USER nobody|CLIENT KILL TYPE nonsense|CLIENT KILL TYPE pubsub|CLIENT KILL USER
    SLOWLOG|SLOWLOG NONSENSE|SLOWLOG GET -2|SLOWLOG GET x|SLOWLOG GET 1 2|SLOWLOG LEN x|SLOWLOG RESET
    CONFIG RESETSTAT x|CONFIG RESETSTAT|CONFIG GET slowlog-log-slower-than|CONFIG GET slowlog-max-len
    MEMORY USAGE|MEMORY USAGE missing|MEMORY USAGE missing SAMPLES 0|MEMORY USAGE q SAMPLES
    MEMORY USAGE q NONSENSE 1|MEMORY USAGE q SAMPLES x|MEMORY NONSENSE|SADD q a|OBJECT IDLETIME q
    OBJECT IDLETIME missing|OBJECT IDLETIME|OBJECT NONSENSE q|LATENCY NONSENSE
    LATENCY HISTOGRAM nonsense|MONITOR x
    """
    compare(pair, [line.strip() for line in split(lines)], 2, ignored={"MEMORY USAGE q SAMPLES x"})


def test_statistics_count_calls_errors_and_latencies_of_all_protocols(
    observed: Server, watcher: Client
) -> None:
    with ExitStack() as stack:
        memcached, beans = (stack.enter_context(Wire(one, observed)) for one in (MEMCACHED, BEANSTALK))
        other = stack.enter_context(Waiter(observed.port))
        memcached.put(b"m", b"x")
        assert memcached.get(b"m") == b"x"
        beans.put(b"default", b"job")
        memcached(b"nonsense\r\n")
        other("SADD", "q", "a")
        other("SADD", "q")
        other("PRESSURE.GET", "missing")
        other("nonsense")
    found = watcher.info("commandstats")
    assert (found["cmdstat_memcached.set"]["calls"], found["cmdstat_memcached.get"]["calls"]) == (1, 1)
    assert found["cmdstat_beanstalk.put"]["calls"] == 1
    assert found["cmdstat_sadd"] | {"usec": 0, "usec_per_call": 0} == {
        "calls": 1, "usec": 0, "usec_per_call": 0, "rejected_calls": 1, "failed_calls": 0,
    }  # fmt: skip
    assert found["cmdstat_sadd"]["usec"] > 0
    assert found["cmdstat_pressure.get"]["failed_calls"] == 1
    assert found["cmdstat_unknown"]["rejected_calls"] == 1
    assert found["cmdstat_memcached.unknown"]["rejected_calls"] == 1
    errors = watcher.info("errorstats")
    assert (errors["errorstat_ERROR"], errors["errorstat_NOQUEUE"]) == ({"count": 1}, {"count": 1})
    assert errors["errorstat_ERR"]["count"] >= 2
    total = watcher.info("stats")["total_error_replies"]
    assert total == sum(error["count"] for error in errors.values())
    latencies = watcher.info("latencystats")
    assert set(latencies["latency_percentiles_usec_sadd"]) == {"p50", "p99", "p99.9"}
    watcher.config_resetstat()
    assert "cmdstat_sadd" not in watcher.info("commandstats")
    assert watcher.info("stats")["total_error_replies"] == 0


def test_what_is_answered_without_an_error_counts_as_none(observed: Server, watcher: Client) -> None:
    lines = """SPOP q|SPOP q 2|LPOP q|LPOP q 2|RPOP q|LLEN q|SCARD q|SISMEMBER q a|SMISMEMBER q a b|SREM q a b
    LREM q 0 a|LPUSHX q a|SMEMBERS q|LRANGE q 0 -1|LINDEX q 0|LPOS q a|SRANDMEMBER q|LMOVE q r LEFT LEFT
    PRESSURE.RESERVE q TIMEOUT 0.001|PRESSURE.EXISTS q|PRESSURE.ACK q 1|PRESSURE.TOUCH q 1|PRESSURE.BURY q 1
    PRESSURE.RELEASE q 1|MEMORY USAGE q|EXISTS q|DEL q|CLIENT REPLY OFF|LPOP q|SMISMEMBER q a
    CLIENT REPLY ON|MULTI|SPOP q|LLEN q|SREM q a|LPUSHX q a|EXEC"""
    with ExitStack() as stack:
        resp, memcached, beans = (
            stack.enter_context(Wire(one, observed)) for one in (RESP, MEMCACHED, BEANSTALK)
        )
        resp.send(b"".join(packed(*line.split()) for line in split(lines)) + packed("LPOP", "q") * 100)
        resp.send(packed("QUIT"))
        assert b"-" not in {line[:1] for line in resp.rest().splitlines()}
        memcached(b"get q\r\n" * 50 + b"gets q\r\nget q/open\r\nget q/peek\r\nversion\r\n")
        beans(b"reserve-with-timeout 0\r\n" * 3 + b"list-tube-used\r\n")
    # A new version of redis-py tries a command that is unknown.
    assert set(watcher.info("errorstats")) <= {"errorstat_ERR"}
    assert all(one["failed_calls"] == 0 for one in watcher.info("commandstats").values())


def test_an_error_is_counted_once_for_each_command(observed: Server, watcher: Client) -> None:
    """Also if it is not answered, and if it is about several messages of one command."""
    watcher.execute_command("PRESSURE.CREATE", "full", "BOUND", 1, "OVERFLOW", "ERROR")
    watcher.rpush("full", "a")
    with Wire(MEMCACHED, observed) as memcached, Wire(RESP, observed) as resp:
        memcached(b"set full 0 0 1 noreply\r\nx\r\n" * 3 + b"version\r\n")
        off, on = packed("CLIENT", "REPLY", "OFF"), packed("CLIENT", "REPLY", "ON")
        resp(off + packed("RPUSH", "full", "x") * 5 + on)
    found = watcher.info("commandstats")
    assert (found["cmdstat_memcached.set"]["failed_calls"], found["cmdstat_rpush"]["failed_calls"]) == (3, 5)
    assert watcher.info("errorstats")["errorstat_FULL"]["count"] == 8


def test_info_selects_the_sections_that_redis_selects(pair: Pair) -> None:
    ours = {b"Backend", b"Limits", b"Queues"}
    for words in ((), (b"default",), (b"all",), (b"everything",), (b"errorstats", b"latencystats")):
        expected, found = (
            re.findall(rb"^# (\w+)", wire.do((b"INFO", *words)).line, re.M) for wire in pair.connect()
        )
        assert [one for one in found if one not in ours] == [one for one in expected if one != b"Modules"]


def test_the_lines_of_the_statistics_are_those_of_redis(pair: Pair) -> None:
    lines: list[set[bytes]] = []
    for wire in pair.connect():
        wire.do((b"CONFIG", b"RESETSTAT"))
        for line in ((b"SADD", b"q", b"a"), (b"CLIENT", b"LIST"), (b"SADD", b"q"), (b"nonsense",)):
            wire.do(line)
        text = wire.do((b"INFO", b"commandstats", b"errorstats", b"latencystats")).line
        found = [
            line for line in text.splitlines() if b"sadd" in line or b"|list" in line or b"errorstat_" in line
        ]
        lines.append({re.sub(rb"(usec|usec_per_call|p[\d.]+)=[\d.]+", rb"\1=?", line) for line in found})
    assert lines[0] == lines[1]
    assert len(lines[0]) == 5


def test_info_has_the_queues_of_all_databases_in_use(observed: Server, watcher: Client) -> None:
    watcher.sadd("here", "a")
    watcher.execute_command("PRESSURE.CREATE", "work", "TYPE", "jobs")
    with observed.client(db=3) as third, Waiter(observed.port) as waiting:
        third.sadd("there:1", "a", "b")
        waiting.send("BLPOP", "waited", 0)
        wait_for(lambda: watcher.info("clients")["blocked_clients"] == 1, "the client to wait")
        watcher.execute_command("PRESSURE.CREATE", "waited")
        keyspace = watcher.info("keyspace")
        assert (keyspace["db0"]["keys"], keyspace["db3"]["keys"]) == (3, 1)
        queues = watcher.info("queues")
        assert queues["queue_here"]["length"] == 1
        assert queues["queue_waited"]["waiting_consumers"] == 1
        assert queues["db3_queue_there%3A1"]["length"] == 2
        work = queues["queue_work"]
        assert [work[name] for name in ("ready", "delayed", "reserved", "buried", "paused_ms")] == [0] * 5
        assert "ready" not in queues["queue_here"]
        assert third.info("queues")["queue_there%3A1"]["length"] == 2
        assert third.info("queues")["db0_queue_here"]["length"] == 1


def test_the_slow_log_has_commands_of_all_protocols_as_clients_sent_them(
    observed: Server, watcher: Client
) -> None:
    watcher.client_setname("watcher")
    with Wire(MEMCACHED, observed) as memcached, Wire(BEANSTALK, observed) as beans:
        memcached.put(b"m", b"x")
        beans.send(b"put 7 0 60 3\r\njob\r\n")
        assert beans.reply().startswith(b"INSERTED")
    watcher.sadd("q", "a", "b")
    watcher.execute_command("CLIENT", "LIST")
    entries = {entry["command"]: entry for entry in watcher.slowlog_get(-1)}
    assert {b"set m x", b"put default job", b"sadd q a b", b"CLIENT LIST"} <= entries.keys()
    added = entries[b"sadd q a b"]
    assert (added["client_name"], added["duration"] > 0) == (b"watcher", True)
    assert added["client_address"].startswith(b"127.0.0.1:")
    latest, before_it = (entry["id"] for entry in watcher.slowlog_get(2))
    assert latest == before_it + 1
    before = watcher.slowlog_len()
    assert before > 3
    watcher.slowlog_reset()
    assert watcher.slowlog_len() < before


def test_entries_of_the_slow_log_have_the_form_of_redis(
    original: Valkey, start_server: StartServer, backend: Valkey
) -> None:
    server = start_server("--backend", backend.url, "--slowlog-slower-than", "0", "--slowlog-max-len", "3")
    forms: list[list[object]] = []
    with original.client() as redis, server.client() as client:
        redis.config_set("slowlog-log-slower-than", 0)
        try:
            for connected in (redis, client):
                connected.slowlog_reset()
                connected.sadd("q", b"x" * 200, *range(40))
                entries = {one["command"].lower(): sorted(one) for one in connected.slowlog_get(10)}
                forms.append([entry for entry in entries.items() if entry[0].startswith(b"sadd")])
        finally:
            redis.config_set("slowlog-log-slower-than", 10000)
            redis.slowlog_reset()
        for _ in range(5):
            client.sadd("q", "a")
        assert client.slowlog_len() == 3
        assert client.config_get("slowlog*") == {"slowlog-log-slower-than": "0", "slowlog-max-len": "3"}
    assert forms[0] == forms[1]
    assert len(forms[0]) == 1


def test_a_negative_time_turns_the_slow_log_off(start_server: StartServer, backend: Valkey) -> None:
    with start_server("--backend", backend.url, "--slowlog-slower-than", "-1").client() as client:
        client.sadd("q", "a")
        assert client.slowlog_len() == 0


def test_latency_histograms_are_cumulative(observed: Server, watcher: Client) -> None:
    for number in range(20):
        watcher.sadd("q", number)
    watcher.client_list()
    with Waiter(observed.port) as plain:
        found = plain("LATENCY", "HISTOGRAM", "sadd", "client|list", "nonsense")
    histograms = dict(zip(found[::2], found[1::2], strict=True))
    assert set(histograms) == {b"sadd", b"client|list"}
    calls, total, _, histogram = histograms[b"sadd"]
    limits, counts = histogram[::2], histogram[1::2]
    assert (calls, total, counts[-1]) == (b"calls", 20, 20)
    assert (limits, counts) == (sorted(limits), sorted(counts))
    assert all(limit & (limit - 1) == 0 for limit in limits)


def test_memory_usage_grows_with_the_messages_of_each_type(watcher: Client) -> None:
    for kind in ("fifo", "jobs", "log"):
        watcher.execute_command("PRESSURE.CREATE", kind, "TYPE", kind)
        before = watcher.memory_usage(kind)
        for number in range(100):
            watcher.execute_command("PRESSURE.PUT", kind, f"{number:0100}")
        assert watcher.memory_usage(kind, samples=0) > before + 100 * 100
    assert watcher.pipeline().memory_usage("fifo").memory_usage("missing").execute()[1] is None
    stats = watcher.memory_stats()
    assert stats["total.allocated"] > 1 << 20
    assert stats["clients.evicted"] == 0


def test_the_names_of_the_keys_are_those_of_the_scripts() -> None:
    text = (Path(scripts.__file__).parent / "core" / "keys.lua").read_text()
    body = text.partition("of_extensions")[2].partition("}")[0]
    assert [suffix.encode() for suffix in re.findall(r"'(:ext:\w+)'", body)] == list(EXTENSION_SUFFIXES)
