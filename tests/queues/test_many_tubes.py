"""Workers that watch many tubes: two servers always give the best job of all, whoever has changed what."""

import random

import pytest

from tests.support.programs import Server, StartServer, StartValkey, Valkey
from tests.support.protocols import BEANSTALK, Wire
from tests.support.waiters import wait_for_blocked

TUBES = 60
STEPS = 600


class Worker(Wire):
    """A beanstalk client that watches all tubes."""

    def __init__(self, server: Server) -> None:
        super().__init__(BEANSTALK, server)
        self.ask(*(b"watch t%d" % tube for tube in range(TUBES)), b"ignore default")

    def told(self, command: str) -> str:
        """Send a command, and return the reply."""
        return self(command.encode() + b"\r\n").decode()

    def put_job(self, tube: int, priority: int) -> int:
        """Put a job; return its id."""
        self.told(f"use t{tube}")
        assert self.told(f"put {priority} 0 100 1\r\nx") == "INSERTED"
        return int(self.job)

    def reserved(self) -> int | None:
        """Reserve the best job of all tubes, without waiting."""
        return int(self.job) if self.told("reserve-with-timeout 0").startswith("RESERVED") else None


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
                ready[worker.put_job(tube, priority)] = (priority, order, tube)
            case "e" if reserved:
                job, _, holder = reserved.pop(dice.randrange(len(reserved)))
                assert holder.told(f"delete {job}") == "DELETED"
            case "b" if reserved:
                # A job that is released or kicked keeps its place in the order of the puts.
                job, (_, put_as, its_tube), holder = reserved.pop(dice.randrange(len(reserved)))
                if dice.random() < 0.5:
                    assert holder.told(f"release {job} {priority} 0") == "RELEASED"
                else:
                    assert holder.told(f"bury {job} {priority}") == "BURIED"
                    assert dice.choice(workers).told(f"kick-job {job}") == "KICKED"
                ready[job] = (priority, put_as, its_tube)
            case "d" if ready:
                job = dice.choice(list(ready))
                del ready[job]
                assert worker.told(f"delete {job}") == "DELETED"
            case "u":
                if dice.random() < 0.3 and not paused:
                    if worker.told(f"pause-tube t{tube} 100") == "PAUSED":
                        paused.add(tube)
                else:
                    for one in paused:
                        worker.told(f"pause-tube t{one} 0")
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
    client = server.client()
    for number in range(60):
        first, second, producer = Worker(server), Worker(server), Worker(server)
        for count, waiting in enumerate((first, second), 1):
            waiting.told("watch default")
            waiting.send(b"reserve\r\n")
            wait_for_blocked(client, count)
        producer.told(f"use t{number % TUBES}")
        producer.send(b"put 1 0 100 1\r\nx\r\n")
        if number % 3:
            producer.reply()
        first.close()
        assert second.reply().startswith(b"RESERVED ")
        assert second(b"delete %b\r\n" % second.job) == b"DELETED"
