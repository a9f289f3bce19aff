"""rsyslog and syslog-ng ship lines into a queue, configured as docs/guides/log-shippers.md says."""

import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.log_shippers import (
    OPERATOR,
    PASSWORD,
    StartShipper,
    access,
    start_rsyslog,
    start_syslog_ng,
)
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, Client, StartServer, StartValkey, Valkey, wait_for
from tests.support.stores import serves
from tests.support.waiters import wait_for_waiting

pytestmark = pytest.mark.clients

SHIPPERS = pytest.mark.parametrize("start_shipper", [start_rsyslog, start_syslog_ng])


class Stand:
    """A server on a port that it has again after a restart."""

    def __init__(self, start_server: StartServer, backend: Valkey, *access: str, **login: str) -> None:
        self.port = free_ports(1)[0]
        self._start_server = start_server
        self._arguments = ("--backend", backend.url, "--listen", f"resp://127.0.0.1:{self.port}", *access)
        self._login = login
        self.start()

    def start(self) -> None:
        self.server = self._start_server(*self._arguments)
        self.client: Client = self.server.client(**self._login)

    def restart(self, number: int = signal.SIGTERM) -> None:
        self.server.stop(number)
        self.start()

    def create(self, *settings: Any) -> None:
        self.client.execute_command("PRESSURE.CREATE", "logs", *settings)

    def info(self, field: str) -> Any:
        answer = self.client.execute_command("PRESSURE.INFO", "logs")
        fields = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
        return fields[field.encode()]

    def log_in(self, **login: str) -> None:
        """Connect the test's client again, as soon as the server accepts this login."""
        self._login = login
        self.client = self.server.client(**login)

        def accepted() -> bool:
            try:
                return bool(self.client.ping())
            except redis.AuthenticationError:
                return False

        wait_for(accepted, "the server to accept the login")

    def refusals(self, error: str) -> int:
        """Return how often the server has answered with this error."""
        counts = self.client.info("errorstats")
        return int(counts.get(f"errorstat_{error}", {"count": 0})["count"])

    def wait_until_full(self) -> None:
        """Wait until the queue is full and the shipper waits for room."""
        wait_for_waiting(self.client, "logs", producers=1)

    def take_until(self, last: int) -> list[int]:
        """Take lines until this one has come. Return their numbers."""
        numbers: list[int] = []
        while last not in numbers:
            taken = self.client.blpop("logs", TIMEOUT)
            assert taken, f"line {last} has not come, {len(numbers)} others have"
            numbers.append(int(taken[1].rpartition(b" ")[2]))
        return numbers

    def take(self, last: int) -> list[int]:
        """Take lines until all up to the last have come. Return their numbers."""
        numbers: list[int] = []
        missing = set(range(last + 1))
        while missing:
            numbers += self.take_until(min(missing))
            missing -= set(numbers)
        return numbers


@pytest.fixture
def stand(start_server: StartServer, backend: Valkey, tmp_path: Path) -> Stand:
    return Stand(start_server, backend, *access(tmp_path), **OPERATOR)


def lines(first: int, count: int) -> list[str]:
    return [f"order {number}" for number in range(first, first + count)]


def has_stored(folder: Path, pattern: str, line: str) -> bool:
    """Return whether a shipper has this line in one of those files."""
    return any(line.encode() in file.read_bytes() for file in folder.glob(pattern))


@SHIPPERS
def test_lines_are_shipped_in_order_and_complete(
    start_shipper: StartShipper, stand: Stand, tmp_path: Path
) -> None:
    stand.create("BOUND", 100000)
    with start_shipper(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 2000))
        wait_for(lambda: stand.client.llen("logs") == 2000, "the lines")
    line = stand.client.lindex("logs", 0).decode()
    assert line.endswith(" shop: order 0")
    assert line.startswith("20")
    assert stand.take(1999) == list(range(2000))


@SHIPPERS
def test_a_ring_keeps_the_newest_lines(start_shipper: StartShipper, stand: Stand, tmp_path: Path) -> None:
    stand.create("BOUND", 100, "OVERFLOW", "overwrite")
    with start_shipper(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 1000))
        wait_for(lambda: stand.info("produced_messages") == 1000, "the lines")
    assert stand.info("dropped_messages") == 900
    assert [int(line.rpartition(b" ")[2]) for line in stand.client.lrange("logs", 0, -1)] == list(
        range(900, 1000)
    )


@SHIPPERS
def test_a_full_queue_holds_the_shipper_back_and_gets_every_line(
    start_shipper: StartShipper, stand: Stand, tmp_path: Path
) -> None:
    stand.create("BOUND", 100)
    with start_shipper(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 1500))
        stand.wait_until_full()
        assert stand.client.llen("logs") == 100
        assert stand.take(1499) == list(range(1500))


@SHIPPERS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_the_server_loses_no_line(
    start_shipper: StartShipper, number: int, stand: Stand, tmp_path: Path
) -> None:
    stand.create("BOUND", 100000)
    with start_shipper(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 1000))
        wait_for(lambda: stand.client.llen("logs") >= 100, "some lines")
        stand.server.stop(number)
        shipper.send(lines(1000, 1500))
        stand.start()
        numbers = stand.take(2499)
    if start_shipper is start_syslog_ng:
        # rsyslog sends a whole batch again, and its lines get out of order.
        assert list(dict.fromkeys(numbers)) == list(range(2500))
        assert number == signal.SIGKILL or len(numbers) == 2500


