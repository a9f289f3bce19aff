"""What comes again in a queue with ACK NEXT when a worker ends, with each client library.

The worker pops `a`, works on it, and pops `b`. Then it ends, or its server does.
"""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.module_servers import module_server
from tests.support.paths import ROOT
from tests.support.pop_workers import LIBRARIES, OPEN, POLL, WAIT, WAIT_WITH_COMMAND_TIMEOUT, PopWorker
from tests.support.programs import TIMEOUT, Client, Server, wait_for
from tests.support.stores import BackendStore, EmbeddedStore, Store, StoreType
from tests.support.waiters import about, create

pytestmark = [pytest.mark.clients, pytest.mark.slow]

# What becomes of `b`: it comes again, it is acknowledged, or the client has no such call.
AGAIN, DONE, NONE = "again", "done", "-"
# `a` is acknowledged in each case, and `c`, which nobody has popped, stays.
RESULTS = """
client           | killed | script ends | exception | close | quit  | ack  | server killed | server stopped | backend restarts
phpredis         | again  | again       | again     | again | -     | done | again         | again          | done
Predis           | again  | again       | again     | again | again | done | again         | again          | done
redis-rb         | again  | again       | again     | again | done  | done | again         | again          | done
redis-py         | again  | again       | again     | again | done  | done | again         | again          | done
redis-py asyncio | again  | again       | again     | again | done  | done | again         | again          | done
ioredis          | again  | again       | again     | again | done  | done | again         | again          | done
node-redis       | again  | again       | again     | again | done  | done | again         | again          | done
hotqueue         | again  | again       | again     | -     | -     | -    | again         | again          | done
php-memcached    | again  | done        | done      | -     | done  | -    | again         | again          | done
pymemcache       | again  | again       | again     | again | done  | -    | again         | again          | done
python-memcached | again  | again       | again     | again | -     | -    | again         | again          | done
"""  # noqa: E501 # a table
_HEAD, *_ROWS = ([cell.strip() for cell in line.split("|")] for line in RESULTS.strip().splitlines())
TABLE = {row[0]: dict(zip(_HEAD[1:], row[1:], strict=True)) for row in _ROWS}

# By its name, a way to end a worker that has popped `b`: what the table calls it, and the steps to the end.
ENDS = {
    "killed before the work": ("killed", "kill"),
    "killed during the work": ("killed", "work kill"),
    "killed after the work": ("killed", "work work kill"),
    "script ends": ("script ends", "work end"),
    "exception": ("exception", "work fail end"),
    "close": ("close", "work close kill"),
    "quit": ("quit", "work quit kill"),
    "ack": ("ack", "work ack kill"),
}


shared_server = module_server("--listen", "memcached://127.0.0.1:0")


def left_in(client: Client, queue: str) -> int:
    """Return how many messages are queued or reserved."""
    found = about(client, queue)
    return int(found[b"length"]) + int(found[b"reserved"])


def prepare(client: Client, library: str, number: int, *messages: str) -> str:
    """Create a queue for a worker, and return its name."""
    queue = f"{LIBRARIES[library].prefix}mails-{library.replace(' ', '-')}-{number}"
    create(client, queue, "ACK", "NEXT")
    client.rpush(queue, *messages)
    return queue


def begin(worker: PopWorker) -> None:
    """Let the worker pop `a`, work, and pop `b`."""
    assert [worker.step(step) for step in ("pop", "work", "pop")] == ["got a", "work", "got b"]


def finish(worker: PopWorker, step: str) -> None:
    """Let the worker do one of its last steps."""
    if step == "kill":
        worker.kill()
    elif step == "end":
        worker.end()
    elif step == "fail":
        worker.begin(step)
    else:
        assert worker.step(step) == step


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_worker_ends(library: str, server: Server, client: Client, tmp_path: Path) -> None:
    LIBRARIES[library].need()
    row = TABLE[library]
    cells = [(end, pop) for end, (column, _) in ENDS.items() for pop in (POLL, WAIT) if row[column] != NONE]
    port = server.port_of("memcached" if LIBRARIES[library].is_memcached else "resp")

    def result(number: int) -> str:
        end, pop = cells[number]
        with server.client() as own:
            queue = prepare(own, library, number, "a", "b", "c")
            with PopWorker(library, port, queue, pop, tmp_path / f"{number}.log") as worker:
                begin(worker)
                assert about(own, queue)[b"reserved"] == 1
                for step in ENDS[end][1].split():
                    finish(worker, step)
                wait_for(lambda: about(own, queue)[b"reserved"] == 0, "the reservation to end")
            left = own.lrange(queue, 0, -1)
        return {(b"b", b"c"): AGAIN, (b"c",): DONE}.get(tuple(left), str(left))

    with ThreadPoolExecutor(4) as threads:
        found = dict(zip(cells, threads.map(result, range(len(cells))), strict=True))
    print(f"{library}: {found}")
    assert found == {(end, pop): row[ENDS[end][0]] for end, pop in cells}


def installed() -> list[str]:
    for library in LIBRARIES.values():
        library.need()
    return list(LIBRARIES)


def stop(number: int) -> Callable[[Any], None]:
    def restart(store: EmbeddedStore) -> None:
        store.stop(number)
        store.start()

    return restart


def connected(store: Store) -> Client:
    return redis.Redis(port=store.port, socket_timeout=TIMEOUT)


def restart_backend(store: BackendStore) -> None:
    store.lose_backend()
    store.restore_backend()


