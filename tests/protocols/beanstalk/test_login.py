"""Who may do what over beanstalk: logins, rights, certificates, unix sockets; and options of its listeners.

test_logins.py, test_access.py and test_tls.py have what all protocols share.
"""

import os
import stat
from itertools import chain
from pathlib import Path

import greenstalk
import pytest

from pressure_server.net.handler import find_handler
from pressure_server.net.listener import ListenerUrl, SettingsError
from tests.support.guards import reload, users_toml
from tests.support.module_servers import module_server
from tests.support.programs import Server, StartServer, Valkey, run_here
from tests.support.protocols import BEANSTALK, LISTEN, Wire

PASSWORD = "password"
USERS = {
    "putter": (PASSWORD, ["tenant.*"], ["put"]),
    "worker": (PASSWORD, ["tenant.*"], ["get"]),
    "reader": (PASSWORD, ["tenant.*"], ["read"]),
    "operator": (PASSWORD, ["tenant.*"], ["administer"]),
    "root": (PASSWORD, ["*"], ["put", "get", "read", "administer"]),
}
DENIED, UNAUTHENTICATED = b"DENIED", b"UNAUTHENTICATED"
PUT = b"put 0 0 100 1\r\nm\r\n"
# By right: the commands that need it. They concern the job 1, or the used or the watched tube.
COMMANDS = {
    "put": [PUT],
    "get": [
        b"reserve\r\n", b"reserve-with-timeout 0\r\n", b"reserve-job 1\r\n", b"delete 1\r\n",
        b"release 1 0 0\r\n", b"bury 1 0\r\n", b"touch 1\r\n", b"kick 1\r\n", b"kick-job 1\r\n",
        b"watch tenant.1\r\n", b"ignore default\r\n",
    ],
    "read": [
        b"peek 1\r\n", b"peek-ready\r\n", b"peek-delayed\r\n", b"peek-buried\r\n", b"stats\r\n",
        b"stats-job 1\r\n", b"stats-tube tenant.1\r\n", b"list-tubes\r\n",
    ],
    "administer": [b"pause-tube tenant.1 0\r\n"],
}  # fmt: skip
FREE = [b"use tenant.1\r\n", b"list-tube-used\r\n", b"list-tubes-watched\r\n"]


shared_server = module_server(*LISTEN, users=USERS)


def connect(server: Server, user: str) -> Wire:
    return Wire(BEANSTALK, server).log_in(user, PASSWORD)


@pytest.mark.parametrize("user", ["putter", "worker", "reader", "operator"])
def test_each_command_needs_its_right(server: Server, user: str) -> None:
    rights = USERS[user][2]
    with connect(server, user) as wire:
        assert wire(b"use tenant.1\r\n") == b"USING tenant.1"
        for right, commands in COMMANDS.items():
            for command in commands if right not in rights else ():
                assert wire(command) == DENIED, command
        for command in FREE:
            assert not wire(command).startswith(DENIED), command


def test_before_the_login_only_auth_ready_and_quit_are_allowed(server: Server) -> None:
    with Wire(BEANSTALK, server) as stranger:
        for command in [*FREE, *chain.from_iterable(COMMANDS.values())]:
            assert stranger(command) == UNAUTHENTICATED, command
        assert stranger(b"ready\r\n") == b"READY"
        assert stranger(b"auth putter wrong\r\n") == UNAUTHENTICATED
        assert stranger(b"auth putter password\r\n") == b"AUTHENTICATED"
        stranger.send(b"quit\r\n")
        assert stranger.is_closed()


def test_a_user_reaches_no_job_of_another_tube(server: Server) -> None:
    """The tube of a new connection is `default`, which this worker may not use."""
    with connect(server, "root") as root, connect(server, "worker") as worker:
        for tube in (b"default", b"foreign.1"):
            root.put(tube, b"secret")
            assert root(b"peek-ready\r\n") == b"FOUND 6\r\nsecret"
            for name in (b"reserve-job", b"delete", b"kick-job"):
                assert worker(b"%b %b\r\n" % (name, root.job)) == DENIED
        for command, reply in (
            (b"reserve", DENIED), (b"reserve-with-timeout 0", DENIED), (b"kick 1", DENIED),
            (b"watch foreign.1", DENIED), (b"use foreign.1", DENIED), (b"watch tenant.1", b"WATCHING 2"),
            (b"reserve-with-timeout 0", DENIED), (b"ignore default", b"WATCHING 1"),
            (b"reserve-with-timeout 0", b"TIMED_OUT"),
        ):  # fmt: skip
            assert worker(command + b"\r\n") == reply, command


