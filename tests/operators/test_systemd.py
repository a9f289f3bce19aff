"""The systemd unit: it is valid, exposes little, and its restrictions let the server and Valkey work."""

import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.support.confined import allowed_calls, settings_of
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, BackgroundProgram, StartServer, Valkey, embedded_client, wait_for
from tests.support.requirements import need, require

pytestmark = pytest.mark.clients

UNIT = ROOT / "deploy/systemd/pressure-server.service"
# What `systemd-analyze security` of systemd 252 finds, in tenths. The rest of the exposure is the network,
# Unix sockets, and the host's file system, which is visible but read-only.
MAX_EXPOSURE = 11


@pytest.fixture(scope="module")
def analyze() -> str:
    """Return the path of systemd-analyze."""
    return need("systemd-analyze", "systemd")


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **variables}, check=False
    )


def test_the_unit_is_valid(analyze: str, tmp_path: Path) -> None:
    program = tmp_path / "pressure-server"
    program.symlink_to("/bin/true")
    text, found = re.subn(r"/opt/pressure-server/bin/pressure-server", str(program), UNIT.read_text())
    assert found == 1
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    ended = run(analyze, "verify", "--man=no", str(unit))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_unit_exposes_as_little_as_a_network_server_can(analyze: str) -> None:
    ended = run(analyze, "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(UNIT))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_unit_uses_the_notifications_of_the_server() -> None:
    def only(name: str) -> str:
        (value,) = settings_of(UNIT, name)
        return value

    assert only("Type") == "notify"
    assert only("WatchdogSec") == "30s"
    assert only("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert int(only("TimeoutStopSec").removesuffix("s")) >= 75
    assert only("KillMode") == "mixed", "Valkey must not get SIGTERM before the server has drained"


def test_the_service_reads_its_secrets_by_a_group_that_the_page_makes() -> None:
    (group,) = settings_of(UNIT, "SupplementaryGroups")
    assert not settings_of(UNIT, "LoadCredential"), "systemd copies these only when the service starts"
    page = (ROOT / "docs/guides/systemd.md").read_text()
    assert f"groupadd --system {group}\n" in page
    installed = re.findall(r"\binstall -m (\d+)(?: -g (\S+))? [^#]*?(\S+)\n", page.replace("\\\n", ""))
    assert {file: (mode, owner) for mode, owner, file in installed} == {
        "/etc/systemd/system/": ("644", ""),
        "/etc/pressure-server/password": ("640", group),
        "/etc/pressure-server/": ("640", group),
        "server.pem": ("640", group),
        "server.key": ("640", group),
    }


@pytest.fixture
def make_certificate(tmp_path: Path) -> Callable[[], None]:
    """Return a function that runs the command of docs/guides/security.md, for localhost, in `tmp_path`."""
    page = (ROOT / "docs/guides/security.md").read_text()
    found = re.search(r"^    (openssl req -x509 (?:.*\\\n)+.*)$", page, re.MULTILINE)
    assert found
    words = shlex.split(found[1].replace("\\\n", " ").replace("queues.internal", "localhost"))
    words[0] = need("openssl", "openssl")

    def make() -> None:
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=TIMEOUT)

    return make


def test_files_that_only_a_group_can_read_are_read_and_reloaded(
    tmp_path: Path, backend: Valkey, make_certificate: Callable[[], None]
) -> None:
    """The server is a root without capabilities, and the files belong to another user, as in the service."""
    require(os.geteuid() == 0, "root, to give files to another user")
    group, nobody = 54321, 65534
    password, certificate, key = (tmp_path / name for name in ("password", "server.pem", "server.key"))

    def install() -> None:
        password.write_text("secret")
        make_certificate()
        for file in (password, certificate, key):
            os.chown(file, nobody, group)
            file.chmod(0o640)

    def serial_number() -> object:
        context = ssl.create_default_context(cafile=certificate)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as in Python 3.13
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            return (secure.getpeercert() or {})["serialNumber"]

    install()
    (port,) = free_ports(1)
    options = {
        "listen": f"resps://127.0.0.1:{port}", "backend": backend.url, "password-file": password,
        "tls-certificate": certificate, "tls-key": key,
    }  # fmt: skip
    command = (
        need("setpriv", "util-linux"), f"--groups={group}", "--bounding-set=-all", "--inh-caps=-all",
        sys.executable, "-m", "pressure_server", *(f"--{name}={value}" for name, value in options.items()),
    )  # fmt: skip
    with BackgroundProgram(tmp_path / "log", *command, folder=ROOT) as server:
        server.wait_for(" ready: ")
        before = serial_number()
        install()
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded: ")
        assert serial_number() != before
        key.chmod(0o600)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reload failed")
        assert "Permission denied" in server.output
        assert server.stop() == 0


def test_commands_find_the_data_in_the_configuration_as_the_page_installs_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    data, config = tmp_path / "data", tmp_path / "pressure-server.toml"
    with start_server("--data-dir", str(data)).client() as client:
        client.rpush("mails", "to: ada")
    config.write_text((ROOT / "deploy/pressure-server.toml").read_text("utf-8"))
    # In a folder of its own: the default is below the present one.
    listed = ("env", "--chdir", str(tmp_path), sys.executable, "-m", "pressure_server", "queues")
    refused = run(*listed, "--config", str(config))
    assert f"there is no data directory {tmp_path / 'pressure-data'}: set --data-dir" in refused.stderr
    page = (ROOT / "docs/guides/systemd.md").read_text("utf-8")
    edit = re.search(r"^    sudo (sed -i .*\n.*)$", page, re.MULTILINE)
    assert edit
    command = edit[1].replace("/var/lib/pressure-server", str(data))
    assert run("sh", "-c", command.replace("/etc/pressure-server", str(tmp_path))).returncode == 0
    assert "mails" in run(*listed, "--config", str(config)).stdout


@pytest.mark.slow
def test_the_server_and_its_valkey_work_under_the_restrictions_of_the_unit(
    analyze: str, tmp_path: Path
) -> None:
    assert "setrlimit" not in allowed_calls(UNIT), analyze
    data = tmp_path / "data"
    (port,) = free_ports(1)
    command = (
        sys.executable, "-m", "tests.support.confined", str(UNIT),
        sys.executable, "-m", "pressure_server", "serve", "--listen", f"resp://127.0.0.1:{port}",
        "--data-dir", str(data), "--durability", "fsync", "--max-clients", "20000", "--workers", "2",
    )  # fmt: skip
    with BackgroundProgram(tmp_path / "log", *command, folder=ROOT) as server:
        server.wait_for(" ready: ")
        assert "Seccomp:\t2\n" in Path(f"/proc/{server.process.pid}/status").read_text()
        with redis.Redis(port=port) as client, embedded_client(data) as direct:
            assert client.sadd("q", *range(1000)) == 1000
            assert client.spop("q") == b"0"
            # Valkey forks for this, in which it compacts its file.
            direct.bgrewriteaof()
            wait_for(lambda: not direct.info("persistence")["aof_rewrite_in_progress"], "the rewrite")
            assert direct.info("persistence")["aof_last_bgrewrite_status"] == "ok"
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded: ")
        assert server.stop() == 0
        assert not re.search("ERROR|Traceback|denied|not permitted", server.output)
    assert "not permitted" not in (data / "valkey.log").read_text()
