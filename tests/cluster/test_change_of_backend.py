"""An application moves to another backend, and a Redis gets Sentinels, as the guide says."""

import asyncio
import json
import subprocess
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.client_scripts import CLIENTS, need_library
from tests.support.cluster import Cluster
from tests.support.programs import TIMEOUT, Server, StartServer, run_command, wait_for
from tests.support.sentinel import NAME, SentinelSet
from tests.support.sharded import url_of

pytestmark = pytest.mark.clients
# Messages that are put on each backend, at least.
MESSAGES = 300


class Program:
    """A producer or a worker, which reads the address of its server in a file."""

    def __init__(self, folder: Path, runner: str, script: str, server: Server) -> None:
        need_library(script)
        folder.mkdir()
        self._address = folder / "address"
        self.use(server)
        self.output, self.errors = folder / "output", folder / "errors"
        self.process = subprocess.Popen(
            [runner, str(CLIENTS / script), str(self._address)],
            stdout=self.output.open("w"),
            stderr=self.errors.open("w"),
        )

    def use(self, server: Server) -> None:
        """Let the program use another server: its operator changes a setting."""
        self._write(f"127.0.0.1:{server.port}")

    def stop(self) -> list[str]:
        """Let the program end. Return what it has printed."""
        self._write("stop")
        assert self.process.wait(TIMEOUT) == 0, self.errors.read_text()
        return self.output.read_text().splitlines()

    def _write(self, text: str) -> None:
        written = self._address.with_suffix(".new")
        written.write_text(text)
        written.rename(self._address)


def is_empty(store: tuple[str, str]) -> bool:
    """Return whether `pressure-server queues` shows no message."""
    listed = run_command("queues", "--json", *store)
    assert listed.returncode == 0, listed.stderr
    return not any(json.loads(line)["messages"] for line in listed.stdout.splitlines())


def has_messages(server: Server, count: int) -> bool:
    """Return whether the queue has more than `count` messages."""
    with server.client() as client:
        return int(client.scard("work")) > count


@pytest.mark.slow
def test_an_application_moves_from_the_embedded_backend_to_sentinel_and_to_a_cluster(
    start_server: StartServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        sentinels = stack.enter_context(SentinelSet(tmp_path / "sentinels").started())
        cluster = stack.enter_context(Cluster(tmp_path / "cluster").started())
        stores = [
            ("--data-dir", str(tmp_path / "data")),
            ("--backend", f"redis+sentinel://{sentinels.addresses}/{NAME}/0"),
            ("--backend", url_of(cluster)),
        ]
        server = start_server(*stores[0])
        producer = Program(tmp_path / "producer", "php", "producer.php", server)
        stack.callback(producer.process.kill)
        workers: list[Program] = []
        wait_for(partial(has_messages, server, MESSAGES), "messages on the first backend")
        for number, (before, after) in enumerate(pairwise(stores)):
            newer = start_server(*after)
            producer.use(newer)
            workers.append(Program(tmp_path / f"worker-{number}", "ruby", "worker.rb", server))
            stack.callback(workers[-1].process.kill)
            wait_for(partial(has_messages, newer, MESSAGES), "messages on the new backend")
            wait_for(partial(is_empty, before), "the old backend to be empty")
            for worker in workers:
                worker.use(newer)
            assert server.stop() == 0
            server = newer
        (put,) = producer.stop()
        wait_for(lambda: not has_messages(server, 0), "the workers to have taken all")
        taken = [message for worker in workers for message in worker.stop()]
        assert sorted(taken) == sorted(f"message {number}" for number in range(int(put)))
        assert producer.errors.read_text() == ""
        # Waiting workers notice the end of their connection.
        assert any(worker.errors.read_text() for worker in workers)
        assert not any("STOPPING" in worker.errors.read_text() for worker in workers)


@pytest.mark.slow
def test_a_redis_becomes_the_master_of_sentinels_and_is_switched_over_without_a_loss(
    start_server: StartServer, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        sentinels = stack.enter_context(SentinelSet(tmp_path / "sentinels").started())
        master = sentinels.nodes[0]
        server = start_server("--backend", f"redis://127.0.0.1:{master.port}/0")
        producer = Program(tmp_path / "producer", "php", "producer.php", server)
        stack.callback(producer.process.kill)
        wait_for(partial(has_messages, server, MESSAGES), "messages")
        worker = Program(tmp_path / "worker", "ruby", "worker.rb", server)
        stack.callback(worker.process.kill)
        newer = start_server("--backend", f"redis+sentinel://{sentinels.addresses}/{NAME}/0")
        producer.use(newer)
        worker.use(newer)
        assert server.stop() == 0
        # As the guide says: without the pause, the old master answers until Sentinel demotes it.
        asyncio.run(master.command("CLIENT", "PAUSE", 20_000, "WRITE"))
        assert asyncio.run(sentinels.fail_over()) is not master
        (put,) = producer.stop()
        wait_for(lambda: not has_messages(newer, 0), "the worker to have taken all")
        assert sorted(worker.stop()) == sorted(f"message {number}" for number in range(int(put)))
        assert "lacks the last" not in newer.log
