"""Workers: several processes are one server to its clients, and none is missed when it ends."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import redis

from tests.support.guards import users_toml
from tests.support.http_requests import request
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, MEMCACHED, Wire
from tests.support.waiters import Waiter, wait_for_blocked

WORKERS = 2


def pids(server: Server) -> list[int]:
    """Return the process of each worker, as the log names them: the latest."""
    found = dict(
        re.findall(r"worker (\d): serving, the name of this process is '[^']*?:(\d+):\w+'", server.log)
    )
    return [int(found[number]) for number in sorted(found)]


def wait_for_starts(server: Server, count: int) -> None:
    """Wait until workers have started so often since the server was started."""
    wait_for(lambda: server.log.count(": serving, ") == count, f"start number {count} of a worker")


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> Server:
    started = start_server(
        "--data-dir", str(tmp_path / "data"), "--workers", str(WORKERS), "--http", "http://127.0.0.1:0",
        # So long that messages of a worker that has ended come back in time only by the supervisor.
        "--slowlog-slower-than", "0", "--proxy-timeout", str(2 * TIMEOUT), *LISTEN,
    )  # fmt: skip
    wait_for_starts(started, WORKERS)
    return started


@pytest.fixture
def everywhere(server: Server) -> Iterator[list[Client]]:
    """Clients of the server, one at each worker, in the order of the workers."""
    with ExitStack() as opened:
        found: dict[int, Client] = {}

        def look() -> bool:
            client = opened.enter_context(server.client(single_connection_client=True))
            found.setdefault(client.client_id() % (WORKERS + 1) - 1, client)
            return len(found) == WORKERS

        wait_for(look, "a client at each worker")
        yield [found[number] for number in sorted(found)]


def test_a_client_is_woken_by_a_put_at_another_worker(server: Server, everywhere: list[Client]) -> None:
    putting, observer = everywhere
    with Waiter(server.port) as waiter:
        # Whichever worker it is at: each puts once.
        for client in (putting, observer):
            waiter.send("BLPOP", "q", 0)
            wait_for(lambda: observer.info("clients")["blocked_clients"] == 1, "the client to wait")
            assert observer.info("queues").get("queue_q", {"waiting_consumers": 1})["waiting_consumers"] == 1
            client.rpush("q", "m")
            assert waiter.reply() == [b"q", b"m"]


def test_what_a_client_asks_of_the_server_holds_for_all_workers(
    server: Server, everywhere: list[Client]
) -> None:
    first, second = everywhere
    first.client_setname("first")
    second.client_setname("second")
    for asked in everywhere:
        assert {one["name"] for one in asked.client_list()} >= {"first", "second"}
        assert asked.info("clients")["connected_clients"] == len(asked.client_list())
        assert asked.info("clients")["maxclients"] == 10_000
    ids = [int(one["id"]) for one in first.client_list()]
    assert len(set(ids)) == len(ids)
    first.config_resetstat()
    for client in everywhere:
        client.sadd("q", "m")
    for asked in everywhere:
        assert asked.info("commandstats")["cmdstat_sadd"]["calls"] == WORKERS
        slow = [one["command"] for one in asked.slowlog_get(-1)]
        assert slow.count(b"sadd q m") == WORKERS
    second.slowlog_reset()
    assert not [one for one in first.slowlog_get(-1) if one["command"] == b"sadd q m"]


def test_a_client_of_another_worker_can_be_killed(everywhere: list[Client]) -> None:
    first, second = everywhere
    victim = second.client_id()
    assert first.client_kill_filter(_id=str(victim)) == 1
    assert first.client_kill_filter(_id=str(victim)) == 0
    with pytest.raises(redis.ConnectionError):
        second.ping()


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_client_of_another_worker_can_be_unblocked(
    server: Server, everywhere: list[Client], how: str
) -> None:
    with Waiter(server.port) as waiter:
        number = waiter("CLIENT", "ID")
        for client in everywhere:
            waiter.send("BLPOP", "nothing", "none", 0)
            wait_for_blocked(client, 1)
            assert client.execute_command("CLIENT", "UNBLOCK", number, how) == 1
            assert str(waiter.reply()).startswith("None" if how == "TIMEOUT" else "UNBLOCKED ")
            assert client.execute_command("CLIENT", "UNBLOCK", number, how) == 0


def test_a_monitor_shows_what_clients_of_all_workers_send(server: Server, everywhere: list[Client]) -> None:
    with Waiter(server.port) as monitor:
        assert monitor("MONITOR") == b"OK"
        seen: set[int] = set()

        def has_seen_all() -> bool:
            for number, client in enumerate(everywhere):
                client.sadd("q", f"from {number}")
            lines = b"".join(monitor.replies_now())
            seen.update(map(int, re.findall(rb'"from (\d)"', lines)))
            return len(seen) == WORKERS

        wait_for(has_seen_all, "commands of all workers")


def test_memcached_and_beanstalk_count_over_all_workers(server: Server) -> None:
    with ExitStack() as opened:
        puts = 8
        for number in range(puts):
            opened.enter_context(Wire(MEMCACHED, server)).put(b"q", b"%d" % number)
            beans = opened.enter_context(Wire(BEANSTALK, server))
            beans.send(b"use tube\r\nput 0 0 60 1\r\nj\r\n")
            assert beans.reply() == b"USING tube"
            assert beans.reply().startswith(b"INSERTED")
        with Wire(MEMCACHED, server) as stats, stats.sending(b"stats\r\nquit\r\n"):
            assert b"STAT cmd_set %d\r\n" % puts in stats.rest()
        beans.send(b"stats-tube tube\r\nstats\r\nquit\r\n")
        about = beans.rest()
        assert b"current-using: %d\n" % puts in about
        assert b"cmd-put: %d\n" % puts in about
        assert b"current-producers: %d\n" % puts in about


def test_the_http_listener_tells_of_all_workers(server: Server, everywhere: list[Client]) -> None:
    for client in everywhere:
        client.sadd("q", "m")
    assert request(server, "/readyz").status == 200
    text = request(server, "/metrics").text
    assert f'pressure_commands_total{{command="sadd",protocol="resp"}} {WORKERS}.0' in text
    assert re.search(r'pressure_clients{protocol="resp"} (\d+)', text)
    everywhere[1].select(3)
    everywhere[1].sadd("elsewhere", "m")
    wait_for(lambda: "elsewhere" in request(server, "/metrics").text, "the database that one worker uses")


def test_what_a_killed_worker_had_taken_is_back_at_once_and_it_is_started_again(
    server: Server, everywhere: list[Client]
) -> None:
    everywhere[0].rpush("q", b"x" * (32 << 20), "small")  # more than sockets hold
    with Waiter(server.port) as reader:
        number = reader("CLIENT", "ID") % (WORKERS + 1) - 1
        other = everywhere[1 - number]
        reader.send("SPOP", "q")
        wait_for(lambda: other.scard("q") == 1, "the message to be taken")
        os.kill(pids(server)[number], signal.SIGKILL)
        wait_for(lambda: other.scard("q") == 2, "the message to be back")
    wait_for_starts(server, WORKERS + 1)
    with server.client() as client:  # a client that connects again
        assert len(client.spop("q")) == 32 << 20
        assert client.spop("q") == b"small"
    assert "by SIGKILL: it is started again in 0 seconds" in server.log
    assert "has died: 1 message, not delivered or not acknowledged, went back to 1 queue" in server.log


def test_workers_that_end_together_are_all_started_again(server: Server) -> None:
    for count in range(2, 5):
        for pid in pids(server):
            os.kill(pid, signal.SIGKILL)
        wait_for_starts(server, count * WORKERS)
    with server.client() as client:
        assert client.sadd("q", "m") == 1


def test_what_was_counted_does_not_become_less(server: Server, everywhere: list[Client]) -> None:
    def counted() -> int:
        return int(second.info("commandstats")["cmdstat_sadd"]["calls"])

    first, second = everywhere
    for number in range(10):
        first.sadd("q", number)
    assert counted() == 10
    os.kill(pids(server)[0], signal.SIGKILL)
    wait_for_starts(server, WORKERS + 1)
    assert counted() == 10
    with pytest.raises(redis.ConnectionError):
        first.ping()
    assert len(second.client_list()) == second.info("clients")["connected_clients"]
    second.config_resetstat()
    second.sadd("q", "m")
    assert counted() == 1


def test_a_worker_that_ends_after_a_reset_does_not_bring_back_what_it_had_counted(
    server: Server, everywhere: list[Client]
) -> None:
    first, second = everywhere
    first.sadd("q", "m")
    assert second.info("commandstats")["cmdstat_sadd"]["calls"] == 1
    second.config_resetstat()
    os.kill(pids(server)[0], signal.SIGKILL)
    wait_for_starts(server, WORKERS + 1)
    assert "cmdstat_sadd" not in second.info("commandstats")


def test_signals_reach_a_worker_that_is_starting(server: Server, everywhere: list[Client]) -> None:
    for client in everywhere:
        client.close()
    server.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: server.log.count("drain mode") == 1 + WORKERS, "drain mode")
    killed = pids(server)[0]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: "it is started again" in server.log, "the end")
    assert f"(process {killed}) has ended by SIGKILL" in server.log
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.count("reloaded:") == 1 + WORKERS, "all to reload")
    wait_for(lambda: server.log.count("drain mode") == 2 + WORKERS, "drain mode of the new one")
    assert server.log.count("has ended") == 1


def test_a_worker_answers_alone_while_its_supervisor_does_not(
    server: Server, everywhere: list[Client]
) -> None:
    server.process.send_signal(signal.SIGSTOP)
    try:
        # The fixture may have opened several clients at one worker.
        assert {int(one["id"]) % (WORKERS + 1) for one in everywhere[0].client_list()} == {1}
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert len(everywhere[0].client_list()) >= WORKERS


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(server: Server, everywhere: list[Client]) -> None:
    _, second = everywhere
    hanging = pids(server)[0]
    os.kill(hanging, signal.SIGSTOP)
    wait_for(lambda: "does not answer for 10 seconds: killing it" in server.log, "the worker to be killed")
    # What it would have told is left out meanwhile.
    assert second.client_list()
    wait_for_starts(server, WORKERS + 1)
    assert not Path(f"/proc/{hanging}").exists()


def test_the_server_ends_if_no_worker_can_start(start_server: StartServer, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(users_toml({"default": ("", ["*"], ["put", "get", "read", "administer"])}))
    server = start_server(
        "--data-dir", str(tmp_path / "data"), "--workers", str(WORKERS), "--users", str(users)
    )
    wait_for_starts(server, WORKERS)
    users.unlink()
    for pid in pids(server):
        os.kill(pid, signal.SIGKILL)
    assert server.process.wait(3 * TIMEOUT) == 1  # it tries to start them several times
    assert f"cannot start: {users} cannot be read" in server.log
    assert server.log.strip().splitlines()[-1].endswith("the log has the reasons")


def test_all_drain_when_the_server_stops(server: Server, everywhere: list[Client]) -> None:
    first, _ = everywhere
    first.rpush("q", *range(10))
    with Waiter(server.port) as waiter:
        waiter.send("BLPOP", "empty", 0)
        wait_for(lambda: first.info("clients")["blocked_clients"] == 1, "the client to wait")
        processes = pids(server)
        assert server.stop() == 0
        assert waiter.ends_without_reply()
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    assert server.log.count("stopped") == 1 + WORKERS


def test_workers_end_with_a_supervisor_that_is_killed(
    server: Server, start_server: StartServer, tmp_path: Path
) -> None:
    with server.client() as client:
        client.sadd("q", "m")
    processes = pids(server)
    server.process.kill()
    server.process.wait(TIMEOUT)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "the workers to end")
    again = start_server(
        "--data-dir", str(tmp_path / "data"), "--workers", str(WORKERS),
        "--listen", f"resp://127.0.0.1:{server.port}",
    )  # fmt: skip
    with again.client() as client:
        assert client.spop("q") == b"m"


def test_a_reload_reaches_all_workers(start_server: StartServer, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(users_toml({"default": ("", ["*"], ["put", "get", "read", "administer"])}))
    server = start_server(
        "--data-dir", str(tmp_path / "data"), "--workers", str(WORKERS), "--users", str(users)
    )
    with ExitStack() as opened:
        clients = [opened.enter_context(server.client()) for _ in range(8)]
        assert all(client.ping() for client in clients)
        users.write_text(users_toml({"default": ("", ["*"], ["read"])}))
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.log.count("reloaded:") == 1 + WORKERS, "the reload")
        for client in clients:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.sadd("q", "m")


def test_the_limit_of_clients_holds_for_all_together(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        "--data-dir", str(tmp_path / "data"), "--workers", str(WORKERS), "--max-clients", "4"
    )
    with ExitStack() as opened:

        def is_admitted() -> bool:
            client = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), TIMEOUT))
            with suppress(ConnectionError):
                client.sendall(b"PING\r\n")
                return client.recv(100) == b"+PONG\r\n"
            return False

        for _ in range(4):
            # Whichever worker is quicker accepts the next client, and refuses it if its part is used up.
            wait_for(is_admitted, "a client to be admitted")
        assert not any(is_admitted() for _ in range(20))


def test_a_unix_socket_is_shared_and_removed(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    path = tmp_path / "server.sock"
    server = start_server(
        "--backend", backend.url, "--workers", str(WORKERS), "--listen", f"resp+unix://{path}"
    )
    with redis.Redis(unix_socket_path=str(path)) as client:
        assert client.ping()
    os.kill(pids(server)[0], signal.SIGKILL)
    wait_for_starts(server, WORKERS + 1)
    assert path.exists()
    assert server.stop() == 0
    assert not path.exists()
