"""What LargeQueue does, on a log: its README's Usage section, its goals, and its wishes.

docs/reference/abilities.md lists its abilities with the tests that show them.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from pressure_server.client import LogQueue
from tests.support.backend_relay import BackendRelay
from tests.support.client_scripts import output_of
from tests.support.large_queue import ASAborted, LargeQueue
from tests.support.programs import TIMEOUT, Server, StartServer, Valkey, wait_for

NAMES = ("test", "test_queue")
MIB = 1 << 20
USAGE = """\
message 100 added at offset {first}
message 101 added at offset {second}
queue status: {{'name': 'shared-msg-bus', 'max-size': 1000, 'namespace': 'test', \
'head-offset': {head}, 'tail-offset': {tail}}}
entry at offset {read}: {entry}
dequeued entry: {{'msg-id': {dequeued}, 'msg-text': '{text}'}}
"""
SCHOOL, SUMMER = "The school is closed for summer.", "Have a nice summer!"


def queue_of(url: str, size: int) -> LargeQueue:
    """Create a queue of this size."""
    queue = LargeQueue()
    queue.create_new_queue(url, *NAMES, size, 3)
    return queue


@pytest.fixture
def queue(server: Server) -> LargeQueue:
    """A queue for ten entries."""
    return queue_of(server.url, 10)


def test_the_usage_section_prints_its_output(server: Server) -> None:
    run = (sys.executable, "-m", "tests.clients.large_queue", server.url)
    summer = {"msg-id": 101, "msg-text": SUMMER}
    assert output_of(*run) == USAGE.format(
        first=0, second=1, head=0, tail=2, read=1,
        entry={"offset": 1, "entry": summer}, dequeued=100, text=SCHOOL,
    )  # fmt: skip
    # Again, with the queue that exists now.
    assert output_of(*run) == USAGE.format(
        first=2, second=3, head=1, tail=4, read=2,
        entry={"offset": 2, "entry": {"msg-id": 100, "msg-text": SCHOOL}}, dequeued=101, text=SUMMER,
    )  # fmt: skip


def test_a_queue_is_created_once_and_then_initialized(server: Server) -> None:
    queue = LargeQueue()
    with pytest.raises(ASAborted) as aborted:
        queue.initialize_existing_queue(server.url, *NAMES)
    assert aborted.value.reason == "Queue does not exist"
    queue_of(server.url, 10)
    with pytest.raises(ASAborted) as aborted:
        queue_of(server.url, 5)
    assert aborted.value.reason == "Queue already exists"
    queue.initialize_existing_queue(server.url, *NAMES)
    assert queue.get_queue_info()["max-size"] == 10


def test_a_full_queue_aborts_an_enqueue(queue: LargeQueue) -> None:
    assert queue.dequeue(1) is None
    assert [queue.enqueue(entry, 1) for entry in range(10)] == [*range(10)]
    with pytest.raises(ASAborted) as aborted:
        queue.enqueue("more", 1)
    assert aborted.value.reason == "Queue is full"
    assert queue.dequeue(1) == 0
    assert queue.enqueue("more", 1) == 10


def test_overwrite_if_full_drops_the_head(queue: LargeQueue) -> None:
    assert [queue.enqueue(entry, 1, True) for entry in range(20)] == [*range(20)]
    info = queue.get_queue_info()
    assert (info["head-offset"], info["tail-offset"]) == (10, 20)
    for offset in range(10, 20):
        assert queue.get_entry_at_offset(offset) == {"offset": offset, "entry": offset}
    assert queue.get_entry_at_offset(9) is None
    assert queue.get_entry_at_offset(20) is None
    assert [queue.dequeue(1) for _ in range(11)] == [*range(10, 20), None]


def test_one_txn_id_serves_many_operations(queue: LargeQueue) -> None:
    """LargeQueue's ids may be used again; each enqueue is done."""
    assert [queue.enqueue("same", txn_id=1) for _ in range(3)] == [0, 1, 2]
    assert [queue.dequeue(1) for _ in range(4)] == ["same", "same", "same", None]