@pytest.mark.parametrize(
    ("fault", "make", "restart"),
    [
        ("server killed", EmbeddedStore, stop(signal.SIGKILL)),
        ("server stopped", EmbeddedStore, stop(signal.SIGTERM)),
        ("backend restarts", BackendStore, restart_backend),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_restart(fault: str, make: StoreType, restart: Callable[[Any], None], tmp_path: Path) -> None:
    """All workers are at one server, which restarts while each has `b` in work."""
    cells = [(library, pop) for library in installed() for pop in (POLL, WAIT)]
    store: Any = make(tmp_path, "--proxy-timeout", "1")

    def start(number: int) -> tuple[PopWorker, str]:
        library, pop = cells[number]
        with connected(store) as own:
            queue = prepare(own, library, number, "a", "b", "c")
        port = store.memcached_port if LIBRARIES[library].is_memcached else store.port
        worker = PopWorker(library, port, queue, pop, tmp_path / f"worker-{number}.log")
        begin(worker)
        return worker, queue

    def go_on(number: int, worker: PopWorker, queue: str) -> str:
        """Let the worker pop until its queue is empty. Return what becomes of `b`."""
        with connected(store) as own, worker:
            found: list[str] = []

            def has_finished() -> bool:
                answer = worker.step("pop")
                has_message = answer.startswith("got ")
                if has_message:
                    found.append(answer.removeprefix("got "))
                return bool(found) and left_in(own, queue) == has_message

            wait_for(has_finished, "the worker to go on")
        outcomes = {("b", "c"): AGAIN, ("c",): DONE}
        if fault == "server killed":  # its messages come back within --proxy-timeout
            outcomes["c", "b"] = AGAIN
        return outcomes.get(tuple(found), str(found))

    try:
        with ThreadPoolExecutor(len(cells)) as threads:
            workers = list(threads.map(start, range(len(cells))))
            restart(store)
            found = list(threads.map(go_on, range(len(cells)), *zip(*workers, strict=True)))
    finally:
        store.stop(signal.SIGTERM)
    print(f"{fault}: {dict(zip(cells, found, strict=True))}")
    assert dict(zip(cells, found, strict=True)) == {cell: TABLE[cell[0]][fault] for cell in cells}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_read_timeout(library: str, server: Server, client: Client, tmp_path: Path) -> None:
    """The pop that waits has acknowledged `a`. The next one, on another connection, gets what comes then."""
    LIBRARIES[library].need()
    port = server.port_of("memcached" if LIBRARIES[library].is_memcached else "resp")
    queue = prepare(client, library, 0, "a")
    with PopWorker(library, port, queue, WAIT, tmp_path / "log", timeout=1) as worker:
        assert [worker.step(step) for step in ("pop", "work")] == ["got a", "work"]
        assert worker.step("pop").startswith(("error", "none")), "the worker has waited longer"
        assert left_in(client, queue) == 0
        client.rpush(queue, "b", "c")
        assert worker.step("pop") == "got b"
        worker.kill()
        wait_for(lambda: about(client, queue)[b"reserved"] == 0, "the reservation to end")
    assert client.lrange(queue, 0, -1) == [b"b", b"c"]


@pytest.mark.parametrize(
    "library", ["phpredis", "Predis", "redis-rb", "redis-py", "redis-py asyncio", "pymemcache"]
)
def test_a_worker_that_closes_its_connection_gets_the_message_again(
    library: str, server: Server, client: Client, tmp_path: Path
) -> None:
    LIBRARIES[library].need()
    port = server.port_of("memcached" if LIBRARIES[library].is_memcached else "resp")
    queue = prepare(client, library, 0, "a", "b")
    with PopWorker(library, port, queue, POLL, tmp_path / "log") as worker:
        assert [worker.step(step) for step in ("pop", "close")] == ["got a", "close"]
        # The pop on the next connection may be before the end of the one before.
        wait_for(lambda: worker.step("pop") == "got a", "the message to come again")


def test_an_open_read_of_php_memcached_comes_again_after_an_exception(
    server: Server, client: Client, tmp_path: Path
) -> None:
    library = "php-memcached"
    LIBRARIES[library].need()
    queue = prepare(client, library, 0, "a", "b", "c")
    with PopWorker(library, server.port_of("memcached"), queue, OPEN, tmp_path / "log") as worker:
        begin(worker)
        worker.begin("fail")
        worker.end()
    wait_for(lambda: client.lrange(queue, 0, -1) == [b"b", b"c"], "the message to be back")


def test_a_command_timeout_of_ioredis_loses_a_message(server: Server, client: Client, tmp_path: Path) -> None:
    """The client gives up the reply and keeps the connection, whose next pop acknowledges the message."""
    queue = prepare(client, "ioredis", 0, "a")
    with PopWorker(
        "ioredis", server.port, queue, WAIT_WITH_COMMAND_TIMEOUT, tmp_path / "log", timeout=1
    ) as worker:
        assert worker.step("pop") == "got a"
        assert worker.step("pop").startswith("error")
        client.rpush(queue, "b", "c")
        assert worker.step("pop") == "got c"
    wait_for(lambda: client.lrange(queue, 0, -1) == [b"c"], "the message to be back")


def test_the_guide_has_the_same_table() -> None:
    """Each cell ends with what becomes of the message."""
    page = (ROOT / "docs/guides/workers.md").read_text("utf-8")
    head = "| client | acknowledge explicitly | close | quit | end of the script | uncaught exception |\n"
    assert head in page
    lines = page.partition(head)[2].partition("\n\n")[0].splitlines()[1:]
    rows = [[cell.split()[-1].strip("*") for cell in line.strip("|").split(" |")] for line in lines]
    columns = ("ack", "close", "quit", "script ends", "exception")
    names = [line.split("|")[1].strip() for line in lines]
    found = dict(zip(names, (dict(zip(columns, row[1:], strict=True)) for row in rows), strict=True))
    assert found == {name: {column: row[column] for column in columns} for name, row in TABLE.items()}
