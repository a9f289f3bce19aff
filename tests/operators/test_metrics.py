"""Metrics: their format, their values after known operations, their limits, and the files that use them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.operators.conftest import HTTP
from tests.support.http_requests import request
from tests.support.module_servers import module_server
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import (
    BackgroundProgram,
    Client,
    Server,
    StartServer,
    Valkey,
    embedded_client,
    wait_for,
)
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, Wire
from tests.support.requirements import need
from tests.support.waiters import Waiter, create

_DEPLOY = ROOT / "deploy"
_ONLY_EMBEDDED = {f"pressure_backend_disk_{name}" for name in ("bytes", "free_bytes", "size_bytes")}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


shared_server = module_server(*HTTP, *LISTEN)


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
def test_promtool_finds_no_fault(server: Server, client: Client) -> None:
    promtool = need("promtool", "prometheus")
    for kind in ("fifo", "jobs", "log"):
        create(client, kind, "TYPE", kind)
        client.sadd(kind, "x")
    client.sadd('a "quoted\\ name\n', "x")
    _after_a_round(server)
    text = request(server, "/metrics").body
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


def test_figures_are_those_of_what_was_done(server: Server, client: Client) -> None:
    create(client, "q", "BOUND", "4")
    client.sadd("q", "a", "bb", "ccc")
    client.spop("q")
    create(client, "jobs", "TYPE", "JOBS")
    for job, *options in (("now",), ("later", "DELAY", "100"), ("held", "PRIORITY", "1")):
        client.execute_command("PRESSURE.PUT", "jobs", job, *options)
    client.execute_command("PRESSURE.RESERVE", "jobs", "DETACHED", "me")
    create(client, "empty")
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "empty", 0)
        wait_for(lambda: _value(_samples(server), "pressure_clients_blocked") == 1, "the client to wait")
        samples = _after_a_round(server)
    of_jobs = {"queue": "jobs", "database": "0"}
    for name, labels, value in (
        ("pressure_queue_messages", {"queue": "q"}, 2),
        ("pressure_queue_bytes", {"queue": "q"}, 5),
        ("pressure_queue_bound", {"queue": "q"}, 4),
        ("pressure_queue_messages_put_total", {"queue": "q"}, 3),
        ("pressure_queue_messages_taken_total", {"queue": "q"}, 1),
        ("pressure_queue_jobs", {**of_jobs, "state": "ready"}, 1),
        ("pressure_queue_jobs", {**of_jobs, "state": "delayed"}, 1),
        ("pressure_queue_jobs", {**of_jobs, "state": "reserved"}, 1),
        ("pressure_queue_jobs", {**of_jobs, "state": "buried"}, 0),
        ("pressure_queue_deliveries_total", {"queue": "jobs"}, 1),
        ("pressure_queue_waiting", {"queue": "empty", "role": "consumer"}, 1),
    ):
        assert _value(samples, name, **{"database": "0", **labels}) == value, (name, labels)
    assert _value(samples, "pressure_queue_oldest_message_age_seconds", queue="q", database="0") > 0
    assert _value(samples, "pressure_queues", type="fifo") == 2


def test_commands_and_errors_are_counted_for_each_protocol(server: Server, client: Client) -> None:
    before = _samples(server)

    def grown(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return after.get(key, 0) - before.get(key, 0)

    create(client, "b", "BOUND", "1", "OVERFLOW", "ERROR")
    client.sadd("b", "x")
    for _ in range(2):
        with pytest.raises(Exception, match="FULL"):
            client.sadd("b", "y")
    with pytest.raises(Exception, match="unknown command"):
        client.execute_command("NONSENSE")
    with Wire(MEMCACHED, server) as wire, wire.sending(b"set m 0 0 1\r\nx\r\nget m\r\nfoo\r\nquit\r\n"):
        wire.rest()
    with Wire(BEANSTALK, server) as wire, wire.sending(b"use t\r\nfoo\r\nquit\r\n"):
        wire.rest()
    after = _samples(server)
    for protocol, command, done in (
        ("resp", "sadd", 3), ("memcached", "set", 1), ("memcached", "get", 1), ("beanstalk", "use", 1),
    ):  # fmt: skip
        assert grown("pressure_commands_total", protocol=protocol, command=command) == done
    for protocol, command, error, failed in (
        ("resp", "sadd", "FULL", 2), ("resp", "unknown", "ERR", 1),
        ("memcached", "unknown", "ERROR", 1), ("beanstalk", "unknown", "UNKNOWN_COMMAND", 1),
    ):  # fmt: skip
        labels = {"protocol": protocol, "command": command, "error": error}
        assert grown("pressure_command_errors_total", **labels) == failed
    assert grown("pressure_command_duration_seconds_count", protocol="resp", command="sadd") == 3


def _queues(samples: Samples) -> set[str]:
    """Return the names of the queues that have metrics of their own."""
    return {dict(labels)["queue"] for name, labels in samples if name == "pressure_queue_messages"}


def test_the_number_of_queues_is_limited_and_the_sums_are_not(
    start_server: StartServer, backend: Valkey
) -> None:
    server = start_server(
        *("--backend", backend.url, *HTTP), *("--metrics-queues", "3", "--metrics-match", "a*")
    )
    with server.client() as client:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2"):
            client.sadd(name, "x")
        client.sadd("a4", "y")
        client.sadd("b1", *range(50))
        samples = _after_a_round(server)
        shown = _queues(samples)
        assert len(shown) == 3
        assert shown <= {"a1", "a2", "a3", "a4"}
        assert _value(samples, "pressure_messages") == 57
        assert _value(samples, "pressure_queues_without_metrics") == 3
        client.delete(shown.pop())
        wait_for(lambda: shown < _queues(_samples(server)), "another queue in the free place")
        assert len(_queues(_samples(server))) == 3


def test_a_user_sees_only_its_queues(guarded: Server) -> None:
    wait_for(lambda: _queues(_samples(guarded, ("root", "secret"))) == {"mine", "other"}, "the survey")
    assert _queues(_samples(guarded, ("reader", "secret"))) == {"mine"}
    for login in (None, ("root", "wrong")):
        refused = request(guarded, "/metrics", login=login)
        assert (refused.status, refused.headers["www-authenticate"][:5]) == (401, "Basic")


def test_metrics_remain_while_the_backend_is_away(start_server: StartServer, tmp_path: Path) -> None:
    backend = Valkey(tmp_path)
    server = start_server("--backend", backend.url, *HTTP)
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
    options = ("--backend", backend.url, *HTTP, "--max-stored-bytes", stored)
    server = start_server(*options)
    direct.config_set("maxmemory", maxmemory)
    try:
        assert _value(_samples(server), "pressure_backend_memory_limit_bytes") == limit
    finally:
        direct.config_set("maxmemory", 0)


def test_memory_and_disk_have_limits_by_default(
    server: Server, start_server: StartServer, tmp_path: Path
) -> None:
    """Alerts that compare with a limit of 0 never fire."""
    embedded = start_server("--data-dir", str(tmp_path / "data"), *HTTP)
    for each in (server, embedded):
        samples = _samples(each)
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


def test_the_dashboard_and_the_alerts_use_metrics_that_exist(server: Server, client: Client) -> None:
    create(client, "jobs", "TYPE", "JOBS")
    _after_a_round(server)
    text = request(server, "/metrics").text
    exposed = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) | {name for name, _ in _samples(server)}
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


def test_the_reference_lists_all_metrics(server: Server, client: Client) -> None:
    client.sadd("q", "x")
    _after_a_round(server)
    text = request(server, "/metrics").text
    helps = dict(re.findall(r"^# HELP (pressure_\w+) (.*)$", text, re.MULTILINE))
    page = (_DEPLOY.parent / "docs/reference/metrics.md").read_text()
    listed = dict(re.findall(r"^\| `(pressure_\w+)` \| \w+ \| [^|]* \| (.*) \|$", page, re.MULTILINE))
    assert listed.keys() >= _ONLY_EMBEDDED
    assert {name: text for name, text in listed.items() if name not in _ONLY_EMBEDDED} == helps


@pytest.mark.clients
def test_the_exporter_for_redis_finds_a_redis(server: Server, client: Client, tmp_path: Path) -> None:
    exporter = need("prometheus-redis-exporter", "prometheus-redis-exporter")
    client.sadd("q", "x")
    (port,) = free_ports(1)
    command = (
        exporter, "--redis.addr", f"redis://127.0.0.1:{server.port}",
        "--web.listen-address", f"127.0.0.1:{port}",
    )  # fmt: skip

    def scraped() -> str:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply,
        ):
            return str(reply.read().decode())
        return ""

    with BackgroundProgram(tmp_path / "output", *command):
        text = wait_for(scraped, "the exporter")
    assert 'redis_db_keys{db="db0"} 1' in text
    assert "redis_up 1" in text
    assert "redis_connected_clients" in text
