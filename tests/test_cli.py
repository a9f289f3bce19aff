"""Options: from flags, environment and file; wrong ones; and the listeners they open."""

from __future__ import annotations

import re
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import click
import pytest
import redis

from pressure_server.app.option_types import Seconds
from pressure_server.app.settings import backend_from_redis_variables
from pressure_server.net.listen import SettingsError
from tests.support.programs import (
    TIMEOUT,
    Server,
    StartServer,
    StartValkey,
    Valkey,
    run_command,
    run_here,
    wait_for,
)
from tests.support.waiters import Waiter

ROOT = Path(__file__).parent.parent
# A byte of an argument that is no UTF-8, as Python has it.
NO_UTF8 = "\udcff"
TIMES = ["put-timeout", "role-timeout", "implicit-queue-ttl", "auto-repair-after", "idle-timeout"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--no-such-option"], "No such option"),
        (["--max-clients", "many"], "not a valid integer"),
        (["--max-clients", "0"], "not in the range"),
        (["--default-bound", "-1"], "not in the range"),
        (["--default-bound", "x"], "not a valid integer."),
        (["--idle-timeout", "-1"], "not in the range"),
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
        (
            ["--backend", "http://127.0.0.1"],
            "the backend cannot be used: its URL must be embedded:, or begin with",
        ),
        (["--backend", "embedded"], "the backend cannot be used: its URL must be embedded:, or begin with"),
        (["--backend", "redis://127.0.0.1:x"], "the backend cannot be used: invalid host or port"),
        (["--backend", "redis://127.0.0.1:99999/0"], "the backend cannot be used: invalid host or port"),
        (["--backend", "redis://a..b:1"], "the backend cannot be used: invalid host or port"),
        (
            ["--backend", f"redis://:{NO_UTF8}@127.0.0.1:1"],
            "the backend cannot be used: invalid host or port",
        ),
        (["--backend", "redis://127.0.0.1/queues"], "invalid database"),
        (["--backend", "redis://127.0.0.1/0?colour=red"], "invalid option in the URL"),
        (["--backend", "rediss://127.0.0.1?ssl_cert_reqs=x"], "invalid option in the URL"),
        (["--backend", "unix://"], "socket's path is missing"),
        (["--config", "/no/such/file.toml"], "cannot be read"),
        (["serve", "spare"], "unexpected extra argument"),
        (["no-such-command"], "No such command"),
    ],
)
def test_a_wrong_option_is_one_clear_line_and_status_2(arguments: list[str], complaint: str) -> None:
    refused = run_here(*arguments)
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert refused.stdout == ""


def test_a_process_of_its_own_refuses_a_wrong_option_in_the_same_words() -> None:
    arguments = "--max-clients", "0"
    alone, here = run_command(*arguments), run_here(*arguments)
    assert (alone.returncode, alone.stdout, alone.stderr) == (here.returncode, here.stdout, here.stderr)


@pytest.mark.parametrize("option", TIMES)
def test_nan_is_no_number_of_seconds(tmp_path: Path, option: str) -> None:
    (tmp_path / "config.toml").write_text(f"{option} = nan")
    variable = "PRESSURE_" + option.replace("-", "_").upper()
    for refused in (
        run_here(f"--{option}", "nan"),
        run_here(environment={variable: "nan"}),
        run_here("--config", str(tmp_path / "config.toml")),
    ):
        assert refused.returncode == 2
        assert option in refused.stderr
        assert "nan is not a time" in refused.stderr


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
def test_a_mistyped_backend_does_not_show_its_password(tmp_path: Path, url: str) -> None:
    (tmp_path / "config.toml").write_text(f"backend = ['{url}']")
    for refused in (
        run_here("--backend", url),
        run_here("doctor", environment={"PRESSURE_BACKEND": url}),
        run_here("--config", str(tmp_path / "config.toml")),
    ):
        assert refused.returncode == 2
        assert "backend" in refused.stderr
        assert "s3cret" not in refused.stderr


