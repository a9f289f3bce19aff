"""Metrics: their format, their values after known operations, their limits, and the files that use them."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.guards import users_toml
from tests.support.http_requests import request
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import Client, Server, StartServer, Valkey, embedded_client, wait_for
from tests.support.requirements import need

_DEPLOY = ROOT / "deploy"
_ONLY_EMBEDDED = {f"pressure_backend_disk_{name}" for name in ("bytes", "free_bytes", "size_bytes")}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def watched(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an HTTP listener."""
    server = Server(
        tmp_path_factory.mktemp("watched") / "log",
        *("--backend", shared_backend.url, "--http", "http://127.0.0.1:0"),
        *("--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0"),
    )
    yield server
    server.end_well()


@pytest.fixture
def watcher(backend: Valkey, watched: Server) -> Iterator[Client]:
    """redis-py, connected to that server, on a backend without data."""
    with watched.client() as connected:
        yield connected


def _samples(server: Server, login: tuple[str, str] | None = None) -> Samples:
    response = request(server, "/metrics", login=login)
    assert response.status == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def _value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def _after_a_round(server: Server) -> Samples:
    """Return the samples when the survey has begun and ended a round."""
    rounds = _value(_samples(server), "pressure_survey_rounds_total")
    wait_for(
        lambda: _value(_samples(server), "pressure_survey_rounds_total") >= rounds + 2,
        "a round of the survey",
    )
    return _samples(server)