def test_a_queue_is_larger_than_an_aerospike_record(server: Server) -> None:
    queue = queue_of(server.url, 100)
    assert [queue.enqueue("x" * MIB, 1) for _ in range(12)] == [*range(12)]
    assert [len(queue.dequeue(1)) for _ in range(12)] == [MIB] * 12


def test_concurrent_clients_get_offsets_without_gaps(server: Server) -> None:
    queue = queue_of(server.url, 1000)

    def enqueue(client: int) -> list[int]:
        return [queue.enqueue([client, number], client) for number in range(50)]

    with ThreadPoolExecutor(8) as threads:
        offsets = list(threads.map(enqueue, range(8)))
    assert sorted(offset for mine in offsets for offset in mine) == [*range(400)]
    for client, mine in enumerate(offsets):
        assert mine == sorted(mine)
        for number, offset in enumerate(mine):
            assert queue.get_entry_at_offset(offset) == {"offset": offset, "entry": [client, number]}

    def dequeue(_client: int) -> list[Any]:
        return list(iter(lambda: queue.dequeue(1), None))

    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(dequeue, range(8)))
    assert sorted(entry for mine in taken for entry in mine) == [[a, b] for a in range(8) for b in range(50)]


def test_a_slow_client_does_not_keep_others_waiting(
    queue: LargeQueue, backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    """In LargeQueue, a client that is slow keeps the lock until it times out."""
    path = tmp_path / "pressure.sock"
    start_server("--backend", backend.url, "--listen", f"resp+unix://{path}")
    with BackendRelay(path) as relay, ThreadPoolExecutor() as threads:
        slow = LargeQueue()
        slow.initialize_existing_queue(relay.url, *NAMES)
        relay.stall()
        late = threads.submit(slow.enqueue, "late", 1)
        wait_for(lambda: relay.held, "the request to be held")
        assert [queue.enqueue(entry, 2) for entry in ("a", "b")] == [0, 1]
        assert queue.dequeue(2) == "a"
        relay.release()
        assert late.result(TIMEOUT) == 2
    # The late write has overwritten nothing.
    assert [queue.dequeue(2) for _ in range(3)] == ["b", "late", None]


def test_a_failed_client_leaves_no_half_an_enqueue(
    queue: LargeQueue, backend: Valkey, start_server: StartServer, tmp_path: Path
) -> None:
    path = tmp_path / "pressure.sock"
    start_server("--backend", backend.url, "--listen", f"resp+unix://{path}")
    with BackendRelay(path) as relay:
        failing = LogQueue("test.test_queue", relay.url, resume_for=0)
        failing.length()
        relay.drops = lambda data: b"PRESSURE.PUT" in data
        with pytest.raises(redis.ConnectionError):
            failing.put('"lost"')
    info = queue.get_queue_info()
    assert (info["head-offset"], info["tail-offset"]) == (0, 0)
    assert queue.enqueue("a", 1) == 0


def test_many_groups_read_with_an_offset_of_their_own(server: Server) -> None:
    """The first of LargeQueue's potential future enhancements."""
    queue = queue_of(server.url, 100)
    for entry in range(5):
        queue.enqueue(entry, 1)
    with LogQueue("test.test_queue", server.url) as log:
        for number in range(20):
            log.create_group(f"g{number}")
        for number in range(20):
            group = log.group(f"g{number}", "consumer")
            found = group.read(1 + number % 5)
            assert [read.offset for read in found] == [*range(1 + number % 5)]
            group.ack(*found)
        lags = {about.name: about.lag for about in log.groups()}
        assert lags == {f"g{number}": 4 - number % 5 for number in range(20)}


def test_the_outcome_of_an_enqueue_can_be_asked_for(server: Server) -> None:
    """The third of LargeQueue's potential future enhancements."""
    queue_of(server.url, 10)
    with LogQueue("test.test_queue", server.url) as log:
        assert log.outcome("order-17").state == "unknown"
        assert log.put('"3 apples"', transaction="order-17") == 0
        assert log.outcome("order-17")[:2] == ("done", 0)
        assert log.put('"3 apples"', transaction="order-17") == 0
        assert log.length() == 1
