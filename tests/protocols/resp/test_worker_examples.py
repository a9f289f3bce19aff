"""The workers in README.md and docs/guides/workers.md, as written: they lose nothing, and survive restarts.

A message that does not fit into the worker's output, a pipe, holds the worker in the middle of its job for
as long as the test does not read.
"""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import pytest

from tests.protocols.resp.test_examples import begin, block, need_library, waiting_clients
from tests.support.client_scripts import need_library as need_script_library
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, wait_for

pytestmark = [pytest.mark.clients, pytest.mark.slow]

_PAGE = "docs/guides/workers.md"
# By name: the language, the mark of its block of code, and the page.
WORKERS = {
    "README": ("python", "python worker", "README.md"),
    "moves": ("python", "python moving worker", _PAGE),
    "Python": ("python", "python worker", _PAGE),
    "PHP": ("php", "php worker", _PAGE),
    "Ruby": ("ruby", "ruby worker", _PAGE),
}
# These pop, and lose nothing if the queue has ACK NEXT.
POPS = {"PHP": ("php", "php pop worker", _PAGE), "Ruby": ("ruby", "ruby pop worker", _PAGE)}
# These also end at SIGTERM, and try failed work again later. Their messages are JSON.
WHOLE = ("Python", "PHP", "Ruby")
# By library: the language, a program that reserves where there is no job, and what it prints.
_RESERVE = "('PRESSURE.RESERVE', 'mails', 'TIMEOUT', 0.01)"
_PREDIS = "require '/usr/share/php/Predis/Autoloader.php'; Predis\\Autoloader::register();"
EMPTY = {
    "redis-py": (
        "python",
        f"import redis; print(redis.Redis(port=4000).execute_command{_RESERVE})",
        "None\n",
    ),
    "redis-rb": ("ruby", f"require 'redis'; p Redis.new(port: 4000).call{_RESERVE}", "nil\n"),
    "phpredis": (
        "php",
        f"<?php $q = new Redis(); $q->connect('localhost', 4000); var_dump($q->rawCommand{_RESERVE});",
        "array(0) {\n}\n",
    ),
    "Predis": (
        "php",
        f"<?php {_PREDIS} var_dump((new Predis\\Client(['port' => 4000]))->executeRaw([{_RESERVE[1:-1]}]));",
        "NULL\n",
    ),
}
# More than the pipe of the output takes.
LARGE = "x" * 300_000


def message(name: str, text: str) -> str:
    """Return a message for the worker, of which it prints the text."""
    return json.dumps({"to": text}) if name in WHOLE else text


class Worker:
    """A running worker and its output."""

    def __init__(self, language: str, mark: str, page: str, server: Server) -> None:
        need_library(language)
        self.process = begin(language, block(mark, page), server)
        assert self.process.stdout is not None
        self._output: IO[str] = self.process.stdout

    def wait_until_in_job(self) -> None:
        """Return when the worker is in the middle of a job with a large message."""
        assert self._output.read(len("sending")) == "sending"

    def read_until(self, text: str) -> None:
        """Read lines of the output until one has the text."""
        while text not in (line := self._output.readline()):
            assert line, f"the worker has ended with status {self.process.wait(TIMEOUT)}"

    def read_on(self) -> None:
        """Read all further output, so that it holds the worker no longer."""
        threading.Thread(target=self._output.read, daemon=True).start()

    def end(self) -> str:
        """Wait until the worker ends by itself, with status 0. Return the rest of its output."""
        output = self.process.communicate(timeout=TIMEOUT)[0]
        assert self.process.returncode == 0, output
        return output

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)


StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker() -> Iterator[StartWorker]:
    started: list[Worker] = []

    def start(name: str, server: Server, workers: Mapping[str, tuple[str, str, str]] = WORKERS) -> Worker:
        started.append(Worker(*workers[name], server))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def wait_until_done(client: Client) -> None:
    """Return when no message is left: queued, reserved, delayed or moved."""
    wait_for(lambda: not left(client), "all messages to be done")


def left(client: Client) -> int:
    """Return the number of messages that are queued, delayed, reserved, buried or moved."""
    queues = [client.execute_command("PRESSURE.INFO", queue) for queue in client.keys("mails*")]
    fields = (b"length", b"reserved", b"buried")
    return sum(int(queue.get(field, 0)) for queue in queues for field in fields)


def delayed_job(client: Client) -> dict[bytes, Any] | None:
    """Return the description of the job with the number 1, if it is delayed."""
    job: dict[bytes, Any] | None = client.execute_command("PRESSURE.JOB", "mails", 1)
    return job if job is not None and job[b"state"] == b"delayed" else None


@pytest.mark.parametrize("name", WORKERS)
def test_a_job_comes_again_if_its_worker_is_killed(
    name: str, server: Server, client: Client, start_worker: StartWorker
) -> None:
    client.rpush("mails", message(name, LARGE), message(name, "second"))
    first = start_worker(name, server)
    first.wait_until_in_job()
    first.process.kill()
    assert left(client) == 2
    second = start_worker(name, server)
    second.read_until(LARGE)
    second.read_until("second")
    wait_until_done(client)