def test_syslog_ng_keeps_lines_while_the_server_is_away_and_it_restarts(stand: Stand, tmp_path: Path) -> None:
    folder = tmp_path / "shipper"
    stand.create("BOUND", 100000)
    stand.server.stop()
    with start_syslog_ng(folder, stand.port) as shipper:
        shipper.send(lines(0, 1000))
        wait_for(lambda: has_stored(folder, "*.rqf", "order 999"), "the lines on the disk")
        assert shipper.stop() == 0
    with start_syslog_ng(folder, stand.port):
        stand.start()
        assert stand.take(999) == list(range(1000))


def test_rsyslog_loses_at_most_a_batch_if_it_restarts_while_the_server_is_away(
    stand: Stand, tmp_path: Path
) -> None:
    folder = tmp_path / "shipper"
    stand.create("BOUND", 100000)
    stand.server.stop()
    with start_rsyslog(folder, stand.port) as shipper:
        shipper.send(lines(0, 1500))
        # It writes to the disk in blocks, so the last lines stay in its memory until it stops.
        wait_for(lambda: has_stored(folder, "to-queue.0*", "order 1300"), "the lines on the disk")
        assert shipper.stop() == 0
    with start_rsyslog(folder, stand.port):
        stand.start()
        missing = set(range(1300)) - set(stand.take_until(1300))
    assert len(missing) <= 128
    assert missing == set(range(len(missing)))


def test_syslog_ng_loses_no_line_if_a_full_queue_s_server_stops(stand: Stand, tmp_path: Path) -> None:
    stand.create("BOUND", 100)
    with start_syslog_ng(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 300))
        stand.wait_until_full()
        stand.restart()
        assert stand.take(299) == list(range(300))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_rsyslog_loses_no_line_if_a_full_queue_s_server_ends(
    stand: Stand, tmp_path: Path, number: signal.Signals
) -> None:
    stand.create("BOUND", 100)
    with start_rsyslog(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 300))
        stand.wait_until_full()
        stand.restart(number)
        stand.take(299)


def test_rsyslog_loses_lines_if_the_server_answers_that_its_backend_is_away(
    start_server: StartServer, start_valkey: StartValkey, tmp_path: Path
) -> None:
    backend = start_valkey("--appendonly", "yes")
    stand = Stand(start_server, backend, "--backend-grace", "0")
    with start_rsyslog(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 10))
        stand.take(9)
        backend.kill()
        shipper.send(lines(10, 10))
        wait_for(lambda: stand.refusals("BACKEND") == 10, "the lines to be refused")
        backend.start()
        wait_for(lambda: serves(stand.client), "the server to serve again")
        shipper.send(lines(20, 1))
        assert stand.take_until(20) == [20]
        assert "BACKEND" not in shipper.output


def test_syslog_ng_holds_back_if_a_full_queue_refuses(stand: Stand, tmp_path: Path) -> None:
    stand.create("BOUND", 100, "OVERFLOW", "error")
    with start_syslog_ng(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 150))
        shipper.wait_for("error='FULL queue ", 5)  # more often than it tries without retries()
        assert stand.take(149) == list(range(150))


def test_rsyslog_loses_lines_that_a_full_queue_refuses(stand: Stand, tmp_path: Path) -> None:
    stand.create("BOUND", 100, "OVERFLOW", "error")
    with start_rsyslog(tmp_path / "shipper", stand.port) as shipper:
        shipper.send(lines(0, 150))
        wait_for(lambda: stand.refusals("FULL") == 50, "refused lines")
        stand.client.execute_command("PRESSURE.PURGE", "logs")
        shipper.send(lines(150, 1))
        assert stand.take_until(150) == [150]
        assert "FULL" not in shipper.output


def test_syslog_ng_logs_in_and_keeps_lines_while_its_password_is_wrong(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("another")
    stand = Stand(start_server, backend, "--password-file", str(file), password="another")
    with start_syslog_ng(tmp_path / "shipper", stand.port, login=f'auth("{PASSWORD}")') as shipper:
        shipper.send(lines(0, 10))
        shipper.wait_for("REDIS: failed to authenticate")
        file.write_text(PASSWORD)
        stand.server.process.send_signal(signal.SIGHUP)
        stand.log_in(password=PASSWORD)
        assert stand.take(9) == list(range(10))


def test_rsyslog_logs_in(start_server: StartServer, backend: Valkey, tmp_path: Path) -> None:
    stand = Stand(start_server, backend, "--password", PASSWORD, password=PASSWORD)
    with start_rsyslog(tmp_path / "shipper", stand.port, login=f'serverpassword="{PASSWORD}"') as shipper:
        shipper.send(lines(0, 10))
        assert stand.take(9) == list(range(10))


def test_rsyslog_loses_lines_if_its_password_is_wrong_which_only_the_server_tells(
    start_server: StartServer, backend: Valkey, tmp_path: Path
) -> None:
    stand = Stand(start_server, backend, "--password", "another", password="another")
    with start_rsyslog(tmp_path / "shipper", stand.port, login=f'serverpassword="{PASSWORD}"') as shipper:
        shipper.send(lines(0, 10))
        wait_for(lambda: stand.refusals("NOAUTH") == 10, "the lines to be refused")
        assert shipper.stop() == 0
    assert shipper.output == ""
    assert "WARNING failed login as 'default' from " in stand.server.log
    assert stand.client.llen("logs") == 0