def test_statistics_and_lists_tell_a_user_only_of_its_own_tubes(server: Server) -> None:
    with (
        connect(server, "root") as root,
        connect(server, "reader") as reader,
        connect(server, "putter") as putter,
    ):
        root.put(b"foreign.1", b"secret")
        putter.put(b"tenant.1", b"m")
        assert reader(b"list-tubes\r\n") == b"OK 15\r\n---\n- tenant.1\n"
        reader.send(b"stats\r\n")
        assert reader.reply() == b"OK 1"
        assert reader(b"stats-tube foreign.1\r\n") == DENIED
        assert reader(b"stats-job 1\r\n") == DENIED
        assert reader(b"peek 1\r\n") == DENIED


def test_a_user_without_the_right_to_a_watched_tube_any_more_gets_no_job_of_it(
    backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    file = tmp_path / "users.toml"
    file.write_text(users_toml({"ada": (PASSWORD, ["q"], ["put", "get"])}))
    server = start_server("--backend", backend.url, "--users", str(file), *LISTEN)
    with Wire(BEANSTALK, server).log_in("ada", PASSWORD) as ada:
        ada.put(b"q", b"a")
        ada.put(b"q", b"b")
        assert ada.get(b"q") == b"a"
        file.write_text(users_toml({"ada": (PASSWORD, ["r"], ["put", "get"])}))
        reload(server)
        assert ada(b"reserve-with-timeout 0\r\n") == DENIED
        assert ada(PUT) == DENIED


def test_a_password_alone_logs_in_the_default_user(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--password", PASSWORD, *LISTEN)
    with Wire(BEANSTALK, server) as wire:
        for words in (b"auth a b c\r\n", b"auth  \r\n"):
            assert wire(words) == b"BAD_FORMAT", words
        assert wire(PUT) == UNAUTHENTICATED
        assert wire(b"auth password\r\n") == b"AUTHENTICATED"
        assert wire(PUT) == b"INSERTED"


def test_a_default_user_without_a_password_has_its_own_rights(
    backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    file = tmp_path / "users.toml"
    file.write_text('[users.default]\nnopass = true\nqueues = ["public"]\nmay = ["put"]\n')
    server = start_server("--backend", backend.url, "--users", str(file), *LISTEN)
    with Wire(BEANSTALK, server) as wire:
        wire.put(b"public", b"m")
        assert wire(b"reserve-with-timeout 0\r\n") == DENIED


@pytest.mark.parametrize("options", ["", "?max_job_size=10"])
def test_a_unix_socket_serves_clients_and_has_options(
    backend: Valkey, start_server: StartServer, tmp_path: Path, options: str
) -> None:
    path = tmp_path / "beanstalk.sock"
    url = f"beanstalk+unix://{path}{options}"
    server = start_server("--backend", backend.url, "--listen", url)
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    with greenstalk.Client(str(path)) as client:
        assert client.stats()["max-job-size"] == (10 if options else 65535)
        client.put("x" * 10)
        if options:
            with pytest.raises(greenstalk.JobTooBigError):
                client.put("x" * 11)
        assert client.reserve(timeout=0).body == "x" * 10
    for ready in ([], ["--ready"]):
        ping = run_here("ping", "--listen", url, *ready)
        assert (ping.returncode, ping.stderr) == (0, "")
    server.end_well()
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("nope=1", "unknown option 'nope': the option is max_job_size"),
        ("max_job_size=1&max_job_size=2", "is given twice"),
        ("max_job_size=1&nope=2", "unknown option 'nope'"),
        *((f"max_job_size={size}", "max_job_size must be 1 to 1073741824 bytes") for size in
          ("0", "-1", "", "x", "1073741825", "1e3", "10mb", "9" * 5000)),
    ],
)  # fmt: skip
def test_an_invalid_option_of_a_listener_is_refused(options: str, error: str) -> None:
    listen = ListenerUrl.parse(f"beanstalk://127.0.0.1:0?{options}")
    with pytest.raises(SettingsError) as refused:
        find_handler(listen.handler).check(listen)
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_job_is_no_larger_than_the_server_s_largest_message(
    backend: Valkey, start_server: StartServer
) -> None:
    options = ("--max-message-bytes", "1000", "--listen", "beanstalk://127.0.0.1:0?max_job_size=2000")
    server = start_server("--backend", backend.url, *options)
    with Wire(BEANSTALK, server) as wire:
        for size, reply in ((1000, b"INSERTED"), (1001, b"JOB_TOO_BIG"), (2000, b"JOB_TOO_BIG")):
            assert wire(b"put 0 0 1 %d\r\n" % size + bytes(size) + b"\r\n") == reply, size
