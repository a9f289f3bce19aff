"""Probes and triggers that observe.md and kubernetes.md name: Monit, Zabbix agent 2, and what KEDA sends."""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.documents import DOCS
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, BackgroundProgram, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, Wire
from tests.support.requirements import need

pytestmark = pytest.mark.clients

_DAEMON = """\
set daemon 1
set log {0}/log
set pidfile {0}/pid
set statefile {0}/state
set idfile {0}/id
"""
# KEDA 2.18, pkg/scalers/redis_scaler.go; all of them send the same script.
_KEDA_SCRIPT = """
local listName = KEYS[1]
local listType = redis.call('type', listName).ok
if listType == 'list' or listType == 'none' then
    return redis.call('llen', listName)
end
"""


@pytest.fixture
def probed(backend: Valkey, start_server: StartServer) -> Iterator[Server]:
    """A server with listeners of all protocols, and HTTP."""
    server = start_server("--backend", backend.url, *LISTEN, "--http", "http://127.0.0.1:0")
    yield server
    server.end_well()


def test_the_probes_of_monit_that_the_guide_has_succeed(probed: Server, tmp_path: Path) -> None:
    """The last check, in the binary protocol, always fails: when it has, the others have been done."""
    monit = need("monit", "monit")
    guide = (DOCS / "guides/observe.md").read_text()
    found = re.search(r"^ +check host .*\n(?: +if .*\n)+", guide, re.M)
    assert found
    example = found[0].replace(" for 3 cycles", "")
    for port, kind in ((4080, "http"), (4000, "resp"), (11211, "memcached"), (11300, "beanstalk")):
        assert f" port {port} " in example
        example = example.replace(f" port {port} ", f" port {probed.port_of(kind)} ")
    control = f"check host binary with address 127.0.0.1\n if failed port {probed.port_of('memcached')} "
    file = tmp_path / "monitrc"
    file.write_text(_DAEMON.format(tmp_path) + example + control + "protocol memcache then alert\n")
    file.chmod(0o600)
    log = tmp_path / "log"
    with BackgroundProgram(tmp_path / "output", monit, "-I", "-c", str(file)):
        wait_for(lambda: log.exists() and log.read_text().count("'binary' failed") > 1, "checks of Monit")
    assert "'pressure-server' failed" not in log.read_text()
    assert probed.log.count("speaks memcached's binary protocol") == 1


def _asked(item: str) -> str:
    """Return the value of an item as Zabbix agent 2 gets it."""
    agent = need("zabbix_agent2", "zabbix-agent2")
    done = subprocess.run([agent, "-t", item], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    found = re.search(r"\[([sm])\|(.*)\]\s*$", done.stdout, re.S)
    assert found, done
    return found[2] if found[1] == "s" else "not supported"


def test_the_items_of_zabbix_that_the_guide_has_are_supported(probed: Server) -> None:
    resp = f'"tcp://127.0.0.1:{probed.port}"'
    assert _asked(f"redis.ping[{resp}]") == "1"
    assert _asked(f"redis.slowlog.count[{resp}]") == "0"
    assert "redis_version" in json.loads(_asked(f"redis.info[{resp}]"))["Server"]
    assert "200 OK" in _asked(f"web.page.get[127.0.0.1,/readyz,{probed.port_of('http')}]")
    memcached = probed.port_of("memcached")
    assert _asked(f"net.tcp.service[tcp,127.0.0.1,{memcached}]") == "1"
    assert _asked(f'memcached.ping["tcp://127.0.0.1:{memcached}"]') == "0"
    assert "speaks memcached's binary protocol" in probed.log


def _trigger(kind: str) -> dict[str, str]:
    """Return the metadata of a trigger of KEDA in kubernetes.md."""
    guide = (DOCS / "guides/kubernetes.md").read_text()
    found = re.search(rf"  - type: {kind}\n    metadata:\n((?:      .*\n)+)", guide)
    assert found
    return dict(line.strip().split(": ", 1) for line in found[1].splitlines())


def test_what_keda_s_trigger_beanstalkd_sends_is_answered(probed: Server) -> None:
    """pkg/scalers/beanstalkd_scaler.go with go-beanstalk: on one connection, which stays open."""
    tube = _trigger("beanstalkd")["tube"]
    with probed.client() as client, Wire(BEANSTALK, probed) as keda:

        def jobs() -> int | None:
            keda.send(f"stats-tube {tube}\r\n".encode())
            line = keda.line().strip()
            if line == b"NOT_FOUND":
                return None
            data = keda.exactly(int(line.split()[1]) + 2).decode()
            figures = dict(line.split(": ", 1) for line in data.split("\n") if ": " in line)
            return int(figures["current-jobs-ready"]) + int(figures["current-jobs-reserved"])

        assert jobs() is None
        client.rpush(tube, "a", "b", "c")
        assert jobs() == 3
        client.execute_command("PRESSURE.RESERVE", tube)
        assert jobs() == 3
        client.spop(tube)
        assert jobs() == 2


def test_what_keda_s_trigger_redis_sends_is_refused(probed: Server) -> None:
    with probed.client() as client, pytest.raises(redis.ResponseError, match="EVAL"):
        client.eval(_KEDA_SCRIPT, 1, "mails")


def test_prometheus_answers_the_query_of_keda_s_trigger(probed: Server, tmp_path: Path) -> None:
    prometheus, (port,) = need("prometheus", "prometheus"), free_ports(1)
    query = urllib.parse.quote(_trigger("prometheus")["query"])
    target = f"127.0.0.1:{probed.port_of('http')}"
    file = tmp_path / "prometheus.yml"
    file.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: x, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = (
        prometheus, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip

    def value() -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}") as response:
                found = json.loads(response.read())["data"]["result"]
        except OSError:
            return None
        return found and found[0]["value"][1]

    with BackgroundProgram(tmp_path / "output", *command), probed.client() as client:
        client.rpush("mails", "a", "b", "c")
        wait_for(lambda: value() == "3", "the metric", 2 * TIMEOUT)
        client.spop("mails")
        wait_for(lambda: value() == "2", "the metric", 2 * TIMEOUT)
