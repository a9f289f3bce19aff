"""Options of the commands: flags, environment, file; invalid options; the listeners that they open."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import click
import pytest
import redis

from pressure_server.app.option_types import Seconds
from pressure_server.app.store import backend_from_redis_variables
from pressure_server.net.listener import SettingsError
from tests.support.paths import ROOT
from tests.support.programs import (
    TIMEOUT,
    BackgroundProgram,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    run_command,
    run_here,
    wait_for,
)
from tests.support.waiters import Waiter

# A byte that is not UTF-8, as Python represents it in an argument.
NO_UTF8 = "\udcff"
UNUSABLE = "the backend cannot be used: "
WRONG_SCHEME = UNUSABLE + "its URL must be embedded:, or begin with"
WRONG_PORT = UNUSABLE + "invalid host or port"


def assert_refused(*arguments: str, error: str) -> None:
    """Check that the arguments are refused with status 2 and one line."""
    refused = run_here(*arguments)
    assert refused.returncode == 2
    assert error in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--no-such-option"], "No such option"),
        (["--max-clients", "many"], "not a valid integer"),
        (["--max-clients", "0"], "not in the range"),
        (["--default-bound", "-1"], "not in the range"),
        (["--documentation-url", "wiki"], "write https://HOST/PATH"),
        (["--documentation-url", "https://wiki/a b"], "write https://HOST/PATH"),
        (["--config", "/nowhere"], "/nowhere cannot be read: No such file or directory\n"),
        (["--idle-timeout", "-1"], "not in the range"),
        (["--put-timeout", "nan"], "nan is not a time"),
        (["--tcp-keepalive", "10h"], "not in the range"),
        (["--max-message-bytes", "0"], "not in the range"),
        (["--max-buffered-bytes", "-1"], "not in the range"),
        (["--max-buffered-bytes", "10tb"], "not a valid size"),
        (["--max-waiting", "-1"], "not in the range"),
        (["--log-level", "loud"], "is not one of"),
        (["--log-format", "xml"], "is not one of"),
        (["--prefix", ""], "prefix must not be empty"),
        (["--prefix", NO_UTF8], "prefix must be UTF-8"),
        (["--data-dir", NO_UTF8], "data directory must be UTF-8"),
        (["--listen", "resp://127.0.0.1"], "invalid listener URL"),
        (["--listen", "resp://127.0.0.1:99999"], "invalid listener URL"),
        (["--listen", "resp+unix://relative"], "invalid listener URL"),
        (["--listen", "resp://a..b:4000"], "invalid listener URL"),
        (["--listen", f"resp+unix:///{NO_UTF8}"], "invalid listener URL"),
        (["--listen", "gopher://127.0.0.1:70"], "there is no handler 'gopher'"),
        (["--listen", "127.0.0.1:4000"], "did you mean resp://127.0.0.1:4000?"),
        (["--listen", "localhost:4000"], "did you mean resp://localhost:4000?"),
        (["--listen", "/run/pressure.sock"], "did you mean resp+unix:///run/pressure.sock?"),
        (["--listen", "rediss://127.0.0.1:4000"], "resps://127.0.0.1:4000 needs --tls-certificate"),
        (["--listen", "resps://127.0.0.1:0"], "needs --tls-certificate"),
        (["--tls-key", "/x"], "no effect without --tls-certificate"),
        (["--backend", "http://127.0.0.1"], WRONG_SCHEME),
        (["--backend", "embedded"], WRONG_SCHEME),
        (["--backend", "redis://127.0.0.1:x"], WRONG_PORT),
        (["--backend", "redis://127.0.0.1:99999/0"], WRONG_PORT),
        (["--backend", "redis://a..b:1"], WRONG_PORT),
        (["--backend", f"redis://:{NO_UTF8}@127.0.0.1:1"], WRONG_PORT),
        (["--backend", "redis://127.0.0.1/queues"], "invalid database"),
        (["--backend", "redis://127.0.0.1/0?colour=red"], "invalid option in the URL"),
        (["--backend", "rediss://127.0.0.1?ssl_cert_reqs=x"], "invalid option in the URL"),
        (["--backend", "unix://"], "socket's path is missing"),
        (["serve", "spare"], "unexpected extra argument"),
        (["no-such-command"], "No such command"),
    ],
)
def test_an_invalid_option_is_refused_in_one_line_with_status_2(arguments: list[str], error: str) -> None:
    assert_refused(*arguments, error=error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\nmax-client = 5", "config.toml, line 2: unknown option max-client: did you mean max-clients?"),
        ("xyz = 5", "config.toml, line 1: unknown option xyz"),
        ("max-clients = 'many'", "line 1: invalid value for max-clients: 'many' is not a valid integer."),
        (
            "prefix = 'p'\n# put-timeout = 1\nput-timeout = '5 apples'",
            "line 3: invalid value for put-timeout",
        ),
        ("max-clients = true", "line 1: invalid value for max-clients"),
        ("auto-create = 7", "line 1: invalid value for auto-create"),
        ("data-dir = 7", "line 1: invalid value for data-dir"),
        ("listen = 5", "line 1: invalid value for listen"),
        ("listen = []", "line 1: invalid value for listen"),
        ("listen = [", "cannot be read"),
    ],
)
def test_an_invalid_file_is_refused_in_one_line_with_status_2(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    assert_refused("--config", str(tmp_path / "config.toml"), error=error)


def test_a_process_refuses_an_option_like_the_command_in_memory() -> None:
    arguments = "--max-clients", "0"
    process, here = run_command(*arguments, new_process=True), run_here(*arguments)
    assert (process.returncode, process.stdout, process.stderr) == (here.returncode, here.stdout, here.stderr)


@pytest.mark.parametrize(
    "url",
    [
        "reds://:s3cret@127.0.0.1:1",
        ":s3cret@127.0.0.1",
        "redis://:s3cret@127.0.0.1:99999",
        "redis://:s3cret/word@127.0.0.1:1",
        "redis://u:s3cret\u2100@127.0.0.1:1",
        "redis://:s3cret@[::1",
        "redis://:s3cret@127.0.0.1/queues",
        "redis://:s3cret@127.0.0.1/0?colour=red",
        "unix://:s3cret@",
    ],
)
def test_an_error_in_a_backend_url_does_not_show_its_password(tmp_path: Path, url: str) -> None:
    (tmp_path / "config.toml").write_text(f"backend = ['{url}']")
    for refused in (
        run_here("--backend", url),
        run_here("doctor", environment={"PRESSURE_BACKEND": url}),
        run_here("--config", str(tmp_path / "config.toml")),
    ):
        assert refused.returncode == 2
        assert "backend" in refused.stderr
        assert "s3cret" not in refused.stderr


def test_the_log_names_an_error_that_has_no_text(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with suppress(OSError):  # when the listener is closed
                while True:
                    kept.append(listener.accept()[0])
                    kept[-1].shutdown(socket.SHUT_WR)

        kept: list[socket.socket] = []
        threading.Thread(target=hang_up, daemon=True).start()
        server = start_server("--backend", f"rediss://127.0.0.1:{listener.getsockname()[1]}")
        wait_for(lambda: "; trying again" in server.log, "the reason")
        assert ": ConnectionResetError; if that port does not speak TLS, write redis:// instead" in server.log
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("0.5", 0.5), ("5s", 5), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 s", "5x", "-5s", "1e3s", "five", "nan"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_options_in_groups_even_if_a_variable_is_unknown(flag: str) -> None:
    shown = run_command("serve", flag, environment={"PRESSURE_XYZ": "1"})
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.findall(r"^(\w[\w ]+):$", shown.stdout, re.M) == [
        "Listeners and backend", "Queues", "Reliability", "Limits", "Security", "Stopping", "Slow log",
        "Logs", "Options",
    ]  # fmt: skip


def test_a_file_may_give_any_option_typed_or_as_text(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        f'backend = "{backend.url}"\nauto-create = false\nidle-timeout = 77\nmax-clients = "22"\n'
        'listen = "resp://127.0.0.1:1"\nput-timeout = 0.5\n'
    )
    with start_server("--config", str(tmp_path / "config.toml"), new_process=True).client() as client:
        assert client.config_get("maxclients", "timeout") == {"maxclients": "22", "timeout": "77"}
        with pytest.raises(redis.ResponseError, match="NOQUEUE"):
            client.sadd("q", "a")


def test_flags_take_precedence_over_environment_and_file(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        f'backend = "{backend.url}"\nprefix = "file"\nmax-clients = 11\nidle-timeout = 77\n'
    )
    server = start_server(
        "--prefix", "flag",
        environment={
            "PRESSURE_CONFIG": str(tmp_path / "config.toml"),
            "PRESSURE_PREFIX": "environment",
            "PRESSURE_MAX_CLIENTS": "22",
        },
    )  # fmt: skip
    with server.client() as client, backend.client() as direct:
        assert client.config_get("maxclients", "timeout") == {"maxclients": "22", "timeout": "77"}
        client.sadd("q", "a")
        assert direct.lrange("flag:q", 0, -1) == [b"a"]


def test_a_server_has_several_listeners_and_removes_its_socket(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    path = tmp_path / "queues.sock"
    server = start_server("--listen", f"resp+unix://{path}", "--backend", backend.url, new_process=True)
    with redis.Redis(unix_socket_path=str(path)) as over_socket, server.client() as over_tcp:
        assert over_socket.sadd("q", "a") == 1
        assert over_tcp.spop("q") == b"a"
    assert server.stop() == 0
    assert not path.exists()


@pytest.mark.slow
def test_only_the_socket_of_a_dead_server_is_replaced(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    path = tmp_path / "queues.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = start_server("--listen", f"resp+unix://{path}", "--backend", backend.url)
    second = run_command("--listen", f"resp+unix://{path}", "--backend", backend.url)
    assert second.returncode == 1
    assert "another process already listens" in second.stderr
    assert server.stop() == 0


def test_a_stopping_server_keeps_the_socket_of_the_next_server(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    path = tmp_path / "queues.sock"
    arguments = ("--listen", f"resp+unix://{path}", "--backend", backend.url)
    first = start_server(*arguments)
    with first.client() as client, Waiter(first.port) as slow:
        client.sadd("q", b"x" * (16 << 20))
        slow.send("SMEMBERS", "q")
        first.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not path.exists(), "the first server to remove its socket")
        second = start_server(*arguments)
        assert first.process.poll() is None
    assert first.process.wait(TIMEOUT) == 0
    with redis.Redis(unix_socket_path=str(path)) as over_socket:
        assert over_socket.scard("q") == 1
    assert second.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("scheme", ["resp", "redis"])
def test_a_port_in_use_is_refused_in_one_line_and_leaves_no_key(
    server: Server, start_server: StartServer, start_valkey: StartValkey, scheme: str
) -> None:
    other = start_valkey()
    refused = run_command(
        "--listen", f"{scheme}://127.0.0.1:{server.port}", "--backend", other.url, new_process=True
    )
    assert refused.returncode == 1
    assert f"cannot listen on resp://127.0.0.1:{server.port}" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    with other.client() as direct:
        assert direct.keys("*") == []
    after = start_server("--backend", other.url)
    after.end_well()
    assert "WARNING" not in after.log


def test_a_pressure_server_is_refused_as_a_backend(server: Server) -> None:
    refused = run_command("--listen", "resp://127.0.0.1:0", "--backend", f"redis://127.0.0.1:{server.port}")
    assert refused.returncode == 1
    assert refused.stderr.rstrip().splitlines()[-1] == (
        f"pressure-server: redis://127.0.0.1:{server.port} is a pressure-server: "
        "--backend must name the Redis behind it"
    )


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("PRESSURE_OVERFLW", "did you mean PRESSURE_OVERFLOW?"),
        ("PRESSURE_LISTENS", "did you mean PRESSURE_LISTEN?"),
        ("PRESSURE_XYZ", "see pressure-server serve --help"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "ping", "doctor"])
def test_an_unknown_variable_is_refused(command: str, variable: str, hint: str) -> None:
    refused = run_here(command, environment={variable: "error"})
    assert refused.returncode == 2
    assert refused.stderr == f"pressure-server: unknown variable {variable} in the environment: {hint}\n"


def test_variables_that_kubernetes_docker_and_installations_use_are_ignored(server: Server) -> None:
    environment = {
        "PRESSURE_LISTEN": f"resp://127.0.0.1:{server.port}",
        "PRESSURE_SERVICE_HOST": "10.0.0.1",
        "PRESSURE_SERVICE_PORT_RESP": "4000",
        "PRESSURE_PORT": "tcp://10.0.0.1:4000",
        "PRESSURE_SERVER_SERVICE_HOST": "10.0.0.1",
        "PRESSURE_SERVER_PORT_4000_TCP_ADDR": "10.0.0.1",
        "PRESSURE_REDIS_NAME": "/pressure/redis",
        "PRESSURE_REDIS_ENV_VERSION": "7",
        "PRESSURE_COMPILE": "0",
    }
    assert run_here("ping", environment=environment).returncode == 0


def test_each_command_has_the_options_that_it_uses() -> None:
    def options(command: str) -> set[str]:
        return set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", run_command(command, "--help").stdout, re.M))

    assert "Without a COMMAND, serve is run, and the options of serve" in run_command("--help").stdout
    assert options("ping") == {"--help", "--config", "--listen", "--ready", "--pid"}
    common = {"--config", "--backend", "--backend-password-file", "--data-dir", "--prefix", "--shards"}
    assert options("doctor") == {"--help", "--repair", "--wait"} | common
    assert options("serve") > common | {"--listen", "--overflow", "--log-level", "--put-timeout"}


@pytest.mark.slow
def test_ping_and_doctor_use_the_file_and_variables_of_the_server(
    server: Server, backend: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        f'listen = ["resp://127.0.0.1:{server.port}"]\nbackend = "{backend.url}"\noverflow = "error"\n'
    )
    environment = {"PRESSURE_CONFIG": str(tmp_path / "config.toml"), "PRESSURE_MAX_CLIENTS": "7"}
    assert run_command("ping", environment=environment).stdout == (
        f"resp://127.0.0.1:{server.port} is healthy\n"
    )
    assert run_command("doctor", environment=environment).stdout == "0 queues checked: no problems\n"


def test_the_production_example_cannot_fill_a_machine(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("secret")
    found = re.search(
        r"^    pressure-server (--listen (?:.*\\\n)*.*)$",
        (ROOT / "docs/guides/checklist.md").read_text(),
        re.M,
    )
    assert found
    words = shlex.split(
        found[1]
        .replace("\\\n", " ")
        .replace("resp://0.0.0.0:4000", "resp://127.0.0.1:0")
        .replace("redis://redis.internal:6379/0", backend.url)
        .replace("--password-file password", f"--password-file {tmp_path}/password")
        .replace("--put-timeout 30s", "--put-timeout 1ms")
    )
    server = start_server(*words)
    with server.client(password="secret") as client:
        assert client.info("limits")["max_stored_bytes"] > 0
        bound = client.info("limits")["default_bound"]
        assert client.rpush("q", *range(bound)) == bound
        with pytest.raises(redis.ResponseError, match="FULL"):
            client.rpush("q", "x")


@pytest.mark.slow
def test_ping_reports_whether_the_server_is_healthy(server: Server) -> None:
    """It fails within the 20 seconds that `run_command` allows, also if the server is silent."""
    ping = run_command("ping", "--listen", f"resp://127.0.0.1:{server.port}", new_process=True)
    assert (ping.returncode, ping.stdout) == (0, f"resp://127.0.0.1:{server.port} is healthy\n")
    with socket.socket() as free, socket.create_server(("127.0.0.1", 0)) as silent:
        free.bind(("127.0.0.1", 0))
        for listener in (free, silent):
            ping = run_command("ping", "--listen", f"resp://127.0.0.1:{listener.getsockname()[1]}")
            assert ping.returncode == 1
            assert "is not healthy: " in ping.stderr
            assert "[Errno" not in ping.stderr


@pytest.mark.parametrize("hidden", [(), ("--password", "secret")])
def test_ping_finds_what_a_server_was_told_to_listen_on(
    backend: Valkey, tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    url = f"resp+unix://{tmp_path}/socket"
    options = ("--listen", url, "--backend", backend.url, *hidden)
    environment = {"PRESSURE_LISTEN": "resp://127.0.0.1:1"}

    def ping() -> subprocess.CompletedProcess[str]:
        return run_here("ping", "--pid", str(server.process.pid), environment=environment)

    command = (sys.executable, "-m", "pressure_server", *options)
    with BackgroundProgram(tmp_path / "log", *command, folder=ROOT) as server:
        wait_for(lambda: ping().stdout == f"{url} is healthy\n", "the server to answer ping")
        assert server.stop() == 0
    assert "resp://127.0.0.1:1 is not healthy" in ping().stderr, "the process has ended"
    assert (
        "resp://127.0.0.1:1 is not healthy"
        in run_here("ping", "--pid", str(os.getpid()), environment=environment).stderr
    ), "the process is no server"


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        ({"REDIS_SERVER": "queues.example"}, "redis://queues.example:6379/0"),
        ({"REDIS_PORT": "7000"}, "redis://127.0.0.1:7000/0"),
        ({"REDIS_DB": "3"}, "redis://127.0.0.1:6379/3"),
        ({"REDIS_SERVER": "::1", "REDIS_PORT": "1", "REDIS_DB": "2"}, "redis://[::1]:1/2"),
    ],
)
def test_the_variables_of_the_specification_select_redis(
    environment: dict[str, str], url: str | None
) -> None:
    assert backend_from_redis_variables(environment) == url


@pytest.mark.parametrize("name", ["REDIS_PORT", "REDIS_DB"])
def test_a_variable_that_must_be_a_number_is_checked(name: str) -> None:
    # Kubernetes sets REDIS_PORT like this for a service named redis.
    with pytest.raises(SettingsError, match=f"{name}='tcp://10.0.0.1:6379' must be a number"):
        backend_from_redis_variables({name: "tcp://10.0.0.1:6379"})


def test_options_set_whether_and_how_puts_create_queues(start_server: StartServer, backend: Valkey) -> None:
    strict = start_server("--backend", backend.url, "--no-auto-create")
    with (
        strict.client() as client,
        pytest.raises(redis.ResponseError, match="NOQUEUE queue 'q' does not exist"),
    ):
        client.sadd("q", "a")
    bounded = start_server("--backend", backend.url, "--default-bound", "2", "--overflow", "error")
    with bounded.client() as client:
        assert client.sadd("q", "a", "b") == 2
        with pytest.raises(redis.ResponseError, match="FULL queue 'q' is full"):
            client.sadd("q", "c")
        assert client.spop("q") == b"a"
        assert client.sadd("q", "c") == 1