@pytest.mark.clients
def test_promtool_finds_no_fault(watched: Server, watcher: Client) -> None:
    promtool = need("promtool", "prometheus")
    for kind in ("fifo", "jobs", "log"):
        watcher.execute_command("PRESSURE.CREATE", kind, "TYPE", kind)
        watcher.sadd(kind, "x")
    watcher.sadd('a "quoted\\ name\n', "x")
    _after_a_round(watched)
    text = request(watched, "/metrics").body
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.clients
@pytest.mark.parametrize("command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts-test.yml")])
def test_promtool_accepts_the_alert_rules(command: tuple[str, ...]) -> None:
    promtool = need("promtool", "prometheus")
    done = subprocess.run(
        [promtool, *command],
        cwd=_DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_figures_of_a_queue_are_those_of_what_was_done(watched: Server, watcher: Client) -> None:
    queue = {"database": "0", "queue": "q"}
    watcher.execute_command("PRESSURE.CREATE", "q", "BOUND", "4")
    watcher.sadd("q", "a", "bb", "ccc")
    watcher.spop("q")
    samples = _after_a_round(watched)
    assert _value(samples, "pressure_queue_messages", **queue) == 2
    assert _value(samples, "pressure_queue_bytes", **queue) == 5
    assert _value(samples, "pressure_queue_bound", **queue) == 4
    assert _value(samples, "pressure_queue_messages_put_total", **queue) == 3
    assert _value(samples, "pressure_queue_messages_taken_total", **queue) == 1
    assert _value(samples, "pressure_queue_oldest_message_age_seconds", **queue) > 0
    assert _value(samples, "pressure_messages") == 2
    assert _value(samples, "pressure_queues", type="fifo") == 1


def test_jobs_are_shown_by_state(watched: Server, watcher: Client) -> None:
    watcher.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    watcher.execute_command("PRESSURE.PUT", "jobs", "now")
    watcher.execute_command("PRESSURE.PUT", "jobs", "later", "DELAY", "100")
    watcher.execute_command("PRESSURE.PUT", "jobs", "held", "PRIORITY", "1")
    watcher.execute_command("PRESSURE.RESERVE", "jobs", "DETACHED", "me")
    samples = _after_a_round(watched)
    states = {
        state: _value(samples, "pressure_queue_jobs", database="0", queue="jobs", state=state)
        for state in ("ready", "delayed", "reserved", "buried")
    }
    assert states == {"ready": 1, "delayed": 1, "reserved": 1, "buried": 0}
    assert _value(samples, "pressure_queue_deliveries_total", database="0", queue="jobs") == 1


def test_waiting_clients_are_shown(watched: Server, watcher: Client) -> None:
    labels = {"database": "0", "queue": "empty", "role": "consumer"}
    watcher.execute_command("PRESSURE.CREATE", "empty")
    with watched.client() as other:
        taking = threading.Thread(target=other.blpop, args=("empty", 20))
        taking.start()
        wait_for(
            lambda: _samples(watched).get(("pressure_queue_waiting", frozenset(labels.items()))) == 1,
            "the waiting client",
        )
        assert _value(_samples(watched), "pressure_clients_blocked") == 1
        watcher.sadd("empty", "x")
        taking.join()


def test_commands_and_errors_are_counted_for_each_protocol(watched: Server, watcher: Client) -> None:
    before = _samples(watched)

    def grown(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return after.get(key, 0) - before.get(key, 0)

    watcher.execute_command("PRESSURE.CREATE", "b", "BOUND", "1", "OVERFLOW", "ERROR")
    watcher.sadd("b", "x")
    for _ in range(2):
        with pytest.raises(Exception, match="FULL"):
            watcher.sadd("b", "y")
    with pytest.raises(Exception, match="unknown command"):
        watcher.execute_command("NONSENSE")
    for scheme, lines in (
        ("memcached", b"set m 0 0 1\r\nx\r\nget m\r\nfoo\r\n"),
        ("beanstalk", b"use t\r\nfoo\r\n"),
    ):
        with socket.create_connection(("127.0.0.1", watched.port_of(scheme)), 20) as connection:
            connection.sendall(lines + b"quit\r\n")
            while connection.recv(4096):
                pass
    after = _samples(watched)
    assert grown("pressure_commands_total", protocol="resp", command="sadd") == 3
    assert grown("pressure_command_errors_total", protocol="resp", command="sadd", error="FULL") == 2
    assert grown("pressure_command_errors_total", protocol="resp", command="unknown", error="ERR") == 1
    assert grown("pressure_command_duration_seconds_count", protocol="resp", command="sadd") == 3
    assert grown("pressure_commands_total", protocol="memcached", command="set") == 1
    assert grown("pressure_commands_total", protocol="memcached", command="get") == 1
    assert grown("pressure_command_errors_total", protocol="memcached", command="unknown", error="ERROR") == 1
    assert grown("pressure_commands_total", protocol="beanstalk", command="use") == 1
    assert (
        grown(
            "pressure_command_errors_total", protocol="beanstalk", command="unknown", error="UNKNOWN_COMMAND"
        )
        == 1
    )


def test_the_number_of_queues_is_limited_and_the_sums_are_not(
    start_server: StartServer, backend: Valkey
) -> None:
    server = start_server(
        *("--backend", backend.url, "--http", "http://127.0.0.1:0"),
        *("--metrics-queues", "3", "--metrics-match", "a*"),
    )
    with server.client() as client:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2"):
            client.sadd(name, "x")
        client.sadd("a4", "y")
        client.sadd("b1", *range(50))
        samples = _after_a_round(server)
        shown = {dict(labels)["queue"] for name, labels in samples if name == "pressure_queue_messages"}
        assert len(shown) == 3
        assert shown <= {"a1", "a2", "a3", "a4"}
        assert _value(samples, "pressure_messages") == 57
        assert _value(samples, "pressure_queues_without_metrics") == 3
        client.delete(shown.pop())
        again = wait_for(
            lambda: (
                found
                if len(
                    found := {
                        dict(la)["queue"] for n, la in _samples(server) if n == "pressure_queue_messages"
                    }
                )
                == 3
                and shown < found
                and found != shown
                else None
            ),
            "another queue in the free place",
        )
        assert shown < again


def test_a_user_sees_only_its_queues(start_server: StartServer, backend: Valkey, tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(
        users_toml(
            {
                "root": ("secret", ["*"], ["put", "get", "read", "administer"]),
                "reader": ("secret", ["mine*"], ["read"]),
                "writer": ("secret", ["*"], ["put"]),
            }
        )
    )
    server = start_server(
        *("--backend", backend.url, "--http", "http://127.0.0.1:0", "--users", str(tmp_path / "users.toml"))
    )
    with server.client(username="root", password="secret") as client:
        client.sadd("mine", "x")
        client.sadd("other", "x")

        def names(login: tuple[str, str]) -> set[str]:
            return {
                dict(labels)["queue"]
                for name, labels in _samples(server, login)
                if name == "pressure_queue_messages"
            }

        wait_for(lambda: names(("root", "secret")) == {"mine", "other"}, "the survey")
        assert names(("reader", "secret")) == {"mine"}
    assert request(server, "/metrics").status == 401
    assert request(server, "/metrics").headers["www-authenticate"].startswith("Basic")
    assert request(server, "/metrics", login=("writer", "secret")).status == 403
    assert request(server, "/metrics", login=("root", "wrong")).status == 401


def test_metrics_remain_while_the_backend_is_away(start_server: StartServer, tmp_path: Path) -> None:
    backend = Valkey(tmp_path)
    server = start_server("--backend", backend.url, "--http", "http://127.0.0.1:0")
    assert _value(_samples(server), "pressure_backend_up", database="0") == 1
    assert (request(server, "/healthz").status, request(server, "/readyz").status) == (200, 200)
    backend.stop()
    wait_for(lambda: request(server, "/readyz").status == 503, "the server to be not ready")
    assert "backend" in request(server, "/readyz").text
    assert request(server, "/healthz").status == 200
    samples = _samples(server)
    assert _value(samples, "pressure_backend_up", database="0") == 0
    assert _value(samples, "pressure_ready") == 0
    backend.start()
    wait_for(lambda: request(server, "/readyz").status == 200, "the server to be ready")
    assert _value(_samples(server), "pressure_backend_reconnects_total", database="0") >= 1
    backend.stop()


@pytest.mark.parametrize(
    ("stored", "maxmemory", "limit"), [("0", 0, 0), ("50mb", 0, 50 << 20), ("50mb", 40 << 20, 40 << 20)]
)
def test_the_limit_of_memory_is_the_smallest_one(
    start_server: StartServer, backend: Valkey, direct: Client, stored: str, maxmemory: int, limit: int
) -> None:
    options = ("--backend", backend.url, "--http", "http://127.0.0.1:0", "--max-stored-bytes", stored)
    server = start_server(*options)
    direct.config_set("maxmemory", maxmemory)
    try:
        assert _value(_samples(server), "pressure_backend_memory_limit_bytes") == limit
    finally:
        direct.config_set("maxmemory", 0)


def test_memory_and_disk_have_limits_by_default(
    watched: Server, start_server: StartServer, tmp_path: Path
) -> None:
    """Alerts that compare with a limit of 0 never fire."""
    embedded = start_server("--data-dir", str(tmp_path / "data"), "--http", "http://127.0.0.1:0")
    for server in (watched, embedded):
        samples = _samples(server)
        assert _value(samples, "pressure_backend_memory_limit_bytes") == 0
        machine = _value(samples, "pressure_backend_machine_memory_bytes")
        assert 0 < _value(samples, "pressure_backend_resident_bytes") < machine
    disk = os.statvfs(tmp_path)
    assert _value(samples, "pressure_backend_disk_size_bytes") == disk.f_blocks * disk.f_frsize
    free = _value(samples, "pressure_backend_disk_free_bytes")
    assert abs(free - disk.f_bavail * disk.f_frsize) < 0.1 * disk.f_blocks * disk.f_frsize
    # They say why a backend is away that cannot write.
    with embedded_client(tmp_path / "data") as client:
        valkey = client.info("server")["process_id"]
    os.kill(valkey, signal.SIGSTOP)
    try:
        wait_for(lambda: request(embedded, "/readyz").status == 503, "the server to be not ready")
        assert _samples(embedded).keys() >= {(name, frozenset()) for name in _ONLY_EMBEDDED}
    finally:
        os.kill(valkey, signal.SIGCONT)


def test_the_dashboard_and_the_alerts_use_metrics_that_exist(watched: Server, watcher: Client) -> None:
    watcher.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    _after_a_round(watched)
    text = request(watched, "/metrics").text
    exposed = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) | {name for name, _ in _samples(watched)}
    exposed |= {*_ONLY_EMBEDDED, "pressure_command_duration_seconds_bucket"}
    dashboard = json.loads((_DEPLOY / "grafana" / "pressure-server.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [item["query"] for item in dashboard["templating"]["list"]]
    expressions.append((_DEPLOY / "prometheus" / "alerts.yml").read_text())
    used = {name for text in expressions for name in re.findall(r"\b(?:pressure|process)_\w+", text)}
    assert len(used) > 30
    assert used <= exposed, used - exposed
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_reference_lists_all_alerts() -> None:
    alerts = re.findall(r"- alert: (\w+)", (_DEPLOY / "prometheus/alerts.yml").read_text())
    tested = re.findall(r"alertname: (\w+)", (_DEPLOY / "prometheus/alerts-test.yml").read_text())
    page = (_DEPLOY.parent / "docs/reference/metrics.md").read_text()
    assert set(alerts) == set(tested)
    assert sorted(alerts) == sorted(re.findall(r"`(Pressure[A-Z]\w+)`", page))


def test_the_reference_lists_all_metrics(watched: Server, watcher: Client) -> None:
    watcher.sadd("q", "x")
    _after_a_round(watched)
    text = request(watched, "/metrics").text
    helps = dict(re.findall(r"^# HELP (pressure_\w+) (.*)$", text, re.MULTILINE))
    page = (_DEPLOY.parent / "docs/reference/metrics.md").read_text()
    listed = dict(re.findall(r"^\| `(pressure_\w+)` \| \w+ \| [^|]* \| (.*) \|$", page, re.MULTILINE))
    assert listed.keys() >= _ONLY_EMBEDDED
    assert {name: text for name, text in listed.items() if name not in _ONLY_EMBEDDED} == helps


@pytest.mark.clients
def test_the_exporter_for_redis_finds_a_redis(watched: Server, watcher: Client) -> None:
    exporter = need("prometheus-redis-exporter", "prometheus-redis-exporter")
    watcher.sadd("q", "x")
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [
            exporter,
            "--redis.addr",
            f"redis://127.0.0.1:{watched.port}",
            "--web.listen-address",
            f"127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        text = wait_for(lambda: _scraped(port), "the exporter")
    finally:
        process.terminate()
        process.wait()
    assert 'redis_db_keys{db="db0"} 1' in text
    assert "redis_up 1" in text
    assert "redis_connected_clients" in text


def _scraped(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
            text: str = response.read().decode()
            return text
    except OSError:
        return ""
