"""collectd's write_redis stores nothing and says nothing; only the server's log and statistics tell."""

from pathlib import Path

import pytest

from tests.support.programs import BackgroundProgram, Client, Server, StartServer, Valkey, wait_for
from tests.support.requirements import need, require

pytestmark = pytest.mark.clients

_PLUGINS = Path("/usr/lib/collectd")
CONFIG = """
BaseDir "{folder}"
PIDFile "{folder}/pid"
PluginDir "/usr/lib/collectd"
TypesDB "/usr/share/collectd/types.db"
Interval 0.1
LoadPlugin logfile
<Plugin logfile>
  LogLevel info
  File STDOUT
</Plugin>
LoadPlugin uptime
LoadPlugin write_redis
<Plugin write_redis>
  <Node "queues">
    Host "127.0.0.1"
    Port "{port}"
  </Node>
</Plugin>
"""


@pytest.fixture
def server(backend: Valkey, start_server: StartServer) -> Server:
    return start_server("--backend", backend.url)


def test_values_are_refused_which_only_the_server_tells(
    server: Server, client: Client, tmp_path: Path
) -> None:
    program = need("collectd", "collectd-core")
    require((_PLUGINS / "write_redis.so").exists(), "write_redis, of the Debian package collectd-core")
    config = tmp_path / "collectd.conf"
    config.write_text(CONFIG.format(folder=tmp_path, port=server.port))
    with BackgroundProgram(tmp_path / "log", program, "-f", "-C", str(config)) as collectd:
        wait_for(lambda: client.info("errorstats").get("errorstat_UNSUPPORTED"), "refused commands")
        wait_for(lambda: "WARNING refused command ZADD from " in server.log, "a warning")
        assert collectd.stop() == 0
    assert 'plugin "write_redis" successfully loaded' in collectd.output
    assert "UNSUPPORTED" not in collectd.output
    # The names of the values, which it puts by SADD, are all that is stored.
    assert client.keys() == [b"collectd/values"]
