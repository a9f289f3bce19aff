"""Workers that watch many tubes: two servers always give the best job of all, whoever has changed what."""

import random
import socket
from functools import partial

import pytest

from tests.support.programs import Server, StartServer, StartValkey, Valkey, wait_for

TUBES = 60
STEPS = 600


class Worker:
    """A beanstalk client that watches all tubes."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port_of("beanstalk")), timeout=10)
        self._replies = self._socket.makefile("rb")
        self._body = b""
        for tube in range(TUBES):
            self("watch t%d", tube)
        self("ignore default")

    def send(self, command: str, *arguments: int) -> None:
        """Send a command."""
        self._socket.sendall((command % arguments).encode() + b"\r\n")

    def reply(self) -> list[str]:
        """Return the words of the next reply."""
        words = self._replies.readline().decode().split()
        if words[0] in ("RESERVED", "OK"):
            self._body = self._replies.read(int(words[-1]) + 2)
        return words

    def __call__(self, command: str, *arguments: int) -> list[str]:
        """Send a command, and return the words of the reply."""
        self.send(command, *arguments)
        return self.reply()

    def sees(self, statistic: bytes) -> bool:
        """Return whether the statistics of the default tube have this line."""
        return self("stats-tube default")[0] == "OK" and statistic in self._body

    def hang_up(self) -> None:
        """Close the connection without a word."""
        self._replies.close()
        self._socket.close()

    def put(self, tube: int, priority: int) -> int:
        """Put a job; return its id."""
        self("use t%d", tube)
        return int(self("put %d 0 100 1\r\nx", priority)[1])

    def reserved(self) -> int | None:
        """Reserve the best job of all tubes, without waiting."""
        words = self("reserve-with-timeout 0")
        return int(words[1]) if words[0] == "RESERVED" else None


@pytest.mark.parametrize("seed", range(3))
def test_the_best_job_of_many_tubes_is_reserved_whichever_server_has_changed_them(
    start_server: StartServer, start_valkey: StartValkey, seed: int
) -> None:
    backend, dice = start_valkey(), random.Random(seed)
    options = ("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")
    workers = [Worker(start_server(*options)) for _ in range(2)]
    ready: dict[int, tuple[int, int, int]] = {}  # by id: the priority, the order of the puts, the tube
    reserved: list[tuple[int, tuple[int, int, int], Worker]] = []
    paused: set[int] = set()
    order = 0
    for _ in range(STEPS):
        worker, tube, priority = dice.choice(workers), dice.randrange(TUBES), dice.randrange(4)
        match dice.choice("pppprrrrrebdu"):
            case "p":
                order += 1
                ready[worker.put(tube, priority)] = (priority, order, tube)
            case "e" if reserved:
                job, _, holder = reserved.pop(dice.randrange(len(reserved)))
                assert holder("delete %d", job) == ["DELETED"]
            case "b" if reserved:
                # A job that is released or kicked keeps its place in the order of the puts.
                job, (_, put_as, its_tube), holder = reserved.pop(dice.randrange(len(reserved)))
                if dice.random() < 0.5:
                    assert holder("release %d %d 0", job, priority) == ["RELEASED"]
                else:
                    assert holder("bury %d %d", job, priority) == ["BURIED"]
                    assert dice.choice(workers)("kick-job %d", job) == ["KICKED"]
                ready[job] = (priority, put_as, its_tube)
            case "d" if ready:
                job = dice.choice(list(ready))
                del ready[job]
                assert worker("delete %d", job) == ["DELETED"]
            case "u":
                if dice.random() < 0.3 and not paused:
                    if worker("pause-tube t%d 100", tube) == ["PAUSED"]:
                        paused.add(tube)
                else:
                    for one in paused:
                        worker("pause-tube t%d 0", one)
                    paused.clear()
            case _:
                found = worker.reserved()
                best = min(
                    ((*place, job) for job, place in ready.items() if place[2] not in paused), default=None
                )
                assert found == (best[3] if best else None)
                if found is not None:
                    reserved.append((found, ready.pop(found), worker))


def test_a_job_of_which_a_worker_is_told_that_hangs_up_comes_to_the_next(
    backend: Valkey, start_server: StartServer
) -> None:
    server = start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")
    for number in range(60):
        first, second, producer = Worker(server), Worker(server), Worker(server)
        first("watch default")
        second("watch default")
        for waiting in (b"1\n", b"2\n"):
            (first if waiting == b"1\n" else second).send("reserve")
            wait_for(partial(producer.sees, b"current-waiting: " + waiting), "the worker to wait")
        producer("use t%d", number % TUBES)
        producer.send("put 1 0 100 1\r\nx")
        if number % 3:
            producer.reply()
        first.hang_up()
        words = second.reply()
        assert words[0] == "RESERVED"
        assert second("delete %d", int(words[1])) == ["DELETED"]