def test_a_backend_that_is_lost_without_a_word_is_said_so(start_server: StartServer) -> None:
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
        assert ": ConnectionResetError; trying again" in server.log
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
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
def test_a_wrong_file_is_one_clear_line_and_status_2(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    refused = run_here("--config", str(tmp_path / "config.toml"))
    assert refused.returncode == 2
    assert complaint in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("0.5", 0.5), ("5s", 5), ("250ms", 0.25), ("1.5m", 90), ("2h", 7200), ("1d", 86400)],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 s", "5x", "-5s", "1e3s", "five", "nan"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_options_in_groups(flag: str) -> None:
    said = run_command("serve", flag).stdout
    groups = re.findall(r"^(\w[\w ]+):$", said, re.M)
    assert groups == [
        "Listeners and backend", "Queues", "Reliability", "Limits", "Security", "Stopping", "Logs", "Options",
    ]  # fmt: skip


def test_a_file_may_give_any_option_as_its_own_kind_or_as_text(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        f'backend = "{backend.url}"\nauto-create = false\nidle-timeout = 77\nmax-clients = "22"\n'
        'listen = "resp://127.0.0.1:1"\nput-timeout = 0.5\n'
    )
    with start_server("--config", str(tmp_path / "config.toml")).client() as client:
        assert client.config_get("maxclients", "timeout") == {"maxclients": "22", "timeout": "77"}
        with pytest.raises(redis.ResponseError, match="NOQUEUE"):
            client.sadd("q", "a")