@pytest.mark.parametrize("name", POPS)
def test_a_worker_that_pops_loses_nothing_with_ack_next(
    name: str, server: Server, client: Client, start_worker: StartWorker
) -> None:
    page = (ROOT / _PAGE).read_text("utf-8")
    found = re.search(r"redis-cli -p 4000 (PRESSURE\.CREATE mails ACK NEXT)$", page, re.MULTILINE)
    assert found
    client.execute_command(*found[1].split())
    client.rpush("mails", LARGE, "second", LARGE, "fourth")
    first = start_worker(name, server, POPS)
    first.wait_until_in_job()
    first.process.kill()
    wait_for(lambda: client.llen("mails") == 4, "the message to be back")
    second = start_worker(name, server, POPS)
    second.read_until(LARGE)
    second.read_until("second")
    second.wait_until_in_job()
    second.process.send_signal(signal.SIGTERM)
    assert "fourth" not in second.end()
    assert client.lrange("mails", 0, -1) == [b"fourth"]
    assert left(client) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_survives_restarts_of_the_server(
    name: str, number: signal.Signals, backend: Valkey, start_server: StartServer, start_worker: StartWorker
) -> None:
    def start() -> Server:
        # The first listener is that of the fixtures. The worker uses the second one.
        listener = f"resp://127.0.0.1:{port}"
        return start_server("--backend", backend.url, "--listen", listener, "--proxy-timeout", "1")

    port = free_ports(1)[0]
    server = start()
    server.port = port
    worker = start_worker(name, server)
    with server.client() as client:
        wait_for(lambda: waiting_clients(client), "the worker to wait")
    server.stop(number)  # while the worker waits
    if name in WHOLE:  # in the others, redis-py connects again by itself
        worker.read_until("connecting again")
    server = start()
    with server.client() as client:
        client.rpush("mails", message(name, "first"), message(name, LARGE), message(name, "third"))
    worker.read_until("first")
    worker.wait_until_in_job()
    server.stop(number)  # while the worker works
    server = start()
    worker.read_on()  # the large message may come again, before the third one or after it
    with server.client() as client:
        wait_until_done(client)


@pytest.mark.parametrize("name", WHOLE)
def test_a_worker_ends_after_its_job_at_sigterm(
    name: str, server: Server, client: Client, start_worker: StartWorker
) -> None:
    client.rpush("mails", message(name, LARGE), message(name, "second"))
    worker = start_worker(name, server)
    worker.wait_until_in_job()
    worker.process.send_signal(signal.SIGTERM)
    assert "second" not in worker.end()
    assert left(client) == 1  # the first one is acknowledged, and the second one was not taken
    assert client.lpop("mails").decode() == message(name, "second")


@pytest.mark.parametrize("name", WHOLE)
def test_a_worker_without_a_job_ends_at_sigterm(
    name: str, server: Server, client: Client, start_worker: StartWorker
) -> None:
    worker = start_worker(name, server)
    wait_for(lambda: waiting_clients(client), "the worker to wait")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end() == ""


@pytest.mark.parametrize("name", WHOLE)
def test_failed_work_is_tried_again_after_growing_delays(
    name: str, server: Server, client: Client, start_worker: StartWorker
) -> None:
    client.rpush("mails", "no JSON", message(name, "second"))
    worker = start_worker(name, server)
    for delay in (20, 40, 80):
        worker.read_until("failed")
        if delay == 20:
            worker.read_until("second")  # it does not wait for the first one
        job = wait_for(lambda: delayed_job(client), "the failed job to be delayed")
        assert int(job[b"delay_ms"]) == delay * 1000
        assert client.execute_command("PRESSURE.KICK", "mails") == 1  # the time is over


@pytest.mark.parametrize("name", WHOLE)
def test_work_that_fails_five_times_is_set_aside_as_the_page_says(
    name: str, server: Server, client: Client, start_worker: StartWorker
) -> None:
    page = " ".join((ROOT / _PAGE).read_text("utf-8").split())
    found = re.search(r"`(PRESSURE\.CREATE mails IF NOT EXISTS MAX-DELIVERIES 5 [^`]*)`", page)
    assert found
    client.execute_command(*found[1].split())
    client.rpush("mails", "no JSON")
    start_worker(name, server)
    for _ in range(4):
        wait_for(lambda: delayed_job(client), "the failed job to be delayed")
        assert client.execute_command("PRESSURE.KICK", "mails") == 1
    wait_for(lambda: client.lrange("mails:failed", 0, -1) == [b"no JSON"], "the job to be set aside")
    assert client.llen("mails") == 0


@pytest.mark.parametrize("library", EMPTY)
def test_the_reply_when_the_time_is_over_is_what_the_pages_say(library: str, server: Server) -> None:
    language, program, printed = EMPTY[library]
    if library == "Predis":
        need_script_library("_predis.php")
    else:
        need_library(language)
    assert begin(language, program, server).communicate(timeout=TIMEOUT)[0] == printed