def test_flags_go_over_environment_over_file(
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
    with server.client() as client:
        assert client.config_get("maxclients") == {"maxclients": "22"}
        assert client.config_get("timeout") == {"timeout": "77"}
        client.sadd("q", "a")
    with backend.client() as direct:
        assert direct.lrange("flag:q", 0, -1) == [b"a"]


def test_several_listeners_from_the_environment(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    path = tmp_path / "queues.sock"
    server = start_server("--listen", f"resp+unix://{path}", "--backend", backend.url)
    with redis.Redis(unix_socket_path=str(path)) as over_socket, server.client() as over_tcp:
        assert over_socket.sadd("q", "a") == 1
        assert over_tcp.spop("q") == b"a"
    assert server.stop() == 0
    assert not path.exists()


@pytest.mark.slow
def test_a_socket_file_that_a_killed_server_left_is_replaced(
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


def test_a_server_that_stops_leaves_its_successor_s_socket_alone(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    path = tmp_path / "queues.sock"
    arguments = ("--listen", f"resp+unix://{path}", "--backend", backend.url)
    first = start_server(*arguments)
    with first.client() as client, Waiter(first.port) as slow:
        client.sadd("q", b"x" * (16 << 20))
        slow.send("SMEMBERS", "q")
        first.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not path.exists(), "the first to remove its socket")
        second = start_server(*arguments)
        assert first.process.poll() is None
    assert first.process.wait(TIMEOUT) == 0
    with redis.Redis(unix_socket_path=str(path)) as over_socket:
        assert over_socket.scard("q") == 1
    assert second.stop() == 0
    assert not path.exists()


def test_a_port_in_use_is_one_clear_line_and_status_1(server: Server, backend: Valkey) -> None:
    refused = run_command("--listen", f"resp://127.0.0.1:{server.port}", "--backend", backend.url)
    assert refused.returncode == 1
    assert f"cannot listen on resp://127.0.0.1:{server.port}" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_start_that_fails_leaves_no_trace(
    server: Server, start_server: StartServer, start_valkey: StartValkey
) -> None:
    other = start_valkey()
    refused = run_command("--listen", f"resp://127.0.0.1:{server.port}", "--backend", other.url)
    assert refused.returncode == 1
    with other.client() as direct:
        assert direct.keys("*") == []
    after = start_server("--backend", other.url)
    after.end_well()
    assert "WARNING" not in after.log


def test_a_pressure_server_is_no_backend(server: Server) -> None:
    refused = run_command("--listen", "resp://127.0.0.1:0", "--backend", f"redis://127.0.0.1:{server.port}")
    assert refused.returncode == 1
    assert refused.stderr.rstrip().splitlines()[-1] == (
        f"pressure-server: redis://127.0.0.1:{server.port} is a pressure-server: "
        "--backend must name the Redis behind it"
    )


def test_redis_is_another_name_for_the_handler(backend: Valkey) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_command("--listen", f"redis://127.0.0.1:{port}", "--backend", backend.url)
    assert f"cannot listen on resp://127.0.0.1:{port}" in refused.stderr


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("PRESSURE_OVERFLW", "did you mean PRESSURE_OVERFLOW?"),
        ("PRESSURE_LISTENS", "did you mean PRESSURE_LISTEN?"),
        ("PRESSURE_XYZ", "see pressure-server serve --help"),
    ],
)
def test_an_unknown_variable_is_refused(variable: str, hint: str) -> None:
    for command in ("serve", "ping", "doctor"):
        refused = run_here(command, environment={variable: "error"})
        assert refused.returncode == 2
        assert refused.stderr == (
            f"pressure-server: unknown variable {variable} in the environment: {hint}\n"
        )


def test_help_is_there_whatever_the_variables_are() -> None:
    asked = run_command("serve", "--help", environment={"PRESSURE_XYZ": "1"})
    assert (asked.returncode, asked.stderr) == (0, "")


def test_variables_of_kubernetes_and_docker_are_not_ours(server: Server) -> None:
    environment = {
        "PRESSURE_LISTEN": f"resp://127.0.0.1:{server.port}",
        "PRESSURE_SERVICE_HOST": "10.0.0.1",
        "PRESSURE_SERVICE_PORT_RESP": "4000",
        "PRESSURE_PORT": "tcp://10.0.0.1:4000",
        "PRESSURE_SERVER_SERVICE_HOST": "10.0.0.1",
        "PRESSURE_SERVER_PORT_4000_TCP_ADDR": "10.0.0.1",
        "PRESSURE_REDIS_NAME": "/pressure/redis",
        "PRESSURE_REDIS_ENV_VERSION": "7",
    }
    assert run_here("ping", environment=environment).returncode == 0


def test_commands_have_the_options_that_they_use() -> None:
    def options(command: str) -> set[str]:
        return set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", run_command(command, "--help").stdout, re.M))

    assert options("ping") == {"--help", "--config", "--listen", "--ready"}
    doctors = {"--config", "--backend", "--backend-password-file", "--data-dir", "--prefix"}
    assert options("doctor") == {"--help", "--repair", "--wait"} | doctors
    assert (
        options("serve")
        > {"--listen", "--overflow", "--log-level", *(f"--{time}" for time in TIMES)} | doctors
    )


def test_help_says_what_no_command_means() -> None:
    said = run_command("--help").stdout
    assert "Without a COMMAND, serve is run, and the options of serve can be given" in said


@pytest.mark.slow
def test_ping_and_doctor_use_the_server_s_file_and_variables(
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


def test_ping_says_whether_the_server_is_well(server: Server) -> None:
    asked = run_command("ping", "--listen", f"resp://127.0.0.1:{server.port}")
    assert (asked.returncode, asked.stdout) == (0, f"resp://127.0.0.1:{server.port} is healthy\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        asked = run_command("ping", "--listen", f"resp://127.0.0.1:{free.getsockname()[1]}")
    assert asked.returncode == 1
    assert "is not healthy" in asked.stderr


@pytest.mark.slow
def test_ping_waits_no_longer_than_a_health_check_may() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # run_command allows 20 seconds.
        asked = run_command("ping", "--listen", f"resp://127.0.0.1:{silent.getsockname()[1]}")
    assert asked.returncode == 1
    assert "is not healthy" in asked.stderr


def test_logs_can_be_json(start_server: StartServer, backend: Valkey) -> None:
    import json

    server = start_server("--backend", backend.url, "--log-format", "json")
    entries = [json.loads(line) for line in server.log.splitlines()]
    assert entries[0]["level"] == "info"
    assert entries[-1]["message"].startswith("ready")


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
def test_a_variable_that_is_no_number_is_refused(name: str) -> None:
    # Kubernetes sets REDIS_PORT so, for a service named redis.
    with pytest.raises(SettingsError, match=f"{name}='tcp://10.0.0.1:6379' must be a number"):
        backend_from_redis_variables({name: "tcp://10.0.0.1:6379"})


def test_no_auto_create_and_default_bound(start_server: StartServer, backend: Valkey) -> None:
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
